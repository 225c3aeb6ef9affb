// SPDX-License-Identifier: Apache-2.0

//! What is killed for its memory is told as that, before its end.

use std::fs;

use anyhow::{Context, Result};
use crab_integration::{
    BUSYBOX, Client, Events, RunOptions, Runtime, Sandbox, State, Testbed, poll, skip,
};

use crate::{LIMIT, shell};

/// One line without an end: all of it is kept.
const EATER: &str = "tail /dev/zero";

fn limited(testbed: &Testbed, client: Client, options: RunOptions) -> Result<Option<Sandbox>> {
    if !testbed.has_controller("memory") {
        skip("containers get no memory controller here")?;
        return Ok(None);
    }
    let flags: &[&str] = match client {
        Client::Ctr { .. } => &["--memory-limit", "33554432"],
        Client::Docker => &["--memory", "32m", "--memory-swap", "32m"],
    };
    let flags = flags.iter().copied();
    Ok(Some(client.run(BUSYBOX, options.flags(flags))?))
}

/// The topics of a container, in order, without what an exec has.
fn topics(events: &Events, sandbox: &Sandbox) -> Result<Vec<String>> {
    let all = events.so_far()?.into_iter();
    Ok(all
        .filter(|event| event.container() == Some(sandbox.id()))
        .map(|event| event.topic)
        .filter(|topic| topic.starts_with("/tasks/"))
        .collect())
}

#[test]
fn an_init_that_is_out_of_memory_is_told_before_its_end_and_once() -> Result<()> {
    let testbed = Testbed::here()?;
    let events = testbed.events()?;
    for client in testbed.clients() {
        // It takes all it can at once: the watch has to be there before the start.
        for _ in 0..3 {
            let Some(sandbox) = limited(&testbed, client, shell(&format!("exec {EATER}")))? else {
                return Ok(());
            };
            sandbox.wait_for(State::Stopped)?;
            let topics = topics(&events, &sandbox)?;
            let expected = ["create", "start", "oom", "exit"].map(|name| format!("/tasks/{name}"));
            // Docker deletes the task by itself.
            assert!(topics.starts_with(&expected), "{topics:?}");
            if client == testbed.docker() {
                let inspect = ["inspect", "-f", "{{.State.OOMKilled}} {{.State.ExitCode}}"];
                let said = client.tool(inspect).args([sandbox.name()]).run()?.text()?;
                assert_eq!(said, "true 137");
            }
        }
    }
    Ok(())
}

#[test]
fn an_exec_that_is_out_of_memory_is_told_before_its_end() -> Result<()> {
    let testbed = Testbed::here()?;
    let events = testbed.events()?;
    for client in testbed.clients() {
        let Some(sandbox) = limited(&testbed, client, RunOptions::new())? else {
            return Ok(());
        };
        let said = sandbox.sh(&format!("exec {EATER}"))?;
        assert_eq!(said.status, 137, "{}", said.stderr);
        let topics = topics(&events, &sandbox)?;
        let expected = [
            "create",
            "start",
            "exec-added",
            "exec-started",
            "oom",
            "exit",
        ];
        assert_eq!(topics, expected.map(|name| format!("/tasks/{name}")));
        assert_eq!(sandbox.state()?, State::Running);
    }
    Ok(())
}

#[test]
fn out_of_memory_is_told_again_after_a_rollback() -> Result<()> {
    let testbed = Testbed::here()?;
    let (crab, events, client) = (testbed.crab(), testbed.events()?, testbed.ctr());
    let Some(sandbox) = limited(&testbed, client, RunOptions::new())? else {
        return Ok(());
    };
    sandbox.sh_ok("echo x >/root/x")?;
    // Another init, and maybe another cgroup.
    crab.rollback_cold(&sandbox, 0)?;
    assert_eq!(sandbox.sh(&format!("exec {EATER}"))?.status, 137);
    let ooms = topics(&events, &sandbox)?;
    let ooms = ooms.iter().filter(|topic| *topic == "/tasks/oom");
    assert_eq!(ooms.count(), 1);
    Ok(())
}

/// By what a shim watches.
fn bells(pid: u32) -> Result<usize> {
    let dir = fs::read_dir(format!("/proc/{pid}/fd")).context("look at the shim")?;
    let links = dir.flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
    let kinds = ["anon_inode:[eventfd]", "memory.events"];
    Ok(links
        .filter(|to| kinds.iter().any(|kind| to.ends_with(kind)))
        .count())
}

#[test]
fn a_shim_that_watches_lets_go_at_the_end() -> Result<()> {
    let testbed = Testbed::here()?;
    let Some(sandbox) = limited(&testbed, testbed.ctr(), RunOptions::new())? else {
        return Ok(());
    };
    let shim = sandbox.shim()?;
    let watching = bells(shim)?;
    sandbox.kill("KILL")?.ok()?;
    sandbox.wait_for(State::Stopped)?;
    poll("the watch is over", LIMIT, || {
        Ok((bells(shim)? == watching - 1).then_some(()))
    })?;
    Ok(())
}

#[test]
fn the_other_shim_says_the_same_of_docker() -> Result<()> {
    let testbed = Testbed::here()?;
    let docker = testbed.docker();
    let options = shell(&format!("exec {EATER}")).runtime(Runtime::Stock);
    let Some(sandbox) = limited(&testbed, docker, options)? else {
        return Ok(());
    };
    sandbox.wait_for(State::Stopped)?;
    let inspect = ["inspect", "-f", "{{.State.OOMKilled}} {{.State.ExitCode}}"];
    let said = docker.tool(inspect).args([sandbox.name()]).run()?.text()?;
    assert_eq!(said, "true 137");
    Ok(())
}
