// SPDX-License-Identifier: Apache-2.0

//! A root that is no overlay, and a disk that is full: no checkpoints, and no harm.

use anyhow::{Context, Result, ensure};
use crab_integration::{
    Counter, DEBIAN, EACH_EXEC_A_TURN, RunOptions, SmallDisk, Swapped, Testbed, poll,
};
use crab_store::{Class, Trigger};

use crate::{CONFIG, FAILED, LIMIT, REFUSED, lines_of_turns, lives, refuses};

/// A store of its own on a small disk, for sandboxes that start while it lasts.
fn small_store() -> Result<(SmallDisk, Swapped)> {
    let disk = SmallDisk::new(12, SMALL)?;
    let config = format!("store = \"{SMALL}/store\"\n{EACH_EXEC_A_TURN}");
    Ok((disk, Swapped::with(CONFIG, &config)?))
}

const SMALL: &str = "/mnt/small";

#[test]
fn a_full_disk_stops_checkpoints_and_nothing_else() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    for client in testbed.clients() {
        let (disk, _config) = small_store()?;
        let sandbox = client.run(DEBIAN, RunOptions::new())?;
        let id = sandbox.sandbox_id();
        let first = crab.turn_of(&sandbox, Class::Files, "echo 1 >/root/f")?;
        // More than the disk has.
        let script = "echo 2 >/root/f; head -c 30000000 /dev/urandom >/root/big";
        let turn = crab.turn_of(&sandbox, Class::Files, script)?;
        let why = turn.failed.clone().context("it has a checkpoint")?;
        assert!(!turn.published && turn.record.checkpoint.is_none());
        assert!(why.to_lowercase().contains("no space"), "{why}");
        assert!(!why.contains('\n'), "{why}");
        let lines = lines_of_turns(&crab, &sandbox, "no checkpoint")?;
        assert_eq!(lines.len(), 1, "{lines:?}");
        lives(&sandbox)?;
        let full = ["no space", "free some"];
        refuses(&crab, &["checkpoint", &id], REFUSED, &["space"])?;
        refuses(
            &crab,
            &["rollback", &id, "--turn", "1"],
            REFUSED,
            &["space"],
        )?;
        let (said, turn) = crab.turn(&sandbox, &["sh", "-c", "cat /root/f; wc -c </root/big"])?;
        assert_eq!(said.text()?, "2\n30000000");
        // Tried again, in vain: nothing of it is left when the disk is filled.
        assert!(turn.failed.is_some(), "{turn:?}");

        // Not even the journal can be written.
        disk.fill_but(0)?;
        let said = sandbox.sh("echo 3 >/root/f; exit 7")?;
        assert_eq!(said.status, 7);
        refuses(&crab, &["checkpoint", &id], REFUSED, &["space"])?;
        lives(&sandbox)?;
        crab.run(&["turns", &id])?.ok()?;
        crab.run(&["ps"])?.ok()?;
        // The older checkpoint is still one, as soon as a wish for it can be noted.
        sandbox.stop()?;
        // With what the end has given back.
        disk.fill_but(0)?;
        refuses(&crab, &["restore", &id], FAILED, &full)?;
        disk.free()?;
        crab.restore(&sandbox, None)?;
        assert_eq!(sandbox.sh_ok("cat /root/f; ls /root")?, "1\nf");

        // Enough for the next one: it is whole.
        let last = crab.last_turn(&sandbox)?;
        sandbox.sh_ok(script)?;
        let failed = crab.wait_for_turn_after(&sandbox, last)?;
        assert!(failed.failed.is_some(), "{failed:?}");
        disk.grow(200)?;
        let whole = crab.turn_of(&sandbox, Class::Files, "echo 4 >/root/g")?;
        assert!(whole.published && whole.failed.is_none(), "{whole:?}");
        crab.rollback(&sandbox, first.number())?;
        assert_eq!(sandbox.sh_ok("cat /root/f; ls /root")?, "1\nf");
        crab.rollback(&sandbox, whole.number())?;
        assert_eq!(
            sandbox.sh_ok("cat /root/f /root/g; wc -c </root/big")?,
            "2\n4\n30000000"
        );
    }
    Ok(())
}

