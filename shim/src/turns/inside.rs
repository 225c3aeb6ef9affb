// SPDX-License-Identifier: Apache-2.0
//! An agent that runs inside the sandbox: nobody tells it anything, so its turns are known by its
//! rest alone.
//!
//! It is the container's program, unless that is at a terminal or only holds the container open, or a
//! program that an exec began and that was found waiting for the network. Each time
//! it has gone on and then waits again, a turn is over. No turn is ever open on its account: a busy
//! server would hold it open for ever, and the execs beside it are turns of their own.
//!
//! While it waits it is looked at less and less often. A wait that begins and ends between two looks
//! costs nothing but that the turn goes on.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant, SystemTime},
};

use crab_runtime::{reaper::Exit, waits::Seen};
use crab_store::{Trigger, command_line};

use super::{
    quiescence::{Before, Progress, Quiescence, Verdict},
    record::Way,
    task::{Open, Task},
};
use crate::container::INIT;

/// The share of a rest after which it is looked at again, and for how long at most it is not.
const SHARE: u32 = 10;
const LATEST: Duration = Duration::from_secs(30);
/// What a thread that was only woken may have run: by a freeze, or by a timer of its library.
const WOKEN: u64 = 500_000;

/// The watch over an agent inside.
pub(super) struct Inside {
    /// The programs, as execs; the init's is empty.
    programs: BTreeSet<String>,
    quiescence: Quiescence,
    /// How far all had run when its last turn ended; nothing if that is to be found out.
    at: Option<Progress>,
    /// When it was seen to have gone on since.
    went_on: Option<SystemTime>,
    rests_since: Instant,
    pub(super) next: Instant,
}

impl Inside {
    /// The sandbox stood still by no turn's doing: that its threads were woken is no work of an
    /// agent's.
    pub(super) fn was_stopped(&mut self) {
        if self.went_on.is_none() {
            self.at = None;
        }
    }
}

/// Whether more has happened than that somebody was woken.
fn has_gone_on(before: &Progress, now: &Progress) -> bool {
    let ran = |(process, (ran, _)): (_, &(u64, u64))| {
        before
            .get(process)
            .is_none_or(|(then, _)| ran - then > WOKEN)
    };
    before.len() != now.len() || now.iter().any(ran)
}

impl Task {
    /// The container's program runs from now on.
    pub(super) fn begin_inside(&mut self, holds_open: bool) {
        self.inside = None;
        let client = self.container.processes.client(INIT);
        // A client may attach a stdin that nobody ever writes to: `ctr run -d` does.
        let is_told = client.is_some_and(|client| client.terminal());
        if self.history.is_err() || holds_open || is_told {
            return;
        }
        self.watch_inside(INIT.into(), Before::Seen(Default::default()), true);
    }

    /// The programs of the open turn wait for the network.
    pub(super) fn rests_inside(&mut self, seen: &[Seen]) {
        let (Some(open), Some(watching)) = (&self.open, &self.watching) else {
            return;
        };
        let before = watching.quiescence.before().clone();
        tracing::debug!(processes = seen.len(), "an agent inside waits");
        for program in open.holders.clone() {
            self.watch_inside(program, before.clone(), false);
        }
    }

    fn watch_inside(&mut self, program: String, before: Before, runs: bool) {
        let (now, quiet) = (Instant::now(), self.container.config.turns.quiet());
        let inside = self.inside.get_or_insert_with(|| Inside {
            programs: BTreeSet::new(),
            quiescence: Quiescence::of_inside(now, quiet, before),
            at: None,
            went_on: runs.then(SystemTime::now),
            rests_since: now,
            next: now + quiet / 4,
        });
        inside.programs.insert(program);
    }

    /// It is time to look how the agent inside is.
    pub(super) async fn look_inside(&mut self) {
        let quiet = self.container.config.turns.quiet();
        let is_open = self.open.is_some() || self.closing.is_some();
        let seen = match is_open {
            // What it does is that turn's.
            true => None,
            false => self.look(Vec::new(), true).await,
        };
        let Some(inside) = &mut self.inside else {
            return;
        };
        let now = Instant::now();
        let Some(seen) = seen else {
            inside.at = None;
            inside.next = now + quiet;
            return;
        };
        let progress = inside.quiescence.progress(&seen);
        match &inside.at {
            _ if inside.went_on.is_some() => {}
            Some(at) if has_gone_on(at, &progress) => inside.went_on = Some(SystemTime::now()),
            at => {
                if at.is_none() {
                    // After a freeze it may have been woken.
                    inside.at = Some(progress);
                }
                let rest = now.duration_since(inside.rests_since) / SHARE;
                inside.next = now + rest.clamp(quiet / 4, LATEST);
                return;
            }
        }
        match inside.quiescence.looked(now, &seen, true) {
            Verdict::Again(pause) => inside.next = now + pause.max(quiet / 4),
            Verdict::Over(since) => {
                let began = inside.went_on.take();
                inside.at = None;
                inside.rests_since = now;
                inside.next = now + quiet / 4;
                self.inside_over(began, since).await;
            }
        }
    }

    async fn inside_over(&mut self, began: Option<SystemTime>, since: Instant) {
        let program = self
            .inside
            .as_ref()
            .and_then(|inside| inside.programs.first());
        let command = match program {
            Some(exec) if exec != INIT => self.commands.get(exec).cloned().unwrap_or_default(),
            _ => command_line(self.container.bundle.args()),
        };
        let Ok(history) = &self.history else { return };
        let mut open = Open::new(history.next, Trigger::Inside, command, Duration::ZERO);
        open.began = began.unwrap_or(open.began);
        open.over_since(since);
        // One that changed nothing is none: it was only woken.
        match self.boundary(open, Way::OnDemand).await {
            Ok(done) => {
                let turn = done.turn.0;
                self.tell(|status| status.turn = status.turn.max(turn));
            }
            Err(error) => {
                tracing::error!(error = %format!("{error:#}"), "no checkpoint of this turn");
            }
        }
    }

    /// A program that was an agent has ended: what it did last is a turn.
    pub(super) async fn inside_ended(
        &mut self,
        exec: &str,
        command: Option<String>,
        exit: Option<Exit>,
    ) {
        let Some(inside) = &mut self.inside else {
            return;
        };
        // What ends with the container's program ends with the container.
        if exec == INIT || !inside.programs.remove(exec) {
            return;
        }
        if inside.programs.is_empty() {
            self.inside = None;
        }
        if self.open.is_some() || self.closing.is_some() {
            return;
        }
        let Ok(history) = &mut self.history else {
            return;
        };
        let turn = history.next;
        history.next = turn.next();
        let command = command.unwrap_or_default();
        let mut open = Open::new(turn, Trigger::Inside, command, Duration::ZERO);
        open.exit = exit.map(|exit| exit.status as i32);
        open.ended_at(exit.map_or_else(SystemTime::now, |exit| exit.at));
        self.tell(|status| status.turn = turn.0);
        self.close_after_gap(open).await;
    }
}
