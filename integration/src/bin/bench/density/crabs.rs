// SPDX-License-Identifier: Apache-2.0

//! The parts under Crab, and what its journals say of them.

use std::{
    collections::BTreeMap,
    path::Path,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use crab_integration::{
    BUSYBOX, RunOptions, Sandbox, Testbed,
    journal::{STORE, held_back_ms, turns_of},
    traces::Trace,
};
use crab_schedule::Policy;
use crab_store::{Class, TurnRecord};

use super::{
    Plan,
    account::{Account, Spent},
    fleet::{Fleet, Strategy, Times},
    full::length,
};
use crate::{figures::Measured, host::Host, series::Series};

/// How long what was captured may take to be stored when all agents are done.
const SETTLES: Duration = Duration::from_secs(120);
/// Without a change for so long, nothing is on its way.
const QUIET: Duration = Duration::from_secs(1);
/// So many turns that went wrong are told one by one.
const TOLD: i32 = 5;

/// One with a policy.
pub(super) fn host(policy: Policy) -> Result<Host> {
    Host::with(&format!("[schedule]\npolicy = \"{}\"\n", policy.as_str()))
}

/// What Crab wrote.
pub(super) struct Kept {
    /// By how many bytes the store grew.
    pub(super) written: u64,
}

/// Plays all traces under a policy.
pub(super) fn play(
    testbed: &Testbed,
    plan: &Plan,
    account: &Account,
    policy: Policy,
    traces: &[Trace],
    measured: &mut Measured,
) -> Result<(Times, Kept, Spent)> {
    let _host = host(policy)?;
    let fleet = Fleet::start(testbed, Strategy::On, traces)?;
    settled(testbed)?;
    let before = length(Path::new(STORE))?;
    let since = SystemTime::now();
    let open = account.begin()?;
    let times = fleet.play(plan)?;
    settled(testbed)?;
    let name = policy.as_str();
    let spent = open.close()?.entered(name, measured);
    let kept = Kept {
        written: length(Path::new(STORE))?.saturating_sub(before),
    };
    let exposed = told(&fleet, since, name, measured)?;
    match policy {
        Policy::Predictive => {
            measured.enter("sandboxes", fleet.members.len() as f64);
            measured.enter("exposed_ms_p50", exposed.quantile(0.5));
            measured.enter("exposed_ms_p99", exposed.quantile(0.99));
        }
        Policy::Fifo => measured.enter("exposed_ms_p99_fifo", exposed.quantile(0.99)),
        Policy::Reactive => measured.enter("exposed_ms_p99_reactive", exposed.quantile(0.99)),
    }
    let mib = kept.written as f64 / f64::from(1 << 20);
    measured.detail(format!("{name}: the store grew by, MiB"), mib);
    let jobs = testbed.crab().json(&["jobs"])?;
    for count in ["given_up", "failed", "ungranted"] {
        let told = jobs["counts"][count].as_f64();
        let told = told.with_context(|| format!("crab jobs does not say {count}"))?;
        measured.detail(format!("{name}: captures {count}"), told);
    }
    fleet.remove()?;
    Ok((times.entered(name, measured), kept, spent))
}

/// Plays all traces with checkpoints off, on a host where another sandbox is watched.
pub(super) fn switched_off(
    testbed: &Testbed,
    plan: &Plan,
    account: &Account,
    traces: &[Trace],
    measured: &mut Measured,
) -> Result<(Times, Spent)> {
    let _host = host(Policy::Predictive)?;
    let _watched = testbed.ctr().run(BUSYBOX, RunOptions::new())?;
    let fleet = Fleet::start(testbed, Strategy::Off, traces)?;
    settled(testbed)?;
    let open = account.begin()?;
    let times = fleet.play(plan)?;
    let spent = open.close()?.entered("off", measured);
    fleet.remove()?;
    Ok((times.entered("off", measured), spent))
}

/// Waits until everything that was captured is in the store. What is not by then is told
/// by what it lacks in the figures.
pub(super) fn settled(testbed: &Testbed) -> Result<()> {
    let deadline = Instant::now() + SETTLES;
    let mut last = (0, Instant::now());
    loop {
        let jobs = testbed.crab().json(&["jobs"])?;
        let none = jobs["jobs"].as_array().is_some_and(Vec::is_empty);
        let now = length(Path::new(STORE))?;
        if now != last.0 || !none {
            last = (now, Instant::now());
        }
        if last.1.elapsed() >= QUIET {
            return Ok(());
        }
        if Instant::now() > deadline {
            eprintln!("captures are still on their way: {jobs}");
            return Ok(());
        }
        thread::sleep(QUIET / 4);
    }
}

/// The turns of a sandbox that began at some time or later.
pub(super) fn records(sandbox: &Sandbox, since: SystemTime) -> Result<Vec<TurnRecord>> {
    let since = since.duration_since(UNIX_EPOCH)?.as_millis() as u64;
    let mut turns = turns_of(sandbox)?;
    turns.retain(|record| record.began_ms >= since);
    Ok(turns)
}

/// For how long each turn was held back; and of the turns, the details.
fn told(fleet: &Fleet, since: SystemTime, name: &str, measured: &mut Measured) -> Result<Series> {
    let mut exposed = Series::default();
    let (mut captures, mut frozen) = (Series::default(), Series::default());
    let (mut late, mut decided) = (Series::default(), Series::default());
    let mut classes: BTreeMap<&str, f64> = BTreeMap::new();
    let (mut degraded, mut unobserved, mut without) = (0, 0, 0);
    let ms = |us: u64| us as f64 / 1e3;
    for (sandbox, _) in &fleet.members {
        for record in records(sandbox, since)? {
            exposed.push_ms(held_back_ms(&record));
            late.push_ms(ms(record.cost.boundary_us));
            decided.push_ms(ms(record.cost.decide_us));
            *classes.entry(record.class.as_str()).or_default() += 1.0;
            if record.class != Class::None {
                captures.push_ms(ms(record.cost.capture_us));
            }
            if record.cost.frozen_us > 0 {
                frozen.push_ms(ms(record.cost.frozen_us));
            }
            degraded += usize::from(record.degraded.is_some());
            if let Some(why) = &record.unobserved {
                unobserved += 1;
                if unobserved <= TOLD {
                    eprintln!("{name}: {} turn {}: {why}", sandbox.id(), record.turn);
                }
            }
            if record.checkpoint.is_none() {
                without += 1;
                if without <= TOLD {
                    let why = &record.reason;
                    eprintln!("{name}: {} turn {}: {why}", sandbox.id(), record.turn);
                }
            }
        }
    }
    let turns = exposed.len();
    for (class, count) in classes {
        let percent = 100.0 * count / turns.max(1) as f64;
        measured.detail(format!("{name}: turns of class {class}, %"), percent);
    }
    for (what, value) in [
        ("turns in the journals", turns as f64),
        ("turns without a checkpoint", f64::from(without)),
        ("turns that were not observed", f64::from(unobserved)),
        ("turns whose checkpoint lacks processes", degraded as f64),
        ("exposed, ms p90", exposed.quantile(0.9)),
        ("exposed, ms at most", exposed.quantile(1.0)),
        ("from a turn's end to the look, ms p50", late.quantile(0.5)),
        ("from a turn's end to the look, ms p99", late.quantile(0.99)),
        ("decision, ms p50", decided.quantile(0.5)),
        ("decision, ms p99", decided.quantile(0.99)),
        ("capture, ms p50", captures.quantile(0.5)),
        ("capture, ms p99", captures.quantile(0.99)),
        ("frozen where it was, ms p50", frozen.quantile(0.5)),
        ("frozen where it was, ms p99", frozen.quantile(0.99)),
        ("turns that were frozen", frozen.len() as f64),
    ] {
        measured.detail(format!("{name}: {what}"), value);
    }
    Ok(exposed)
}
