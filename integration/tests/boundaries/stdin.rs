// SPDX-License-Identifier: Apache-2.0

//! Stdin and captures; what ends with the container; and what costs nothing.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use crab_integration::{
    DEBIAN, ExecOptions, RunOptions, Sandbox, Session, Swapped, Testbed, Turn, catch, poll,
    processes,
};
use crab_store::Trigger;

/// How long a shim may take to have nothing left to do.
const LIMIT: Duration = Duration::from_secs(60);

fn changed(turn: &Turn) -> Vec<&str> {
    let all = turn.record.changed.iter();
    all.map(|changed| changed.path.as_str()).collect()
}

#[test]
fn what_is_typed_during_a_frozen_capture_waits_for_its_end() -> Result<()> {
    let testbed = Testbed::here()?;
    if !testbed.driver().keeps_processes() {
        return Ok(());
    }
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let _slow = Swapped::wrapped(processes::CRIU_PATH, |real| {
        let real = real.display();
        format!("#!/bin/sh\n[ \"$1\" != swrk ] || sleep 0.7\nexec {real} \"$@\"\n")
    })?;
    for client in testbed.clients() {
        let options = RunOptions::new().dumped_by_runtime().args(["bash"]);
        let (mut shell, sandbox) = Session::run(client, DEBIAN, options)?;
        shell.send("echo 1 >/root/a\n")?;
        let init = sandbox.pid()?;
        catch("the capture", Duration::from_secs(20), || {
            processes::is_frozen(init).unwrap_or(false)
        })?;
        shell.send("echo 2 >/root/b; echo end-$?\n")?;
        let first = crab.wait_for_turn(&sandbox, 1)?;
        assert_eq!(first.record.trigger, Trigger::Stdin);
        assert_eq!(first.record.command, "bash");
        let paths = changed(&first);
        ensure!(
            paths.contains(&"/root/a") && !paths.contains(&"/root/b"),
            "{paths:?}"
        );
        shell.find("the end", |said| said.contains("end-0").then_some(()))?;
        let second = crab.wait_for_turn(&sandbox, 2)?;
        ensure!(changed(&second).contains(&"/root/b"), "{second:?}");
        // It waited for the rest of that capture.
        ensure!(second.record.cost.gate_us > 100_000, "{second:?}");
    }
    Ok(())
}

#[test]
fn a_shell_that_exits_ends_its_turn_and_its_container() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let (mut shell, sandbox) = Session::run(client, DEBIAN, RunOptions::new().args(["bash"]))?;
        shell.send("echo 1 >/root/a\n")?;
        crab.wait_for_turn(&sandbox, 1)?;
        shell.send("echo 2 >/root/b; exit 3\n")?;
        let turn = crab.wait_for_turn(&sandbox, 2)?;
        assert_eq!(turn.record.exit, Some(3));
        ensure!(changed(&turn).contains(&"/root/b"), "{turn:?}");
        ensure!(turn.published, "{turn:?}");
    }
    Ok(())
}

/// How often each thread of a sandbox's shim has gone to sleep.
fn sleeps_of_shim(sandbox: &Sandbox) -> Result<BTreeMap<PathBuf, u64>> {
    let shim = sandbox.shim()?;
    let mut sleeps = BTreeMap::new();
    for thread in fs::read_dir(format!("/proc/{shim}/task"))? {
        let thread = thread?.path();
        let status = fs::read_to_string(thread.join("status")).unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with("voluntary_"));
        let count = line.and_then(|line| line.split_whitespace().nth(1));
        if let Some(count) = count {
            sleeps.insert(thread, count.parse()?);
        }
    }
    Ok(sleeps)
}

#[test]
fn a_sandbox_that_waits_for_its_agent_is_not_looked_at() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let sandbox = testbed.ctr().run(DEBIAN, RunOptions::new())?;
    // The shim does not look out for a crabd that is late.
    crab.wait_until_observed(&sandbox)?;
    let last = crab.last_turn(&sandbox)?;
    let tool = sandbox.exec_tool(&["bash"], &ExecOptions::new().stdin(""));
    let _shell = Session::start(&tool)?;
    crab.wait_for_turn_after(&sandbox, last)?;
    // Past what a shim does once when nothing happens any more: a thread that has worked ends
    // two seconds later, however long a disk took.
    let (slept, took) = poll("no thread of the shim comes or goes", LIMIT, || {
        let (before, start) = (sleeps_of_shim(&sandbox)?, Instant::now());
        thread::sleep(Duration::from_secs(3));
        let after = sleeps_of_shim(&sandbox)?;
        let slept = after.values().sum::<u64>().abs_diff(before.values().sum());
        let are_the_same = after.keys().eq(before.keys());
        Ok(are_the_same.then(|| (slept, start.elapsed())))
    })?;
    // A look each 500 ms would be several each.
    ensure!(slept < 6, "{slept} times in {took:?}");
    Ok(())
}
