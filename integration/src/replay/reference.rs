// SPDX-License-Identifier: Apache-2.0

//! A run without a fault: what every other one is compared with.

use std::{thread, time::Duration};

use anyhow::{Context, Result};

use super::{
    drive::{Done, Part},
    keep::{Keeper, Way},
    marks::Marks,
    state::{State, Witness},
};
use crate::{
    testbed::Testbed,
    traces::{Pace, Trace},
};

/// What a turn has started may take so long to come to rest, and then is looked at.
const RESTS: Duration = Duration::from_millis(300);

/// How often a state that differs is looked at.
const LOOKS: u32 = 6;

/// How fast a run goes where only states are compared.
#[derive(Clone, Copy, Debug)]
pub struct Tempo {
    /// The waits, scaled.
    pub pace: Pace,
    /// No wait is shorter: what follows sooner is the same turn to Crab.
    pub least: Duration,
}

impl Tempo {
    /// Waits for the model, before a turn counted from 0.
    pub(super) fn wait(&self, trace: &Trace, n: usize) {
        thread::sleep(self.pace.before(trace, n).max(self.least));
    }
}

/// What was there at the end of each turn.
#[derive(Debug)]
pub struct Reference {
    /// Whether there was a process with a known memory.
    pub marks: Marks,
    /// Before the first turn, and after each.
    pub(super) states: Vec<State>,
    pub(super) turns: Vec<Done>,
    /// How many turns have left processes beside the container's own.
    pub left_processes: usize,
}

impl Reference {
    /// Plays a trace under the stock shim.
    pub fn of(testbed: &Testbed, part: &Part, marks: Marks, tempo: &Tempo) -> Result<Self> {
        // What is written from now on is written in the run.
        let mut witness = Witness::new();
        let keeper = Keeper::start(testbed, part, Way::Nothing)?;
        let sandbox = keeper.sandbox();
        let hand = marks.set_up(part, sandbox)?;
        let init = sandbox.pid()?;
        let mut reference = Self {
            marks,
            states: vec![rested(&mut witness, init)?],
            turns: Vec::new(),
            left_processes: 0,
        };
        let own = sandbox.processes()?.len();
        for n in 0..part.trace.turns.len() {
            tempo.wait(&part.trace, n);
            reference.turns.push(hand.turn(n, &marks.after(n))?);
            reference.states.push(rested(&mut witness, init)?);
            reference.left_processes += usize::from(sandbox.processes()?.len() > own);
        }
        Ok(reference)
    }

    /// How a sandbox that shall be as after so many turns differs from that. What goes round by
    /// itself, or is being saved just now, is met otherwise another time: it is looked at again.
    pub(super) fn compare(
        &self,
        turns: usize,
        witness: &mut Witness,
        init: u32,
    ) -> Result<Vec<String>> {
        let mut looks = LOOKS;
        loop {
            let found = self.differences(turns, &rested(witness, init)?);
            looks -= 1;
            if found.is_empty() || looks == 0 {
                return Ok(found);
            }
        }
    }

    fn differences(&self, turns: usize, state: &State) -> Vec<String> {
        match self.states.get(turns) {
            Some(expected) => state.differences(expected),
            None => vec![format!("the run without a fault has no turn {turns}")],
        }
    }

    /// How another run without a fault differs, a line each.
    pub fn unlike(&self, testbed: &Testbed, part: &Part, tempo: &Tempo) -> Result<Vec<String>> {
        let mut witness = Witness::new();
        let keeper = Keeper::start(testbed, part, Way::Nothing)?;
        let hand = self.marks.set_up(part, keeper.sandbox())?;
        let init = keeper.sandbox().pid()?;
        let mut lines = Vec::new();
        for n in 0..part.trace.turns.len() {
            tempo.wait(&part.trace, n);
            let done = hand.turn(n, &self.marks.after(n))?;
            let turn = n + 1;
            let found = self.compare(turn, &mut witness, init)?.into_iter();
            lines.extend(found.map(|line| format!("after turn {turn}: {line}")));
            lines.extend(self.otherwise(n, done));
            if !lines.is_empty() {
                // What follows from it is not told as well.
                break;
            }
        }
        Ok(lines)
    }

    /// How a turn, counted from 0, ended otherwise.
    pub(super) fn otherwise(&self, n: usize, done: Done) -> Option<String> {
        let expected = self.turns.get(n)?.exit;
        let turn = n + 1;
        (expected != done.exit)
            .then(|| format!("turn {turn} ended with {}, not {expected}", done.exit))
    }

    /// Which turns ended otherwise than where they were recorded, a line each.
    pub fn unlike_recorded(&self, trace: &Trace) -> Vec<String> {
        let pairs = trace.turns.iter().zip(&self.turns).enumerate();
        let unlike = pairs.filter_map(|(n, (turn, done))| {
            let recorded = turn.exit.filter(|recorded| *recorded != done.exit)?;
            Some(format!(
                "turn {} ended with {}, recorded was {recorded}",
                n + 1,
                done.exit
            ))
        });
        unlike.collect()
    }
}

/// Looks when what was started has come to rest.
pub(super) fn rested(witness: &mut Witness, init: u32) -> Result<State> {
    thread::sleep(RESTS);
    witness.look(init).context("look at the state")
}
