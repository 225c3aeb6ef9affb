// SPDX-License-Identifier: Apache-2.0
//! The states of a container's processes, and who is told of each change.
//!
//! ```text
//! init:  Created --start--> Running --pause--> Pausing --> Paused --resume--> Running
//!           |                 |  \--rollback--> Replacing --> Running (another pid)
//!           +----- exit ------+--------------------------> Stopped --delete--> gone
//! exec:  Added --start--> Starting --> Running --exit--> Stopped --delete--> gone
//! ```
//! Every change is made under one short lock, and its event is queued in the same
//! step: the order of events is the order of states. The lock is never held over
//! a call of the runtime.
//!
//! While the init is being replaced its exit is not an exit: containerd sees a
//! running task throughout. The init's exit is the last to be told: it is held until what
//! it left is gone and every exec's exit is told, as by the Go shim.

mod ends;
mod pausing;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use containerd_shim_protos::{events::task as events, types::task::Status as TaskStatus};
use crab_runtime::reaper::Exit;
use tokio::sync::{Notify, watch};

use self::ends::Held;
pub(crate) use self::ends::InitEnd;
pub(crate) use crate::phase::{Phase, StateError, exited_at};
use crate::{
    log_driver::LogDriver,
    publisher::{Event, Publisher},
    stdio::{Client, StdioPaths},
    terminal::Terminal,
};

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
    /// The init's exit, while others come first.
    held: Option<Held>,
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
            held: None,
        }
    }
}

/// The processes of one container. An exec is known by its id, the init by "".
pub(crate) struct Processes {
    id: String,
    table: Mutex<HashMap<String, Process>>,
    publisher: Publisher,
    /// Rung when a start is told, or has failed.
    settled: Notify,
}

/// The key of the init in the table.
pub(crate) const INIT: &str = "";

impl Processes {
    pub(crate) fn new(id: String, publisher: Publisher) -> Self {
        Self {
            id,
            table: Mutex::default(),
            publisher,
            settled: Notify::new(),
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

    fn name_of(&self, exec: &str) -> String {
        if exec == INIT { &self.id } else { exec }.to_string()
    }

    fn refused(&self, verb: &'static str, exec: &str, phase: Phase) -> StateError {
        StateError::Refused {
            verb,
            id: self.name_of(exec),
            state: phase.word(),
        }
    }

    fn precondition(&self, verb: &'static str, exec: &str, phase: Phase) -> StateError {
        StateError::Precondition {
            verb,
            id: self.name_of(exec),
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
            Some(
                phase @ (Phase::Created(None)
                | Phase::Pausing(_)
                | Phase::Paused(_)
                | Phase::Stopped(..)),
            ) => return Err(self.refused("exec in", INIT, phase)),
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
            let init = table.get(INIT).ok_or_else(|| self.not_found(INIT))?;
            let phase = match &init.held {
                Some(held) => Phase::Stopped(held.pid, held.exit),
                None => init.phase,
            };
            match phase {
                Phase::Created(Some(_)) | Phase::Running(_) | Phase::Replacing(_) => {}
                Phase::Stopped(..) => return Err(self.precondition("exec in", INIT, phase)),
                phase => return Err(self.refused("exec in", INIT, phase)),
            }
        }
        let process = table.get_mut(exec).ok_or_else(|| self.not_found(exec))?;
        match process.phase {
            Phase::Created(_) => {
                process.phase = Phase::Starting;
                Ok(())
            }
            phase => Err(self.refused("start", exec, phase)),
        }
    }

    /// The start has succeeded; its event is queued before any exit's.
    pub(crate) fn started(&self, exec: &str, pid: i32) {
        let mut table = self.table();
        let Some(process) = table.get_mut(exec) else {
            return;
        };
        process.phase = Phase::Running(pid);
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
        self.settled.notify_waiters();
    }

    /// The client of a process, for as long as there may be output for it.
    pub(crate) fn client(&self, exec: &str) -> Option<Arc<Client>> {
        let client = self.with(exec, |p| p.client.clone().or_else(|| p.draining.upgrade()));
        client.ok()?
    }

    /// Takes a process out that has stopped or never started. Tells its pid, and its exit
    /// if there was one.
    pub(crate) fn delete(&self, exec: &str) -> Result<(i32, Option<Exit>), StateError> {
        let mut table = self.table();
        let process = table.get(exec).ok_or_else(|| self.not_found(exec))?;
        let gone = match process.phase {
            Phase::Stopped(pid, exit) => (pid, Some(exit)),
            Phase::Created(pid) => (pid.unwrap_or(0), None),
            phase => return Err(self.refused("delete", exec, phase)),
        };
        if exec == INIT && table.len() > 1 {
            // Whoever deletes the container deletes what was exec'd in it.
            table.retain(|id, _| id == INIT);
        }
        table.remove(exec);
        // As the Go shim: an exec's end is told by its exit alone.
        if exec == INIT {
            self.publisher.publish(Event::Delete(events::TaskDelete {
                container_id: self.id.clone(),
                pid: gone.0 as u32,
                exit_status: gone.1.map_or(0, |exit| exit.status),
                exited_at: exited_at(gone.1),
                ..Default::default()
            }));
        }
        Ok(gone)
    }

    /// The execs that have a process, with it.
    pub(crate) fn execs(&self) -> HashMap<i32, String> {
        let table = self.table();
        let execs = table.iter().filter(|(id, _)| *id != INIT);
        execs
            .filter(|(_, p)| matches!(p.phase, Phase::Running(_)))
            .map(|(id, p)| (p.phase.pid(), id.clone()))
            .collect()
    }

    /// What containerd is told of a process: what is in a paused container is paused.
    pub(crate) fn look(&self, exec: &str) -> Result<(Phase, TaskStatus, StdioPaths), StateError> {
        let init = self.init()?;
        self.with(exec, |p| {
            let frozen = matches!(init, Phase::Pausing(_) | Phase::Paused(_));
            let status = match p.phase {
                Phase::Stopped(..) => p.phase.status(),
                _ if frozen => init.status(),
                phase => phase.status(),
            };
            (p.phase, status, p.paths.clone())
        })
    }

    /// A rollback takes the init's process away: until [`Self::replaced`], its
    /// end is not told. Tells the pid.
    pub(crate) fn replacing(&self) -> Result<i32, StateError> {
        let mut table = self.table();
        let process = table.get_mut(INIT).ok_or_else(|| self.not_found(INIT))?;
        match process.phase {
            Phase::Running(pid) if process.held.is_none() => {
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

    /// Queues an event that belongs to no change of state.
    pub(crate) fn publish(&self, event: Event) {
        self.publisher.publish(event);
    }
}
