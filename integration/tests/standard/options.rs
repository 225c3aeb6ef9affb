// SPDX-License-Identifier: Apache-2.0

//! Whether the container goes on, and in which states it can be asked at all.

use anyhow::{Result, ensure};
use containerd_shim_protos::shim::oci::CheckpointOptions;
use crab_integration::{DEBIAN, State, Testbed, processes::is_frozen};

use crate::{
    Scratch, checkpoint, checkpointed, docker_place, docker_restore, is_untouched, keeper,
    remembers, token,
};

fn exit() -> CheckpointOptions {
    CheckpointOptions {
        exit: true,
        ..Default::default()
    }
}

#[test]
fn exit_ends_the_container_once_and_it_can_be_restored() -> Result<()> {
    let testbed = Testbed::here()?;
    let events = testbed.events()?;
    let sandbox = testbed.docker().run(DEBIAN, keeper())?;
    let known = token(&sandbox)?;
    checkpointed(&sandbox, &docker_place(&sandbox, "last"), exit())?;
    // Not a moment later: the answer says that it is over.
    sandbox.wait_for(State::Stopped)?;
    assert_eq!(events.exits_of_init(&sandbox)?, 1);
    let status = ["inspect", "-f", "{{.State.ExitCode}}", sandbox.name()];
    assert_eq!(sandbox.client().tool(status).run()?.text()?, "137");
    docker_restore(&sandbox, "last")?;
    remembers(&sandbox, &known)
}

#[test]
fn a_stopped_task_is_there_until_it_is_deleted() -> Result<()> {
    let testbed = Testbed::here()?;
    let events = testbed.events()?;
    let sandbox = testbed.ctr().run(DEBIAN, keeper())?;
    token(&sandbox)?;
    let dir = Scratch::new()?;
    checkpointed(&sandbox, &dir.join("last"), exit())?;
    assert_eq!(sandbox.state()?, State::Stopped);
    let Err(denied) = checkpoint(&sandbox, &dir.join("more"), exit())? else {
        anyhow::bail!("what has ended was dumped");
    };
    assert_eq!(denied.code, "UNKNOWN");
    ensure!(!dir.join("more").exists(), "it left an image");
    assert_eq!(events.exits_of_init(&sandbox)?, 1);
    sandbox.start_again()?;
    assert_eq!(sandbox.state()?, State::Running);
    Ok(())
}

#[test]
fn a_paused_container_stays_paused() -> Result<()> {
    let testbed = Testbed::here()?;
    let sandbox = testbed.ctr().run(DEBIAN, keeper())?;
    let (pid, known) = (sandbox.pid()?, token(&sandbox)?);
    let task = |verb: &str| {
        let tool = sandbox.client().tool(["task", verb, sandbox.id()]);
        tool.run()?.ok()
    };
    task("pause")?;
    let dir = Scratch::new()?;
    checkpointed(&sandbox, &dir.join("images"), CheckpointOptions::default())?;
    assert_eq!(sandbox.state()?, State::Paused);
    ensure!(is_frozen(pid)?, "it was thawed");
    // Nor does a dump that fails thaw it.
    let wrong = CheckpointOptions {
        image_path: "/proc/none".into(),
        ..Default::default()
    };
    ensure!(checkpoint(&sandbox, &dir.join("x"), wrong)?.is_err());
    ensure!(is_frozen(pid)?, "it was thawed");
    task("resume")?;
    is_untouched(&sandbox, pid)?;
    remembers(&sandbox, &known)?;
    task("pause")?;
    checkpointed(&sandbox, &dir.join("last"), exit())?;
    sandbox.wait_for(State::Stopped)
}
