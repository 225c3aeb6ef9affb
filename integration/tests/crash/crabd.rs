// SPDX-License-Identifier: Apache-2.0

//! crabd is killed, or is not there at all.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use crab_integration::{
    Counter, DEBIAN, ExecOptions, RunOptions, State, Swapped, Testbed, catch, poll, processes,
    sleeper,
};
use crab_store::Class;

use crate::{LIMIT, changed};

#[test]
fn a_crabd_killed_between_turns_is_replaced_and_nothing_is_missed() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::new())?;
        crab.turn_of(&sandbox, Class::Files, "echo 1 >/root/f")?;
        let first = processes::kill_crabd()?;
        // Written while none runs: counted by the programs that are pinned.
        let turn = crab.turn_of(&sandbox, Class::Files, "echo 2 >/root/f")?;
        assert_eq!(changed(&turn), ["/root/f"]);
        assert_eq!(turn.record.unobserved, None);
        assert_ne!(processes::crabd().context("no crabd came")?, first);
        // Not even a write that is between two lives of crabd and two turns.
        processes::kill_crabd()?;
        fs::write(sandbox.root()?.join("root/f"), "from outside")?;
        let turn = crab.turn_of(&sandbox, Class::Files, "true")?;
        assert_eq!(changed(&turn), ["/root/f"]);
        processes::kill_crabd()?;
        let turn = crab.turn_of(&sandbox, Class::None, "cat /root/f")?;
        assert_eq!(turn.record.unobserved, None);
        assert_eq!(sandbox.state()?, State::Running);
        crab.rollback(&sandbox, 2)?;
        assert_eq!(sandbox.sh_ok("cat /root/f")?, "2");
    }
    Ok(())
}

#[test]
fn a_crabd_killed_in_the_middle_of_a_turn_costs_no_change() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::new())?;
        let script = "echo a >/root/a; until [ -e /root/go ]; do sleep 0.01; done; \
                      rm /root/go; echo b >/root/b";
        let exec = sandbox.exec_start(&["sh", "-c", script], &ExecOptions::new())?;
        let root = sandbox.root()?.join("root");
        poll("the turn has begun", LIMIT, || {
            Ok(root.join("a").exists().then_some(()))
        })?;
        processes::kill_crabd()?;
        fs::write(root.join("go"), "")?;
        exec.wait()?.ok()?;
        let turn = crab.wait_for_turn(&sandbox, 1)?;
        assert_eq!(turn.class(), Class::Files, "{}", turn.record.reason);
        assert_eq!(changed(&turn), ["/root/a", "/root/b"]);
        assert!(turn.published);
        crab.turn_of(&sandbox, Class::None, "cat /root/a /root/b")?;
        crab.turn_of(&sandbox, Class::Files, "rm /root/a")?;
        crab.rollback(&sandbox, 1)?;
        assert_eq!(sandbox.sh_ok("cat /root/a /root/b")?, "a\nb");
    }
    Ok(())
}

#[test]
fn a_crabd_killed_in_the_middle_of_a_checkpoint_costs_no_change() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let sandbox = testbed.ctr().run(DEBIAN, RunOptions::new())?;
    let counter = Counter::start(&crab, &sandbox, 64)?;
    let last = crab.last_turn(&sandbox)?;
    let exec = counter.ask_only()?;
    catch("a process image", LIMIT, || sandbox.staging().exists())?;
    processes::kill_crabd()?;
    exec.wait()?.ok()?;
    let turn = crab.wait_for_turn_after(&sandbox, last)?;
    assert_eq!(turn.class(), Class::Full, "{}", turn.record.reason);
    assert!(turn.is_whole(), "{turn:?}");
    assert_eq!(changed(&turn), ["/root/count"]);
    // Nobody could say at the thaw that the server only woke, but what it holds does.
    crab.turn_of(&sandbox, Class::None, "cat /root/count")?;
    crab.turn_of(&sandbox, Class::Files, "rm /root/count")?;
    crab.rollback(&sandbox, turn.number())?;
    assert_eq!(counter.in_file()?, 1);
    assert_eq!(counter.ask()?.0, 2);
    Ok(())
}

