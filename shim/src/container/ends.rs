// SPDX-License-Identifier: Apache-2.0
//! Ends: each told once, that of the init last.

use std::{collections::HashMap, pin::pin, sync::Arc, time::SystemTime};

use containerd_shim_protos::{events::task as events, protobuf::MessageField};
use crab_runtime::reaper::Exit;
use tokio::sync::watch;

use super::{INIT, Phase, Process, Processes, StateError};
use crate::publisher::Event;

/// An exit of an init that is not told yet.
pub(super) struct Held {
    pub(super) pid: i32,
    pub(super) exit: Exit,
    /// Nothing that it left lives on.
    swept: bool,
}

/// What the exit of an init means.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InitEnd {
    /// Nothing: it is known, or the process was replaced.
    None,
    /// Its start is not told yet: to be asked again after [`Processes::settled`].
    TooEarly,
    /// The end: what it left is to go, then [`Processes::swept`].
    End,
}

impl Process {
    /// Lets the client go, whose FIFOs close when the pipes are drained.
    fn release(&mut self) {
        if let Some(client) = self.client.take() {
            client.stop_input();
            self.draining = Arc::downgrade(&client);
            self.driver = client.driver();
        }
    }
}

impl Processes {
    /// The phase of a process that nobody is just starting: while somebody is, what is asked
    /// of the process waits, as in the Go shim.
    pub(crate) async fn settled(&self, exec: &str) -> Result<Phase, StateError> {
        loop {
            let mut rung = pin!(self.settled.notified());
            // Before the look: none is missed between them.
            rung.as_mut().enable();
            match self.with(exec, |p| p.phase)? {
                Phase::Starting => rung.await,
                phase => return Ok(phase),
            }
        }
    }

    /// The init's process has ended, or never began.
    pub(crate) fn init_exited(&self, pid: i32, exit: Exit) -> InitEnd {
        let mut table = self.table();
        let Some(init) = table.get_mut(INIT) else {
            return InitEnd::None;
        };
        match init.phase {
            Phase::Stopped(..) | Phase::Replacing(_) => InitEnd::None,
            Phase::Starting => InitEnd::TooEarly,
            // Of the process that a rollback has replaced meanwhile.
            Phase::Running(now) | Phase::Pausing(now) | Phase::Paused(now) if now != pid => {
                InitEnd::None
            }
            _ => {
                init.held.get_or_insert(Held {
                    pid,
                    exit,
                    swept: false,
                });
                InitEnd::End
            }
        }
    }

    /// Nothing that the init left lives on: its exit is told once the execs' are.
    pub(crate) fn swept(&self) {
        let mut table = self.table();
        if let Some(held) = table.get_mut(INIT).and_then(|init| init.held.as_mut()) {
            held.swept = true;
        }
        self.settle(&mut table);
    }

    /// Tells the init's exit if it is held, and nothing has to come before it any more.
    fn settle(&self, table: &mut HashMap<String, Process>) {
        let awaited = table
            .iter()
            .any(|(id, p)| id != INIT && matches!(p.phase, Phase::Starting | Phase::Running(_)));
        let Some(init) = table.get_mut(INIT) else {
            return;
        };
        if let Some(Held { pid, exit, .. }) = init.held.take_if(|held| held.swept && !awaited) {
            self.tell_exit(INIT, init, pid, exit);
        }
    }

    /// An exec has ended. Tells waiters and containerd, once.
    pub(crate) fn exited(&self, exec: &str, pid: i32, exit: Exit) {
        let mut table = self.table();
        let Some(process) = table.get_mut(exec) else {
            return;
        };
        if matches!(process.phase, Phase::Stopped(..)) {
            return;
        }
        self.tell_exit(exec, process, pid, exit);
        self.settle(&mut table);
    }

    fn tell_exit(&self, exec: &str, process: &mut Process, pid: i32, exit: Exit) {
        process.phase = Phase::Stopped(pid, exit);
        process.release();
        self.publisher.publish(Event::Exit(events::TaskExit {
            container_id: self.id.clone(),
            id: self.name_of(exec),
            pid: pid as u32,
            exit_status: exit.status,
            exited_at: MessageField::some(exit.at.into()),
            ..Default::default()
        }));
        process.ended.send_replace(Some(exit));
    }

    /// A start has failed.
    pub(crate) fn start_failed(&self, exec: &str) {
        let exit = Exit {
            status: 127,
            at: SystemTime::now(),
        };
        let mut table = self.table();
        if let Some(process) = table.get_mut(exec) {
            process.phase = Phase::Stopped(0, exit);
            process.release();
            process.ended.send_replace(Some(exit));
        }
        self.settle(&mut table);
        drop(table);
        self.settled.notify_waiters();
    }

    /// A handle on a process's end.
    pub(crate) fn ended(&self, exec: &str) -> Result<watch::Receiver<Option<Exit>>, StateError> {
        self.with(exec, |p| p.ended.subscribe())
    }

    /// Tells when the log driver of a process has ended, if it has one.
    pub(crate) fn driver_ended(&self, exec: &str) -> Option<watch::Receiver<bool>> {
        let driver = self.with(exec, |p| {
            let of_client = || p.client.as_ref().and_then(|client| client.driver());
            p.driver.clone().or_else(of_client)
        });
        Some(driver.ok()??.ended())
    }

    /// The init could be neither replaced nor brought back: now it has ended.
    pub(crate) fn replace_failed(&self) {
        let exit = Exit {
            status: 137,
            at: SystemTime::now(),
        };
        let mut table = self.table();
        if let Some(init) = table.get_mut(INIT) {
            init.held = Some(Held {
                pid: init.phase.pid(),
                exit,
                swept: true,
            });
        }
        self.settle(&mut table);
    }
}
