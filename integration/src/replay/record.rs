// SPDX-License-Identifier: Apache-2.0

//! What a replay has found: the content of `crab-replay.json`.
//!
//! Everything that the report shows, and the table in the README, comes from this and from
//! nothing else.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::drive::Part;

/// The version of this format; a reader refuses another one.
pub const VERSION: u32 = 1;

/// All of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// [`VERSION`].
    pub version: u32,
    /// `replay`, as the other benchmarks say who they are.
    pub name: String,
    /// Processors, memory, kernel, distribution and the versions of containerd, runc and CRIU.
    pub machine: String,
    /// The day, as `2026-11-30` (UTC).
    pub date: String,
    /// What has to be typed to get this again.
    pub command: String,
    /// Of what was chosen by chance.
    pub seed: u64,
    /// What the waits were multiplied by where time was measured.
    pub scale: f64,
    /// The same where only states were compared.
    pub fast_scale: f64,
    /// The figures by name.
    pub figures: BTreeMap<String, f64>,
    /// What stands behind them.
    pub details: BTreeMap<String, f64>,
    /// What was played.
    pub plays: Vec<Play>,
    /// How it was kept, each way by itself; in the order in which they are told.
    pub strategies: Vec<Kept>,
    /// Turn by turn, of Crab's run in which time was measured.
    pub timeline: Vec<Point>,
    /// Rules by which two states are compared although they cannot be alike, with the reason.
    pub rules: Vec<Rule>,
    /// What could not be compared, or went otherwise than it should, a line each.
    pub remarks: Vec<String>,
}

/// One trace, as it was played.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Play {
    /// The trace's id.
    pub trace: String,
    /// Which agent's it was.
    pub agent: Option<String>,
    /// `containerd` or `docker`.
    pub client: String,
    /// `exec`, `shell` or `tmux`.
    pub driver: String,
    /// How many turns it has.
    pub turns: usize,
}

/// One way of keeping what an agent has done.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// As figures are called by it: `chat`, `chat_files`, `restart`, `full`, `crab`,
    /// `crab_no_inspector`, `crab_no_optimistic`, `crab_no_schedule`.
    pub name: String,
    /// For people.
    pub title: String,
    /// What it is, in a sentence.
    pub what: String,
    /// The crashes it was put through.
    pub crashes: Vec<Crash>,
    /// For how long each turn that came too early was held back, or waited for the saving of the
    /// one before it, in milliseconds; empty where that was not measured.
    pub exposed_ms: Vec<f64>,
    /// What was written for all plays together, in bytes; nothing where that was not measured.
    pub bytes: Option<u64>,
    /// Of each play, how long it took beside the same one under the stock shim with nothing
    /// kept.
    pub ratios: Vec<Ratio>,
}

/// One death of everything, and what came after.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Crash {
    /// The trace's id.
    pub trace: String,
    /// The client.
    pub client: String,
    /// The turn after whose end everything was killed, from 1.
    pub turn: usize,
    /// The turn whose end came back; 0 is the state before the first.
    pub back_at: usize,
    /// Whether the state that came back, and that at the end of all turns, were the ones of the
    /// run without a fault.
    pub recovered: bool,
    /// How they differ, the first lines of it.
    pub differences: Vec<String>,
    /// From the call for help to the moment at which the next turn could begin, in
    /// milliseconds; 0 if nothing came back.
    pub recover_ms: f64,
}

/// One play's time.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ratio {
    /// The trace's id.
    pub trace: String,
    /// The client.
    pub client: String,
    /// From the first wait to the end of the last turn, in seconds.
    pub seconds: f64,
    /// The same under the stock shim with nothing kept.
    pub stock_seconds: f64,
}

/// One turn of Crab's.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// The trace's id.
    pub trace: String,
    /// The client.
    pub client: String,
    /// From 1.
    pub turn: usize,
    /// `none`, `files`, `processes` or `full`; `unknown` if it has no checkpoint of its own.
    pub class: String,
    /// What it added to the store.
    pub bytes: u64,
    /// What saving everything wrote at the same turn; nothing where that was not measured.
    pub full_bytes: Option<u64>,
}

/// One rule of the comparison.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// What is passed over.
    pub what: String,
    /// Why it cannot be alike.
    pub why: String,
}

impl Crash {
    /// One of which nothing is known yet.
    pub fn at(part: &Part, turn: usize) -> Self {
        Self {
            trace: part.trace.id.clone(),
            client: part.client_name().into(),
            turn,
            back_at: 0,
            recovered: false,
            differences: Vec::new(),
            recover_ms: 0.0,
        }
    }

    /// That at some time it differs in this.
    pub(super) fn differ(&mut self, when: &str, found: Vec<String>) {
        let found = found.into_iter();
        self.differences
            .extend(found.map(|line| format!("{when}: {line}")));
    }

    /// One from which nothing came back.
    pub fn failed(part: &Part, turn: usize, why: String) -> Self {
        Self {
            differences: vec![why],
            ..Self::at(part, turn)
        }
    }
}

impl Kept {
    /// Of a hundred crashes, how many it recovered from; nothing if there were none.
    pub fn recovery_percent(&self) -> Option<f64> {
        let recovered = self.crashes.iter().filter(|crash| crash.recovered).count();
        (!self.crashes.is_empty()).then(|| 100.0 * recovered as f64 / self.crashes.len() as f64)
    }

    /// The time of all plays together beside that under the stock shim.
    pub fn time_ratio(&self) -> Option<f64> {
        let (mut ours, mut stock) = (0.0, 0.0);
        for ratio in &self.ratios {
            ours += ratio.seconds;
            stock += ratio.stock_seconds;
        }
        (stock > 0.0).then_some(ours / stock)
    }
}
