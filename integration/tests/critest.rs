// SPDX-License-Identifier: Apache-2.0

//! What Kubernetes asks of a CRI, under Crab and under the stock shim.

use std::io::{self, Write};

use anyhow::{Result, ensure};
use crab_integration::{Runtime, Testbed, critest::Report};

/// Parts of the names of specs that are skipped unless the handler's features are known:
/// containerd 2.0 to 2.2 asks only the shim called `io.containerd.runc.v2` for them.
const UNASKED: [&str; 2] = ["UserNamespaces", "recursive readonly mount"];

/// Past the harness, which shows what a test prints only when it fails.
fn print(runtime: Runtime, report: &Report) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "under {}: {} passed, {} failed, {} skipped, in {:.0} s",
        runtime.handler(),
        report.passed.len(),
        report.failed.len(),
        report.skipped.len(),
        report.took.as_secs_f64()
    )?;
    for (name, reason) in &report.failed {
        // The first lines of some say nothing.
        let words: Vec<&str> = reason.split_whitespace().collect();
        let reason: String = words.join(" ").chars().take(400).collect();
        writeln!(out, "  failed: {name}: {reason}")?;
    }
    Ok(())
}

#[test]
fn no_spec_fails_under_crab_that_passes_under_runc() -> Result<()> {
    let testbed = Testbed::here()?;
    let Some(stock) = testbed.critest(Runtime::Stock, None)? else {
        return Ok(());
    };
    print(Runtime::Stock, &stock)?;
    let Some(crab) = testbed.critest(Runtime::Crab, None)? else {
        return Ok(());
    };
    print(Runtime::Crab, &crab)?;
    // Both have run, and what they have run is the same.
    ensure!(stock.passed.len() > 70, "hardly any spec passes under runc");
    let unasked = |name: &&String| UNASKED.iter().any(|part| name.contains(part));
    let skipped: Vec<_> = crab.skipped.difference(&stock.skipped).collect();
    for name in &skipped {
        writeln!(io::stdout(), "  skipped only under crab: {name}")?;
    }
    ensure!(
        skipped.iter().all(unasked),
        "skipped only under crab: {skipped:#?}"
    );
    let only_here: Vec<_> = crab.only_here(&stock).collect();
    ensure!(only_here.is_empty(), "only under crab: {only_here:#?}");
    Ok(())
}
