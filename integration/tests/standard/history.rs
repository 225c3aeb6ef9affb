// SPDX-License-Identifier: Apache-2.0

//! Beside Crab's own history: undisturbed, and in agreement.

use anyhow::{Context, Result, ensure};
use containerd_shim_protos::shim::oci::CheckpointOptions;
use crab_integration::{DEBIAN, RunOptions, State, Testbed, sleeper};
use crab_store::{Class, Trigger};

use crate::{Scratch, checkpointed, keeper, remembers, token};

#[test]
fn turns_are_told_apart_as_if_there_had_been_no_checkpoint() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let sandbox = testbed.ctr().run(DEBIAN, RunOptions::new())?;
    let dir = Scratch::new()?;
    crab.turn_of(&sandbox, Class::None, "true")?;
    let first = crab.turn_of(&sandbox, Class::Files, "echo 1 >/root/f")?;
    checkpointed(&sandbox, &dir.join("a"), CheckpointOptions::default())?;
    let before = crab.turns(&sandbox)?.turns.len();
    crab.turn_of(&sandbox, Class::None, "true")?;
    crab.turn_of(&sandbox, Class::Files, "echo 2 >/root/f")?;
    // No turn of its own.
    assert_eq!(crab.turns(&sandbox)?.turns.len(), before + 2);
    crab.rollback(&sandbox, first.number())?;
    let (said, _) = crab.turn(&sandbox, &["cat", "/root/f"])?;
    assert_eq!(said.text()?, "1");
    // Something changed before it, which nobody has looked at yet: it is not lost.
    std::fs::write(sandbox.root()?.join("root/outside"), "x")?;
    checkpointed(&sandbox, &dir.join("b"), CheckpointOptions::default())?;
    let turn = crab.turn_of(&sandbox, Class::Files, "true")?;
    sandbox.sh_ok("rm /root/outside")?;
    crab.rollback(&sandbox, turn.number())?;
    assert_eq!(sandbox.sh_ok("cat /root/outside")?, "x");
    Ok(())
}

#[test]
fn a_live_process_is_still_known_to_crab() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let sandbox = testbed.ctr().run(DEBIAN, RunOptions::new())?;
    let dir = Scratch::new()?;
    let with = crab.turn_of(&sandbox, Class::Processes, &sleeper(1000))?;
    checkpointed(&sandbox, &dir.join("a"), CheckpointOptions::default())?;
    crab.turn_of(
        &sandbox,
        Class::Processes,
        "pkill sleep -f 'sleep 1000'; true",
    )?;
    crab.rollback(&sandbox, with.number())?;
    sandbox.sh_ok("pgrep -f 'sleep 1000'")?;
    Ok(())
}

#[test]
fn after_an_exit_crab_restore_brings_back_what_there_was() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, keeper())?;
        let known = token(&sandbox)?;
        sandbox.sh_ok("echo last >/root/last")?;
        let dir = Scratch::new()?;
        let exit = CheckpointOptions {
            exit: true,
            ..Default::default()
        };
        checkpointed(&sandbox, &dir.join("a"), exit)?;
        sandbox.wait_for(State::Stopped)?;
        // The newest state is whole: that of the last turn, if nothing has run since.
        let turns = crab.turns(&sandbox)?;
        let newest = turns.turns.last().context("there are turns")?;
        ensure!(newest.is_whole(), "{newest:?}");
        assert_eq!(turns.head, Some(newest.record.turn));
        if newest.record.trigger == Trigger::Exec {
            assert_eq!(newest.record.command, "sh -c 'echo last >/root/last'");
        } else {
            assert_eq!(newest.record.trigger, Trigger::Manual);
        }
        crab.restore(&sandbox, None)?;
        sandbox.wait_for(State::Running)?;
        remembers(&sandbox, &known)?;
        assert_eq!(sandbox.sh_ok("cat /root/last")?, "last");
    }
    Ok(())
}
