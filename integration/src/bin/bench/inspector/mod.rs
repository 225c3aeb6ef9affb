// SPDX-License-Identifier: Apache-2.0

//! Whether the inspector tells the truth, how fast, and what that costs the work that it
//! looks at.

mod boundaries;
mod decisions;
mod idle;
mod overhead;
mod random;
mod storm;

use std::collections::BTreeSet;

use anyhow::Result;
use crab_integration::Testbed;

use crate::figures::{Measured, Target, each_wanted};

/// The parts, in the order in which they are measured.
pub(crate) const PARTS: &[&str] = &[
    "idle",
    "decisions",
    "boundaries",
    "storm",
    "overhead",
    "random",
];

/// What the figures shall be.
const TARGETS: &[(&str, Target)] = &[
    ("false_negatives", Target::AtMost(0.0)),
    ("false_positives_pct", Target::AtMost(2.0)),
    ("none_decision_ms_p50", Target::AtMost(1.0)),
    ("none_decision_ms_p99", Target::AtMost(5.0)),
    ("event_storm_ok", Target::True),
    ("boundary_delay_ms_p50", Target::AtMost(5.0)),
    // The default of turns.settle_ms, and 20.
    ("boundary_delay_stdio_ms_p50", Target::AtMost(120.0)),
    ("boundary_errors", Target::AtMost(0.0)),
    ("overhead_pct_build", Target::AtMost(1.0)),
    ("overhead_pct_untar", Target::AtMost(1.0)),
    ("overhead_pct_git", Target::AtMost(1.0)),
    ("idle_cpu_pct", Target::AtMost(0.2)),
];

/// How much to measure.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) parts: BTreeSet<&'static str>,
    pub(crate) turns: usize,
    pub(crate) seed: u64,
    pub(crate) sandboxes: usize,
    pub(crate) rounds: usize,
}

/// Measures these parts.
pub(crate) fn measure(testbed: &Testbed, plan: &Plan) -> Result<Measured> {
    let mut measured = Measured::new("inspector", testbed.machine(), Some(plan.seed), TARGETS);
    each_wanted(PARTS, &plan.parts, |part| match part {
        "idle" => idle::measure(testbed, plan, &mut measured),
        "decisions" => decisions::measure(testbed, plan, &mut measured),
        "boundaries" => boundaries::measure(testbed, plan, &mut measured),
        "storm" => storm::measure(testbed, &mut measured),
        "overhead" => overhead::measure(testbed, plan, &mut measured),
        _ => random::measure(testbed, plan, &mut measured),
    })?;
    Ok(measured)
}
