// SPDX-License-Identifier: Apache-2.0
//! The states of a container's processes, and who is told of each change.
//!
//! ```text
//! init:  Created --start--> Running <--pause/resume--> Paused
//!           |                 |  \--rollback--> Replacing --> Running (another pid)
//!           +----- exit ------+--------------------------> Stopped --delete--> gone
//! exec:  Added --start--> Starting --> Running --exit--> Stopped --delete--> gone
//! ```
//! Every change is made under one short lock, and its event is queued in the same
//! step: the order of events is the order of states. The lock is never held over
//! a call of the runtime.
//!
//! While the init is being replaced its exit is not an exit: containerd sees a
//! running task throughout.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::SystemTime,
};

use containerd_shim_protos::{
    events::task as events, protobuf::MessageField, types::task::Status as TaskStatus,
};
use crab_runtime::reaper::Exit;
use tokio::sync::watch;

use crate::{
    log_driver::LogDriver,
    publisher::{Event, Publisher},
    stdio::{Client, StdioPaths},
    terminal::Terminal,
};

/// The life of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It exists, its program does not run. For an init, what `create` leaves;
    /// a restored one has no pid until it is started.
    Created(Option<i32>),
    /// A start is under way.
    Starting,
    Running(i32),
    Paused(i32),
    /// A rollback is exchanging the init's process for another.
    Replacing(i32),
    Stopped(i32, Exit),
}

impl Phase {
    /// The pid, 0 where there is none.
    pub(crate) fn pid(self) -> i32 {
        match self {
            Self::Created(pid) => pid.unwrap_or(0),
            Self::Starting => 0,
            Self::Running(pid)
            | Self::Paused(pid)
            | Self::Replacing(pid)
            | Self::Stopped(pid, _) => pid,
        }
    }

    /// What containerd calls it.
    pub(crate) fn status(self) -> TaskStatus {
        match self {
            Self::Created(_) | Self::Starting => TaskStatus::CREATED,
            Self::Running(_) | Self::Replacing(_) => TaskStatus::RUNNING,
            Self::Paused(_) => TaskStatus::PAUSED,
            Self::Stopped(..) => TaskStatus::STOPPED,
        }
    }

    /// What people call it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Created(_) => "created",
            Self::Starting => "starting",
            Self::Running(_) => "running",
            Self::Paused(_) => "paused",
            Self::Replacing(_) => "rolling-back",
            Self::Stopped(..) => "stopped",
        }
    }

    pub(crate) fn exit(self) -> Option<Exit> {
        match self {
            Self::Stopped(_, exit) => Some(exit),
            _ => None,
        }
    }
}

/// One process of the container: its init, or an exec.
pub(crate) struct Process {
    pub(crate) phase: Phase,
    pub(crate) paths: StdioPaths,
    /// Held by the init's entry for as long as it lives, so that a rollback can
    /// attach new pipes; by an exec's only until it is deleted.
    pub(crate) client: Option<Arc<Client>>,
    /// The same after the process's end, while output is still relayed.
    draining: Weak<Client>,
    /// The log driver of a process that has ended; it may go on until the delete.
    driver: Option<Arc<LogDriver>>,
    pub(crate) terminal: Option<Arc<Terminal>>,
    /// The OCI process specification of an exec.
    pub(crate) spec: Vec<u8>,
    ended: watch::Sender<Option<Exit>>,
    /// An exit that came before the start was told: told right after it.
    early: Option<(i32, Exit)>,
}

impl Process {
    pub(crate) fn new(phase: Phase, paths: StdioPaths, client: Option<Arc<Client>>) -> Self {
        Self {
            phase,
            paths,
            client,
            draining: Weak::new(),
            driver: None,
            terminal: None,
            spec: Vec::new(),
            ended: watch::Sender::new(None),
            early: None,
        }
    }

    /// Lets the client go, whose FIFOs close when the pipes are drained.
    fn release(&mut self) {
        if let Some(client) = self.client.take() {
            client.stop_input();
            self.draining = Arc::downgrade(&client);
            self.driver = client.driver();
        }
    }
}

