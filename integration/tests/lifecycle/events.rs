// SPDX-License-Identifier: Apache-2.0

//! What is published, in which order, and when containerd was away.

use anyhow::Result;
use crab_integration::{
    BUSYBOX, Census, Event, Events, RunOptions, State, Testbed, forget_fifos, poll, processes,
};

use crate::LIMIT;

/// The topics that concern one container, in order, with the process.
fn topics(events: &Events, id: &str) -> Result<Vec<String>> {
    let all = events.so_far()?;
    let field = |event: &Event, name: &str| {
        event
            .payload
            .get(name)
            .and_then(|value| value.as_str().map(str::to_owned))
            .unwrap_or_default()
    };
    Ok(all
        .iter()
        .filter(|event| event.topic.starts_with("/tasks/") && event.container() == Some(id))
        .map(|event| {
            let topic = event.topic.trim_start_matches("/tasks/").to_owned();
            match (field(event, "id"), field(event, "exec_id")) {
                (process, _) if !process.is_empty() && process != id => {
                    format!("{topic} {process}")
                }
                (_, exec) if !exec.is_empty() => format!("{topic} {exec}"),
                _ => topic,
            }
        })
        .collect())
}

#[test]
fn events_come_in_order_and_once() -> Result<()> {
    let testbed = Testbed::here()?;
    let events = testbed.events()?;
    let ctr = testbed.ctr();
    let sandbox = ctr.run(BUSYBOX, RunOptions::new())?;
    let id = sandbox.id().to_owned();
    let exec = ["task", "exec", "--exec-id", "x1", &id, "true"];
    ctr.tool(exec).run()?.ok()?;
    ctr.tool(["task", "pause", &id]).run()?.ok()?;
    ctr.tool(["task", "resume", &id]).run()?.ok()?;
    sandbox.stop()?;
    sandbox.remove()?;
    assert_eq!(
        topics(&events, &id)?,
        [
            "create",
            "start",
            "exec-added x1",
            "exec-started x1",
            "exit x1",
            "paused",
            "resumed",
            "exit",
            "delete",
        ]
    );
    Ok(())
}

#[test]
fn an_end_while_containerd_is_away_is_told_when_it_is_back() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let ctr = testbed.ctr();
    let before = Census::take()?;
    let sandbox = ctr.run(BUSYBOX, RunOptions::new())?;
    let other = ctr.run(BUSYBOX, RunOptions::new())?;
    let (pid, shim, lives) = (sandbox.pid()?, sandbox.shim()?, other.pid()?);
    testbed.service("stop", "dockerd")?;
    testbed.service("kill", "containerd")?;
    processes::kill(pid)?;
    processes::wait_gone(pid, LIMIT)?;
    testbed.service("start", "containerd")?;
    testbed.service("start", "dockerd")?;
    // containerd 1.7 removes the task of one that it finds stopped.
    poll("containerd knows the end", LIMIT, || {
        Ok(matches!(sandbox.state()?, State::Stopped | State::Gone).then_some(()))
    })?;
    sandbox.remove()?;
    processes::wait_gone(shim, LIMIT)?;
    // One that ran on is still the same, and still told of.
    assert_eq!(other.pid()?, lives);
    assert_eq!(other.sh_ok("echo alive")?, "alive");
    let events = testbed.events()?;
    other.stop()?;
    assert_eq!(events.exits_of_init(&other)?, 1);
    drop(other);
    forget_fifos()?;
    before.wait_for_nothing_left()
}
