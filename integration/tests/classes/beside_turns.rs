// SPDX-License-Identifier: Apache-2.0

//! What happens beside turns and across them: from outside, between two, in two execs at once,
//! in other containers.

use std::fs;

use anyhow::{Context, Result, bail};
use crab_integration::{
    Client, Counter, DEBIAN, RunOptions, Sandbox, Swapped, Testbed, Tool, catch, poll, processes,
    sleeper,
};
use crab_store::Class;

use crate::LIMIT;

#[test]
fn what_comes_from_outside_belongs_to_the_next_turn() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let from_outside = |sandbox: &Sandbox, name: &str| -> Result<()> {
        match sandbox.client() {
            Client::Docker => {
                let target = format!("{}:/root/{name}", sandbox.name());
                let copy = sandbox.client().tool(["cp", "/etc/passwd", &target]);
                copy.run()?.ok()?;
            }
            Client::Ctr { .. } => {
                let target = sandbox.root()?.join("root").join(name);
                fs::copy("/etc/passwd", target)?;
            }
        }
        Ok(())
    };
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::without_bytecode())?;
        crab.turn_of(&sandbox, Class::None, "true")?;
        from_outside(&sandbox, "one")?;
        crab.turn_of(&sandbox, Class::Files, "true")?;
        crab.turn_of(&sandbox, Class::None, "cat /root/one")?;
        // Also a checkpoint on demand takes it.
        from_outside(&sandbox, "two")?;
        let taken = crab.checkpoint(&sandbox)?;
        assert_eq!(taken["class"], "files", "{taken}");
        let taken = crab.checkpoint(&sandbox)?;
        assert_eq!(taken["class"], "none", "{taken}");
        crab.turn_of(&sandbox, Class::None, "cat /root/two")?;
    }
    Ok(())
}

#[test]
fn a_request_that_comes_while_it_is_frozen_is_not_lost() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::without_bytecode())?;
        let counter = Counter::start(&crab, &sandbox, 48)?;
        let outside = counter.from_outside()?;
        let image = |file| sandbox.staging().join(file).exists();
        let mut in_time = 0;
        let mut rounds = 1..=50;
        while in_time < 5 {
            let round = rounds.next().context("every request came too late")?;
            let last = crab.last_turn(&sandbox)?;
            let exec = counter.ask_only()?;
            catch("an image of the memory", LIMIT, || image("pages-1.img"))?;
            let asked = outside.ask()?;
            // It is the last file of an image: until then it is being taken, and the
            // server waits frozen with its request before it.
            let frozen = !image("inventory.img") && image("pages-1.img");
            in_time += u32::from(frozen);
            exec.wait()?.ok()?;
            assert_eq!(asked.answer()?, 2 * round, "{}", client.name());
            let taken = crab.wait_for_turn_after(&sandbox, last)?;
            assert!(taken.is_whole(), "{taken:?}");
            crab.turn_of(&sandbox, Class::Processes, "true")
                .with_context(|| format!("round {round}, {frozen} ({})", client.name()))?;
            crab.turn_of(&sandbox, Class::None, "true")?;
        }
    }
    Ok(())
}

#[test]
fn an_init_that_wakes_now_and_then_changes_nothing_beside_a_server() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    // Both look around once a second: with a dump that takes longer, their time is over
    // at each thaw.
    let _slow = Swapped::wrapped(processes::CRIU_PATH, |real| {
        let real = real.display();
        format!("#!/bin/sh\n[ \"$1\" != swrk ] || sleep 1.2\nexec {real} \"$@\"\n")
    })?;
    let options = || RunOptions::without_bytecode().dumped_by_runtime();
    for (client, options) in [
        (testbed.docker(), options().flags(["--init"])),
        (testbed.ctr(), options().args(["tail", "-f", "/dev/null"])),
    ] {
        let sandbox = client.run(DEBIAN, options)?;
        let counter = Counter::start(&crab, &sandbox, 1)?;
        for round in 1..=4 {
            let (answer, turn) = counter.ask()?;
            assert_eq!(answer, round);
            assert!(turn.is_whole(), "{turn:?}");
            crab.turn_of(&sandbox, Class::None, "true")
                .with_context(|| format!("round {round} ({})", client.name()))?;
        }
    }
    Ok(())
}

#[test]
fn what_runs_between_turns_belongs_to_the_next() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::without_bytecode())?;
        // It ends with no turn, and not before its own has been looked at, however long
        // that takes.
        crab.turn_of(&sandbox, Class::Processes, &sleeper(1000))?;
        let init = sandbox.pid()?;
        for pid in sandbox.processes()? {
            if pid != init {
                processes::kill(pid)?;
            }
        }
        poll("it has ended", LIMIT, || {
            Ok((sandbox.processes()?.len() == 1).then_some(()))
        })?;
        crab.turn_of(&sandbox, Class::Processes, "true")?;
        crab.turn_of(&sandbox, Class::None, "true")?;
        // One that never rests.
        crab.turn_of(
            &sandbox,
            Class::Full,
            "setsid sh -c 'while :; do date +%N >/root/date; sleep 0.02; done' \
             </dev/null >/dev/null 2>&1 & \
             until [ -e /root/date ]; do sleep 0.01; done",
        )?;
        for _ in 0..2 {
            let written = || fs::read(sandbox.root()?.join("root/date")).context("read the date");
            let before = written()?;
            poll("it has written", LIMIT, || {
                Ok((written()? != before).then_some(()))
            })?;
            crab.turn_of(&sandbox, Class::Full, "true")?;
        }
    }
    Ok(())
}

#[test]
fn execs_that_overlap_are_one_turn() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::without_bytecode())?;
        let script = "echo began >/root/began; while [ ! -e /root/end ]; do sleep 0.01; done";
        let first = sandbox.exec_start(&["sh", "-c", script], &Default::default())?;
        let root = sandbox.root()?.join("root");
        poll("it has begun", LIMIT, || {
            Ok(fs::exists(root.join("began"))?.then_some(()))
        })?;
        sandbox.sh_ok("true")?;
        assert!(crab.turns(&sandbox)?.open.is_some());
        sandbox.sh_ok("echo x >/root/end")?;
        first.wait()?.ok()?;
        let turn = crab.wait_for_turn(&sandbox, 1)?;
        assert_eq!(turn.class(), Class::Files, "{}", turn.record.reason);
        crab.turn_of(&sandbox, Class::None, "true")?;
        assert_eq!(crab.last_turn(&sandbox)?, Some(2));
    }
    Ok(())
}

#[test]
fn nothing_is_taken_from_what_other_containers_and_the_host_do() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let ctr = testbed.ctr();
    let quiet = ctr.run(DEBIAN, RunOptions::new())?;
    let busy = ctr.run(DEBIAN, RunOptions::new())?;
    crab.turn_of(&quiet, Class::None, "true")?;
    crab.turn_of(&busy, Class::Files, "echo x >/root/x")?;
    Tool::new("sh")
        .args(["-c", "echo x >/root/of-the-host"])
        .run()?
        .ok()?;
    crab.turn_of(&quiet, Class::None, "true")?;
    let Some(turn) = crab.last_turn(&quiet)? else {
        bail!("no turn is recorded");
    };
    assert_eq!(turn, 2);
    Ok(())
}
