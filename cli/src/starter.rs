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
/// And containerd to forget it when its files are gone: at once, but for a machine on which
/// hundreds have died.
const FORGET_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest pause between two looks at whether it has.
const LONG_POLL: Duration = Duration::from_millis(500);
/// For how long a start is tried again that fails because of something else.
const OTHER_TIMEOUT: Duration = Duration::from_secs(3);

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
    /// would still be the restore that is wanted: not once a shim has taken the wish, whoever
    /// started that.
    pub(crate) async fn start(
        self,
        id: &SandboxId,
        bundle: Option<&Path>,
        may_retry: impl Fn() -> bool,
    ) -> Result<(), String> {
        match self {
            Self::Docker => docker(id, may_retry).await,
            Self::Containerd => containerd(id, bundle, may_retry).await,
        }
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

/// Until Docker has heard of the container's death, a start does nothing, and is
/// no error. One that did something has brought up a shim that took the wish.
async fn docker(id: &SandboxId, may_retry: impl Fn() -> bool) -> Result<(), String> {
    let deadline = Instant::now() + NOTICE_TIMEOUT;
    loop {
        run("docker", &["start", id.id()]).await?;
        if !may_retry() || Instant::now() > deadline {
            return Ok(());
        }
        sleep(POLL).await;
    }
}

/// The record of the dead task may be in the way: then no shim was started, and nothing is lost by
/// removing it, as one that is alive cannot be removed so. containerd 2 says that there is none
/// while it still clears it away by itself: then the bundle directory goes, and what it knows of
/// the task last (`core/runtime/v2/shim_manager.go`).
async fn containerd(
    id: &SandboxId,
    bundle: Option<&Path>,
    may_retry: impl Fn() -> bool,
) -> Result<(), String> {
    let namespace = ["-n", id.namespace(), "task"];
    let ctr = async |args: &[&str]| run("ctr", &[&namespace[..], args].concat()).await;
    let start = ["start", "-d", id.id()];
    let Err(mut error) = ctr(&start).await else {
        return Ok(());
    };
    if !may_retry() {
        return Err(error);
    }
    let _ = ctr(&["rm", id.id()]).await;
    let is_there = || bundle.is_some_and(Path::exists);
    let deadline = Instant::now() + NOTICE_TIMEOUT;
    while is_there() && may_retry() && Instant::now() < deadline {
        sleep(POLL).await;
    }
    let began = Instant::now();
    let mut others = None;
    let mut poll = POLL;
    while may_retry() {
        match ctr(&start).await {
            Ok(_) => return Ok(()),
            Err(why) => error = why,
        }
        let now = Instant::now();
        let deadline = match is_remembered(id, &error) {
            true => began + FORGET_TIMEOUT,
            // Tries that fail because of something else start a shim each: not for long.
            false => *others.get_or_insert(now) + OTHER_TIMEOUT,
        };
        if now > deadline {
            return Err(error);
        }
        sleep(poll).await;
        poll = LONG_POLL.min(poll * 2);
    }
    // Somebody else has started it, and it is restored.
    Ok(())
}

/// Whether a start failed because containerd still remembers the task, before it starts a shim
/// (its `plugins/services/tasks/local.go`). `ctr` tells that by text only.
fn is_remembered(id: &SandboxId, error: &str) -> bool {
    error.ends_with(&format!(": task {}: already exists", id.id()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_is_remembered_is_told_from_what_a_shim_says() {
        let id = SandboxId::new("default", "c1").unwrap();
        let of = |said: &str| format!("ctr -n default task start -d c1 failed: ctr: {said}");
        assert!(is_remembered(&id, &of("task c1: already exists")));
        for other in [
            "task c11: already exists",
            "failed to create shim task: container with given ID already exists",
            "container \"c1\" in namespace \"default\": not found",
        ] {
            assert!(!is_remembered(&id, &of(other)), "{other}");
        }
    }
}
