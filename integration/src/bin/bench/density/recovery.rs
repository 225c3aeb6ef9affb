// SPDX-License-Identifier: Apache-2.0

//! Everything is killed at a random moment, and every sandbox is brought back.

use std::{
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, anyhow, ensure};
use crab_integration::{
    Sandbox, Testbed, processes,
    proof::Chance,
    traces::{Player, Trace},
};
use crab_schedule::Policy;
use serde_json::Value;

use super::{
    Plan,
    crabs::{host, records, settled},
    fleet::{AT_A_TIME, Fleet, Replay, Strategy},
};
use crate::{
    crowd::some_at_a_time,
    figures::Measured,
    host::forget,
    series::{Series, median},
};

/// How long what was killed may take to end.
const LIMIT: Duration = Duration::from_secs(60);
/// How much of the time that a replay takes may have gone by, in percent.
const MOMENTS: Range<u64> = 20..80;

/// So many turns each agent goes on.
const NEXT: usize = 2;
/// What became of one sandbox.
struct Back {
    took: Duration,
    processes: bool,
    /// Memory as well, of each process.
    same: bool,
    /// Turns that had ended before the death, and are not in the store.
    lost: usize,
}

pub(super) fn measure(
    testbed: &Testbed,
    plan: &Plan,
    traces: &[Trace],
    measured: &mut Measured,
) -> Result<()> {
    let _host = host(Policy::Predictive)?;
    let fleet = Fleet::start(testbed, Strategy::On, traces)?;
    settled(testbed)?;
    let since = SystemTime::now();
    let inits = fleet.members.iter().map(|(sandbox, _)| sandbox.pid());
    let inits: Vec<u32> = inits.collect::<Result<_>>()?;
    let enough = AtomicBool::new(false);
    let moment = moment(plan, traces);
    let times = thread::scope(|scope| {
        let playing = scope.spawn(|| fleet.play_until(plan, &enough, None));
        thread::sleep(moment);
        enough.store(true, Ordering::Relaxed);
        let killed = kill_everything(&inits);
        let times = playing
            .join()
            .map_err(|_| anyhow!("who plays panicked"))??;
        killed.map(|killed| {
            eprintln!(
                "recovery: {killed} processes were killed after {:.1} s",
                moment.as_secs_f64()
            );
            times
        })
    })?;
    let began = Instant::now();
    let members: Vec<_> = fleet.members.iter().zip(&times.0).collect();
    let back = some_at_a_time(AT_A_TIME, &members, |((sandbox, player), replay)| {
        bring_back(testbed, sandbox, player.trace(), replay, since)
    });
    let took = began.elapsed();
    let mut good = Vec::new();
    for ((sandbox, _), back) in fleet.members.iter().zip(back) {
        match back {
            Ok(back) => good.push(back),
            Err(error) => eprintln!("recovery: {} is not as it was: {error:#}", sandbox.id()),
        }
    }
    let all = fleet.members.len().max(1);
    measured.enter("recovered_pct", 100.0 * good.len() as f64 / all as f64);
    let mut restores = Series::default();
    good.iter().for_each(|back| restores.push(back.took));
    let with_processes = good.iter().filter(|back| back.processes).count();
    let lost: Vec<f64> = good.iter().map(|back| back.lost as f64).collect();
    for (what, value) in [
        ("killed after, s", moment.as_secs_f64()),
        ("turns that had ended", times.turns() as f64),
        (
            "ended turns that were not durable, in all",
            lost.iter().sum(),
        ),
        (
            "ended turns that were not durable, of a sandbox",
            median(&lost),
        ),
        ("sandboxes with processes", with_processes as f64),
        (
            "sandboxes in which some memory had gone on",
            good.iter().filter(|back| !back.same).count() as f64,
        ),
        ("a restore, ms p50", restores.quantile(0.5)),
        ("a restore, ms p99", restores.quantile(0.99)),
        ("all restored, verified and gone on, s", took.as_secs_f64()),
    ] {
        measured.detail(format!("recovery: {what}"), value);
    }
    fleet.remove()?;
    forget();
    Ok(())
}

