// SPDX-License-Identifier: Apache-2.0

//! Starting a container again, through the client that made it.

use std::{io, process::Stdio, time::Duration};

use crab_store::{Client, SandboxId};
use tokio::{process::Command, time::timeout};

/// For how long a client may take to start a container.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Starts the container; says in one line why that failed. `may_retry` tells
/// whether a second try would still be the restore that is wanted.
pub(crate) async fn start(
    client: Client,
    id: &SandboxId,
    may_retry: impl FnOnce() -> bool,
) -> Result<(), String> {
    match client {
        Client::Docker => run("docker", &["start", id.id()]).await,
        Client::Containerd => {
            let namespace = ["-n", id.namespace(), "task"];
            let ctr = async |args: &[&str]| run("ctr", &[&namespace[..], args].concat()).await;
            let start = ["start", "-d", id.id()];
            let Err(error) = ctr(&start).await else {
                return Ok(());
            };
            // The record of the dead task may be in the way: then no shim was
            // started. Nothing is lost by removing it: one that is alive cannot
            // be removed so.
            if !may_retry() || ctr(&["rm", id.id()]).await.is_err() {
                return Err(error);
            }
            ctr(&start).await
        }
    }
}

async fn run(program: &str, args: &[&str]) -> Result<(), String> {
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
        return Ok(());
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
