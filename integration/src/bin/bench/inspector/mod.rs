// SPDX-License-Identifier: Apache-2.0

//! Whether the inspector tells the truth, how fast, and what that costs the work that it
//! looks at.

mod decisions;
mod idle;
mod overhead;
mod random;
mod storm;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use anyhow::Result;
use crab_integration::Testbed;
use serde::Serialize;

use crate::series::rounded;

/// The parts, in the order in which they are measured.
pub(crate) const PARTS: [&str; 5] = ["idle", "decisions", "storm", "overhead", "random"];

/// What the figures shall be at most.
const TARGETS: [(&str, f64); 9] = [
    ("false_negatives", 0.0),
    ("false_positives_pct", 2.0),
    ("none_decision_ms_p50", 1.0),
    ("none_decision_ms_p99", 5.0),
    ("boundary_delay_ms_p50", 5.0),
    ("overhead_pct_build", 1.0),
    ("overhead_pct_untar", 1.0),
    ("overhead_pct_git", 1.0),
    ("idle_cpu_pct", 0.2),
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

/// The figures by name: what `--json` prints. One that could not be computed is absent,
/// and standard error says why.
#[derive(Debug, Serialize)]
pub(crate) struct Measured {
    pub(crate) name: &'static str,
    pub(crate) machine: String,
    pub(crate) seed: u64,
    pub(crate) figures: BTreeMap<&'static str, f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) event_storm_ok: Option<bool>,
    /// What stands behind the figures.
    pub(crate) details: BTreeMap<String, f64>,
}

impl Measured {
    fn enter(&mut self, name: &'static str, value: f64) {
        eprintln!("{name}: {}", rounded(value));
        self.figures.insert(name, rounded(value));
    }

    fn detail(&mut self, name: impl Into<String>, value: f64) {
        self.details.insert(name.into(), rounded(value));
    }
}

/// Measures these parts.
pub(crate) fn measure(testbed: &Testbed, plan: &Plan) -> Result<Measured> {
    let mut measured = Measured {
        name: "inspector",
        machine: testbed.machine(),
        seed: plan.seed,
        figures: BTreeMap::new(),
        event_storm_ok: None,
        details: BTreeMap::new(),
    };
    for part in PARTS {
        if !plan.parts.contains(part) {
            eprintln!("{part}: not asked for, so its figures are absent");
            continue;
        }
        match part {
            "idle" => idle::measure(testbed, plan, &mut measured)?,
            "decisions" => decisions::measure(testbed, plan, &mut measured)?,
            "storm" => storm::measure(testbed, &mut measured)?,
            "overhead" => overhead::measure(testbed, plan, &mut measured)?,
            _ => random::measure(testbed, plan, &mut measured)?,
        }
    }
    Ok(measured)
}

/// For people.
pub(crate) fn table(measured: &Measured) -> String {
    let mut text = format!(
        "{}, seed {}\n\n{:<24}{:>10}  TARGET\n",
        measured.machine, measured.seed, "FIGURE", "VALUE"
    );
    for (name, value) in &measured.figures {
        let target = TARGETS.iter().find(|(of, _)| of == name);
        let target = target.map_or(String::new(), |(_, limit)| {
            let sign = if value <= limit { "" } else { "  MISSED" };
            format!("<= {limit}{sign}")
        });
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name:<24}{value:>10.3}  {target}");
    }
    if let Some(ok) = measured.event_storm_ok {
        let _ = writeln!(text, "{:<24}{ok:>10}  true", "event_storm_ok");
    }
    let _ = writeln!(text, "\n{:<40}{:>14}", "DETAIL", "VALUE");
    for (name, value) in &measured.details {
        let _ = writeln!(text, "{name:<40}{value:>14.3}");
    }
    text
}
