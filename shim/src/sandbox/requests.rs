// SPDX-License-Identifier: Apache-2.0
//! What a client asks of a container that is there.

use std::{
    fs,
    sync::{Arc, PoisonError},
};

use anyhow::{Context, Result};
use crab_runtime::reaper::Exit;

use tokio::time::timeout;

use super::{Container, KILL_LIMIT, blocking};
use crate::container::{INIT, Phase, StateError};

impl Container {
    /// Sends a signal to a process, or to all of the container.
    pub(crate) async fn kill(&self, exec: &str, signal: i32, all: bool) -> ttrpc::Result<()> {
        let mut phase = self.processes.settled(exec).await?;
        if matches!(phase, Phase::Replacing(_)) {
            // The process that it is for is still to come.
            drop(self.hold().await);
            phase = self.processes.with(exec, |p| p.phase)?;
        }
        let name = if exec == INIT { self.id.id() } else { exec };
        let pid = match phase {
            // As the Go shim: an exec is something that was not started, a container
            // something that is not there.
            Phase::Created(None) | Phase::Stopped(0, _) if exec != INIT => {
                return Err(StateError::Precondition {
                    verb: "kill",
                    id: name.into(),
                    state: "not started",
                }
                .into());
            }
            Phase::Created(None) | Phase::Stopped(..) => {
                return Err(StateError::NotFound {
                    what: "running process of",
                    id: name.into(),
                }
                .into());
            }
            phase => phase.pid(),
        };
        let mut targets = vec![pid];
        if all && exec == INIT {
            targets = self
                .cgroup()
                .and_then(|cgroup| cgroup.processes().ok())
                .unwrap_or(targets);
        }
        for target in targets {
            send_signal(target, signal)
                .map_err(|e| crate::task::refuse(ttrpc::Code::UNKNOWN, e))?;
        }
        // As the Go shim: with an exec alone, the container stays paused.
        if signal == libc::SIGKILL
            && exec == INIT
            && matches!(phase, Phase::Pausing(_) | Phase::Paused(_))
            && let Some(cgroup) = self.cgroup()
        {
            // A frozen process dies only when it is thawed.
            let _ = blocking(move || Ok(cgroup.thaw()?)).await;
        }
        Ok(())
    }

    /// Removes a process that has ended; with the init goes the container.
    pub(crate) async fn delete(self: &Arc<Self>, exec: &str) -> ttrpc::Result<(i32, Option<Exit>)> {
        self.processes.settled(exec).await?;
        let client = self.processes.client(exec);
        let driver = self.processes.driver_ended(exec);
        let gone = if exec == INIT {
            self.delete_container().await?
        } else {
            self.processes.delete(exec)?
        };
        // Whoever reads the log next finds all of it.
        if let Some(client) = client {
            client.take_leave().await;
        }
        if let Some(mut driver) = driver {
            let _ = driver.wait_for(|ended| *ended).await;
        }
        Ok(gone)
    }

    async fn delete_container(self: &Arc<Self>) -> ttrpc::Result<(i32, Option<Exit>)> {
        // A second one, of a client who has given the first up, finds it done.
        let _alone = self.deleting.lock().await;
        let created = match self.processes.init()? {
            Phase::Created(pid) => pid.is_some(),
            Phase::Stopped(..) => false,
            // Refused, with the right words.
            _ => return Ok(self.processes.delete(INIT)?),
        };
        if let Some(turns) = self.turns() {
            turns.close().await;
        }
        let mut ended = self.processes.ended(INIT)?;
        let this = self.clone();
        blocking(move || this.tear_down())
            .await
            .map_err(crate::task::unknown)?;
        if created {
            // Its process was killed: that is told before the delete is.
            let _ = timeout(KILL_LIMIT, ended.wait_for(Option::is_some)).await;
        }
        Ok(self.processes.delete(INIT)?)
    }

    /// Keeps captures back until what is returned is dropped: they freeze and thaw,
    /// too.
    pub(super) async fn hold(&self) -> Option<impl Sized + use<>> {
        match self.turns() {
            Some(turns) => Some(turns.hold().await),
            None => None,
        }
    }

    pub(crate) async fn pause(&self) -> ttrpc::Result<()> {
        let _held = self.hold().await;
        self.processes.pausing()?;
        let cgroup = self.cgroup();
        let limit = self.config.runtime.freeze_timeout_of_client();
        let frozen = blocking(move || {
            let cgroup = cgroup.context("the container has no cgroup")?;
            cgroup.freeze(limit)?.leave_frozen();
            Ok(())
        })
        .await;
        if let Err(error) = frozen {
            self.processes.pause_failed();
            return Err(crate::task::unknown(error));
        }
        Ok(self.processes.paused()?)
    }

    pub(crate) async fn resume(&self) -> ttrpc::Result<()> {
        let _held = self.hold().await;
        self.processes.resumable()?;
        let cgroup = self.cgroup();
        blocking(move || Ok(cgroup.context("the container has no cgroup")?.thaw()?))
            .await
            .map_err(crate::task::unknown)?;
        Ok(self.processes.resumed()?)
    }

    /// New resource limits, as OCI JSON.
    pub(crate) async fn update(&self, resources: Vec<u8>) -> ttrpc::Result<()> {
        // A rollback takes the runtime's container away for a while.
        let _held = self.hold().await;
        let phase = self.processes.init()?;
        if matches!(phase, Phase::Stopped(..)) {
            return Err(StateError::Refused {
                verb: "update",
                id: self.id.id().into(),
                state: phase.word(),
            }
            .into());
        }
        let limited = self.limit(resources.clone()).await;
        limited.map_err(crate::task::unknown)?;
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner) = Some(resources);
        Ok(())
    }

    /// After a rollback, the limits that were set since Create.
    pub(crate) async fn limit_again(&self) -> Result<()> {
        let limits = self
            .limits
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        match limits {
            Some(limits) => self.limit(limits).await,
            None => Ok(()),
        }
    }

    async fn limit(&self, resources: Vec<u8>) -> Result<()> {
        let file = self.run_dir.join("resources.json");
        let runtime = self.runtime.clone();
        blocking(move || {
            fs::write(&file, resources)?;
            let updated = runtime.update(&file);
            let _ = fs::remove_file(&file);
            Ok(updated?)
        })
        .await
    }
}

/// kill(2); a process that is gone already is no error.
fn send_signal(pid: i32, signal: i32) -> std::io::Result<()> {
    if pid <= 0 {
        // These address groups of processes.
        return Err(std::io::Error::from_raw_os_error(libc::ESRCH));
    }
    // SAFETY: kill takes plain numbers. The pid is of a child that only this
    // process reaps, or of a cgroup of ours.
    let sent = unsafe { libc::kill(pid, signal) };
    match std::io::Error::last_os_error() {
        error if sent != 0 && error.raw_os_error() != Some(libc::ESRCH) => Err(error),
        _ => Ok(()),
    }
}