#[test]
fn without_any_crabd_turns_are_unobserved_and_right() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let sandbox = testbed.ctr().run(DEBIAN, RunOptions::new())?;
    let in_docker = testbed.docker().run(DEBIAN, RunOptions::new())?;
    let hidden = Swapped::hidden(processes::CRABD_PATH)?;
    processes::kill_crabd()?;
    // One that never knew any.
    let started_without = testbed.ctr().run(DEBIAN, RunOptions::new())?;
    for sandbox in [&sandbox, &in_docker, &started_without] {
        let unobserved = |class, script: &str| -> Result<()> {
            let turn = crab.turn_of(sandbox, class, script)?;
            let why = turn.record.unobserved.context("it was observed")?;
            ensure!(why.contains("crabd"), "{why}");
            ensure!(!why.contains('\n'), "{why}");
            Ok(())
        };
        unobserved(Class::None, "ls /")?;
        unobserved(Class::Files, "echo 1 >/root/f")?;
        unobserved(Class::None, "cat /root/f; echo x >/root/x; rm /root/x")?;
        unobserved(Class::Files, "echo 2 >/dev/shm/f")?;
        // At rest before the turn ends, and for good: it makes no progress of its own.
        unobserved(Class::Processes, &sleeper(1000))?;
        // With nobody to say that it only woke from the freeze, it counts as changed.
        unobserved(Class::Processes, "ls /")?;
        unobserved(
            Class::Full,
            "pkill -f '[s]leep 1000'; while pgrep -f '[s]leep 1000'; do :; done; rm /root/f",
        )?;
        let note = crab.ps_of(sandbox)?.note.context("no note")?;
        assert!(note.contains("unobserved"), "{note}");
        crab.rollback(sandbox, 4)?;
        assert_eq!(sandbox.sh_ok("cat /root/f /dev/shm/f")?, "1\n2");
        assert_eq!(sandbox.state()?, State::Running);
    }
    drop(hidden);
    for sandbox in [&sandbox, &in_docker, &started_without] {
        crab.wait_until_observed(sandbox)?;
        let turn = crab.turn_of(sandbox, Class::Files, "echo 3 >/root/f")?;
        assert_eq!(turn.record.unobserved, None);
        assert_eq!(changed(&turn), ["/root/f"]);
    }
    Ok(())
}

#[test]
fn a_start_does_not_wait_for_a_crabd_that_is_only_coming() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let ctr = testbed.ctr();
    let go = Path::new("/run/let-crabd-go");
    // It becomes the real one, which is in its place again by then.
    let script = format!(
        "#!/bin/sh\nuntil [ -e {} ]; do sleep 0.02; done\nexec {} \"$@\"\n",
        go.display(),
        processes::CRABD_PATH
    );
    let held_back = Swapped::with(processes::CRABD_PATH, &script)?;
    if processes::crabd().is_some() {
        processes::kill_crabd()?;
    }
    // One that comes and goes, and one that stays and changes a file before it is watched.
    let options = || RunOptions::new().args(["true"]);
    ctr.run_rm(DEBIAN, options())?.ok()?;
    let script = "echo early >/root/early; exec sleep infinity";
    let sandbox = ctr.run(DEBIAN, RunOptions::new().args(["sh", "-c", script]))?;
    poll("the file is there", LIMIT, || {
        Ok(sandbox.root()?.join("root/early").exists().then_some(()))
    })?;
    drop(held_back);
    fs::write(go, "")?;
    let (_, turn) = crab.turn(&sandbox, &["ls", "/"])?;
    assert_eq!(changed(&turn), ["/root/early"], "{turn:?}");
    crab.wait_until_observed(&sandbox)?;
    fs::remove_file(go)?;
    Ok(())
}
