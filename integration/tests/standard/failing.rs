// SPDX-License-Identifier: Apache-2.0

//! A checkpoint or a restore that cannot be: loud, and harmless.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, ensure};
use containerd_shim_protos::shim::oci::CheckpointOptions;
use crab_integration::{BUSYBOX, DEBIAN, RunOptions, State, Swapped, Testbed, processes};

use crate::{
    Scratch, docker_place, docker_start, is_untouched, keeper, python, refused, remembers, token,
};

/// The log of CRIU's that an error names.
fn log_in(message: &str) -> Result<PathBuf> {
    let words = message.split(['(', ')', ' ', '\n']);
    let mut paths = words.filter(|word| word.starts_with('/') && word.ends_with(".log"));
    Ok(paths.next_back().context("no log is named")?.into())
}

#[test]
fn a_failed_dump_says_why_and_keeps_the_log_that_it_names() -> Result<()> {
    let testbed = Testbed::here()?;
    let program = "import fcntl,time\nf=open('/root/l','w'); fcntl.flock(f,fcntl.LOCK_EX)\n\
                   open('/root/ready','w')\nwhile True: time.sleep(1)";
    let sandbox = python(&testbed, program, &[])?;
    sandbox.sh_ok("until [ -e /root/ready ]; do sleep 0.01; done")?;
    let dir = Scratch::new()?;
    let options = CheckpointOptions::default();
    let said = refused(
        &sandbox,
        &dir.join("a"),
        options,
        "UNKNOWN",
        "CRIU: Some file locks",
    )?;
    let log = log_in(&said)?;
    ensure!(!dir.join("a").exists(), "half an image is left");
    // Whatever becomes of the container.
    sandbox.remove()?;
    ensure!(fs::read_to_string(&log)?.contains("file locks"));
    fs::remove_dir_all(log.parent().context("a log in a directory")?)?;
    Ok(())
}

#[test]
fn an_older_image_in_the_same_place_is_not_taken_for_the_failed_one() -> Result<()> {
    let testbed = Testbed::here()?;
    let sandbox = testbed.ctr().run(DEBIAN, keeper())?;
    let (pid, known) = (sandbox.pid()?, token(&sandbox)?);
    let dir = Scratch::new()?;
    let options = CheckpointOptions {
        work_path: dir.text("work"),
        ..Default::default()
    };
    crate::checkpointed(&sandbox, &dir.join("a"), options.clone())?;
    {
        let script = "#!/bin/sh\necho 'criu is broken' >&2\nexit 1\n";
        let _broken = Swapped::with(processes::CRIU_PATH, script)?;
        let said = crate::checkpoint(&sandbox, &dir.join("b"), options.clone())?;
        ensure!(said.is_err(), "it was dumped without CRIU");
        is_untouched(&sandbox, pid)?;
        ensure!(!dir.join("b/inventory.img").exists());
    }
    crate::checkpointed(&sandbox, &dir.join("b"), options)?;
    is_untouched(&sandbox, pid)?;
    remembers(&sandbox, &known)
}

#[test]
fn what_a_dump_would_end_is_refused_before_it_is_frozen() -> Result<()> {
    let testbed = Testbed::here()?;
    // Its sleep does not go on after the interruption.
    let sandbox = testbed.ctr().run(BUSYBOX, RunOptions::new())?;
    let dir = Scratch::new()?;
    let options = CheckpointOptions::default();
    refused(
        &sandbox,
        &dir.join("a"),
        options,
        "UNKNOWN",
        "busybox sleep",
    )?;
    let pid = sandbox.pid()?;
    let tool = sandbox.client().tool(["task", "checkpoint", sandbox.id()]);
    let said = tool.run()?;
    ensure!(
        said.status != 0 && said.stderr.contains("busybox sleep"),
        "{said:?}"
    );
    is_untouched(&sandbox, pid)
}

#[test]
fn a_failed_restore_leaves_a_task_that_can_be_deleted_and_its_log() -> Result<()> {
    let testbed = Testbed::here()?;
    let ctr = testbed.ctr();
    let sandbox = ctr.run(DEBIAN, keeper())?;
    let known = token(&sandbox)?;
    let image = ctr.checkpoint(&sandbox)?;
    let back = {
        let script = "#!/bin/sh\nexec false\n";
        let _broken = Swapped::with(processes::CRIU_PATH, script)?;
        let (said, back) = image.restore()?;
        ensure!(said.status != 0, "it was restored without CRIU");
        back
    };
    assert_eq!(back.state()?, State::Stopped);
    back.remove()?;
    let back = image.restored()?;
    remembers(&back, &known)
}

#[test]
fn a_checkpoint_that_is_none_is_refused_by_create() -> Result<()> {
    let testbed = Testbed::here()?;
    let sandbox = testbed.docker().run(DEBIAN, keeper())?;
    fs::create_dir_all(docker_place(&sandbox, "empty"))?;
    sandbox.stop()?;
    let said = docker_start(&sandbox, "empty")?;
    ensure!(
        said.status != 0 && said.stderr.contains("no checkpoint in"),
        "{said:?}"
    );
    sandbox.start_again()?;
    token(&sandbox)?;
    Ok(())
}
