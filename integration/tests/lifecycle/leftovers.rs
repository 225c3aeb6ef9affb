// SPDX-License-Identifier: Apache-2.0

//! Nothing is left, whatever the end.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use crab_integration::{
    BUSYBOX, Census, Counter, DEBIAN, RunOptions, Sandbox, Testbed, forget_fifos, poll, processes,
    sleeper,
};
use crab_store::Class;

use crate::{LIMIT, shell};

#[test]
fn containers_that_come_and_go_leave_nothing() -> Result<()> {
    let testbed = Testbed::here()?;
    for client in testbed.clients() {
        let before = Census::take()?;
        for round in 0..20 {
            if round % 4 == 0 {
                let sandbox = client.run(BUSYBOX, RunOptions::new())?;
                sandbox.sh_ok(&format!("echo x >/root/x; {}", sleeper(1000)))?;
            } else {
                let said = client.run_rm(BUSYBOX, shell("echo x >/root/x; exit 3"))?;
                assert_eq!(said.status, 3, "{}", said.stderr);
            }
        }
        before.wait_for_nothing_left().context(client.name())?;
    }
    Ok(())
}

#[test]
fn a_killed_shim_is_cleaned_up_after_and_its_history_stays() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let events = testbed.events()?;
    let ctr = testbed.ctr();
    let before = Census::take()?;
    let sandbox = ctr.run(DEBIAN, RunOptions::new())?;
    sandbox.sh_ok(&sleeper(1000))?;
    crab.turn_of(&sandbox, Class::Files, "echo kept >/root/kept")?;
    let inside = sandbox.processes()?;
    let pid = sandbox.pid()?;
    processes::kill(sandbox.shim()?)?;
    // containerd asks for it by running the shim's `delete`.
    poll("containerd has seen the end", LIMIT, || {
        Ok((events.exits_of_init(&sandbox)? > 0).then_some(()))
    })?;
    for pid in inside {
        processes::wait_gone(pid, LIMIT)?;
    }
    assert!(!Path::new(&format!("/proc/{pid}/ns/net")).exists());
    let turns = crab.turns(&sandbox)?;
    assert_eq!(turns.damaged, 0);
    ensure!(
        turns
            .turns
            .iter()
            .any(|turn| turn.published && turn.class() == Class::Files),
        "the published checkpoint is gone: {turns:?}"
    );
    assert_eq!(events.exits_of_init(&sandbox)?, 1);
    drop(sandbox);
    forget_fifos()?;
    before.wait_for_nothing_left()
}

fn timed_removal(sandbox: Sandbox) -> Result<Duration> {
    let start = Instant::now();
    sandbox.remove()?;
    Ok(start.elapsed())
}

#[test]
fn a_container_in_the_middle_of_a_checkpoint_is_removed_at_once() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        // Into the dump, to catch CRIU at various work: it holds processes that are
        // to die, and waits for them.
        for pause in [0, 3, 10, 25, 50, 90] {
            let before = Census::take()?;
            // What it takes on this machine, as busy as it is.
            let idle = timed_removal(client.run(DEBIAN, RunOptions::new())?)?;
            let sandbox = client.run(DEBIAN, RunOptions::new())?;
            let counter = Counter::start(&crab, &sandbox, 16)?;
            if !testbed.driver().keeps_processes() {
                let label = counter.ask()?.1.record.degraded.unwrap_or_default();
                ensure!(label.starts_with("files only: "), "{label}");
                continue;
            }
            let _exec = counter.ask_only()?;
            let images = sandbox.staging();
            poll("a dump is under way", LIMIT, || {
                Ok(images.exists().then_some(()))
            })?;
            thread::sleep(Duration::from_millis(pause));
            let took = timed_removal(sandbox)?;
            // Less than anybody waits who waits for an end that does not come.
            ensure!(
                took < idle + Duration::from_secs(4),
                "{} took {took:?} ({pause} ms into a dump), and {idle:?} with nothing to do",
                client.name()
            );
            before.wait_for_nothing_left()?;
        }
    }
    Ok(())
}
