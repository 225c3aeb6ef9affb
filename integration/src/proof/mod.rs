// SPDX-License-Identifier: Apache-2.0

//! The proof of the inspector: random turns in real containers, and the truth about each
//! beside the class that Crab gave it.
//!
//! ```text
//! seed --Planner--> Plan --agent, in execs--> the sandbox --Crab--> the journal's class
//!                                                |                        |
//!                         Truth before and after-+---> Change --judge-----+--> Judgement
//! ```
//! Turns come in lives: a sandbox with some of them, and a seed of its own, from which
//! everything in it follows but the timing of what goes on at once.

mod chance;
mod execs;
mod judge;
mod life;
mod outside;
mod plan;
mod truth;

use std::collections::BTreeMap;

use anyhow::{Context, Result};

pub(crate) use self::truth::own_mounts;
pub use self::{
    chance::{Chance, seed_of},
    execs::{Execs, Started},
    judge::{Judgement, judge},
    life::{AGENT, Life, Lived},
    outside::Outside,
    plan::{Operation, Plan, Planner},
    truth::{Change, Processes, Tree, Truth},
};
use crate::client::{Client, RunOptions};

/// Turns of one sandbox.
pub const TURNS_OF_A_LIFE: usize = 50;

/// What came of many turns.
#[derive(Debug, Default)]
pub struct Tally {
    /// Whether each is to be printed.
    pub tell: bool,
    /// How many there were.
    pub turns: usize,
    /// Those of which something was missed.
    pub missed: Vec<Wrong>,
    /// Those that were given more than they needed.
    pub needless: Vec<Wrong>,
    /// How many were of each class, by its name.
    pub classes: BTreeMap<&'static str, usize>,
    /// How many the kernel's counters could say nothing of.
    pub unobserved: usize,
}

/// A turn with the wrong class.
#[derive(Debug)]
pub struct Wrong {
    /// The seed of its life.
    pub seed: u64,
    /// Its number.
    pub turn: u64,
    /// What happened, what was said, and what is so.
    pub story: String,
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seed {}, turn {}: {}", self.seed, self.turn, self.story)
    }
}

impl Tally {
    /// Adds the turns of one life.
    pub fn live(&mut self, client: Client, seed: u64, turns: usize) -> Result<()> {
        // Of busybox's sleep no image can be made, of its tail it can.
        let init: &[&str] = match seed % 2 {
            0 => &["sleep", "infinity"],
            _ => &["tail", "-f", "/dev/null"],
        };
        let mut life = Life::begin(client, RunOptions::new().args(init.iter().copied()))?;
        let mut planner = Planner::new(seed);
        for _ in 0..turns {
            let plan = planner.next_turn();
            let lived = life
                .turn(plan)
                .with_context(|| format!("a turn of seed {seed}"))?;
            self.count(seed, lived);
        }
        Ok(())
    }

    /// Adds what another has counted.
    pub fn add(&mut self, other: Self) {
        self.turns += other.turns;
        self.missed.extend(other.missed);
        self.needless.extend(other.needless);
        self.unobserved += other.unobserved;
        for (class, count) in other.classes {
            *self.classes.entry(class).or_default() += count;
        }
    }

    fn count(&mut self, seed: u64, lived: Lived) {
        let Lived {
            plan,
            record,
            judgement,
            ..
        } = lived;
        if self.tell {
            let Change {
                files, processes, ..
            } = &judgement.change;
            let (turn, class) = (record.turn, record.class);
            println!("{turn} {class}: {plan}: files {files:?}, processes {processes:?}");
        }
        self.turns += 1;
        *self.classes.entry(record.class.as_str()).or_default() += 1;
        self.unobserved += usize::from(record.unobserved.is_some());
        let wrong = |what: String| Wrong {
            seed,
            turn: record.turn.0,
            story: format!("{} ({}), {what}: {plan}", record.class, record.reason),
        };
        if !judgement.missed.is_empty() {
            self.missed
                .push(wrong(format!("but {}", judgement.missed.join("; "))));
        }
        if !judgement.needless.is_empty() {
            self.needless.push(wrong(format!(
                "but no other {}; files: {:?}, processes: {:?}",
                judgement.needless.join(" and "),
                judgement.change.files,
                judgement.change.processes
            )));
        }
    }

    /// Of a hundred turns.
    pub fn needless_percent(&self) -> f64 {
        100.0 * self.needless.len() as f64 / self.turns.max(1) as f64
    }
}
