// SPDX-License-Identifier: Apache-2.0

//! One sandbox that changes a file as fast as system calls go: is its turn's class right, and
//! do the others' turns notice?

use std::{fs, time::Duration};

use anyhow::{Context, Result};
use crab_integration::{RunOptions, Testbed, proof::Life};
use crab_store::Class;

use super::{Measured, decisions::decision};
use crate::series::Series;

/// For how long it rages.
const STORM: Duration = Duration::from_secs(8);
/// Where: in memory, as nothing is faster.
const FILE: &str = "dev/shm/storm";
const OTHERS: usize = 10;
/// Calls a second from which it is one.
const RATE: f64 = 100_000.0;
const LIMIT_MS: f64 = 5.0;

pub(super) fn measure(testbed: &Testbed, measured: &mut Measured) -> Result<()> {
    let mut raging = Life::begin(testbed.ctr(), RunOptions::new())?;
    let others = (0..OTHERS).map(|_| Life::begin(testbed.ctr(), RunOptions::new()));
    let mut others: Vec<Life> = others.collect::<Result<_>>()?;
    for life in &mut others {
        life.turn("look /etc".into())?;
    }
    let plan = format!("storm /{FILE} {}", STORM.as_millis());
    let root = raging.sandbox().root()?;
    let storm = std::thread::spawn(move || raging.turn(plan.as_str().into()).map(|l| (raging, l)));
    let mut decisions = Series::default();
    while !storm.is_finished() {
        for life in &mut others {
            let lived = life.turn("look /etc".into())?;
            if !storm.is_finished() {
                decisions.push(decision(&lived)?);
            }
        }
    }
    let (raging, lived) = match storm.join() {
        Ok(lived) => lived?,
        Err(_) => anyhow::bail!("who raged has panicked"),
    };
    let text = fs::read_to_string(root.join(FILE)).context("read how many calls there were")?;
    let rate = text.parse::<f64>()? / STORM.as_secs_f64();
    drop(raging);
    let most = decisions.quantile(1.0);
    let right = lived.record.class == Class::Files && lived.judgement.missed.is_empty();
    eprintln!(
        "storm: {rate:.0} calls a second, class {} ({}), {} decisions of others, at most {most:.3} ms",
        lived.record.class,
        lived.record.reason,
        decisions.len()
    );
    measured.detail("storm: calls a second", rate);
    measured.detail("storm: others' decisions", decisions.len() as f64);
    measured.detail("storm: others' decisions, ms p50", decisions.quantile(0.5));
    measured.detail("storm: others' decisions, ms p99", decisions.quantile(0.99));
    measured.detail("storm: others' decisions, ms most", most);
    if rate < RATE {
        eprintln!("event_storm_ok: absent, this machine makes less than {RATE} calls a second");
    } else {
        measured.enter_verdict("event_storm_ok", right && most < LIMIT_MS);
    }
    Ok(())
}
