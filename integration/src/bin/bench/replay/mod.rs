// SPDX-License-Identifier: Apache-2.0

//! Recorded agents, played and killed: what brings them back, and what that costs.
//!
//! ```text
//! part        shim   what
//! states      both   every play without a fault, looked at after each turn: under the stock shim
//!                    as what all others are compared with, and under Crab
//! crashes     both   in each way: everything dies at one turn of each play, is brought back,
//!                    goes on, and is compared
//! exhaustive  Crab   the same at every turn
//! time        both   each play in each way with its waits, without a fault
//! ```
//! What is found is a [`Record`]: `crab-replay.json`, from which the page is made.

mod arguments;
mod plan;
mod states;
mod times;

use std::{collections::BTreeMap, fs};

use anyhow::{Context, Result};
use crab_integration::{
    Testbed, Tool,
    replay::{Kept, Part, Play, Point, Ratio, Record, VERSION, Variant, Way, state},
};

pub(crate) use self::arguments::arguments;
use self::{plan::Plan, times::Run};
use crate::{
    figures::Measured,
    replay_report::{self, TARGETS},
    series::Series,
};

const CRAB: Way = Way::Crab(Variant::Whole);

/// Measures these parts; what was found is in the plan's directory as well.
pub(crate) fn measure(testbed: &Testbed, plan: &Plan) -> Result<Measured> {
    let machine = machine(testbed)?;
    let mut measured = Measured::new("replay", machine.clone(), Some(plan.seed), TARGETS);
    let mut remarks = Vec::new();
    let plays = plan.plays(testbed)?;
    let turns: usize = plays.iter().map(|part| part.trace.turns.len()).sum();
    eprintln!("replay: {} plays, {turns} turns", plays.len());
    let mut kept: BTreeMap<&str, Kept> = BTreeMap::new();
    let wants = |part: &str| plan.parts.contains(part);

    let fast = plan::fast(&plays);
    if wants("states") || wants("crashes") || wants("exhaustive") {
        let compared = states::references(testbed, plan, &fast, &mut remarks)?;
        measured.detail("plays that were compared", compared.len() as f64);
        if wants("states") {
            states::judge(testbed, plan, &compared, &mut measured, &mut remarks)?;
        }
        for way in &plan.ways {
            let mut crashes = Vec::new();
            if wants("crashes") {
                crashes = states::crashes(testbed, plan, *way, &compared)?;
            }
            if wants("exhaustive") && *way == CRAB {
                crashes.extend(states::exhaustive(testbed, plan, &compared)?);
            }
            states::told(*way, &crashes, &mut measured);
            entry(&mut kept, *way).crashes = crashes;
        }
    }
    let mut timeline = Vec::new();
    if wants("time") {
        let stock = times::run(testbed, plan, Way::Nothing, &plays, &mut remarks)?;
        let mut runs = Vec::new();
        for way in plan.ways.iter().filter(|way| way.costs_time()) {
            runs.push(times::run(testbed, plan, *way, &plays, &mut remarks)?);
        }
        for run in &runs {
            compare(
                run,
                &stock,
                &plays,
                entry(&mut kept, run.way),
                &mut measured,
            );
        }
        timeline = points(&runs, &plays, &mut measured);
    }
    let names: std::collections::BTreeSet<&str> =
        plays.iter().map(|part| part.trace.id.as_str()).collect();
    measured.enter("traces", names.len() as f64);
    measured.enter("turns", turns as f64);
    figures(plan, &kept, &mut measured);
    let record = Record {
        version: VERSION,
        name: "replay".into(),
        machine,
        date: Tool::new("date").args(["-u", "+%F"]).run()?.text()?,
        command: plan.command.clone(),
        seed: plan.seed,
        scale: plan.scale,
        fast_scale: plan.fast_scale,
        figures: measured.numbers(),
        details: measured.details().clone(),
        plays: plays.iter().map(told).collect(),
        strategies: plan
            .ways
            .iter()
            .filter_map(|way| kept.remove(way.name()))
            .collect(),
        timeline,
        rules: state::rules(),
        remarks,
    };
    write(plan, &record)?;
    Ok(measured)
}

fn entry<'a>(kept: &'a mut BTreeMap<&str, Kept>, way: Way) -> &'a mut Kept {
    let (title, what) = way.told();
    kept.entry(way.name()).or_insert_with(|| Kept {
        name: way.name().into(),
        title: title.into(),
        what: what.into(),
        crashes: Vec::new(),
        exposed_ms: Vec::new(),
        bytes: None,
        ratios: Vec::new(),
    })
}

fn told(part: &Part) -> Play {
    Play {
        trace: part.trace.id.clone(),
        agent: part.trace.agent.clone(),
        client: part.client_name().into(),
        driver: part.driver.name().into(),
        turns: part.trace.turns.len(),
    }
}

/// What a run took beside the one in which nothing was kept.
fn compare(run: &Run, stock: &Run, plays: &[Part], kept: &mut Kept, measured: &mut Measured) {
    let name = run.way.name();
    let (mut otherwise, mut degraded, mut unkept) = (0, 0, 0);
    for ((part, timed), beside) in plays.iter().zip(&run.plays).zip(&stock.plays) {
        let (Some(timed), Some(beside)) = (timed, beside) else {
            continue;
        };
        otherwise += timed.otherwise;
        degraded += timed.degraded;
        unkept += timed.unkept;
        kept.exposed_ms
            .extend(timed.turns.iter().map(|turn| turn.exposed_ms));
        kept.ratios.push(Ratio {
            trace: part.trace.id.clone(),
            client: part.client_name().into(),
            seconds: timed.wall.as_secs_f64(),
            stock_seconds: beside.wall.as_secs_f64(),
        });
    }
    kept.bytes = run.bytes;
    let mut exposed = Series::default();
    kept.exposed_ms.iter().for_each(|ms| exposed.push_ms(*ms));
    for (what, value) in [
        ("exposed, ms p50", exposed.quantile(0.5)),
        ("exposed, ms p99", exposed.quantile(0.99)),
        ("turns that ended otherwise than recorded", otherwise as f64),
        ("turns without a checkpoint of their own", unkept as f64),
        ("turns whose checkpoint lacks processes", degraded as f64),
        ("time ratio", kept.time_ratio().unwrap_or(f64::NAN)),
        (
            "written, MiB",
            run.bytes.unwrap_or(0) as f64 / f64::from(1 << 20),
        ),
    ] {
        if value.is_finite() {
            measured.detail(format!("{name}: {what}"), value);
        }
    }
}

