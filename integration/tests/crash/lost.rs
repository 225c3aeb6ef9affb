// SPDX-License-Identifier: Apache-2.0

//! Everything is lost at once, sandboxes and daemons, as by a host that went down: `crab restore --all`.

use std::{collections::BTreeMap, fs, path::PathBuf, thread, time::Duration};

use anyhow::{Context, Result, ensure};
use crab_integration::{
    BUSYBOX, Client, Counter, Crab, DEBIAN, RunOptions, Sandbox, State, Testbed, poll, processes,
};
use crab_store::Class;
use serde_json::Value;

use crate::LIMIT;

/// SIGKILL to both daemons, to the shims and all that runs in these sandboxes, and to crabd.
fn kill(testbed: &Testbed, sandboxes: &[&Sandbox]) -> Result<()> {
    let mut pids = Vec::new();
    for sandbox in sandboxes {
        pids.push(sandbox.shim()?);
        pids.extend(sandbox.processes()?);
    }
    testbed.service("kill", "dockerd")?;
    testbed.service("kill", "containerd")?;
    for pid in &pids {
        processes::kill(*pid)?;
    }
    if processes::crabd().is_some() {
        processes::kill_crabd()?;
    }
    for pid in pids {
        processes::wait_gone(pid, LIMIT)?;
    }
    Ok(())
}

/// The same, and the daemons are started again.
fn lose(testbed: &Testbed, sandboxes: &[&Sandbox]) -> Result<()> {
    kill(testbed, sandboxes)?;
    testbed.service("start", "containerd")?;
    testbed.service("start", "dockerd")?;
    Ok(())
}

/// What `crab restore --all` says of each sandbox, by its id.
fn outcomes(said: &Value) -> Result<BTreeMap<String, (String, String)>> {
    let all = said["sandboxes"].as_array().context("no sandboxes")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let one = |row: &Value| {
        let outcome = (text(&row["outcome"]), text(&row["why"]));
        (text(&row["sandbox"]), outcome)
    };
    Ok(all.iter().map(one).collect())
}

fn restore_all(crab: &Crab, more: &[&str], status: i32) -> Result<Value> {
    let args = [&["restore", "--all", "--json"], more].concat();
    let said = crab.run(&args)?;
    ensure!(said.status == status, "{said:?}");
    serde_json::from_str(&said.stdout).with_context(|| format!("{said:?}"))
}

/// A sandbox in which a file says which one it is.
fn with_file(client: Client, crab: &Crab, options: RunOptions) -> Result<Sandbox> {
    let sandbox = client.run(BUSYBOX, options)?;
    let script = format!("echo {} >/root/whose", sandbox.name());
    crab.turn_of(&sandbox, Class::Files, &script)?;
    Ok(sandbox)
}

fn has_file(sandbox: &Sandbox) -> Result<()> {
    ensure!(sandbox.state()? == State::Running, "{}", sandbox.name());
    ensure!(sandbox.sh_ok("cat /root/whose")? == sandbox.name());
    Ok(())
}

/// Its newest manifest.
fn newest_manifest(sandbox: &Sandbox) -> Result<PathBuf> {
    let all = fs::read_dir(sandbox.store().join("manifests"))?;
    let all: Result<Vec<PathBuf>, _> = all.map(|entry| entry.map(|it| it.path())).collect();
    all?.into_iter().max().context("it has no checkpoint")
}

