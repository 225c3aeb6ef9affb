// SPDX-License-Identifier: Apache-2.0

//! Whether turns end where they do for the ways in which agents drive a sandbox, and how
//! soon after.

use anyhow::Result;
use crab_integration::{
    Testbed,
    styles::{Style, play},
};

use super::{Measured, Plan};
use crate::series::Series;

pub(super) fn measure(testbed: &Testbed, plan: &Plan, measured: &mut Measured) -> Result<()> {
    let (mut by_execs, mut by_stdio) = (Series::default(), Series::default());
    let (mut expected, mut errors) = (0, 0);
    for client in testbed.clients() {
        for style in Style::ALL {
            let found = play(testbed, client, style, plan.rounds)?;
            for error in &found.errors {
                eprintln!("{style:?} by {}: {error}", client.name());
            }
            expected += found.expected;
            errors += found.errors.len();
            let delays = match style {
                // By rest, for longer.
                Style::AgentInside | Style::AgentAsProgram => continue,
                _ if style.is_by_execs() => &mut by_execs,
                _ => &mut by_stdio,
            };
            found.delays_ms.iter().for_each(|ms| delays.push_ms(*ms));
        }
    }
    measured.enter("boundary_errors", errors as f64);
    measured.enter("boundary_delay_ms_p50", by_execs.quantile(0.5));
    measured.enter("boundary_delay_stdio_ms_p50", by_stdio.quantile(0.5));
    measured.detail("boundaries: there had to be", expected as f64);
    measured.detail("boundaries: stdio to look, ms, p90", by_stdio.quantile(0.9));
    Ok(())
}
