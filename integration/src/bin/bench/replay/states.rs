// SPDX-License-Identifier: Apache-2.0

//! The parts in which states are compared, and time is not measured.

use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use crab_integration::{
    Client, Testbed,
    replay::{
        Crash, Dead, Judged, Marks, Part, Reference, Slots, Variant, Way, every_turn, kill_daemons,
    },
    traces::Kind,
};

use super::plan::Plan;
use crate::{
    crowd::some_at_a_time,
    figures::Measured,
    host::{Host, forget, without_crab},
    series::Series,
};

/// So many are played at once: they hardly wait.
const AT_ONCE: usize = 6;
/// So many are brought back at once, as it is measured how long that takes.
const BACK_AT_ONCE: usize = 2;

/// A play, and what it is compared with.
pub(super) struct Compared<'a> {
    pub(super) part: &'a Part,
    plain: Reference,
    /// With a process of known memory, where the agent leaves processes, too.
    marked: Option<Reference>,
}

impl Compared<'_> {
    fn reference(&self) -> &Reference {
        self.marked.as_ref().unwrap_or(&self.plain)
    }
}

/// Plays all under the stock shim without a fault. One that cannot be is told and left out.
pub(super) fn references<'a>(
    testbed: &Testbed,
    plan: &Plan,
    plays: &'a [Part],
    remarks: &mut Vec<String>,
) -> Result<Vec<Compared<'a>>> {
    without_crab()?;
    let found = some_at_a_time(AT_ONCE, plays, |part| {
        let tempo = plan.tempo(part);
        let of = |marks| Reference::of(testbed, part, marks, &tempo).context(part.name());
        let plain = of(Marks::None)?;
        let leaves = plain.left_processes > 0;
        let marked = leaves.then(|| of(Marks::Some)).transpose()?;
        let unlike = plain.unlike(testbed, part, &tempo).context(part.name())?;
        let compared = Compared {
            part,
            plain,
            marked,
        };
        Ok((compared, unlike))
    });
    let mut compared = Vec::new();
    for found in found {
        match found {
            Ok((found, unlike)) if unlike.is_empty() => compared.push(found),
            // Whatever a crash made of it could not be told.
            Ok((found, unlike)) => {
                let name = found.part.name();
                let some = unlike.into_iter().take(3).collect::<Vec<_>>().join("; ");
                remark(
                    remarks,
                    format!("left out, as two runs without a fault differ: {name}: {some}"),
                );
            }
            Err(error) => remark(remarks, format!("not played: {error:#}")),
        }
    }
    for found in &compared {
        for line in found.plain.unlike_recorded(&found.part.trace) {
            remark(remarks, format!("{}: {line}", found.part.name()));
        }
    }
    Ok(compared)
}

pub(super) fn remark(remarks: &mut Vec<String>, line: String) {
    eprintln!("replay: {line}");
    remarks.push(line);
}

