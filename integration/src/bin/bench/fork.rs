// SPDX-License-Identifier: Apache-2.0

//! Running copies of a sandbox.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use crab_integration::{Client, Counter, Crab, DEBIAN, RunOptions, Sandbox, Testbed};
use crab_store::Class;
use serde_json::Value;

use crate::{
    figures::{Measured, Target},
    series::Series,
};

/// What the figures shall be.
const TARGETS: &[(&str, Target)] = &[
    ("fork1_full_ms_p50", Target::AtMost(120.0)),
    ("fork16_s", Target::AtMost(1.5)),
    ("fork16_full_s", Target::AtMost(4.0)),
];
/// How many at once.
const MANY: u32 = 16;

/// From the command's start to its end, in milliseconds: every copy runs then.
fn fork(crab: &Crab, client: Client, at: &str, count: u32) -> Result<(f64, Vec<Sandbox>, Value)> {
    let start = Instant::now();
    let forks = crab.fork(client, at, &["--count", &count.to_string()])?;
    let took = start.elapsed().as_secs_f64() * 1e3;
    ensure!(forks.made.len() == count as usize, "{}", forks.said);
    Ok((took, forks.made, forks.said))
}

/// Measures, so often.
pub(crate) fn measure(testbed: &Testbed, rounds: usize) -> Result<Measured> {
    let mut measured = Measured::new("fork", testbed.machine(), None, TARGETS);
    let crab = testbed.crab();
    for (client, docker) in [(testbed.ctr(), false), (testbed.docker(), true)] {
        let name = client.name();
        let full = client.run(DEBIAN, RunOptions::new())?;
        let counter = Counter::start(&crab, &full, 0)?;
        let (count, turn) = counter.ask()?;
        let at = format!("{}@{}", full.sandbox_id(), turn.number());
        let files = client.run(DEBIAN, RunOptions::new())?;
        crab.turn_of(
            &files,
            Class::Files,
            "cd /root; for f in $(seq 100); do echo $f >$f; done",
        )?;
        let mut steps = ["container", "history", "start"].map(|step| (step, Series::default()));
        let (mut one, mut one_files) = (Series::default(), Series::default());
        let (mut many, mut many_files) = (Series::default(), Series::default());
        let mut warm = Series::default();
        for round in 0..rounds {
            let (took, made, said) = fork(&crab, client, &at, 1)?;
            for (step, series) in &mut steps {
                let took = said["forks"][0][format!("{step}_us")].as_f64();
                series.push_ms(took.context("a copy has no times")? / 1e3);
            }
            ensure!(Counter::of(&crab, &made[0]).ask()?.0 == count + 1);
            one.push_ms(took);
            made.into_iter().try_for_each(Sandbox::remove)?;
            // As long as this is held, nobody removes it.
            let spare = crab.fork(client, &at, &["--warm", "1"])?;
            let (took, made, said) = fork(&crab, client, &at, 1)?;
            ensure!(said["forks"][0]["warm"] == true, "{said}");
            ensure!(Counter::of(&crab, &made[0]).ask()?.0 == count + 1);
            warm.push_ms(took);
            made.into_iter().try_for_each(Sandbox::remove)?;
            drop(spare);
            let (took, made, _) = fork(&crab, client, &files.sandbox_id(), 1)?;
            one_files.push_ms(took);
            made.into_iter().try_for_each(Sandbox::remove)?;
            // A fourth of the rounds for sixteen times the work.
            if round % 4 == 0 && !docker {
                let (took, made, _) = fork(&crab, client, &at, MANY)?;
                for copy in &made {
                    ensure!(Counter::of(&crab, copy).ask()?.0 == count + 1);
                }
                many.push_ms(took);
                made.into_iter().try_for_each(Sandbox::remove)?;
                let (took, made, _) = fork(&crab, client, &files.sandbox_id(), MANY)?;
                many_files.push_ms(took);
                made.into_iter().try_for_each(Sandbox::remove)?;
            }
        }
        for (step, series) in &steps {
            let p50 = series.quantile(0.5);
            measured.detail(format!("fork under {name}: full, its {step}, ms p50"), p50);
        }
        if docker {
            measured.detail("fork under Docker: full, ms p50", one.quantile(0.5));
            measured.detail("fork under Docker: files, ms p50", one_files.quantile(0.5));
            measured.detail(
                "fork under Docker: made in advance, ms p50",
                warm.quantile(0.5),
            );
            continue;
        }
        measured.enter("fork1_full_ms_p50", one.quantile(0.5));
        measured.enter("fork1_ms_p50", one_files.quantile(0.5));
        measured.enter("fork1_warm_ms_p50", warm.quantile(0.5));
        measured.enter("fork16_full_s", many.quantile(0.5) / 1e3);
        measured.enter("fork16_s", many_files.quantile(0.5) / 1e3);
        measured.detail(
            format!("fork under {name}: full, ms p90"),
            one.quantile(0.9),
        );
    }
    Ok(measured)
}
