// SPDX-License-Identifier: Apache-2.0

//! Checkpoint, roll back, start something in the background, checkpoint, roll back: again and
//! again in one sandbox, each verified.

use anyhow::{Result, ensure};
use crab_integration::{Counter, Crab, DEBIAN, RunOptions, Sandbox, Testbed, sleeper};

use super::{Measured, Plan};

pub(super) fn measure(testbed: &Testbed, plan: &Plan, measured: &mut Measured) -> Result<()> {
    let crab = testbed.crab();
    let sandbox = testbed.ctr().run(DEBIAN, RunOptions::new())?;
    let counter = Counter::start(&crab, &sandbox, 0)?;
    let mut right = 0;
    for number in 0..plan.cycles {
        match cycle(&crab, &sandbox, &counter) {
            Ok(()) => right += 1,
            Err(error) => {
                eprintln!("cycles: the {}th failed: {error:#}", number + 1);
                break;
            }
        }
    }
    measured.enter("cycles_ok", f64::from(right));
    Ok(())
}

fn cycle(crab: &Crab, sandbox: &Sandbox, counter: &Counter<'_>) -> Result<()> {
    let (count, first) = counter.ask()?;
    counter.ask()?;
    crab.rollback_verified(sandbox, first.number())?;
    let (said, second) = crab.turn(sandbox, &["sh", "-c", &sleeper(1000)])?;
    said.ok()?;
    ensure!(second.is_whole(), "{second:?}");
    let there = sandbox.processes()?.len();
    counter.ask()?;
    crab.rollback_verified(sandbox, second.number())?;
    let again = sandbox.processes()?.len();
    ensure!(
        again == there,
        "{again} processes after the rollback, and {there} before"
    );
    let (after, _) = counter.ask()?;
    ensure!(
        after == count + 1,
        "the server went on from {} and not {count}",
        after - 1
    );
    crab.rollback_verified(sandbox, first.number())?;
    Ok(())
}
