// SPDX-License-Identifier: Apache-2.0

//! A process of 512 MiB that changes every hundredth page.

use anyhow::{Result, ensure};
use crab_integration::{Counter, DEBIAN, RunOptions, Testbed};

use super::{Measured, Plan, frozen_ms};
use crate::series::Series;

const MIB: u32 = 512;
/// Of images of half a GiB each.
const ROUNDS: usize = 5;

pub(super) fn measure(testbed: &Testbed, plan: &Plan, measured: &mut Measured) -> Result<()> {
    let crab = testbed.crab();
    let sandbox = testbed.ctr().run(DEBIAN, RunOptions::new())?;
    let counter = Counter::start(&crab, &sandbox, MIB)?;
    let turns = crab.turns(&sandbox)?.turns;
    let first = turns.iter().map(|turn| turn.record.cost.bytes_stored).max();
    let first = first.unwrap_or_default();
    ensure!(
        first >= u64::from(MIB) << 20,
        "the first image adds {first} bytes only"
    );
    let (mut frozen, mut share) = (Series::default(), Series::default());
    for _ in 0..plan.rounds.min(ROUNDS) {
        let (_, turn) = counter.tell("scatter")?;
        ensure!(turn.is_whole(), "{turn:?}");
        frozen.push_ms(frozen_ms(&turn.record.cost));
        share.push_ms(100.0 * turn.record.cost.bytes_stored as f64 / first as f64);
    }
    measured.enter("frozen_ms_512mb", frozen.quantile(0.5));
    measured.enter("dedup_pct", share.quantile(0.5));
    measured.detail("memory: first image, MB", first as f64 / 1e6);
    Ok(())
}
