// SPDX-License-Identifier: Apache-2.0

//! Many sandboxes on one host, each with an agent of its own that was recorded: what being
//! recoverable costs them, under each policy and beside what there is without Crab.
//!
//! ```text
//! part         shim   what becomes of a turn's end
//! stock        stock  nothing: what the others are measured against
//! off          Crab   nothing, by annotation
//! full         stock  everything is saved each time: processes by runc and CRIU, files by tar
//! predictive,  Crab   what the turn calls for, in the order of that policy
//! fifo, reactive
//! recovery     Crab   ... and at a random moment everything is killed and brought back
//! simulation   -      a thousand of them, on a clock of their own
//! ```
//! Each sandbox plays the same trace with the same waits in every part, so that it is compared
//! with itself.

mod account;
mod crabs;
mod fleet;
mod full;
mod recovery;
mod simulated;

pub(crate) use self::full::length;

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use crab_integration::{
    Testbed,
    traces::{self, Pace, Trace},
};
use crab_schedule::Policy;

use self::{
    account::{Account, Spent},
    crabs::Kept,
    fleet::{Fleet, Strategy, Times},
    full::Written,
};
use crate::{
    figures::{Measured, Target, each_wanted},
    host::without_crab,
    series::median,
};

/// The parts, in the order in which they are measured.
pub(crate) const PARTS: &[&str] = &[
    "stock",
    "off",
    "predictive",
    "full",
    "fifo",
    "reactive",
    "recovery",
    "simulation",
];

/// What the figures shall be.
const TARGETS: &[(&str, Target)] = &[
    ("sandboxes", Target::AtLeast(64.0)),
    ("overhead_pct", Target::AtMost(1.5)),
    ("exposed_ms_p50", Target::AtMost(0.0)),
    ("exposed_ms_p99", Target::AtMost(50.0)),
    ("traffic_cut_pct", Target::AtLeast(87.0)),
    ("recovered_pct", Target::AtLeast(100.0)),
    ("sim_sandboxes", Target::AtLeast(1000.0)),
    ("starved", Target::AtMost(0.0)),
];

/// How much to measure.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) parts: BTreeSet<&'static str>,
    pub(crate) sandboxes: usize,
    /// The first so many of each trace.
    pub(crate) turns: usize,
    /// What waits are multiplied by.
    pub(crate) scale: f64,
    pub(crate) seed: u64,
    /// Instead of the project's own.
    pub(crate) traces: Option<PathBuf>,
}

impl Plan {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            parts: PARTS.iter().copied().collect(),
            sandboxes: 64,
            turns: 14,
            scale: 1.0,
            seed,
            traces: None,
        }
    }

    /// To see that it works: its figures mean nothing.
    pub(crate) fn quick(&mut self) {
        self.sandboxes = 4;
        self.turns = 3;
        self.scale = 0.05;
    }

    /// The waits of a trace together, in seconds.
    fn waits(&self, trace: &Trace) -> f64 {
        let turns = 0..trace.turns.len().min(self.turns);
        let waits: Duration = turns.map(|n| self.pace().before(trace, n)).sum();
        waits.as_secs_f64()
    }

    fn pace(&self) -> Pace {
        Pace {
            scale: self.scale,
            seed: self.seed,
        }
    }
}

/// Of each part what the figures of others need too.
#[derive(Default)]
struct Found {
    stock: Option<Times>,
    off: Option<(Times, Spent)>,
    full: Option<(Times, Written)>,
    crab: Option<(Times, Kept, Spent)>,
}

