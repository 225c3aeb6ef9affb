// SPDX-License-Identifier: Apache-2.0

//! The sandboxes of one part, and what playing their traces took.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Result, anyhow};
use crab_integration::{
    DEBIAN, RunOptions, Runtime, Sandbox, Testbed,
    traces::{Played, Player, Trace},
};

use super::{Plan, full::Budget};
use crate::{
    crowd::some_at_a_time,
    figures::Measured,
    series::{Series, median},
};

/// So many are started, removed or brought back at a time.
pub(super) const AT_A_TIME: usize = 4;

/// Under what the traces are played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strategy {
    /// The stock shim.
    Stock,
    /// The same, and everything is saved at the end of each turn.
    Full,
    /// Crab with checkpoints off.
    Off,
    /// Crab.
    On,
}

/// Sandboxes that have what their agents found.
pub(super) struct Fleet {
    pub(super) members: Vec<(Sandbox, Player)>,
    strategy: Strategy,
}

/// What one agent went through.
#[derive(Debug, Default)]
pub(super) struct Replay {
    /// From its first wait to the end of its last turn.
    pub(super) wall: Duration,
    /// When each turn began, and how many of these were over.
    pub(super) begins: Vec<SystemTime>,
    pub(super) ended: usize,
    pub(super) starts: Series,
    pub(super) execs: Series,
    /// For how long each turn was late because the one before it was still being saved, where
    /// the player does that.
    pub(super) late: Series,
    /// Turns that ended otherwise than in the trace.
    pub(super) otherwise: usize,
    pub(super) timed_out: usize,
    /// Why it broke off.
    pub(super) broke_off: Option<String>,
}

/// Of all sandboxes of a part.
pub(super) struct Times(pub(super) Vec<Replay>);

impl Fleet {
    /// Starts a sandbox per trace, and makes what the agents found.
    pub(super) fn start(testbed: &Testbed, strategy: Strategy, traces: &[Trace]) -> Result<Self> {
        let began = Instant::now();
        let started = some_at_a_time(AT_A_TIME, traces, |trace| {
            let mut options = RunOptions::new();
            match strategy {
                Strategy::Stock | Strategy::Full => options = options.runtime(Runtime::Stock),
                Strategy::Off => {
                    options = options.flags(["--annotation", "dev.crab.checkpoints.enabled=false"]);
                }
                Strategy::On => {}
            }
            let options = trace.bounded(options, testbed.ctr(), testbed);
            let sandbox = testbed.ctr().run(DEBIAN, options)?;
            let player = Player::new(&sandbox, trace)?;
            player.set_up()?;
            Ok((sandbox, player))
        });
        let fleet = Self {
            members: started.into_iter().collect::<Result<_>>()?,
            strategy,
        };
        eprintln!(
            "{strategy:?}: {} sandboxes after {:.1} s",
            fleet.members.len(),
            began.elapsed().as_secs_f64()
        );
        Ok(fleet)
    }

    /// Plays all traces, each with its waits.
    pub(super) fn play(&self, plan: &Plan) -> Result<Times> {
        self.play_until(plan, &AtomicBool::new(false), None)
    }

    /// The same, with what saves everything after each turn; until somebody says that it is
    /// enough: what a replay then meets is no fault.
    pub(super) fn play_until(
        &self,
        plan: &Plan,
        enough: &AtomicBool,
        full: Option<&Budget>,
    ) -> Result<Times> {
        let replays: Vec<_> = thread::scope(|scope| {
            let all = self.members.iter().map(|(sandbox, player)| {
                scope.spawn(move || {
                    let mut replay = Replay::default();
                    let member = full.map(|budget| budget.member(sandbox)).transpose();
                    let played = member
                        .and_then(|mut member| replay.play(player, plan, enough, member.as_mut()));
                    if let Err(error) = played
                        && !enough.load(Ordering::Relaxed)
                    {
                        replay.broke_off = Some(format!("{}: {error:#}", sandbox.id()));
                    }
                    replay
                })
            });
            let all: Vec<_> = all.collect();
            all.into_iter().map(|thread| thread.join()).collect()
        });
        let replays = replays.into_iter().collect::<Result<Vec<_>, _>>();
        let replays = replays.map_err(|_| anyhow!("who plays a trace panicked"))?;
        for why in replays
            .iter()
            .filter_map(|replay| replay.broke_off.as_ref())
        {
            eprintln!("{:?}: a replay broke off: {why}", self.strategy);
        }
        Ok(Times(replays))
    }

