// SPDX-License-Identifier: Apache-2.0

//! The machine loses its power: nothing that was published is lost. Only in a machine of its own
//! (`scripts/testbed run --vm --boots N`).

use std::env;

use anyhow::{Result, ensure};
use crab_fault::{Part, Point};
use crab_integration::{
    Testbed,
    crash::{Cut, power},
};

/// One step, in the midst of a publication: a manifest whose name is not durable. With
/// `CRAB_TEST_POWER_CUTS=N` all steps of a publication, and N instants by chance.
fn cuts() -> Result<Vec<Cut>> {
    let Ok(many) = env::var("CRAB_TEST_POWER_CUTS") else {
        return Ok(vec![Cut::At(Point::ManifestRenamed)]);
    };
    let steps = Point::ALL.iter().filter(|p| p.part() == Part::Publish);
    let by_chance = std::iter::repeat_n(Cut::ByChance, many.parse()?);
    Ok(steps
        .map(|point| Cut::At(*point))
        .chain(by_chance)
        .collect())
}

#[test]
fn a_loss_of_power_loses_nothing_that_was_published() -> Result<()> {
    let testbed = Testbed::here()?;
    let cuts = cuts()?;
    let lost = power(&testbed, &cuts, 1)?;
    ensure!(lost.is_empty(), "{lost:#?}");
    Ok(())
}
