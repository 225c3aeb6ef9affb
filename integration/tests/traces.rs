// SPDX-License-Identifier: Apache-2.0

//! Agents that were recorded go on where they were, also after everything has died.

use anyhow::{Context, Result, ensure};
use crab_integration::{
    DEBIAN, RunOptions, Testbed,
    traces::{self, Player, Trace},
};

/// With a server that counts in memory, with a database in memory behind a FIFO that is told
/// by stdin, and with files alone.
const PLAYED: [&str; 3] = ["queue-service", "sqlite-prompt", "convert-settings"];

/// Some of its turns, each of which has to end as in the trace.
fn play(player: &Player, turns: std::ops::Range<usize>) -> Result<()> {
    for n in turns {
        let played = player.turn(n)?;
        ensure!(
            played.is_as(player.trace().turns[n].exit) && !played.timed_out,
            "turn {} of {} ended with {}: {}",
            n + 1,
            player.trace().id,
            played.exit,
            String::from_utf8_lossy(&played.output)
        );
    }
    Ok(())
}

#[test]
fn a_recorded_agent_goes_on_with_its_work_after_everything_has_died() -> Result<()> {
    let testbed = Testbed::here()?;
    if !testbed.driver().keeps_processes() {
        return Ok(());
    }
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let all = traces::own()?;
    for id in PLAYED {
        let trace: &Trace = all
            .iter()
            .find(|trace| trace.id == id)
            .with_context(|| format!("there is no trace {id}"))?;
        let sandbox = testbed.ctr().run(DEBIAN, RunOptions::new())?;
        let player = Player::new(&sandbox, trace)?;
        player.set_up()?;
        let turns = trace.turns.len();
        play(&player, 0..turns / 2)?;
        drop(player);
        // Nothing of it is lost: the newest turn that ended is in the store.
        let checkpoint = crab.checkpoint(&sandbox)?;
        ensure!(checkpoint["degraded"].is_null(), "{id}: {checkpoint}");

        sandbox.crash()?;
        crab.restore(&sandbox, None)?;
        let verified = crab.verify(&sandbox, None)?;
        ensure!(verified["same"] == true, "{id}: {verified}");
        play(&Player::new(&sandbox, trace)?, turns / 2..turns)?;
    }
    Ok(())
}
