// SPDX-License-Identifier: Apache-2.0

//! A rollback that fails at any of its steps, by a point that the shim has there: the sandbox is as it
//! was. One whose shim is killed there is brought back by `crab restore`, and a plain start has the
//! files of before.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use crab_integration::{Client, Crab, DEBIAN, RunOptions, Sandbox, State, Testbed, crash::Armed};
use crab_store::Class;

use crate::{
    identity::{Identity, same},
    server::{ask, ask_as_turn, start_server},
};

/// Of a rollback that replaces processes.
const COLD: [&str; 8] = [
    "cold-stage",
    "cold-kill",
    "cold-forget",
    "cold-exchange",
    "cold-launch",
    "cold-look",
    "cold-limit",
    "cold-start",
];

/// Those from where on the sandbox has lost something.
const LATE: [&str; 4] = ["cold-exchange", "cold-launch", "cold-look", "cold-start"];

/// Of one that leaves them, with what keeps the cold one from following.
const WARM: [&[&str]; 3] = [
    &["warm-change-0", "cold-stage"],
    &["warm-change-1", "cold-stage"],
    &["warm-look", "cold-stage"],
];

/// A rollback fails there, and the sandbox is what it was.
fn fails(crab: &Crab, sandbox: &Sandbox, turn: u64, points: &[&str]) -> Result<()> {
    let armed = Armed::with(points)?;
    let refusal = crab.rollback_refusal(sandbox, turn)?;
    ensure!(
        armed.left()?.is_empty(),
        "{points:?} were not met: {}",
        refusal.line
    );
    ensure!(
        refusal.line.contains("on purpose"),
        "{points:?}: {}",
        refusal.line
    );
    ensure!(sandbox.state()? == State::Running, "{points:?}");
    let found = crab.verify(sandbox, None)?;
    ensure!(found["same"] == true, "{points:?}: {found}");
    Ok(())
}

#[test]
fn whichever_step_fails_the_sandbox_is_as_it_was() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let events = testbed.events()?;
    let sandbox = testbed.ctr().run(DEBIAN, RunOptions::without_bytecode())?;
    let change =
        |word: &str| format!("echo {word} >/root/f; rm -f /etc/issue; echo {word} >/dev/shm/m");
    let zero = crab.turn_of(&sandbox, Class::Files, &change("zero"))?;
    let one = crab.turn_of(&sandbox, Class::Files, &change("one"))?;
    let before = Identity::of(&sandbox)?;
    // An init that only holds the container open.
    for points in WARM {
        fails(&crab, &sandbox, zero.number(), points)?;
    }
    crab.turn_of(&sandbox, Class::Files, "rm -r /usr/share/base-files")?;
    for point in COLD {
        fails(&crab, &sandbox, zero.number(), &[point])?;
    }
    // Files that can be put neither where they should be nor back are put back as a whole.
    let two = crab.turn_of(&sandbox, Class::Files, &change("two"))?;
    let three = crab.turn_of(&sandbox, Class::Files, &change("three"))?;
    fails(
        &crab,
        &sandbox,
        two.number(),
        &["warm-change-1", "warm-put-back"],
    )?;
    assert_eq!(sandbox.sh_ok("cat /root/f /dev/shm/m")?, "three\nthree");

    // Processes with memory.
    start_server(&crab, &sandbox)?;
    let (_, counted) = ask_as_turn(&crab, &sandbox, Class::Full)?;
    crab.turn_of(&sandbox, Class::Files, &change("four"))?;
    fails(&crab, &sandbox, counted, WARM[0])?;
    for point in LATE {
        fails(&crab, &sandbox, three.number(), &[point])?;
    }
    assert_eq!(ask(&sandbox)?, 2);
    assert_eq!(sandbox.sh_ok("cat /root/f /dev/shm/m")?, "four\nfour");
    same(&Identity::of(&sandbox)?, &before)?;
    // A failure of the warm one alone is none.
    let armed = Armed::with(&["warm-look"])?;
    crab.rollback_verified(&sandbox, one.number())?;
    drop(armed);
    assert_eq!(sandbox.sh_ok("cat /root/f /dev/shm/m")?, "one\none");
    assert_eq!(events.exits_of_init(&sandbox)?, 0, "containerd saw an exit");
    Ok(())
}

#[test]
fn a_shim_that_is_killed_half_way_leaves_what_restore_needs() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let client = testbed.ctr();
    for point in ["warm-look", "cold-exchange", "cold-look"] {
        let (sandbox, one) = killed_in_a_rollback(&crab, client, point)?;
        crab.restore(&sandbox, None)?;
        let found = crab.verify(&sandbox, None)?;
        ensure!(found["same"] == true, "{point}: {found}");
        assert_eq!(
            sandbox.sh_ok("cat /root/f /dev/shm/m")?,
            "two\ntwo",
            "{point}"
        );
        crab.rollback_verified(&sandbox, one)?;
        assert_eq!(
            sandbox.sh_ok("cat /root/f /dev/shm/m")?,
            "one\none",
            "{point}"
        );
    }
    ensure!(!Path::new(Armed::FILE).exists());
    Ok(())
}