#[test]
fn all_that_was_lost_comes_back_and_nothing_else() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let (ctr, docker) = (testbed.ctr(), testbed.docker());

    let counting = [
        ctr.run(DEBIAN, RunOptions::new())?,
        docker.run(DEBIAN, RunOptions::new())?,
    ];
    let mut counters = Vec::new();
    for sandbox in &counting {
        let counter = Counter::start(&crab, sandbox, 1)?;
        assert_eq!(counter.ask()?.0, 1);
        assert_eq!(counter.ask()?.0, 2);
        counters.push(counter);
    }
    let kept = [
        with_file(ctr, &crab, RunOptions::new())?,
        with_file(docker, &crab, RunOptions::new())?,
    ];
    let ended = [
        with_file(ctr, &crab, RunOptions::new())?,
        with_file(docker, &crab, RunOptions::new())?,
    ];
    for sandbox in &ended {
        sandbox.stop()?;
    }
    let removed = with_file(ctr, &crab, RunOptions::new())?;
    let removed_id = removed.sandbox_id();
    let removed_with_it = with_file(docker, &crab, RunOptions::new().flags(["--rm"]))?;
    let always = RunOptions::new().flags(["--restart", "always"]);
    let restarted = docker.run(DEBIAN, always)?;
    let of_restarted = Counter::start(&crab, &restarted, 1)?;
    assert_eq!(of_restarted.ask()?.0, 1);
    let damaged = with_file(ctr, &crab, RunOptions::new())?;

    let [c1, c2] = &counting;
    let [k1, k2] = &kept;
    lose(
        &testbed,
        &[
            c1,
            c2,
            k1,
            k2,
            &removed,
            &removed_with_it,
            &restarted,
            &damaged,
        ],
    )?;
    // Its administrator does not want it any more.
    removed.remove()?;
    fs::write(newest_manifest(&damaged)?, "{}")?;
    poll("Docker has removed it", LIMIT, || {
        Ok((removed_with_it.state()? == State::Gone).then_some(()))
    })?;
    poll("Docker has started it anew", LIMIT, || {
        Ok((crab.ps_of(&restarted)?.state == "running").then_some(()))
    })?;

    let is = |said: &Value, id: &str, outcome: &str, why: &str| -> Result<()> {
        let all = outcomes(said)?;
        let found = all.get(id).with_context(|| format!("{id} is not there"))?;
        ensure!(
            found.0 == outcome && found.1.contains(why),
            "{id}: {found:?}"
        );
        Ok(())
    };
    let others_are_left = |said: &Value| -> Result<()> {
        for sandbox in &ended {
            is(
                said,
                &sandbox.sandbox_id(),
                "left",
                "it had ended, with 137",
            )?;
        }
        is(
            said,
            &removed_id,
            "left",
            "containerd has no such container",
        )?;
        let id = removed_with_it.sandbox_id();
        is(said, &id, "left", "Docker has no such container")?;
        is(said, &damaged.sandbox_id(), "failed", "")
    };
    // What it would do, it does not.
    let said = restore_all(&crab, &["--dry-run"], 1)?;
    others_are_left(&said)?;
    for sandbox in [c1, c2, k1, k2] {
        is(&said, &sandbox.sandbox_id(), "would-be-restored", "")?;
        ensure!(sandbox.state()? != State::Running, "{}", sandbox.name());
    }
    is(&said, &restarted.sandbox_id(), "would-be-rolled-back", "")?;

    // Two at once: each sandbox is brought back by one of them.
    let both = [(); 2].map(|()| crab.tool(&["restore", "--all", "--json"]).start());
    let mut back = 0;
    for one in both {
        let said = one?.wait()?;
        ensure!(said.status == 1, "{said:?}");
        let said: Value = serde_json::from_str(&said.stdout)?;
        others_are_left(&said)?;
        back += said["restored"].as_u64().context("no count")?;
        ensure!(said["failed"] == 1, "{said}");
    }
    assert_eq!(back, 5);
    for sandbox in &kept {
        has_file(sandbox)?;
    }
    for (sandbox, counter) in counting.iter().zip(&counters) {
        let verified = crab.verify(sandbox, None)?;
        ensure!(verified["same"] == true, "{verified}");
        assert_eq!(counter.ask()?.0, 3);
    }
    assert_eq!(of_restarted.ask()?.0, 2);
    for sandbox in &ended {
        ensure!(sandbox.state()? != State::Running, "{}", sandbox.name());
    }

    // Once more: nothing is restored twice.
    let said = restore_all(&crab, &[], 1)?;
    others_are_left(&said)?;
    ensure!(said["restored"] == 0 && said["failed"] == 1, "{said}");
    for sandbox in [c1, c2, k1, k2, &restarted] {
        is(&said, &sandbox.sandbox_id(), "left", "it runs")?;
    }
    // What is whole of the damaged one is there, by itself.
    crab.restore(&damaged, Some(0))?;
    ensure!(damaged.state()? == State::Running);
    let said = restore_all(&crab, &[], 0)?;
    ensure!(said["failed"] == 0, "{said}");
    Ok(())
}

#[test]
fn daemons_that_come_later_than_the_command_are_waited_for() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let (ctr, docker) = (testbed.ctr(), testbed.docker());
    let one = with_file(ctr, &crab, RunOptions::new())?;
    let two = with_file(docker, &crab, RunOptions::new())?;
    kill(&testbed, &[&one, &two])?;
    let restoring = crab.tool(&["restore", "--all", "--json"]).start()?;
    // As where both begin with the host.
    thread::sleep(Duration::from_secs(1));
    testbed.service("start", "containerd")?;
    testbed.service("start", "dockerd")?;
    let said = restoring.wait()?;
    ensure!(said.status == 0, "{said:?}");
    for who in ["containerd", "dockerd"] {
        let waits = format!("cannot reach {who} at ");
        ensure!(said.stderr.matches(&waits).count() == 1, "{said:?}");
    }
    has_file(&one)?;
    has_file(&two)
}
