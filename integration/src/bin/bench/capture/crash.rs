// SPDX-License-Identifier: Apache-2.0

//! Death at every named step and at random instants, and damage to what is left: what is lost,
//! and what `crab fsck` does not find.

use anyhow::Result;
use crab_integration::{
    Testbed,
    crash::{Extent, damage, full, kills, steps},
};

use super::{Measured, Plan};

/// So often the disk of the store is filled.
const FULL: usize = 150;
/// So often something of a store is damaged.
const DAMAGED: usize = 5000;

pub(super) fn measure(testbed: &Testbed, plan: &Plan, measured: &mut Measured) -> Result<()> {
    // Released programs listen to nobody unless they are asked to.
    let _listening = testbed.with_fault_points()?;
    let stepped = steps(testbed, Extent::All)?;
    measured.enter("crash_points", stepped.steps as f64);
    let killed = kills(testbed, plan.kills, plan.seed)?;
    measured.enter("random_kills", killed.kills as f64);
    for (victim, times) in &killed.by {
        measured.detail(format!("kills: {victim}"), *times as f64);
    }
    let filled = full(testbed, FULL, plan.seed)?;
    measured.detail("disk: filled", filled.rounds as f64);
    measured.detail("disk: too full", filled.kept_out as f64);
    let lost = [&stepped.lost, &killed.lost, &filled.lost].map(|lost| {
        for lost in lost {
            eprintln!("lost: {lost}");
        }
        lost.len()
    });
    let lost: usize = lost.iter().sum();
    measured.enter("lost", lost as f64);
    let damaged = damage(testbed, DAMAGED, plan.seed)?;
    for (kind, times) in &damaged.by {
        measured.detail(format!("damaged: {kind}"), *times as f64);
    }
    for missed in &damaged.missed {
        eprintln!("not found: {missed}");
    }
    measured.enter("fsck_missed", damaged.missed.len() as f64);
    Ok(())
}
