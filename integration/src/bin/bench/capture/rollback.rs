// SPDX-License-Identifier: Apache-2.0

//! The ways back of a live sandbox.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use crab_integration::{Counter, Crab, DEBIAN, RunOptions, Sandbox, Testbed};
use crab_store::Class;
use serde_json::Value;

use super::{Measured, Plan};
use crate::series::Series;

/// A time in an answer of `crab rollback --json`, in milliseconds.
fn ms(answer: &Value, name: &str) -> Result<f64> {
    let micros = answer[name].as_u64();
    Ok(micros.with_context(|| format!("{answer} has no {name}"))? as f64 / 1e3)
}

/// There, and the same by the clock of who asks.
fn timed(crab: &Crab, sandbox: &Sandbox, turn: u64) -> Result<(f64, f64)> {
    let start = Instant::now();
    let answer = crab.rollback(sandbox, turn)?;
    Ok((ms(&answer, "took_us")?, start.elapsed().as_secs_f64() * 1e3))
}

pub(super) fn measure(testbed: &Testbed, plan: &Plan, measured: &mut Measured) -> Result<()> {
    let (ctr, crab) = (testbed.ctr(), testbed.crab());
    let (mut cold, mut asked) = (Series::default(), Series::default());
    let sandbox = ctr.run(DEBIAN, RunOptions::new())?;
    let counter = Counter::start(&crab, &sandbox, 0)?;
    for _ in 0..plan.rounds {
        let (before, turn) = counter.ask()?;
        counter.ask()?;
        let (took, whole) = timed(&crab, &sandbox, turn.number())?;
        cold.push_ms(took);
        asked.push_ms(whole);
        let (after, _) = counter.ask()?;
        ensure!(
            after == before + 1,
            "the server went on from {} and not {before}",
            after - 1
        );
    }
    measured.enter("cold_rollback_ms_p50", cold.quantile(0.5));
    measured.detail(
        "cold rollback: by the asker's clock, ms p50",
        asked.quantile(0.5),
    );
    measured.detail("cold rollback: ms p90", cold.quantile(0.9));

    let change = "cd /root && for f in $(seq 10); do echo $RANDOM$(date +%N) >$f; done";
    let sandbox = ctr.run(DEBIAN, RunOptions::new())?;
    let alone = warm(&crab, &sandbox, change, plan.rounds)?;
    measured.enter("warm_rollback_ms_p50", alone.put_back.quantile(0.5));
    measured.detail("warm rollback: ms p90", alone.put_back.quantile(0.9));
    measured.detail(
        "warm rollback: standing still, ms p50",
        alone.stood.quantile(0.5),
    );
    measured.detail(
        "warm rollback: the way back before it, ms p50",
        alone.secured.quantile(0.5),
    );
    let mut fresh = Series::default();
    for _ in 0..plan.rounds {
        let turn = crab.turn_of(&sandbox, Class::Files, change)?;
        crab.turn_of(&sandbox, Class::Files, change)?;
        let answer = crab.rollback_cold(&sandbox, turn.number())?;
        fresh.push_ms(ms(&answer, "took_us")?);
    }
    measured.detail("cold rollback of a keep-alive, ms p50", fresh.quantile(0.5));
    let sandbox = ctr.run(DEBIAN, RunOptions::new())?;
    Counter::start(&crab, &sandbox, 0)?;
    let beside = warm(&crab, &sandbox, change, plan.rounds)?;
    measured.detail(
        "warm rollback beside a Python server, ms p50",
        beside.put_back.quantile(0.5),
    );
    Ok(())
}

/// Rollbacks under processes that go on.
#[derive(Default)]
struct Warm {
    secured: Series,
    /// All but that.
    put_back: Series,
    stood: Series,
}

fn warm(crab: &Crab, sandbox: &Sandbox, change: &str, rounds: usize) -> Result<Warm> {
    let mut warm = Warm::default();
    for _ in 0..rounds {
        let turn = crab.turn_of(sandbox, Class::Files, change)?;
        crab.turn_of(sandbox, Class::Files, change)?;
        let answer = crab.rollback(sandbox, turn.number())?;
        ensure!(answer["warm"] == true, "{answer}");
        warm.secured.push_ms(ms(&answer, "secured_us")?);
        warm.put_back
            .push_ms(ms(&answer, "took_us")? - ms(&answer, "secured_us")?);
        warm.stood.push_ms(ms(&answer, "stood_us")?);
    }
    Ok(warm)
}
