// SPDX-License-Identifier: Apache-2.0

//! Starting a container again, through the client that made it.

use std::{
    io,
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use crab_store::{Client, SandboxId};
use tokio::{
    process::Command,
    time::{sleep, timeout},
};

/// For how long a client may take to start a container.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// For how long containerd and Docker may take to notice that a container is dead.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);
/// Between two tries, which grow apart: some fail because of something else, and each starts a shim.
const LONGEST_PAUSE: Duration = Duration::from_millis(800);

/// Who can start a container again.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Starter {
    /// `docker start`.
    Docker,
    /// `ctr task start`.
    Containerd,
}

impl Starter {
    /// Who can start what that client made. Kubernetes never starts a container a
    /// second time: it makes a new one, with a new id.
    pub(crate) fn of(client: Client) -> Option<Self> {
        match client {
            Client::Docker => Some(Self::Docker),
            Client::Containerd => Some(Self::Containerd),
            Client::Kubernetes => None,
        }
    }

    /// Starts the container; says in one line why that failed. `bundle` is where
    /// containerd had its task's files, and `may_retry` tells whether another try
    /// would still be the restore that is wanted: while no shim has taken the wish.
    ///
    /// Until a client has cleared away what has died, a start does nothing (Docker), or finds the
    /// dead task in its way (containerd, and Docker through it). containerd 2 says that there is
    /// none while it still clears it away; then the bundle directory goes, and what it knows of the
    /// task last (`core/runtime/v2/shim_manager.go`).
    pub(crate) async fn start(
        self,
        id: &SandboxId,
        bundle: Option<&Path>,
        may_retry: impl Fn() -> bool,
    ) -> Result<(), String> {
        let deadline = Instant::now() + NOTICE_TIMEOUT;
        let is_there = || bundle.is_some_and(Path::exists);
        let mut pause = POLL;
        loop {
            let started = self.try_start(id).await;
            let is_over = !may_retry() || Instant::now() > deadline;
            match (self, started) {
                // One that did something has brought up a shim that took the wish.
                (Self::Docker, Ok(())) if is_over => return Ok(()),
                (Self::Docker, Ok(())) => {}
                (Self::Containerd, Ok(())) => return Ok(()),
                (_, Err(error)) if is_over || self.has_lost(id).await => return Err(error),
                (Self::Containerd, Err(_)) => {
                    // Nothing is lost by removing it: one that is alive cannot be removed so.
                    let _ = run("ctr", &["-n", id.namespace(), "task", "rm", id.id()]).await;
                    while is_there() && Instant::now() < deadline {
                        sleep(POLL).await;
                    }
                }
                (Self::Docker, Err(_)) => {}
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn try_start(self, id: &SandboxId) -> Result<(), String> {
        let started = match self {
            Self::Docker => run("docker", &["start", id.id()]).await,
            Self::Containerd => {
                let start = ["-n", id.namespace(), "task", "start", "-d", id.id()];
                run("ctr", &start).await
            }
        };
        started.map(drop)
    }
}

impl Starter {
    /// Who it is that has the containers.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Docker => "Docker",
            Self::Containerd => "containerd",
        }
    }

    /// Whether it knows for certain that there is no such container any more.
    pub(crate) async fn has_lost(self, id: &SandboxId) -> bool {
        let all = match self {
            Self::Docker => run("docker", &["ps", "-aq", "--no-trunc"]).await,
            Self::Containerd => {
                let list = ["-n", id.namespace(), "containers", "ls", "-q"];
                run("ctr", &list).await
            }
        };
        all.is_ok_and(|all| all.lines().all(|line| line.trim() != id.id()))
    }
}

/// What a program printed.
pub(crate) async fn run(program: &str, args: &[&str]) -> Result<String, String> {
    let child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = match timeout(START_TIMEOUT, child).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => {
            return Err(format!("there is no {program} on PATH"));
        }
        Ok(Err(error)) => return Err(format!("cannot run {program}: {error}")),
        Err(_) => {
            let seconds = START_TIMEOUT.as_secs();
            return Err(format!("{program} did not return within {seconds} s"));
        }
    };
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim();
    let said = if said.is_empty() {
        "it did not say why"
    } else {
        said
    };
    Err(format!("{program} {} failed: {said}", args.join(" ")))
}