/// Plays all under Crab without a fault, with looks around each turn.
pub(super) fn judge(
    testbed: &Testbed,
    plan: &Plan,
    compared: &[Compared<'_>],
    measured: &mut Measured,
    remarks: &mut Vec<String>,
) -> Result<()> {
    let _host = Host::with("")?;
    let judged = some_at_a_time(AT_ONCE, compared, |one| {
        let tempo = plan.tempo(one.part);
        Judged::of(testbed, one.part, &one.plain, &tempo).context(one.part.name())
    });
    let mut all = Judged::default();
    for judged in judged {
        match judged {
            Ok(judged) => {
                all.turns += judged.turns;
                all.false_none.extend(judged.false_none);
                all.unlike.extend(judged.unlike);
            }
            Err(error) => remark(remarks, format!("not judged: {error:#}")),
        }
    }
    measured.enter("false_none", all.false_none.len() as f64);
    measured.detail(
        "turns that were looked at before and after",
        all.turns as f64,
    );
    measured.detail(
        "lines in which a run without a fault differs under Crab",
        all.unlike.len() as f64,
    );
    for line in all.false_none {
        remark(remarks, format!("class none, but {line}"));
    }
    for line in all.unlike {
        remark(remarks, format!("without a fault under Crab, {line}"));
    }
    Ok(())
}

/// Kills everything at one turn of each play, and brings it back in one way.
pub(super) fn crashes(
    testbed: &Testbed,
    plan: &Plan,
    way: Way,
    compared: &[Compared<'_>],
) -> Result<Vec<Crash>> {
    without_crab()?;
    eprintln!("{}: everything dies", way.name());
    let _host = way.config().map(Host::with).transpose()?;
    let fitting: Vec<&Compared<'_>> = compared
        .iter()
        .filter(|one| way.is_for(one.part.client) && is_asked(way, one.part))
        .collect();
    let slots = Slots::new(BACK_AT_ONCE);
    // And what chance says of it beside.
    let turn_of = |part: &Part| {
        let mut chance = plan.chance(part);
        let turn = 1 + chance.within(0..part.trace.turns.len() as u64);
        (turn as usize, chance)
    };
    let dead = some_at_a_time(AT_ONCE, &fitting, |one| {
        let (turn, mut chance) = turn_of(one.part);
        let (reference, tempo) = (one.reference(), plan.tempo(one.part));
        Dead::after(testbed, one.part, way, reference, &tempo, turn, &mut chance)
    });
    kill_daemons(testbed)?;
    let dead: Vec<_> = fitting
        .iter()
        .zip(dead)
        .map(|(one, dead)| (*one, Mutex::new(Some(dead))))
        .collect();
    let crashes = some_at_a_time(AT_ONCE, &dead, |(one, dead)| {
        let dead = dead.lock().unwrap_or_else(PoisonError::into_inner).take();
        let crash = match dead.context("who died is brought back once")? {
            Ok(dead) => dead.revive(&plan.tempo(one.part), &slots),
            // It is no way to keep anything if it does not get so far.
            Err(error) => Crash::failed(one.part, turn_of(one.part).0, format!("{error:#}")),
        };
        tell(way, &crash);
        Ok(crash)
    });
    if let Way::Crab(_) = way {
        forget();
    }
    crashes.into_iter().collect()
}

/// Crab without one of its parts is killed in the project's own plays of containerd alone: what it
/// would bring back is hardly in question, but what it costs.
fn is_asked(way: Way, part: &Part) -> bool {
    let whole = !matches!(way, Way::Crab(variant) if variant != Variant::Whole);
    whole || part.trace.kind == Kind::Written && part.client != Client::Docker
}

/// Kills everything at every turn of each play.
pub(super) fn exhaustive(
    testbed: &Testbed,
    plan: &Plan,
    compared: &[Compared<'_>],
) -> Result<Vec<Crash>> {
    let way = Way::Crab(Variant::Whole);
    eprintln!("{}: everything dies at every turn", way.name());
    let _host = way.config().map(Host::with).transpose()?;
    let slots = Slots::new(BACK_AT_ONCE);
    let crashes = some_at_a_time(AT_ONCE, compared, |one| {
        let mut chance = plan.chance(one.part);
        let (reference, tempo) = (one.reference(), plan.tempo(one.part));
        let crashes = every_turn(testbed, one.part, reference, &tempo, &mut chance, &slots);
        crashes.iter().for_each(|crash| tell(way, crash));
        Ok(crashes)
    });
    forget();
    let crashes: Vec<Vec<Crash>> = crashes.into_iter().collect::<Result<_>>()?;
    Ok(crashes.concat())
}

fn tell(way: Way, crash: &Crash) {
    if crash.recovered {
        return;
    }
    eprintln!(
        "{}: {} ({}), turn {}, back at {}: {}",
        way.name(),
        crash.trace,
        crash.client,
        crash.turn,
        crash.back_at,
        crash.differences.join("; ")
    );
}

/// What crashes say of a way.
pub(super) fn told(way: Way, crashes: &[Crash], measured: &mut Measured) {
    let mut took = Series::default();
    let good = crashes.iter().filter(|crash| crash.recovered);
    good.for_each(|crash| took.push_ms(crash.recover_ms));
    let back = crashes.iter().filter(|crash| crash.recover_ms > 0.0);
    let lost: usize = back
        .map(|crash| crash.turn.saturating_sub(crash.back_at))
        .sum();
    let name = way.name();
    for (what, value) in [
        ("crashes", crashes.len() as f64),
        ("crashes it recovered from", took.len() as f64),
        ("to recover, ms p50", took.quantile(0.5)),
        ("to recover, ms p99", took.quantile(0.99)),
        ("turns that were played again", lost as f64),
    ] {
        measured.detail(format!("{name}: {what}"), value);
    }
}