/// When, after the beginning.
fn moment(plan: &Plan, traces: &[Trace]) -> Duration {
    let waits: Vec<f64> = traces.iter().map(|trace| plan.waits(trace)).collect();
    let half = median(&waits);
    let percent = Chance::new(plan.seed).within(MOMENTS);
    Duration::from_secs_f64(half * percent as f64 / 100.0)
}

/// Shims first, so that nobody can tell anybody of what follows; then crabd, the programs at
/// work, and what is in the sandboxes, which goes with their inits.
fn kill_everything(inits: &[u32]) -> Result<usize> {
    let programs = [processes::SHIM, processes::CRABD, "runc", "criu"];
    let mut killed = Vec::new();
    for pid in programs
        .map(processes::named)
        .concat()
        .into_iter()
        .chain(inits.iter().copied())
    {
        if processes::kill(pid)? {
            killed.push(pid);
        }
    }
    for pid in &killed {
        processes::wait_gone(*pid, LIMIT)?;
    }
    Ok(killed.len())
}

/// Restores a sandbox, has it compared with its checkpoint, and lets its agent go on: from the
/// first turn that is not in the store, the next ones end as they did when they were recorded.
fn bring_back(
    testbed: &Testbed,
    sandbox: &Sandbox,
    trace: &Trace,
    replay: &Replay,
    since: SystemTime,
) -> Result<Back> {
    let crab = testbed.crab();
    let durable = durable(sandbox, replay, since)?;
    let began = Instant::now();
    let restored = crab.restore(sandbox, None)?;
    let took = began.elapsed();
    let verified = crab.verify(sandbox, None)?;
    let same = verified["same"] == true;
    ensure!(same || went_on(&verified), "{verified}");
    let player = Player::new(sandbox, trace)?;
    let next = (durable..trace.turns.len()).take(NEXT);
    for n in next {
        let played = player.turn(n)?;
        ensure!(
            played.is_as(trace.turns[n].exit),
            "turn {} of {} ended with {}: {}",
            n + 1,
            trace.id,
            played.exit,
            String::from_utf8_lossy(&played.output).trim()
        );
    }
    Ok(Back {
        took,
        processes: restored["processes"]
            .as_bool()
            .context("crab restore does not say whether there are processes")?,
        same,
        lost: replay.ended.saturating_sub(durable),
    })
}

/// How many turns of a replay the newest durable state holds.
fn durable(sandbox: &Sandbox, replay: &Replay, since: SystemTime) -> Result<usize> {
    let records = records(sandbox, since)?.into_iter();
    let newest = records
        .filter(|record| record.checkpoint.is_some())
        .map(|record| record.ended_ms)
        .max()
        .unwrap_or(0);
    let began_before = |begin: &&SystemTime| {
        let began = begin.duration_since(UNIX_EPOCH).unwrap_or_default();
        began.as_millis() <= u128::from(newest)
    };
    Ok(replay.begins.iter().filter(began_before).count())
}

/// Whether all that differs is in the memory of processes that run on by themselves: an event
/// loop goes round once when it is restored.
fn went_on(verified: &Value) -> bool {
    let processes = verified["process_differences"].as_array();
    let only_memory = |process: &Value| {
        process["change"] == "changed" && process["what"].as_array() == Some(&vec!["memory".into()])
    };
    verified["differences"]
        .as_array()
        .is_some_and(Vec::is_empty)
        && processes.is_some_and(|all| !all.is_empty() && all.iter().all(only_memory))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_memory_may_go_on() {
        let process = |what: &[&str]| json!({"change": "changed", "what": what});
        let told = |files: Value, processes: Value| {
            went_on(&json!({"differences": files, "process_differences": processes}))
        };
        assert!(told(json!([]), json!([process(&["memory"])])));
        assert!(!told(json!([]), json!([])));
        assert!(!told(
            json!([{"path": "/x"}]),
            json!([process(&["memory"])])
        ));
        assert!(!told(
            json!([]),
            json!([process(&["memory", "threads: 1 -> 2"])])
        ));
        assert!(!told(
            json!([]),
            json!([{"change": "removed", "what": ["memory"]}])
        ));
    }
}
