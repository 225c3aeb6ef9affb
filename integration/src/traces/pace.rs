// SPDX-License-Identifier: Apache-2.0

//! How long each wait of a trace is when it is played.

use std::{f64::consts::TAU, time::Duration};

use super::Trace;
use crate::proof::{Chance, seed_of};

/// Nobody waits for less, in milliseconds.
const LEAST: f64 = 1_500.0;
/// What comes on top has this median, in milliseconds,
const MEDIAN: f64 = 1_600.0;
/// and this spread of its logarithm: so the ninetieth percentile of all is at 17 s, and the
/// median at 3.1 s, as in recorded runs.
const SPREAD: f64 = 1.77;
/// Nor for more.
const MOST: f64 = 60_000.0;

/// The waits of all traces.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// What each is multiplied by.
    pub scale: f64,
    /// The same one draws the same waits.
    pub seed: u64,
}

impl Pace {
    /// The wait before a turn, counted from 0: as recorded, and drawn where nothing is, of
    /// the distribution that recorded ones have.
    pub fn before(&self, trace: &Trace, turn: usize) -> Duration {
        let recorded = trace
            .turns
            .get(turn)
            .and_then(|turn| turn.idle_before_ms.max(turn.llm_wait_ms));
        let milliseconds = match recorded {
            Some(milliseconds) => milliseconds as f64,
            None => self.drawn(&trace.id, turn),
        };
        Duration::from_secs_f64(milliseconds.max(0.0) * self.scale / 1e3)
    }

    fn drawn(&self, id: &str, turn: usize) -> f64 {
        // The same for every sandbox that plays it, whatever else is played.
        let mut chance = Chance::new(seed_of(self.seed, id) ^ turn as u64);
        // Never zero.
        let mut uniform = || ((chance.number() >> 11) as f64 + 1.0) / (1u64 << 53) as f64;
        let (a, b) = (uniform(), uniform());
        let normal = (-2.0 * a.ln()).sqrt() * (TAU * b).cos();
        (LEAST + MEDIAN * (SPREAD * normal).exp()).min(MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unknown(turns: usize) -> Trace {
        let turn = r#"{"tool": "bash", "command": "true"}"#;
        let turns = vec![turn; turns].join(",");
        let text = format!(
            r#"{{"id": "x", "kind": "recorded", "cwd": "/", "shell": "sh", "turns": [{turns}]}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_recorded_wait_is_scaled_and_the_longer_one_counts() {
        let mut trace = unknown(1);
        trace.turns[0].llm_wait_ms = Some(2_000);
        let pace = Pace {
            scale: 0.5,
            seed: 1,
        };
        assert_eq!(pace.before(&trace, 0), Duration::from_secs(1));
        trace.turns[0].idle_before_ms = Some(4_000);
        assert_eq!(pace.before(&trace, 0), Duration::from_secs(2));
    }

    #[test]
    fn unknown_waits_are_drawn_as_recorded_ones_are_spread() {
        let trace = unknown(2_000);
        let pace = Pace {
            scale: 1.0,
            seed: 7,
        };
        let mut waits: Vec<_> = (0..2_000).map(|turn| pace.before(&trace, turn)).collect();
        assert_eq!(waits[3], pace.before(&trace, 3));
        waits.sort();
        let at = |percent: usize| waits[20 * percent].as_secs_f64();
        assert!((2.8..3.4).contains(&at(50)), "median {}", at(50));
        assert!((14.0..20.0).contains(&at(90)), "p90 {}", at(90));
        assert!(at(0) >= 1.5);
    }
}
