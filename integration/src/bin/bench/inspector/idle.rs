// SPDX-License-Identifier: Apache-2.0

//! What sandboxes cost in which nothing goes on.

use std::{fs, thread, time::Duration};

use anyhow::{Context, Result, ensure};
use crab_integration::{RunOptions, Testbed, poll, processes, proof::Life};

use super::{Measured, Plan};

const WATCHED: Duration = Duration::from_secs(60);
/// Until what their start left to be done is done.
const SETTLED: Duration = Duration::from_secs(10);

pub(super) fn measure(testbed: &Testbed, plan: &Plan, measured: &mut Measured) -> Result<()> {
    let lives = (0..plan.sandboxes).map(|_| Life::begin(testbed.ctr(), RunOptions::new()));
    let lives: Vec<Life> = lives.collect::<Result<_>>()?;
    thread::sleep(SETTLED);
    let crabd = poll("crabd is there", Duration::from_secs(20), || {
        Ok(processes::crabd())
    })?;
    let shims = processes::named(processes::SHIM);
    ensure!(shims.len() >= lives.len(), "{} shims run", shims.len());
    let of_shims = || -> Result<f64> { shims.iter().copied().map(ran).sum() };
    let before = (ran(crabd)?, of_shims()?);
    thread::sleep(WATCHED);
    let daemon = ran(crabd)? - before.0;
    let shims = of_shims()? - before.1;
    let percent = |seconds: f64| 100.0 * seconds / WATCHED.as_secs_f64();
    measured.enter("idle_cpu_pct", percent(daemon + shims));
    measured.detail("idle: crabd, % of a processor", percent(daemon));
    measured.detail("idle: all shims, % of a processor", percent(shims));
    measured.detail("idle: sandboxes", lives.len() as f64);
    Ok(())
}

/// For how many seconds the threads of a process have been on a processor.
fn ran(pid: u32) -> Result<f64> {
    let dir = format!("/proc/{pid}/task");
    let mut nanoseconds = 0.0;
    for thread in fs::read_dir(&dir).with_context(|| format!("read {dir}"))? {
        // One may end meanwhile.
        let Ok(text) = fs::read_to_string(thread?.path().join("schedstat")) else {
            continue;
        };
        let first = text.split(' ').next().context("no run time")?;
        nanoseconds += first.parse::<f64>()?;
    }
    Ok(nanoseconds / 1e9)
}
