// SPDX-License-Identifier: Apache-2.0

//! Random turns. `CRAB_SEED` is the seed of one life, which is lived again and told turn by
//! turn; `CRAB_TURNS` is how many turns there shall be.

use std::env;

use anyhow::{Context, Result, ensure};
use crab_integration::{
    Testbed,
    proof::{TURNS_OF_A_LIFE, Tally},
};

/// Another one for each life.
const SEED: u64 = 20_261_130;
const TURNS: usize = 300;

fn number(name: &str) -> Result<Option<u64>> {
    let Ok(text) = env::var(name) else {
        return Ok(None);
    };
    text.parse()
        .map(Some)
        .with_context(|| format!("{name}={text} is no number"))
}

#[test]
fn no_change_is_missed_and_few_turns_are_taken_for_more_than_they_are() -> Result<()> {
    let testbed = Testbed::here()?;
    let one = number("CRAB_SEED")?;
    let usual = one.map_or(TURNS, |_| TURNS_OF_A_LIFE);
    let turns = number("CRAB_TURNS")?.map_or(usual, |turns| turns as usize);
    let mut tally = Tally {
        tell: one.is_some(),
        ..Tally::default()
    };
    for life in 0.. {
        let seed = one.unwrap_or(SEED + life);
        let left = turns - tally.turns;
        if left == 0 {
            break;
        }
        let client = testbed.clients()[(seed / 2 % 2) as usize];
        tally.live(client, seed, left.min(TURNS_OF_A_LIFE))?;
    }
    println!(
        "{} turns, {:?}, {} missed, {} needless, {} unobserved",
        tally.turns,
        tally.classes,
        tally.missed.len(),
        tally.needless.len(),
        tally.unobserved
    );
    for wrong in tally.missed.iter().chain(&tally.needless) {
        println!("CRAB_SEED={} {wrong}", wrong.seed);
    }
    ensure!(
        tally.missed.is_empty(),
        "{} turns changed more than their class says",
        tally.missed.len()
    );
    ensure!(
        tally.needless_percent() < 2.0,
        "{:.1} % of the turns changed less than their class says",
        tally.needless_percent()
    );
    Ok(())
}
