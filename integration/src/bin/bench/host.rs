// SPDX-License-Identifier: Apache-2.0

//! Hosts on which Crab is configured for a measurement, or is not at work.

use std::{fs, path::Path, thread, time::Duration};

use anyhow::{Result, ensure};
use crab_integration::{Swapped, poll, processes};
use rustix::process::Signal;

const CONFIG: &str = "/etc/crab/config.toml";
/// Where the programs of crabd are pinned.
pub(crate) const PINS: &str = "/sys/fs/bpf/crab";
const LIMIT: Duration = Duration::from_secs(30);

/// A host on which Crab is as it comes, but for what is said: the other benchmarks and the tests
/// have each exec be a turn, and captures waited for as long as it takes.
pub(crate) struct Host(#[expect(dead_code, reason = "held")] Swapped);

impl Host {
    /// With this configuration, from the next crabd and the next shim on.
    pub(crate) fn with(text: &str) -> Result<Self> {
        // The next one reads it.
        without_crab()?;
        Swapped::with(CONFIG, text).map(Self)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Err(error) = without_crab() {
            eprintln!("crabd goes on as configured for a benchmark: {error:#}");
        }
    }
}

/// Until crabd looks for the last time whether what its predecessor watched is still there; before,
/// its programs stay in the kernel.
const FORGOTTEN: Duration = Duration::from_secs(12);

/// Waits until a crabd that came after one that was killed has forgotten what that one watched.
pub(crate) fn forget() {
    thread::sleep(FORGOTTEN);
}

/// Ends crabd, which takes its programs out of the kernel when it watches nothing.
pub(crate) fn without_crab() -> Result<()> {
    if let Some(crabd) = processes::crabd() {
        poll("the shims have ended", LIMIT, || {
            Ok(processes::named(processes::SHIM).is_empty().then_some(()))
        })?;
        processes::signal(crabd, Signal::TERM)?;
        processes::wait_gone(crabd, LIMIT)?;
    }
    let left = fs::read_dir(Path::new(PINS)).map_or(0, Iterator::count);
    ensure!(
        left == 0,
        "crabd has left {left} sets of programs in {PINS}"
    );
    Ok(())
}
