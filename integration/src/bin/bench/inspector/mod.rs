// SPDX-License-Identifier: Apache-2.0

//! Whether the inspector tells the truth, how fast, and what that costs the work that it
//! looks at.

mod boundaries;
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
pub(crate) const PARTS: [&str; 6] = [
    "idle",
    "decisions",
    "boundaries",
    "storm",
    "overhead",
    "random",
];

/// What the figures shall be at most.
const TARGETS: [(&str, f64); 11] = [
    ("false_negatives", 0.0),
    ("false_positives_pct", 2.0),
    ("none_decision_ms_p50", 1.0),
    ("none_decision_ms_p99", 5.0),
    ("boundary_delay_ms_p50", 5.0),
    // The default of turns.settle_ms, and 20.
    ("boundary_delay_stdio_ms_p50", 120.0),
    ("boundary_errors", 0.0),
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
    pub(crate) figures: BTreeMap<&'static str, Figure>,
    /// What stands behind the figures.
    pub(crate) details: BTreeMap<String, f64>,
}

/// The value of one.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Figure {
    Number(f64),
    Verdict(bool),
}

impl Figure {
    /// What it shall be, and whether it is.
    fn target(self, name: &str) -> Option<(String, bool)> {
        match self {
            Self::Number(value) => {
                let target = TARGETS.iter().find(|(of, _)| *of == name);
                target.map(|(_, limit)| (format!("<= {limit}"), value <= *limit))
            }
            Self::Verdict(verdict) => Some(("true".into(), verdict)),
        }
    }
}

impl std::fmt::Display for Figure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(value) => f.pad(&value.to_string()),
            Self::Verdict(verdict) => f.pad(&verdict.to_string()),
        }
    }
}

impl Measured {
    fn enter(&mut self, name: &'static str, value: f64) {
        self.figures.insert(name, Figure::Number(rounded(value)));
        eprintln!("{name}: {}", rounded(value));
    }

    fn enter_verdict(&mut self, name: &'static str, verdict: bool) {
        self.figures.insert(name, Figure::Verdict(verdict));
        eprintln!("{name}: {verdict}");
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
            "boundaries" => boundaries::measure(testbed, plan, &mut measured)?,
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
    for (name, figure) in &measured.figures {
        let target = figure.target(name).map(|(target, met)| match met {
            true => target,
            false => target + "  MISSED",
        });
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{name:<24}{figure:>10}  {}",
            target.unwrap_or_default()
        );
    }
    let _ = writeln!(text, "\n{:<40}{:>14}", "DETAIL", "VALUE");
    for (name, value) in &measured.details {
        let _ = writeln!(text, "{name:<40}{value:>14.3}");
    }
    text
}
