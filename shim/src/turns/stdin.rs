// SPDX-License-Identifier: Apache-2.0
//! Turns of programs that live on: a shell at a terminal or behind a pipe, a REPL.
//!
//! ```text
//! bytes to a stdin --Input--> [ open turn ] <-- an exec that lives on
//!    nothing typed or printed for the settle time --> look: see [`super::quiescence`]
//!    over --> nobody's input passes any more --> boundary
//! ```
//! The processes are looked at only while such a turn is open, at times that grow apart; a
//! sandbox in which nobody is told anything is never looked at. Input passes without a
//! question while its turn is open, so that a stream of it costs nothing.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crab_runtime::waits::{self, Seen, Stdin};
use crab_store::{Trigger, command_line};
use tokio::{sync::oneshot, time::timeout};

use super::{
    quiescence::{Before, Quiescence, Verdict, progress},
    task::{Open, Task},
};
use crate::{
    activity::Activity,
    container::INIT,
    stdio::{Client, Drive},
};

/// How long a look may take. One that reads what a program polls takes as long as that
/// program wants.
const LOOK_LIMIT: Duration = Duration::from_millis(500);

/// The watch over an open turn of programs that live on.
pub(super) struct Watching {
    pub(super) quiescence: Quiescence,
    pub(super) next: Instant,
}

/// Now, as `/proc/<pid>/stat` counts the starts of processes: hundredths of a second, on
/// every architecture (`USER_HZ`).
pub(super) fn ticks_since_boot() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * 100 + now.tv_nsec as u64 / 10_000_000
}

impl Task {
    fn client(&self, process: &str) -> Option<Arc<Client>> {
        self.container.processes.client(process)
    }

    fn settle_time(&self) -> Duration {
        self.container.config.turns.settle()
    }

    /// Lets the input of a turn's programs pass, or has it ask first.
    pub(super) fn let_pass(&self, open: &Open, passes: bool) {
        for process in &open.holders {
            if let Some(client) = self.client(process) {
                client.activity().let_pass(passes);
            }
        }
    }

    /// Bytes have come for a process that takes part in no open turn.
    pub(super) async fn told(&mut self, process: String, at: Instant) {
        if self.history.is_err() {
            // There are no turns: it need not ask again.
            if let Some(client) = self.client(&process) {
                client.activity().let_pass(true);
            }
            return;
        }
        let gate = at.elapsed();
        let mut before = Before::Seen(Default::default());
        if self.open.is_none()
            && let Some(client) = self.client(&process)
            && let Drive::By(stdin) = client.drive()
            && let Some(seen) = self.look(vec![stdin], false).await
        {
            before = Before::of(&seen, self.at_rest.as_ref());
        }
        let command = match self.commands.get(&process) {
            Some(command) => command.clone(),
            None if process == INIT => command_line(self.container.bundle.args()),
            None => String::new(),
        };
        self.open_for(process, Trigger::Stdin, command, gate, before);
    }

    /// Looks from now on whether the programs of the open turn wait to be told more.
    pub(super) fn watch_for_rest(&mut self, before: Before) {
        let Some(open) = &self.open else { return };
        self.let_pass(open, true);
        if open.hinted {
            return;
        }
        let (now, settle) = (Instant::now(), self.settle_time());
        match &mut self.watching {
            Some(watching) => watching.next = now + settle,
            None => {
                let quiet = self.container.config.turns.quiet();
                let quiescence = Quiescence::new(now, settle, before).with_inside(quiet);
                self.watch(quiescence, settle);
            }
        }
    }

    /// Looks for the first time after so long.
    pub(super) fn watch(&mut self, quiescence: Quiescence, first: Duration) {
        let next = Instant::now() + first;
        self.watching = Some(Watching { quiescence, next });
    }

