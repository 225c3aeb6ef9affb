// SPDX-License-Identifier: Apache-2.0

//! Benchmarks of Crab beside containerd's own shim, on real containerd. `scripts/bench`
//! builds everything and runs them in the test host.

mod lifecycle;
mod memory;
mod report;
mod series;
mod shim;

use std::{env, process::ExitCode};

use anyhow::{Context, Result, bail};
use crab_integration::Testbed;

use crate::lifecycle::Plan;

const USAGE: &str = "usage: bench lifecycle [--json] [--rounds N] [--sandboxes N] [--cycles N] [--no-critest]   \
                     (inside the test host; outside, scripts/bench)";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let mut args = env::args().skip(1);
    match args.next().as_deref() {
        Some("lifecycle") => {}
        Some("-h" | "--help") => {
            println!("{USAGE}");
            return Ok(());
        }
        other => bail!("{} is no benchmark; {USAGE}", other.unwrap_or("nothing")),
    }
    let mut json = false;
    let mut plan = Plan::default();
    while let Some(arg) = args.next() {
        let mut number = || -> Result<usize> {
            let text = args
                .next()
                .with_context(|| format!("{arg} wants a number"))?;
            let number = text.parse().ok().filter(|n| *n > 0);
            number.with_context(|| format!("{arg} {text}: not a number above 0"))
        };
        match arg.as_str() {
            "--json" => json = true,
            "--no-critest" => plan.critest = false,
            "--rounds" => plan.rounds = number()?,
            "--sandboxes" => plan.sandboxes = number()?,
            "--cycles" => plan.cycles = number()?,
            _ => bail!("{arg} is no option; {USAGE}"),
        }
    }
    let testbed = Testbed::here()?;
    let measured = lifecycle::measure(&testbed, &plan)?;
    if json {
        println!("{}", serde_json::to_string(&measured)?);
    } else {
        print!("{}", report::table(&measured));
    }
    Ok(())
}
