// SPDX-License-Identifier: Apache-2.0

//! Where turns end: every way in which agents drive a sandbox, played by real clients.

use std::time::Duration;

use anyhow::Result;
use crab_integration::{
    Testbed,
    styles::{Style, play},
};

use super::Measured;
use crate::series::Series;

/// Steps of each style, and so turns.
const STEPS: usize = 6;

pub(super) fn measure(testbed: &Testbed, measured: &mut Measured) -> Result<()> {
    let mut errors = 0;
    let mut turns = 0;
    let mut by_execs = Series::default();
    let mut by_stdio = Series::default();
    for (number, style) in Style::ALL.into_iter().enumerate() {
        let client = testbed.clients()[number % 2];
        let found = play(testbed, client, style, STEPS)?;
        for error in &found.errors {
            eprintln!("boundary: {style:?} by {}: {error}", client.name());
        }
        errors += found.errors.len();
        turns += found.expected;
        let delays = match style.is_by_execs() {
            true => &mut by_execs,
            false => &mut by_stdio,
        };
        for ms in found.delays_ms {
            // The clock that tells the end goes by milliseconds.
            delays.push(Duration::from_secs_f64(ms.max(0.0) / 1000.0));
        }
    }
    measured.enter("boundary_errors", errors as f64);
    measured.enter("boundary_delay_ms_p50", by_execs.quantile(0.5));
    measured.detail("boundaries: turns", turns as f64);
    measured.detail("boundaries: by execs, ms most", by_execs.quantile(1.0));
    measured.detail("boundaries: by stdio, ms p50", by_stdio.quantile(0.5));
    measured.detail("boundaries: by stdio, ms most", by_stdio.quantile(1.0));
    Ok(())
}