#[test]
fn a_turn_that_failed_is_made_up_for_with_no_other_turn() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let (disk, _config) = small_store()?;
    let sandbox = testbed.ctr().run(DEBIAN, RunOptions::new())?;
    let script = "echo 1 >/root/f; head -c 30000000 /dev/urandom >/root/big";
    let (said, failed) = crab.turn(&sandbox, &["sh", "-c", script])?;
    said.ok()?;
    ensure!(failed.failed.is_some(), "{failed:?}");
    let told = crab
        .run(&["events", &sandbox.sandbox_id(), "--json"])?
        .ok()?;
    ensure!(
        told.stdout.contains("\"kind\":\"no-space\""),
        "{}",
        told.stdout
    );
    disk.grow(200)?;
    // Nobody does anything any more.
    let again = crab.wait_for_turn_after(&sandbox, Some(failed.number()))?;
    ensure!(again.record.trigger == Trigger::Retry, "{again:?}");
    ensure!(
        again.is_whole() && again.class() == Class::Files,
        "{again:?}"
    );
    ensure!(again.number() == failed.number() + 1, "{again:?}");
    // What failed is told as it was.
    let told = crab.wait_for_turn(&sandbox, failed.number())?;
    ensure!(told.failed.is_some() && !told.published, "{told:?}");
    sandbox.sh_ok("rm /root/f /root/big")?;
    crab.rollback(&sandbox, again.number())?;
    ensure!(sandbox.sh_ok("cat /root/f; wc -c </root/big")? == "1\n30000000");
    Ok(())
}

#[test]
fn a_container_made_while_the_disk_was_full_has_checkpoints_once_it_is_not() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let (disk, _config) = small_store()?;
    disk.fill_but(0)?;
    let sandbox = testbed.ctr().run(DEBIAN, RunOptions::new())?;
    sandbox.sh_ok("echo 1 >/root/f")?;
    let row = crab.ps_of(&sandbox)?;
    let why = row.note.context("nothing is said of it")?;
    ensure!(why.to_lowercase().contains("no space"), "{why}");
    disk.free()?;
    poll("it has a checkpoint", LIMIT, || {
        // Until it has a history there are no turns to be told.
        let turns = crab.turns(&sandbox).map(|all| all.turns);
        let first = turns.is_ok_and(|turns| turns.iter().any(|turn| turn.published));
        Ok(first.then_some(()))
    })?;
    let first = crab.wait_for_turn(&sandbox, 0)?;
    ensure!(first.record.trigger == Trigger::Start, "{first:?}");
    crab.turn_of(&sandbox, Class::Files, "echo 2 >/root/f")?;
    crab.turn_of(&sandbox, Class::None, "cat /root/f")?;
    crab.rollback(&sandbox, 0)?;
    ensure!(sandbox.sh_ok("cat /root/f")? == "1");

    // Nobody has to wait for it who asks.
    disk.fill_but(0)?;
    let sandbox = testbed.ctr().run(DEBIAN, RunOptions::new())?;
    refuses(
        &crab,
        &["checkpoint", &sandbox.sandbox_id()],
        REFUSED,
        &["space"],
    )?;
    disk.free()?;
    ensure!(crab.checkpoint(&sandbox)?["class"] == "none");
    ensure!(crab.wait_for_turn(&sandbox, 0)?.published);
    Ok(())
}

#[test]
fn a_process_image_without_room_in_memory_goes_to_the_disk() -> Result<()> {
    let testbed = Testbed::here()?;
    if !testbed.driver().dumps_processes() {
        return Ok(());
    }
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let _memory = SmallDisk::new(12, SMALL)?;
    let config = format!("{EACH_EXEC_A_TURN}staging_dir = \"{SMALL}/staging\"\n");
    let _config = Swapped::with(CONFIG, &config)?;
    let sandbox = testbed.ctr().run(DEBIAN, RunOptions::new())?;
    let counter = Counter::start(&crab, &sandbox, 48)?;
    let (answer, turn) = counter.ask()?;
    ensure!(turn.is_whole(), "{turn:?}");
    counter.ask()?;
    crab.rollback(&sandbox, turn.number())?;
    ensure!(counter.ask()?.0 == answer + 1);
    Ok(())
}
