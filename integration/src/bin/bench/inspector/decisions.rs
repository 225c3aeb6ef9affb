// SPDX-License-Identifier: Apache-2.0

//! How long it takes to tell that a turn changed nothing, on a host with other sandboxes of
//! which some are at work.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use crab_integration::{
    RunOptions, Testbed,
    proof::{Life, Lived},
};
use crab_store::Class;

use super::{Measured, Plan};
use crate::series::Series;

/// Of fifty.
const BUSY: usize = 10;
/// Turns in each of the others.
const TURNS: usize = 12;
/// The first ones only warm up.
const WARM_UP: usize = 2;
/// What the busy ones do outlasts the measurement.
const LONG_MS: u32 = 600_000;

pub(super) fn measure(testbed: &Testbed, plan: &Plan, measured: &mut Measured) -> Result<()> {
    let mut busy = Vec::new();
    let mut quiet = Vec::new();
    for number in 0..plan.sandboxes {
        let life = Life::begin(testbed.ctr(), RunOptions::new())?;
        if number < BUSY {
            // Their turns stay open.
            life.start(&format!("work /root/work {LONG_MS}").as_str().into(), 0)?;
            busy.push(life);
        } else {
            quiet.push(life);
        }
    }
    // Half of the others have a process that idles.
    for life in quiet.iter_mut().step_by(2) {
        life.turn("spawn idle sits /root/file".into())?;
    }
    let mut decisions = Series::default();
    let mut alone = Series::default();
    let mut beside = Series::default();
    let mut compared = Series::default();
    let mut delays = Series::default();
    for turn in 0..TURNS {
        for (number, life) in quiet.iter_mut().enumerate() {
            let lived = life.turn("look /etc".into())?;
            let took = decision(&lived)?;
            // Nothing is left of it, and the files have to be compared to know.
            let netted = life.turn("restored /root/a".into())?;
            if turn < WARM_UP {
                continue;
            }
            decisions.push(took);
            if number % 2 == 0 {
                beside.push(took);
            } else {
                alone.push(took);
            }
            delays.push(lived.recorded_after);
            compared.push(decision(&netted)?);
        }
    }
    measured.enter("none_decision_ms_p50", decisions.quantile(0.5));
    measured.enter("none_decision_ms_p99", decisions.quantile(0.99));
    for (name, series) in [
        ("decision, no process", &alone),
        ("decision, beside an idle process", &beside),
        ("decision, files compared", &compared),
        ("end of an exec to its record", &delays),
    ] {
        for (what, q) in [("p50", 0.5), ("p99", 0.99), ("most", 1.0)] {
            measured.detail(format!("{name}, ms {what}"), series.quantile(q));
        }
    }
    measured.detail("decisions", decisions.len() as f64);
    ensure!(busy.len() == BUSY.min(plan.sandboxes), "some went missing");
    Ok(())
}

/// What the decision of a turn took that changed nothing.
pub(super) fn decision(lived: &Lived) -> Result<Duration> {
    if lived.record.class != Class::None {
        bail!(
            "{} is {} and not none: {}",
            lived.plan,
            lived.record.class,
            lived.record.reason
        );
    }
    Ok(Duration::from_micros(lived.record.cost.decide_us))
}