/// Crab's turns, with what saving everything wrote at each; and what that comes to.
fn points(runs: &[Run], plays: &[Part], measured: &mut Measured) -> Vec<Point> {
    let of = |way: Way| runs.iter().find(|run| run.way == way);
    let Some(crab) = of(CRAB) else {
        return Vec::new();
    };
    let full = of(Way::Full);
    let mut points = Vec::new();
    // Both, where both were played.
    let (mut ours, mut theirs) = (0u64, 0u64);
    for (at, part) in plays.iter().enumerate() {
        let Some(timed) = &crab.plays[at] else {
            continue;
        };
        let beside = full.and_then(|full| full.plays[at].as_ref());
        for (n, turn) in timed.turns.iter().enumerate() {
            let full_bytes = beside
                .and_then(|beside| beside.turns.get(n))
                .map(|turn| turn.bytes);
            if let Some(bytes) = full_bytes {
                ours += turn.bytes;
                theirs += bytes;
            }
            points.push(Point {
                trace: part.trace.id.clone(),
                client: part.client_name().into(),
                turn: n + 1,
                class: turn.class.map_or("unknown", |class| class.as_str()).into(),
                bytes: turn.bytes,
                full_bytes,
            });
        }
    }
    let skipped = points.iter().filter(|point| point.class == "none").count();
    measured.enter(
        "skipped_pct",
        100.0 * skipped as f64 / points.len().max(1) as f64,
    );
    if theirs > 0 {
        measured.enter(
            "traffic_cut_pct",
            100.0 * (1.0 - ours as f64 / theirs as f64),
        );
    }
    points
}

/// What is told of each way.
fn figures(plan: &Plan, kept: &BTreeMap<&str, Kept>, measured: &mut Measured) {
    for (way, figure) in [
        (Way::Chat, "recovery_pct_chat"),
        (Way::ChatFiles, "recovery_pct_chat_files"),
        (Way::Restart, "recovery_pct_restart"),
        (Way::Full, "recovery_pct_full"),
        (CRAB, "recovery_pct_crab"),
        (
            Way::Crab(Variant::NoInspector),
            "recovery_pct_crab_no_inspector",
        ),
        (
            Way::Crab(Variant::NoOptimistic),
            "recovery_pct_crab_no_optimistic",
        ),
        (
            Way::Crab(Variant::NoSchedule),
            "recovery_pct_crab_no_schedule",
        ),
    ] {
        match kept.get(way.name()).and_then(Kept::recovery_percent) {
            Some(percent) => measured.enter(figure, percent),
            None => eprintln!("{figure}: no crash in this way, so it is absent"),
        }
    }
    for (way, figure) in [(Way::Full, "time_ratio_full"), (CRAB, "time_ratio_crab")] {
        match kept.get(way.name()).and_then(Kept::time_ratio) {
            Some(ratio) => measured.enter(figure, ratio),
            None => eprintln!("{figure}: no time was measured in this way, so it is absent"),
        }
    }
    let Some(crab) = kept
        .get(CRAB.name())
        .filter(|crab| !crab.crashes.is_empty())
    else {
        eprintln!("recover_ms, crash_points: Crab went through no crash, so they are absent");
        return;
    };
    let mut took = Series::default();
    for crash in crab.crashes.iter().filter(|crash| crash.recovered) {
        took.push_ms(crash.recover_ms);
    }
    measured.enter("crash_points", crab.crashes.len() as f64);
    measured.enter("recover_ms_p50", took.quantile(0.5));
    measured.enter("recover_ms_p99", took.quantile(0.99));
    measured.detail("waits where states were compared, times", plan.fast_scale);
    measured.detail("waits where time was measured, times", plan.scale);
}

/// What this was measured on.
fn machine(testbed: &Testbed) -> Result<String> {
    let version = |program: &str, flag: &str| -> Result<String> {
        let said = Tool::new(program).args([flag]).run()?.text()?;
        let line = said.lines().next().unwrap_or_default();
        Ok(line.to_owned())
    };
    let system = fs::read_to_string("/etc/os-release").context("read /etc/os-release")?;
    let system = system
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="));
    Ok([
        testbed.machine(),
        system.unwrap_or("Linux").trim_matches('"').to_owned(),
        version("containerd", "--version")?,
        version("runc", "--version")?,
        format!(
            "CRIU {}",
            version("criu", "--version")?.trim_start_matches("Version: ")
        ),
    ]
    .join("; "))
}

fn write(plan: &Plan, record: &Record) -> Result<()> {
    let dir = &plan.out;
    fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    let path = dir.join("crab-replay.json");
    let text = serde_json::to_string_pretty(record)?;
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    let page = dir.join("crab-replay.html");
    fs::write(&page, replay_report::page(record))
        .with_context(|| format!("write {}", page.display()))?;
    eprintln!("replay: wrote {} and {}", path.display(), page.display());
    Ok(())
}