/// Measures these parts.
pub(crate) fn measure(testbed: &Testbed, plan: &Plan) -> Result<Measured> {
    let mut measured = Measured::new("density", testbed.machine(), Some(plan.seed), TARGETS);
    let all = match &plan.traces {
        Some(dir) => traces::folder(dir)?,
        None => traces::own()?,
    };
    let assigned: Vec<Trace> = all.iter().cycle().take(plan.sandboxes).cloned().collect();
    tell(plan, all.len(), &assigned, &mut measured);
    let account = Account::open()?;
    let mut found = Found::default();
    each_wanted(PARTS, &plan.parts, |part| {
        let measured = &mut measured;
        match part {
            "stock" => {
                without_crab()?;
                let fleet = Fleet::start(testbed, Strategy::Stock, &assigned)?;
                let open = account.begin()?;
                let times = fleet.play(plan)?;
                open.close()?.entered(part, measured);
                fleet.remove()?;
                found.stock = Some(times.entered(part, measured));
            }
            "off" => {
                let off = crabs::switched_off(testbed, plan, &account, &assigned, measured)?;
                found.off = Some(off);
            }
            "full" => {
                without_crab()?;
                let full = full::play(testbed, plan, &account, &assigned, measured)?;
                found.full = Some(full);
            }
            "recovery" => recovery::measure(testbed, plan, &assigned, measured)?,
            "simulation" => simulated::measure(plan, measured),
            policy => {
                let mut all = Policy::ALL.into_iter();
                let policy = all.find(|one| one.as_str() == policy);
                let policy = policy.with_context(|| format!("{part} is no policy"))?;
                let played = crabs::play(testbed, plan, &account, policy, &assigned, measured)?;
                if policy == Policy::Predictive {
                    found.crab = Some(played);
                }
            }
        }
        Ok(())
    })?;
    compare(&found, &mut measured);
    Ok(measured)
}

fn tell(plan: &Plan, traces: usize, assigned: &[Trace], measured: &mut Measured) {
    let turns = |trace: &Trace| trace.turns.len().min(plan.turns);
    let all: usize = assigned.iter().map(turns).sum();
    let waits: Vec<f64> = assigned.iter().map(|trace| plan.waits(trace)).collect();
    eprintln!(
        "density: {} sandboxes, {traces} traces, {all} turns, waits times {}: {:.0} s for half of the \
         sandboxes, {:.0} s for the longest",
        assigned.len(),
        plan.scale,
        median(&waits),
        waits.iter().copied().fold(0.0, f64::max)
    );
    if plan.scale != 1.0 {
        eprintln!("density: waits are not as they were recorded, nor are the figures then");
    }
    measured.detail("waits, times", plan.scale);
    measured.detail("traces", traces as f64);
    measured.detail("turns of a part", all as f64);
    measured.detail("waits of a sandbox, s p50", median(&waits));
}

/// What needs two parts.
fn compare(found: &Found, measured: &mut Measured) {
    let crab = found.crab.as_ref();
    match (&found.stock, crab) {
        (Some(stock), Some((times, ..))) => {
            measured.enter("overhead_pct", times.percent_over(stock));
        }
        _ => absent("overhead_pct", "stock and predictive"),
    }
    match (&found.stock, &found.full) {
        (Some(stock), Some((times, _))) => {
            measured.enter("full_overhead_pct", times.percent_over(stock));
        }
        _ => absent("full_overhead_pct", "stock and full"),
    }
    match (crab, &found.full) {
        (Some((crab, kept, _)), Some((full, written))) => {
            // One that broke off wrote less.
            let per_turn = |bytes: f64, times: &Times| bytes / times.turns().max(1) as f64;
            let ours = per_turn(kept.written as f64, crab);
            let cut = |theirs: f64| 100.0 * (1.0 - ours / per_turn(theirs, full).max(1.0));
            let (processes, files) = (written.processes as f64, written.files as f64);
            measured.enter("traffic_cut_pct", cut(processes + files));
            for (what, theirs) in [
                (
                    "if that were compressed",
                    written.compressed * (processes + files),
                ),
                (
                    "if only images of processes were written, and compressed",
                    written.compressed * processes,
                ),
            ] {
                measured.detail(format!("traffic cut, % {what}"), cut(theirs));
            }
        }
        _ => absent("traffic_cut_pct", "predictive and full"),
    }
    match (crab, &found.off) {
        (Some((.., on)), Some((_, off))) => {
            // The runc of execs is not Crab's, and is there with checkpoints off, too.
            let criu = (on.others - off.others).max(0.0);
            measured.enter("cpu_pct_crab", on.shims + on.crabd + criu);
        }
        _ => absent("cpu_pct_crab", "off and predictive"),
    }
    if let Some((off, _)) = &found.off {
        if let Some(stock) = &found.stock {
            let percent = off.percent_over(stock);
            measured.detail("overhead, % of checkpoints off over stock", percent);
        }
        if let Some((times, ..)) = crab {
            let percent = times.percent_over(off);
            measured.detail("overhead, % of predictive over checkpoints off", percent);
        }
    }
}

fn absent(figure: &str, parts: &str) {
    eprintln!("{figure}: needs the parts {parts}, so it is absent");
}
