// SPDX-License-Identifier: Apache-2.0

//! `docker checkpoint` and `docker start --checkpoint`.

use std::fs;

use anyhow::{Result, ensure};
use crab_integration::{DEBIAN, Imposter, Runtime, Sandbox, State, Testbed, Tool, poll};

use crate::{LIMIT, Scratch, docker_place, docker_start, is_untouched, keeper, remembers, token};

/// Waits until containerd has forgotten the checkpoints of before: until then, Docker's
/// next one fails as it "already exists", under any shim.
fn wait_for_garbage(sandbox: &Sandbox) -> Result<()> {
    poll("containerd has collected its garbage", LIMIT, || {
        let tool = Tool::new("ctr");
        let list = tool
            .args(["-n", sandbox.client().namespace(), "content", "ls", "-q"])
            .run()?
            .text()?;
        Ok(list.is_empty().then_some(()))
    })
}

fn create(sandbox: &Sandbox, flags: &[&str], name: &str) -> Result<()> {
    wait_for_garbage(sandbox)?;
    sandbox
        .client()
        .tool(["checkpoint", "create"])
        .args(flags.iter().copied())
        .args([sandbox.name(), name])
        .run()?
        .ok()?;
    Ok(())
}

fn list(sandbox: &Sandbox, flags: &[&str]) -> Result<Vec<String>> {
    let tool = sandbox.client().tool(["checkpoint", "ls"]);
    let said = tool
        .args(flags.iter().copied())
        .args([sandbox.name()])
        .run()?
        .ok()?;
    // After the heading.
    let names = said
        .stdout
        .lines()
        .skip(1)
        .map(|line| line.trim().to_owned());
    Ok(names.collect())
}

fn said(sandbox: &Sandbox, token: &str) -> Result<usize> {
    let word = format!("said {token}");
    let logs = sandbox.logs()?;
    Ok(logs.stdout.lines().filter(|line| *line == word).count())
}

#[test]
fn checkpoints_are_made_listed_and_removed() -> Result<()> {
    let testbed = Testbed::here()?;
    let sandbox = testbed.docker().run(DEBIAN, keeper())?;
    let (pid, known) = (sandbox.pid()?, token(&sandbox)?);
    create(&sandbox, &["--leave-running"], "one")?;
    is_untouched(&sandbox, pid)?;
    create(&sandbox, &["--leave-running"], "two")?;
    assert_eq!(list(&sandbox, &[])?, ["one", "two"]);
    let dir = Scratch::new()?;
    let elsewhere = ["--checkpoint-dir", &dir.text("")];
    create(
        &sandbox,
        &["--leave-running", elsewhere[0], elsewhere[1]],
        "three",
    )?;
    assert_eq!(list(&sandbox, &elsewhere)?, ["three"]);
    assert_eq!(list(&sandbox, &[])?, ["one", "two"]);
    assert!(dir.join("three/inventory.img").exists());
    let docker = sandbox.client();
    docker
        .tool(["checkpoint", "rm", sandbox.name(), "one"])
        .run()?
        .ok()?;
    assert_eq!(list(&sandbox, &[])?, ["two"]);
    is_untouched(&sandbox, pid)?;
    remembers(&sandbox, &known)
}

#[test]
fn a_container_starts_from_a_checkpoint_and_keeps_its_stdio() -> Result<()> {
    let testbed = Testbed::here()?;
    let sandbox = testbed.docker().run(DEBIAN, keeper())?;
    let known = token(&sandbox)?;
    for cycle in ["one", "two", "three"] {
        create(&sandbox, &["--leave-running"], cycle)?;
        sandbox.stop()?;
        wait_for_garbage(&sandbox)?;
        docker_start(&sandbox, cycle)?.ok()?;
        remembers(&sandbox, &known)?;
        let before = said(&sandbox, &known)?;
        poll("its output goes on", LIMIT, || {
            Ok((said(&sandbox, &known)? > before).then_some(()))
        })?;
    }
    // The same one again: it is still there, and whole.
    sandbox.stop()?;
    wait_for_garbage(&sandbox)?;
    docker_start(&sandbox, "one")?.ok()?;
    remembers(&sandbox, &known)
}

#[test]
fn without_leave_running_the_container_ends_where_docker_says_so() -> Result<()> {
    let testbed = Testbed::here()?;
    let events = testbed.events()?;
    // dockerd tells only its own runtime.
    let _imposter = Imposter::begin()?;
    let sandbox = testbed
        .docker()
        .run(DEBIAN, keeper().runtime(Runtime::Stock))?;
    let known = token(&sandbox)?;
    create(&sandbox, &[], "last")?;
    sandbox.wait_for(State::Stopped)?;
    ensure!(events.exits_of_init(&sandbox)? == 1, "not one exit");
    wait_for_garbage(&sandbox)?;
    docker_start(&sandbox, "last")?.ok()?;
    remembers(&sandbox, &known)
}

#[test]
fn a_restore_that_fails_leaves_a_container_that_starts() -> Result<()> {
    let testbed = Testbed::here()?;
    let sandbox = testbed.docker().run(DEBIAN, keeper())?;
    let known = token(&sandbox)?;
    create(&sandbox, &["--leave-running"], "one")?;
    let image = docker_place(&sandbox, "one").join("core-1.img");
    fs::write(&image, "no image at all")?;
    sandbox.stop()?;
    let refusal = docker_start(&sandbox, "one")?;
    ensure!(refusal.status != 0, "it started");
    ensure!(
        refusal.stderr.contains("CRIU: ") && refusal.stderr.contains("core-1.img"),
        "{}",
        refusal.stderr
    );
    assert_eq!(sandbox.state()?, State::Stopped);
    sandbox.start_again()?;
    ensure!(token(&sandbox)? != known, "it was restored");
    Ok(())
}