/// Why a change of state is refused; each maps to one gRPC code.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum StateError {
    #[error("{what} {id}: not found")]
    NotFound { what: &'static str, id: String },
    #[error("{what} {id}: already exists")]
    Exists { what: &'static str, id: String },
    #[error("cannot {verb} {id}: it is {state}")]
    Precondition {
        verb: &'static str,
        id: String,
        state: &'static str,
    },
}

/// The processes of one container. An exec is known by its id, the init by "".
pub(crate) struct Processes {
    id: String,
    table: Mutex<HashMap<String, Process>>,
    publisher: Publisher,
}

/// The key of the init in the table.
pub(crate) const INIT: &str = "";

impl Processes {
    pub(crate) fn new(id: String, publisher: Publisher) -> Self {
        Self {
            id,
            table: Mutex::default(),
            publisher,
        }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<String, Process>> {
        // No code under this lock can leave a change half made.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at a process.
    pub(crate) fn with<T>(
        &self,
        exec: &str,
        f: impl FnOnce(&mut Process) -> T,
    ) -> Result<T, StateError> {
        self.table()
            .get_mut(exec)
            .map(f)
            .ok_or_else(|| self.not_found(exec))
    }

    fn not_found(&self, exec: &str) -> StateError {
        if exec == INIT {
            StateError::NotFound {
                what: "container",
                id: self.id.clone(),
            }
        } else {
            StateError::NotFound {
                what: "exec",
                id: exec.into(),
            }
        }
    }

    fn precondition(&self, verb: &'static str, exec: &str, phase: Phase) -> StateError {
        StateError::Precondition {
            verb,
            id: if exec == INIT { &self.id } else { exec }.to_string(),
            state: phase.word(),
        }
    }

    /// The init's phase.
    pub(crate) fn init(&self) -> Result<Phase, StateError> {
        self.with(INIT, |p| p.phase)
    }

    /// Enters the init, created, with the event that tells so.
    pub(crate) fn created(&self, process: Process, event: events::TaskCreate) {
        self.table().insert(INIT.into(), process);
        self.publisher.publish(Event::Create(event));
    }

    /// Enters an exec.
    pub(crate) fn add_exec(&self, exec: &str, process: Process) -> Result<(), StateError> {
        let mut table = self.table();
        let init = table.get(INIT).map(|p| p.phase);
        match init {
            None => return Err(self.not_found(INIT)),
            Some(phase @ Phase::Stopped(..)) => {
                return Err(self.precondition("exec in", INIT, phase));
            }
            Some(_) => {}
        }
        if table.contains_key(exec) {
            return Err(StateError::Exists {
                what: "exec",
                id: exec.into(),
            });
        }
        table.insert(exec.into(), process);
        self.publisher
            .publish(Event::ExecAdded(events::TaskExecAdded {
                container_id: self.id.clone(),
                exec_id: exec.into(),
                ..Default::default()
            }));
        Ok(())
    }

    /// A start begins: nobody else may start the process.
    pub(crate) fn starting(&self, exec: &str) -> Result<(), StateError> {
        let mut table = self.table();
        if exec != INIT {
            match table.get(INIT).map(|p| p.phase) {
                Some(Phase::Running(_) | Phase::Replacing(_)) => {}
                Some(phase) => return Err(self.precondition("exec in", INIT, phase)),
                None => return Err(self.not_found(INIT)),
            }
        }
        let process = table.get_mut(exec).ok_or_else(|| self.not_found(exec))?;
        match process.phase {
            Phase::Created(_) => {
                process.phase = Phase::Starting;
                Ok(())
            }
            phase => Err(self.precondition("start", exec, phase)),
        }
    }

    /// The start has succeeded; its event is queued before any exit's.
    pub(crate) fn started(&self, exec: &str, pid: i32) {
        let mut table = self.table();
        let Some(process) = table.get_mut(exec) else {
            return;
        };
        process.phase = Phase::Running(pid);
        let early = process.early.take();
        let container_id = self.id.clone();
        let pid = pid as u32;
        self.publisher.publish(if exec == INIT {
            Event::Start(events::TaskStart {
                container_id,
                pid,
                ..Default::default()
            })
        } else {
            Event::ExecStarted(events::TaskExecStarted {
                container_id,
                exec_id: exec.into(),
                pid,
                ..Default::default()
            })
        });
        drop(table);
        if let Some((pid, exit)) = early {
            self.exited(exec, pid, exit);
        }
    }

    /// A process has ended, or never began. Tells waiters and containerd, once;
    /// a second exit and one of an init being replaced are none.
    pub(crate) fn exited(&self, exec: &str, pid: i32, exit: Exit) {
        let mut table = self.table();
        let Some(process) = table.get_mut(exec) else {
            return;
        };
        match process.phase {
            Phase::Stopped(..) | Phase::Replacing(_) => return,
            Phase::Starting => {
                process.early = Some((pid, exit));
                return;
            }
            // Of the process that a rollback has replaced meanwhile.
            Phase::Running(now) | Phase::Paused(now) if now != pid => return,
            _ => {}
        }
        process.phase = Phase::Stopped(pid, exit);
        process.release();
        self.publisher.publish(Event::Exit(events::TaskExit {
            container_id: self.id.clone(),
            id: if exec == INIT { &self.id } else { exec }.to_string(),
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

    /// Takes a process out that has stopped or never started.
    pub(crate) fn delete(&self, exec: &str) -> Result<(i32, Exit), StateError> {
        let mut table = self.table();
        let process = table.get(exec).ok_or_else(|| self.not_found(exec))?;
        let gone = match process.phase {
            Phase::Stopped(pid, exit) => (pid, exit),
            Phase::Created(pid) => (
                pid.unwrap_or(0),
                Exit {
                    status: 0,
                    at: SystemTime::now(),
                },
            ),
            phase => return Err(self.precondition("delete", exec, phase)),
        };
        if exec == INIT && table.len() > 1 {
            // Whoever deletes the container deletes what was exec'd in it.
            table.retain(|id, _| id == INIT);
        }
        if let Some(process) = table.remove(exec)
            && let Some(client) = process.client.or_else(|| process.draining.upgrade())
        {
            // Nobody reads any more; what runs on is drained into nothing.
            client.detach();
        }
        // As the Go shim: an exec's end is told by its exit alone.
        if exec == INIT {
            self.publisher.publish(Event::Delete(events::TaskDelete {
                container_id: self.id.clone(),
                pid: gone.0 as u32,
                exit_status: gone.1.status,
                exited_at: MessageField::some(gone.1.at.into()),
                ..Default::default()
            }));
        }
        Ok(gone)
    }

    /// Pauses or resumes the init's phase.
    pub(crate) fn set_paused(&self, paused: bool) -> Result<(), StateError> {
        let mut table = self.table();
        let process = table.get_mut(INIT).ok_or_else(|| self.not_found(INIT))?;
        let container_id = self.id.clone();
        match (process.phase, paused) {
            (Phase::Running(pid), true) => {
                process.phase = Phase::Paused(pid);
                self.publisher.publish(Event::Paused(events::TaskPaused {
                    container_id,
                    ..Default::default()
                }));
                Ok(())
            }
            (Phase::Paused(pid), false) => {
                process.phase = Phase::Running(pid);
                self.publisher.publish(Event::Resumed(events::TaskResumed {
                    container_id,
                    ..Default::default()
                }));
                Ok(())
            }
            (phase, true) => Err(self.precondition("pause", INIT, phase)),
            (phase, false) => Err(self.precondition("resume", INIT, phase)),
        }
    }

    /// A rollback takes the init's process away: until [`Self::replaced`], its
    /// end is not told. Tells the pid.
    pub(crate) fn replacing(&self) -> Result<i32, StateError> {
        let mut table = self.table();
        let process = table.get_mut(INIT).ok_or_else(|| self.not_found(INIT))?;
        match process.phase {
            Phase::Running(pid) => {
                process.phase = Phase::Replacing(pid);
                Ok(pid)
            }
            phase => Err(self.precondition("roll back", INIT, phase)),
        }
    }

    /// The init runs again, as another process.
    pub(crate) fn replaced(&self, pid: i32) {
        if let Some(process) = self.table().get_mut(INIT)
            && matches!(process.phase, Phase::Replacing(_))
        {
            process.phase = Phase::Running(pid);
        }
    }

    /// The init could be neither replaced nor brought back: now it has ended.
    pub(crate) fn replace_failed(&self) {
        let pid = {
            let mut table = self.table();
            let Some(process) = table.get_mut(INIT) else {
                return;
            };
            let pid = process.phase.pid();
            process.phase = Phase::Running(pid);
            pid
        };
        self.exited(
            INIT,
            pid,
            Exit {
                status: 137,
                at: SystemTime::now(),
            },
        );
    }

    /// Queues an event that belongs to no change of state.
    pub(crate) fn publish(&self, event: Event) {
        self.publisher.publish(event);
    }
}
