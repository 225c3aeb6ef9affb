// SPDX-License-Identifier: Apache-2.0

//! Checkpoint and restore as containerd itself knows them, by its unmodified clients.

mod cri;
mod ctr;
mod docker;
mod exchange;
mod failing;
mod history;
mod nerdctl;
mod options;
mod places;
mod surroundings;

use std::{
    fs,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use containerd_shim_protos::{
    api::{CheckpointTaskRequest, Empty},
    protobuf::{Message, MessageField, well_known_types::any::Any},
    shim::oci::CheckpointOptions,
};
use crab_integration::{
    DEBIAN, Denied, Output, RunOptions, Sandbox, ShimClient, State, Testbed, poll,
    processes::is_frozen,
};

const LIMIT: Duration = Duration::from_secs(20);

/// A program that knows something that is in its memory alone, and says it again and
/// again: into a file, and on its stdout.
const KEEPER: &str = "read -r t </proc/sys/kernel/random/uuid; \
                      while :; do echo $t >/dev/shm/token; echo said $t; sleep 0.05; done";

fn keeper() -> RunOptions {
    shell(KEEPER)
}

fn shell(script: &str) -> RunOptions {
    RunOptions::new().args(["sh", "-c", script])
}

/// What it knows.
fn token(sandbox: &Sandbox) -> Result<String> {
    poll("the token is written", LIMIT, || {
        let said = sandbox.sh("cat /dev/shm/token")?;
        let token = said.stdout.trim().to_owned();
        Ok((said.status == 0 && token.len() == 36).then_some(token))
    })
}

/// Checks that it is the same process, or one restored from it, and that it goes on.
fn remembers(sandbox: &Sandbox, known: &str) -> Result<()> {
    sandbox.sh_ok("rm -f /dev/shm/token")?;
    let now = token(sandbox)?;
    ensure!(
        now == known,
        "{} forgot: {now} and not {known}",
        sandbox.name()
    );
    Ok(())
}

/// Checks that a container is as if nothing had happened to it.
fn is_untouched(sandbox: &Sandbox, pid: u32) -> Result<()> {
    ensure!(sandbox.state()? == State::Running, "it does not run");
    ensure!(sandbox.pid()? == pid, "its init is another");
    // Crab's own capture of the turn before may be under way; that ends.
    poll("it is not left frozen", LIMIT, || {
        Ok((!is_frozen(pid)?).then_some(()))
    })
}

/// A directory of a test. Removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = PathBuf::from(format!("/tmp/standard-{}-{n}", process::id()));
        fs::create_dir(&path).with_context(|| format!("make {}", path.display()))?;
        Ok(Self(path))
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn text(&self, name: &str) -> String {
        self.join(name).display().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// containerd's Checkpoint, with options that no client has a flag for.
fn checkpoint(
    sandbox: &Sandbox,
    path: &Path,
    options: CheckpointOptions,
) -> Result<Result<Empty, Denied>> {
    let request = CheckpointTaskRequest {
        id: sandbox.id().to_owned(),
        path: path.display().to_string(),
        options: MessageField::some(Any {
            type_url: "containerd.runc.v1.CheckpointOptions".into(),
            value: options.write_to_bytes()?,
            ..Default::default()
        }),
        ..Default::default()
    };
    ShimClient::of(sandbox)?.call("Checkpoint", &request)
}

/// The same, which has to succeed.
fn checkpointed(sandbox: &Sandbox, path: &Path, options: CheckpointOptions) -> Result<()> {
    let said = checkpoint(sandbox, path, options)?;
    ensure!(said.is_ok(), "{said:?}");
    ensure!(path.join("inventory.img").exists(), "there is no image");
    Ok(())
}

/// The same, which has to be refused with these words, and has to change nothing.
fn refused(
    sandbox: &Sandbox,
    path: &Path,
    options: CheckpointOptions,
    code: &str,
    words: &str,
) -> Result<String> {
    let pid = sandbox.pid()?;
    let Err(denied) = checkpoint(sandbox, path, options)? else {
        anyhow::bail!("it was not refused");
    };
    ensure!(denied.code == code, "{denied:?} is not {code}");
    ensure!(
        denied.message.contains(words),
        "{denied:?} does not say {words}"
    );
    ensure!(
        !path.join("inventory.img").exists(),
        "there is what looks like an image"
    );
    is_untouched(sandbox, pid)?;
    Ok(denied.message)
}

/// Where Docker looks for a checkpoint of this name: it starts from no other place.
fn docker_place(sandbox: &Sandbox, name: &str) -> PathBuf {
    Path::new("/var/lib/docker/containers")
        .join(sandbox.id())
        .join("checkpoints")
        .join(name)
}

/// A container of Docker's that begins anew from an image that is in its place.
fn docker_restore(sandbox: &Sandbox, name: &str) -> Result<()> {
    if sandbox.state()? == State::Running {
        sandbox.stop()?;
    }
    docker_start(sandbox, name)?.ok()?;
    sandbox.wait_for(State::Running)
}

/// `docker start --checkpoint`.
fn docker_start(sandbox: &Sandbox, name: &str) -> Result<Output> {
    let tool = sandbox.client().tool(["start", "--checkpoint", name]);
    tool.args([sandbox.name()]).run()
}

/// A container of Docker's with this program of Python's.
fn python(testbed: &Testbed, program: &str, flags: &[&str]) -> Result<Sandbox> {
    let options = RunOptions::new()
        .flags(flags.iter().copied())
        .args(["python3", "-u", "-c", program]);
    testbed.docker().run(DEBIAN, options)
}
