// SPDX-License-Identifier: Apache-2.0

//! Trees that are made to harm: how often anything outside of the sandbox was got at, and how
//! often what came back was not what was there.

use anyhow::Result;
use crab_integration::{
    Testbed,
    hostile::{self, Canary},
};

use super::{Measured, Plan};

/// Files of the largest tree.
const MANY: u32 = 100_000;

pub(super) fn measure(testbed: &Testbed, plan: &Plan, measured: &mut Measured) -> Result<()> {
    let (ctr, crab) = (testbed.ctr(), testbed.crab());
    let mut canary = Canary::new()?;
    let mut inexact = Vec::new();
    let cases = hostile::cases(MANY);
    for case in &cases {
        match case.there_and_back(ctr, &crab, &mut canary) {
            Ok(found) => inexact.extend(found),
            Err(error) => inexact.push(format!("{}: {error:#}", case.name())),
        }
    }
    let raced = hostile::race(ctr, &crab, &mut canary, plan.rounds)?;
    for line in canary.escapes().iter().chain(&inexact) {
        eprintln!("hostile: {line}");
    }
    measured.enter("hostile_escapes", canary.escapes().len() as f64);
    measured.detail("hostile: kinds of trees", cases.len() as f64);
    measured.detail("hostile: not exact, or no way back", inexact.len() as f64);
    measured.detail("hostile: rollbacks while the host raced", raced as f64);
    Ok(())
}
