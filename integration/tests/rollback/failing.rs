// SPDX-License-Identifier: Apache-2.0

//! A way back on which something fails: the sandbox is as it was, or it is said how to restore it.

use std::fs;

use anyhow::{Context, Result};
use crab_integration::{DEBIAN, RunOptions, State, Swapped, Testbed, processes};
use crab_store::Class;

use crate::{
    identity::{Identity, same},
    server::{ask, start_and_count_to_two},
};

/// A program of the host, replaced for a while by one that fails when it is told to.
struct Saboteur {
    _program: Swapped,
    trigger: &'static str,
}

impl Saboteur {
    /// In the place of a program: it fails once for each line that is written to
    /// `trigger`, where its arguments have the word.
    fn replace(program: &str, trigger: &'static str, word: &str) -> Result<Self> {
        let program = Swapped::wrapped(program, |real| {
            format!(
                "#!/bin/sh\n\
                 case \" $* \" in *' {word} '*)\n\
                 if [ -s {trigger} ]; then sed -i 1d {trigger}; echo sabotage >&2; exit 1; fi;;\n\
                 esac\n\
                 exec {} \"$@\"\n",
                real.display()
            )
        })?;
        Ok(Self {
            _program: program,
            trigger,
        })
    }

    /// CRIU, where it restores or dumps.
    fn of_restores() -> Result<Self> {
        Self::replace(processes::CRIU_PATH, "/run/criu-fails", "swrk")
    }

    fn fail(&self, times: usize) -> Result<()> {
        fs::write(self.trigger, "x\n".repeat(times)).context("arm the saboteur")
    }

    /// How many failures are left.
    fn left(&self) -> Result<usize> {
        Ok(fs::read_to_string(self.trigger)?.lines().count())
    }
}

impl Drop for Saboteur {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.trigger);
    }
}

#[test]
fn a_restore_that_fails_half_way_leaves_the_sandbox_as_it_was() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let events = testbed.events()?;
    let criu = Saboteur::of_restores()?;
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::without_bytecode())?;
        let first = start_and_count_to_two(&crab, &sandbox)?;
        crab.turn_of(
            &sandbox,
            Class::Files,
            "echo kept >/root/kept; echo kept >/dev/shm/kept",
        )?;
        // Nothing is left to be dumped, so that what fails is a restore.
        assert_eq!(crab.checkpoint(&sandbox)?["class"], "none");
        let before = Identity::of(&sandbox)?;

        criu.fail(1)?;
        let refusal = crab.rollback_refusal(&sandbox, first)?;
        assert_eq!(criu.left()?, 0, "nothing was restored: {}", refusal.line);
        assert!(refusal.line.contains("as it was"), "{}", refusal.line);
        assert_eq!(sandbox.state()?, State::Running);
        assert_eq!(sandbox.sh_ok("cat /root/kept /dev/shm/kept")?, "kept\nkept");
        assert_eq!(ask(&sandbox)?, 3);
        same(&Identity::of(&sandbox)?, &before)?;
        assert_eq!(events.exits_of_init(&sandbox)?, 0, "containerd saw an exit");
        // And now it works.
        crab.rollback(&sandbox, first)?;
        assert_eq!(ask(&sandbox)?, 2);
        assert_eq!(sandbox.sh_ok("ls /root/kept 2>/dev/null | wc -l")?, "0");
    }
    Ok(())
}

#[test]
fn where_there_is_no_way_back_it_is_said_and_restore_helps() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let events = testbed.events()?;
    let criu = Saboteur::of_restores()?;
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::without_bytecode())?;
        let first = start_and_count_to_two(&crab, &sandbox)?;
        assert_eq!(crab.checkpoint(&sandbox)?["class"], "none");
        criu.fail(100)?;
        let refusal = crab.rollback_refusal(&sandbox, first)?;
        assert!(refusal.line.contains("crab restore"), "{}", refusal.line);
        sandbox.wait_for(State::Stopped)?;
        assert_eq!(events.exits_of_init(&sandbox)?, 1);
        criu.fail(0)?;
        crab.restore(&sandbox, None)?;
        assert_eq!(sandbox.state()?, State::Running);
        assert_eq!(ask(&sandbox)?, 3);
        crab.rollback(&sandbox, first)?;
        assert_eq!(ask(&sandbox)?, 2);
    }
    Ok(())
}

#[test]
fn an_init_that_cannot_be_started_again_leaves_the_sandbox_as_it_was() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let events = testbed.events()?;
    let runc = Saboteur::replace("/usr/sbin/runc", "/run/runc-fails", "create")?;
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::without_bytecode())?;
        let one = crab.turn_of(&sandbox, Class::Files, "echo one >/root/f")?;
        crab.turn_of(&sandbox, Class::Files, "echo two >/root/f")?;
        runc.fail(1)?;
        let (id, turn) = (sandbox.sandbox_id(), one.number().to_string());
        let refusal = crab.refusal(&["rollback", &id, "--turn", &turn, "--cold"])?;
        assert_eq!(runc.left()?, 0, "nothing was created: {}", refusal.line);
        assert!(refusal.line.contains("as it was"), "{}", refusal.line);
        assert_eq!(sandbox.state()?, State::Running);
        assert_eq!(sandbox.sh_ok("cat /root/f")?, "two");
        assert_eq!(events.exits_of_init(&sandbox)?, 0, "containerd saw an exit");
        crab.rollback(&sandbox, one.number())?;
        assert_eq!(sandbox.sh_ok("cat /root/f")?, "one");
    }
    Ok(())
}
