// SPDX-License-Identifier: Apache-2.0

//! What is played, by whom, how fast, and what is compared.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use anyhow::{Result, ensure};
use crab_integration::{
    Client, Testbed,
    proof::{Chance, seed_of},
    replay::{Driver, Part, Tempo, Way},
    traces::{self, Kind, Pace, Trace},
};

/// The parts, in the order in which they are measured.
pub(crate) const PARTS: &[&str] = &["states", "crashes", "exhaustive", "time"];

/// Where only states are compared, an agent's own limits are a tenth: a program that hangs does
/// so in three seconds as well as in thirty.
const FAST_PATIENCE: f64 = 0.1;
/// No wait is shorter there: what follows sooner is the same turn to Crab.
const LEAST_WAIT: Duration = Duration::from_millis(250);
/// Nor there for what was recorded: programs call files by the second, and waited for longer then.
const LEAST_WAIT_RECORDED: Duration = Duration::from_millis(1050);

/// How much to measure.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) parts: BTreeSet<&'static str>,
    /// The ways that are measured, beside the stock shim.
    pub(crate) ways: Vec<Way>,
    /// What waits are multiplied by where time is measured.
    pub(crate) scale: f64,
    /// The same where only states are compared.
    pub(crate) fast_scale: f64,
    pub(crate) seed: u64,
    /// Beside the project's own.
    pub(crate) traces: Option<PathBuf>,
    /// Whether these are played at all.
    pub(crate) own: bool,
    /// `ctr`, `docker`; both unless one is named.
    pub(crate) client: Option<String>,
    /// Another than the traces say.
    pub(crate) driver: Option<Driver>,
    /// The first so many of each trace.
    pub(crate) turns: usize,
    /// Only traces in whose id this is.
    pub(crate) only_traces: Option<String>,
    /// So many are played at once where time is measured.
    pub(crate) at_once: usize,
    /// Where the record and the page go.
    pub(crate) out: PathBuf,
    /// How this was asked for.
    pub(crate) command: String,
}

impl Plan {
    pub(crate) fn new(seed: u64, command: String) -> Self {
        Self {
            parts: PARTS.iter().copied().collect(),
            ways: Way::ALL.to_vec(),
            scale: 1.0,
            fast_scale: 0.05,
            seed,
            traces: None,
            own: true,
            client: None,
            driver: None,
            turns: usize::MAX,
            only_traces: None,
            at_once: 32,
            out: PathBuf::from("target/replay"),
            command,
        }
    }

    /// To see that it works: its figures mean nothing.
    pub(crate) fn quick(&mut self) {
        self.turns = 4;
        self.scale = 0.05;
    }

    /// What is played. The project's own traces are played by both clients, others by
    /// containerd's alone.
    pub(crate) fn plays(&self, testbed: &Testbed) -> Result<Vec<Part>> {
        let wanted = |client: Client| match &self.client {
            Some(name) => name == client.name(),
            None => true,
        };
        let mut plays = Vec::new();
        let mut add = |trace: &Trace, client: Client| {
            let is_asked = |part: &String| trace.id.contains(part.as_str());
            if !wanted(client) || !self.only_traces.as_ref().is_none_or(is_asked) {
                return;
            }
            let mut trace = trace.clone();
            trace.turns.truncate(self.turns);
            plays.push(Part {
                client,
                driver: self.driver.unwrap_or(trace.driver),
                patience: 1.0,
                trace,
            });
        };
        let own = match self.own {
            true => traces::own()?,
            false => Vec::new(),
        };
        for trace in own {
            for client in testbed.clients() {
                add(&trace, client);
            }
        }
        if let Some(dir) = &self.traces {
            for trace in traces::folder(dir)? {
                add(&trace, testbed.ctr());
            }
        }
        ensure!(!plays.is_empty(), "no trace is left to be played");
        // The longest first, so that none of them is alone at the end.
        plays.sort_by_key(|part| std::cmp::Reverse(part.trace.turns.len()));
        Ok(plays)
    }

    pub(crate) fn pace(&self) -> Pace {
        Pace {
            scale: self.scale,
            seed: self.seed,
        }
    }

    pub(crate) fn tempo(&self, part: &Part) -> Tempo {
        Tempo {
            pace: Pace {
                scale: self.fast_scale,
                seed: self.seed,
            },
            least: match part.trace.kind {
                Kind::Written => LEAST_WAIT,
                Kind::Recorded | Kind::Oracle => LEAST_WAIT_RECORDED,
            },
        }
    }

    /// The chance of a play, the same in every way.
    pub(crate) fn chance(&self, part: &Part) -> Chance {
        Chance::new(seed_of(self.seed, &part.name()))
    }
}

/// The same plays, where only states are compared.
pub(crate) fn fast(plays: &[Part]) -> Vec<Part> {
    let mut plays = plays.to_vec();
    for part in &mut plays {
        part.patience = FAST_PATIENCE;
    }
    plays
}
