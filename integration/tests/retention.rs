// SPDX-License-Identifier: Apache-2.0

//! What of a sandbox's history is kept: by its own wish, by names, by `crab gc`; live and
//! gone.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crab_integration::{BUSYBOX, Crab, RunOptions, Sandbox, Testbed, poll};
use crab_store::Class;

const LIMIT: Duration = Duration::from_secs(20);

/// The turns whose checkpoints the journal says are removed, and that are.
fn removed(crab: &Crab, sandbox: &Sandbox) -> Result<Vec<u64>> {
    let turns = crab.turns(sandbox)?;
    let mut removed: Vec<u64> = turns
        .removed()
        .filter(|number| {
            let mut all = turns.turns.iter();
            all.any(|turn| turn.number() == *number && !turn.published)
        })
        .collect();
    removed.sort_unstable();
    Ok(removed)
}

fn is_whole(crab: &Crab, sandbox: &Sandbox) -> Result<()> {
    let said = crab.json(&["fsck", &sandbox.sandbox_id()])?;
    ensure!(said["whole"] == true, "{said}");
    Ok(())
}

#[test]
fn a_sandbox_keeps_the_turns_that_it_wants_and_what_has_a_name_comes_back() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let wish = ["--annotation", "dev.crab.retention.keep=1"];
    let options = RunOptions::new().flags(wish.map(str::to_owned));
    let sandbox = testbed.ctr().run(BUSYBOX, options)?;
    let id = sandbox.sandbox_id();
    let first = crab
        .turn_of(&sandbox, Class::Files, "echo 1 >/root/f")?
        .number();
    crab.json(&["tag", &id, &first.to_string(), "good"])?;
    for number in 2..=4 {
        let script = format!("echo {number} >/root/f");
        crab.turn_of(&sandbox, Class::Files, &script)?;
    }
    // The start's, and the second's: the first has a name, the last is the newest, and one
    // is kept beside it.
    let gone = [first - 1, first + 1];
    poll("what is not kept is removed", LIMIT, || {
        Ok((removed(&crab, &sandbox)? == gone).then_some(()))
    })?;
    is_whole(&crab, &sandbox)?;
    let refusal = crab.rollback_refusal(&sandbox, first + 1)?;
    ensure!(refusal.code == 3, "{}", refusal.line);
    for part in [
        "was removed (one newer is kept)",
        &format!("of turn {first}"),
    ] {
        ensure!(refusal.line.contains(part), "{part}: {}", refusal.line);
    }

    let back = crab.json(&["rollback", &id, "--turn", "good"])?;
    ensure!(back["turn"] == first, "{back}");
    ensure!(sandbox.sh_ok("cat /root/f")? == "1");
    // What it was rolled back to is the newest state, also without a name.
    crab.json(&["tag", &id, "--delete", "good"])?;
    let done = crab.json(&["gc", &id, "--keep", "0"])?;
    let done = &done["sandboxes"][0];
    ensure!(done["removed"].get(first.to_string()).is_none(), "{done}");
    ensure!(done["kept"].as_u64().context("kept")? <= 3, "{done}");
    is_whole(&crab, &sandbox)?;
    crab.rollback(&sandbox, first)?;
    ensure!(sandbox.sh_ok("cat /root/f")? == "1");
    // And history goes on from there.
    let after = crab.turn_of(&sandbox, Class::Files, "echo after >/root/g")?;
    crab.turn_of(&sandbox, Class::Files, "rm /root/g")?;
    crab.rollback(&sandbox, after.number())?;
    ensure!(sandbox.sh_ok("cat /root/f /root/g")? == "1\nafter");
    is_whole(&crab, &sandbox)?;
    Ok(())
}

#[test]
fn what_a_sandbox_left_behind_is_removed_and_told_of_when_it_is_gone() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let sandbox = testbed.ctr().run(BUSYBOX, RunOptions::new())?;
    let id = sandbox.sandbox_id();
    let make = "dd if=/dev/urandom of=/root/f bs=1024 count=512";
    for _ in 0..3 {
        crab.turn_of(&sandbox, Class::Files, make)?;
    }
    let before = crab.json(&["du", &id])?;
    drop(sandbox);
    let done = crab.json(&["gc", &id, "--keep", "0"])?;
    ensure!(done["sandboxes"][0]["kept"] == 1, "{done}");
    let after = crab.json(&["du", &id])?;
    let packs = |said: &serde_json::Value| said["packs"].as_u64().context("packs");
    // Of three random files one is left.
    ensure!(packs(&after)? * 2 < packs(&before)?, "{before} {after}");
    let said = crab.json(&["fsck", &id])?;
    ensure!(said["whole"] == true, "{said}");
    Ok(())
}