    /// Removes them, some at a time.
    pub(super) fn remove(self) -> Result<()> {
        let sandboxes = self
            .members
            .into_iter()
            .map(|(sandbox, _)| Mutex::new(Some(sandbox)));
        let sandboxes: Vec<_> = sandboxes.collect();
        let removed = some_at_a_time(AT_A_TIME, &sandboxes, |sandbox| {
            let sandbox = sandbox
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            sandbox.map_or(Ok(()), Sandbox::remove)
        });
        removed.into_iter().collect()
    }
}

impl Replay {
    fn play(
        &mut self,
        player: &Player,
        plan: &Plan,
        enough: &AtomicBool,
        mut full: Option<&mut super::full::Member<'_>>,
    ) -> Result<()> {
        let trace = player.trace();
        let pace = plan.pace();
        let began = Instant::now();
        // The waits go by the ends of turns; what the player does after them is in the waits.
        let mut ended = began;
        for n in 0..trace.turns.len().min(plan.turns) {
            let due = ended + pace.before(trace, n);
            let now = Instant::now();
            if n > 0 {
                self.late.push(now.saturating_duration_since(due));
            }
            thread::sleep(due.saturating_duration_since(now));
            if enough.load(Ordering::Relaxed) {
                return Ok(());
            }
            self.begins.push(SystemTime::now());
            let began = Instant::now();
            let played = player.turn(n)?;
            ended = began + played.started + played.took;
            self.note(&played, trace, n);
            if let Some(member) = &mut full {
                member.save()?;
            }
        }
        self.wall = ended - began;
        Ok(())
    }

    fn note(&mut self, played: &Played, trace: &Trace, n: usize) {
        self.ended += 1;
        self.starts.push(played.started);
        self.execs.push(played.started + played.took);
        if !played.is_as(trace.turns[n].exit) {
            // What follows from it is not told as well.
            if self.otherwise == 0 {
                eprintln!(
                    "{}: turn {} ended with {}: {}",
                    trace.id,
                    n + 1,
                    played.exit,
                    String::from_utf8_lossy(&played.output).trim()
                );
            }
            self.otherwise += 1;
        }
        self.timed_out += usize::from(played.timed_out);
    }
}

impl Times {
    /// How many turns were played.
    pub(super) fn turns(&self) -> usize {
        self.0.iter().map(|replay| replay.ended).sum()
    }

    /// By how much longer than in another part replays took: the median of each sandbox over
    /// itself.
    pub(super) fn percent_over(&self, other: &Self) -> f64 {
        let pairs = self.0.iter().zip(&other.0);
        let whole = pairs.filter(|(a, b)| a.broke_off.is_none() && b.broke_off.is_none());
        let ratios =
            whole.map(|(a, b)| 100.0 * (a.wall.as_secs_f64() / b.wall.as_secs_f64() - 1.0));
        median(&ratios.collect::<Vec<_>>())
    }

    /// What it took, among the details, as that of a part.
    pub(super) fn entered(self, part: &str, measured: &mut Measured) -> Self {
        let mut starts = Series::default();
        let mut execs = Series::default();
        for replay in &self.0 {
            starts.extend(&replay.starts);
            execs.extend(&replay.execs);
        }
        let walls: Vec<f64> = self.0.iter().map(|r| r.wall.as_secs_f64()).collect();
        let count = |of: fn(&Replay) -> usize| self.0.iter().map(of).sum::<usize>() as f64;
        for (what, value) in [
            ("turns", self.turns() as f64),
            ("wall time of a replay, s p50", median(&walls)),
            ("until an exec runs, ms p50", starts.quantile(0.5)),
            ("until an exec runs, ms p99", starts.quantile(0.99)),
            ("exec, ms p50", execs.quantile(0.5)),
            ("exec, ms p90", execs.quantile(0.9)),
            ("turns that ended otherwise", count(|r| r.otherwise)),
            ("turns that the agent broke off", count(|r| r.timed_out)),
            (
                "replays that broke off",
                count(|r| usize::from(r.broke_off.is_some())),
            ),
        ] {
            measured.detail(format!("{part}: {what}"), value);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replay(seconds: u64, broke_off: bool) -> Replay {
        Replay {
            wall: Duration::from_secs(seconds),
            broke_off: broke_off.then(|| "why".into()),
            ..Replay::default()
        }
    }

    #[test]
    fn a_sandbox_is_compared_with_itself_and_not_where_it_broke_off() {
        let stock = Times(vec![
            replay(100, false),
            replay(10, false),
            replay(50, false),
        ]);
        let other = Times(vec![replay(110, false), replay(10, false), replay(1, true)]);
        assert_eq!(other.percent_over(&stock), 5.0);
    }
}
