// SPDX-License-Identifier: Apache-2.0

//! How long checkpoints and the ways back take, beside what `ctr` does with the stock shim,
//! and what they add to the store.

mod crash;
mod cycles;
mod files;
mod hostile;
mod memory;
mod processes;
mod rollback;
mod store;

use std::collections::BTreeSet;

use anyhow::Result;
use crab_integration::Testbed;
use crab_store::Cost;

use crate::figures::{Measured, Target, each_wanted};

/// The parts, in the order in which they are measured.
pub(crate) const PARTS: &[&str] = &[
    "files",
    "processes",
    "memory",
    "rollback",
    "cycles",
    "store",
    "hostile",
    "crash",
];

/// What the figures shall be.
const TARGETS: &[(&str, Target)] = &[
    ("files_capture_ms_p50", Target::AtMost(10.0)),
    ("files_frozen_ms_p50", Target::AtMost(0.0)),
    ("full_frozen_ms_p50", Target::AtMost(60.0)),
    ("frozen_ratio", Target::AtMost(0.3)),
    ("dedup_pct", Target::AtMost(3.0)),
    ("store_mb_s", Target::AtLeast(400.0)),
    ("cold_rollback_ms_p50", Target::AtMost(100.0)),
    ("warm_rollback_ms_p50", Target::AtMost(5.0)),
    ("cycles_ok", Target::AtLeast(20.0)),
    ("hostile_escapes", Target::AtMost(0.0)),
    ("random_kills", Target::AtLeast(1000.0)),
    ("lost", Target::AtMost(0.0)),
    ("fsck_missed", Target::AtMost(0.0)),
];

/// How much to measure.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) parts: BTreeSet<&'static str>,
    pub(crate) rounds: usize,
    pub(crate) cycles: usize,
    pub(crate) kills: usize,
    pub(crate) seed: u64,
}

/// From a turn's end until the capture has let go of the sandbox, in milliseconds.
fn captured_ms(cost: &Cost) -> f64 {
    (cost.boundary_us + cost.decide_us + cost.capture_us) as f64 / 1e3
}

fn frozen_ms(cost: &Cost) -> f64 {
    cost.frozen_us as f64 / 1e3
}

/// Measures these parts.
pub(crate) fn measure(testbed: &Testbed, plan: &Plan) -> Result<Measured> {
    let mut measured = Measured::new("capture", testbed.machine(), Some(plan.seed), TARGETS);
    each_wanted(PARTS, &plan.parts, |part| match part {
        "files" => files::measure(testbed, plan, &mut measured),
        "processes" => processes::measure(testbed, plan, &mut measured),
        "memory" => memory::measure(testbed, plan, &mut measured),
        "rollback" => rollback::measure(testbed, plan, &mut measured),
        "cycles" => cycles::measure(testbed, plan, &mut measured),
        "store" => store::measure(plan, &mut measured),
        "hostile" => hostile::measure(testbed, plan, &mut measured),
        _ => crash::measure(testbed, plan, &mut measured),
    })?;
    Ok(measured)
}
