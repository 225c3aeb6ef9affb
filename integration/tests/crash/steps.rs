// SPDX-License-Identifier: Apache-2.0

//! Death at steps and at random instants loses nothing: some of what `scripts/bench capture
//! --only crash` does at length.

use anyhow::{Result, ensure};
use crab_integration::{
    Testbed,
    crash::{Extent, damage, full, kills, steps},
};

/// Of the steps, one of so many.
const SHARE: usize = 9;
const KILLS: usize = 8;
const DAMAGED: usize = 300;
const FULL: usize = 6;
/// The same choices each time: what they lead to is up to the machine.
const SEED: u64 = 1;

#[test]
fn death_at_any_step_and_instant_loses_nothing_and_damage_is_found() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let stepped = steps(&testbed, Extent::OneOf(SHARE))?;
    ensure!(stepped.lost.is_empty(), "{:#?}", stepped.lost);
    let killed = kills(&testbed, KILLS, SEED)?;
    ensure!(killed.lost.is_empty(), "{:#?}", killed.lost);
    let filled = full(&testbed, FULL, SEED)?;
    ensure!(filled.lost.is_empty(), "{:#?}", filled.lost);
    ensure!(filled.kept_out > 0, "the disk was never full");
    let damaged = damage(&testbed, DAMAGED, SEED)?;
    ensure!(damaged.missed.is_empty(), "{:#?}", damaged.missed);
    Ok(())
}
