// SPDX-License-Identifier: Apache-2.0

//! A run without a fault in which time and bytes are measured.

use std::{
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use crab_store::{Class, TurnRecord};

use super::{
    drive::{Hand, Part},
    keep::{Keeper, Way},
};
use crate::{
    journal::{held_back_ms, turns_of},
    testbed::{Testbed, poll},
    traces::{Pace, Trace},
};

/// How long the last turn may take to be recorded.
const RECORDED: Duration = Duration::from_secs(60);

/// What a run took.
#[derive(Debug, Default)]
pub struct Timed {
    /// From the first wait to the end of the last turn.
    pub wall: Duration,
    /// Of each turn.
    pub turns: Vec<TimedTurn>,
    /// How many ended otherwise than where they were recorded.
    pub otherwise: usize,
    /// Whether checkpoints lack processes, and in how many turns.
    pub degraded: usize,
    /// How many turns have no checkpoint of their own, as it was given up or failed.
    pub unkept: usize,
}

/// What one turn took.
#[derive(Clone, Debug, Default)]
pub struct TimedTurn {
    /// For how long its begin was late, in milliseconds.
    pub exposed_ms: f64,
    /// What was written, in bytes.
    pub bytes: u64,
    /// Its class, under Crab; nothing if it has no checkpoint of its own.
    pub class: Option<Class>,
}

impl Timed {
    /// Plays a trace in this way, with its waits.
    pub fn of(testbed: &Testbed, part: &Part, way: Way, pace: Pace) -> Result<Self> {
        let keeper = Keeper::start(testbed, part, way)?;
        let hand = Hand::set_up(part, keeper.sandbox())?;
        let trace: &Trace = &part.trace;
        let mut timed = Self::default();
        let mut begins = Vec::new();
        let began = Instant::now();
        let mut ended = began;
        for n in 0..trace.turns.len() {
            // The waits go by the ends of turns; what the client keeps is kept in them.
            let due = ended + pace.before(trace, n);
            let now = Instant::now();
            let late = now.saturating_duration_since(due);
            thread::sleep(due.saturating_duration_since(now));
            let done = hand.turn(n, "")?;
            ended = Instant::now();
            begins.push(done.began);
            let recorded = trace.turns[n].exit;
            timed.otherwise += usize::from(recorded.is_some_and(|exit| exit != done.exit));
            timed.turns.push(TimedTurn {
                exposed_ms: late.as_secs_f64() * 1e3,
                bytes: keeper.keep()?,
                class: None,
            });
        }
        timed.wall = ended - began;
        if let Way::Crab(_) = way {
            let records = settle(&keeper, &begins)?;
            timed.note(&records, &begins)?;
        }
        Ok(timed)
    }

    /// What the journal says of the turns that began at these times.
    fn note(&mut self, records: &[TurnRecord], begins: &[SystemTime]) -> Result<()> {
        let mut starts = Vec::new();
        for begin in begins {
            starts.push(begin.duration_since(UNIX_EPOCH)?.as_millis() as u64);
        }
        for record in records {
            // The last turn that had begun when this one ended; what was before is the setup.
            let at = starts.partition_point(|start| *start <= record.ended_ms);
            let Some(turn) = at.checked_sub(1).and_then(|at| self.turns.get_mut(at)) else {
                continue;
            };
            turn.exposed_ms += held_back_ms(record);
            turn.bytes += record.cost.bytes_stored;
            if record.checkpoint.is_none() {
                // Given up, or failed: with the next one.
                self.unkept += 1;
                continue;
            }
            let class = turn.class.unwrap_or(Class::None);
            turn.class = Some(Class::of(
                class.has_files() || record.class.has_files(),
                class.has_processes() || record.class.has_processes(),
            ));
            self.degraded += usize::from(record.degraded.is_some());
        }
        Ok(())
    }
}

/// Until the last turn is recorded.
fn settle(keeper: &Keeper<'_>, begins: &[SystemTime]) -> Result<Vec<TurnRecord>> {
    let last = begins.last().context("a trace has turns")?;
    let last = last.duration_since(UNIX_EPOCH)?.as_millis() as u64;
    poll("the last turn is recorded", RECORDED, || {
        let records = turns_of(keeper.sandbox())?;
        let is_there = records.iter().any(|record| record.ended_ms >= last);
        Ok(is_there.then_some(records))
    })
}