#[test]
fn processes_never_come_back_to_the_files_of_another_turn() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let sandbox = testbed.ctr().run(DEBIAN, RunOptions::without_bytecode())?;
    let one = crab.turn_of(&sandbox, Class::Files, "echo one >/root/f")?;
    crab.turn_of(&sandbox, Class::Files, "echo two >/root/f")?;
    let armed = Armed::with(&["cold-launch", "cold-undo"])?;
    let (id, turn) = (sandbox.sandbox_id(), one.number().to_string());
    let said = crab.run(&["rollback", &id, "--turn", &turn, "--cold"])?;
    ensure!(
        said.status != 0 && said.stderr.contains("crab restore"),
        "{}: {}",
        said.status,
        said.stderr
    );
    ensure!(armed.left()?.is_empty(), "not met: {}", armed.left()?);
    drop(armed);
    sandbox.wait_for(State::Stopped)?;
    crab.restore(&sandbox, None)?;
    assert_eq!(sandbox.sh_ok("cat /root/f")?, "two");
    Ok(())
}

/// A sandbox after two turns, whose shim was killed on the way back to the first; and that turn.
fn killed_in_a_rollback(crab: &Crab, client: Client, point: &str) -> Result<(Sandbox, u64)> {
    let sandbox = client.run(DEBIAN, RunOptions::without_bytecode())?;
    let turn = |word: &str| {
        let script = format!(
            "echo {word} >/root/f; echo {word} >/root/z; rm -f /etc/issue; echo {word} >/dev/shm/m"
        );
        crab.turn_of(&sandbox, Class::Files, &script)
    };
    let one = turn("one")?.number();
    turn("two")?;
    let armed = Armed::with(&[&format!("die {point}")])?;
    let asked = one.to_string();
    let mut args = vec!["rollback", sandbox.name(), "--turn", &asked];
    if point.starts_with("cold") {
        args.push("--cold");
    }
    ensure!(crab.run(&args)?.status != 0, "{point}: its shim lives");
    ensure!(armed.left()?.is_empty(), "{point} was not met");
    drop(armed);
    sandbox
        .wait_for(State::Stopped)
        .or_else(|_| sandbox.wait_for(State::Gone))?;
    Ok((sandbox, one))
}

/// Whether the store says that a rollback is not over.
fn is_noted(sandbox: &Sandbox) -> Result<bool> {
    let note = fs::read_to_string(sandbox.store().join("rollback"))?;
    Ok(note.contains("begun_ms"))
}

#[test]
fn a_plain_start_after_a_shim_was_killed_half_way_has_the_files_of_before() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    for client in testbed.clients() {
        // Changed in the root, and nothing in memory yet.
        for point in ["warm-change-1", "cold-look"] {
            let (sandbox, one) = killed_in_a_rollback(&crab, client, point)?;
            ensure!(is_noted(&sandbox)?, "{point}: nobody would know");
            let before = crab.last_turn(&sandbox)?;
            sandbox.start_again()?;
            assert_eq!(
                sandbox.sh_ok("cat /root/f /root/z; ls /etc/issue /dev/shm/m 2>/dev/null; true")?,
                "two\ntwo",
                "{point}"
            );
            ensure!(!is_noted(&sandbox)?, "{point}: it would be put back again");
            let start = crab.wait_for_turn_after(&sandbox, before)?;
            ensure!(start.is_whole(), "{point}: {start:?}");
            // What was recorded since is what there was, and goes back as anything else.
            let two = crab.turn_of(&sandbox, Class::Files, "echo three >/root/f")?;
            crab.rollback_verified(&sandbox, one)?;
            assert_eq!(sandbox.sh_ok("cat /root/f /root/z")?, "one\none", "{point}");
            crab.rollback_verified(&sandbox, two.number())?;
            assert_eq!(
                sandbox.sh_ok("cat /root/f /root/z")?,
                "three\ntwo",
                "{point}"
            );
            ensure!(!is_noted(&sandbox)?, "{point}: a note is left");
        }
    }
    Ok(())
}

#[test]
fn files_that_cannot_be_put_back_are_not_recorded() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let (sandbox, _) = killed_in_a_rollback(&crab, testbed.ctr(), "warm-change-1")?;
    let before = crab.last_turn(&sandbox)?;
    let packs = sandbox.store().join("packs");
    let aside = sandbox.store().join("packs.aside");
    fs::rename(&packs, &aside)?;
    sandbox.start_again().context("it hangs on the store")?;
    fs::remove_dir_all(&packs).ok();
    fs::rename(&aside, &packs)?;
    assert_eq!(sandbox.sh_ok("echo alive")?, "alive");
    let refused = crab.refusal(&["checkpoint", sandbox.name()])?;
    ensure!(refused.line.contains("interrupted"), "{}", refused.line);
    assert_eq!(crab.last_turn(&sandbox)?, before, "it was recorded");
    // With the store back, so are the files.
    sandbox.stop()?;
    sandbox.start_again()?;
    assert_eq!(sandbox.sh_ok("cat /root/f /root/z")?, "two\ntwo");
    Ok(())
}
