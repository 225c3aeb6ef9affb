// SPDX-License-Identifier: Apache-2.0

//! Execs, and what follows them at once.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use crab_integration::{BUSYBOX, Client, DEBIAN, RunOptions, Sandbox, Testbed, sleeper};
use crab_store::{Class, TurnId};

/// Longer than two execs take on a busy machine.
const GAP: Duration = Duration::from_secs(5);

fn with_gap(client: Client, image: &str) -> Result<Sandbox> {
    let gap = format!("dev.crab.turns.merge_gap_ms={}", GAP.as_millis());
    client.run(image, RunOptions::new().flags(["--annotation", &gap]))
}

#[test]
fn execs_within_the_gap_are_one_turn_that_holds_what_all_did() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = with_gap(client, BUSYBOX)?;
        // Where crabd has to come first, the first look is one for itself.
        crab.checkpoint(&sandbox)?;
        let start = Instant::now();
        sandbox.sh_ok("echo 1 >/root/a")?;
        sandbox.sh_ok("echo 2 >/root/b")?;
        // Nobody waits for the gap.
        ensure!(start.elapsed() < GAP, "{:?}", start.elapsed());
        let turn = crab.wait_for_turn(&sandbox, 1)?;
        ensure!(turn.record.command.contains("/root/a"), "{:?}", turn.record);
        assert_eq!(turn.class(), Class::Files);
        let changed: Vec<_> = turn.record.changed.iter().map(|c| c.path.clone()).collect();
        for path in ["/root/a", "/root/b"] {
            ensure!(changed.iter().any(|c| c == path), "{changed:?}");
        }
        // It was looked at when its last exec ended, not when the gap was over.
        let boundary = Duration::from_micros(turn.record.cost.boundary_us);
        ensure!(boundary < GAP / 2, "{boundary:?}");
        // The gap is over: this is another turn.
        sandbox.sh_ok("rm /root/a")?;
        crab.wait_for_turn(&sandbox, 2)?;
        assert_eq!(crab.last_turn(&sandbox)?, Some(2));
        crab.rollback(&sandbox, 1)?;
        assert_eq!(sandbox.sh_ok("cat /root/a /root/b")?, "1\n2");
    }
    Ok(())
}

#[test]
fn processes_are_frozen_only_when_no_exec_has_followed() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = with_gap(client, DEBIAN)?;
        sandbox.sh_ok(&sleeper(1000))?;
        sandbox.sh_ok("echo 1 >/root/a")?;
        let turn = crab.wait_for_turn(&sandbox, 1)?;
        assert_eq!(turn.class(), Class::Full, "{}", turn.record.reason);
        // No capture stood in the second exec's way.
        assert_eq!(turn.record.checkpoint, Some(TurnId(1)));
        assert_eq!(crab.last_turn(&sandbox)?, Some(1));
    }
    Ok(())
}

#[test]
fn what_needs_the_turn_to_be_over_does_not_wait_for_the_gap() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = with_gap(client, BUSYBOX)?;
        sandbox.sh_ok("echo 1 >/root/a")?;
        let said = crab.checkpoint(&sandbox)?;
        // All of it is in the turn's own checkpoint.
        assert_eq!(said["class"], "none", "{said}");
        assert_eq!(crab.last_turn(&sandbox)?, Some(1));
        sandbox.sh_ok("echo 2 >/root/a")?;
        crab.rollback(&sandbox, 1)?;
        assert_eq!(sandbox.sh_ok("cat /root/a")?, "1");
    }
    Ok(())
}