    /// The processes now; nothing if they cannot be looked at.
    pub(super) async fn look(&mut self, stdins: Vec<Stdin>, network: bool) -> Option<Vec<Seen>> {
        if self.stuck.as_ref().is_some_and(|look| !look.is_finished()) {
            return None;
        }
        let cgroup = self.container.cgroup()?;
        let (answer, seen) = oneshot::channel();
        let look = tokio::task::spawn_blocking(move || {
            let _ = answer.send(waits::look(&cgroup, &stdins, network));
        });
        match timeout(LOOK_LIMIT, seen).await {
            Ok(Ok(Ok(seen))) => Some(seen),
            Ok(Ok(Err(error))) => {
                tracing::debug!(%error, "the processes cannot be looked at");
                None
            }
            Ok(Err(_)) => None,
            Err(_) => {
                tracing::warn!("a look at the processes does not come back");
                self.stuck = Some(look);
                None
            }
        }
    }

    /// It is time to look whether the open turn is over.
    pub(super) async fn look_for_rest(&mut self) {
        let Some(open) = &self.open else {
            self.watching = None;
            return;
        };
        let clients: Vec<Arc<Client>> = open
            .holders
            .iter()
            .filter_map(|it| self.client(it))
            .collect();
        let activities: Vec<&Activity> = clients.iter().map(|it| &**it.activity()).collect();
        let mut stdins = Vec::new();
        let mut later = false;
        let mut never = false;
        for client in &clients {
            match client.drive() {
                Drive::By(stdin) => stdins.push(stdin),
                Drive::NotYet => later = true,
                Drive::Never => never = true,
            }
        }
        let settle = self.settle_time();
        let Some(watching) = &mut self.watching else {
            return;
        };
        let now = Instant::now();
        let told = activities.iter().filter_map(|it| it.last_input()).max();
        let printed = activities.iter().filter_map(|it| it.last_output()).max();
        let quiet_from = told.max(printed).map_or(now, |last| last + settle);
        let is_quiet = quiet_from <= now;
        let inside_from = watching.quiescence.inside_from();
        let network = inside_from.is_some_and(|from| from <= now);
        if let Some(patience) = watching.quiescence.patience() {
            if never {
                // It holds the turn open until it ends, unless it is an agent.
                stdins.clear();
                if let Some(from) = inside_from.filter(|from| *from > now) {
                    watching.next = from;
                    return;
                }
            }
            if later {
                watching.next = now + settle;
                return;
            }
            // What prints without an end is looked at after all.
            if !is_quiet && told.is_none_or(|told| now < told + patience) {
                watching.next = quiet_from;
                return;
            }
        }
        let seen = self.look(stdins, network).await;
        let Some(watching) = &mut self.watching else {
            return;
        };
        let now = Instant::now();
        let Some(seen) = seen else {
            watching.next = now + LOOK_LIMIT;
            return;
        };
        // While an exec goes on, somebody waits for its end.
        let is_hint = watching.quiescence.inside_from().is_none();
        let goes_on = is_hint && !clients.is_empty() && !seen.iter().any(|it| it.reads);
        match watching.quiescence.looked(now, &seen, is_quiet && !goes_on) {
            Verdict::Again(pause) => watching.next = now + pause,
            Verdict::Over(since) => {
                // From here on whoever has something to say waits; who said it before is heard.
                activities.iter().for_each(|it| it.let_pass(false));
                if activities.iter().filter_map(|it| it.last_input()).max() != told {
                    activities.iter().for_each(|it| it.let_pass(true));
                    watching.next = now + settle;
                    return;
                }
                self.at_rest = Some(progress(&seen));
                if !seen.iter().any(|process| process.reads) {
                    self.rests_inside(&seen);
                }
                if let Some(mut open) = self.take_open() {
                    // What it printed last came before it was seen at rest.
                    let printed = printed.filter(|printed| Some(*printed) > told);
                    open.over_since(printed.map_or(since, |printed| printed.min(since)));
                    self.close_now(open).await;
                }
            }
        }
    }
}
