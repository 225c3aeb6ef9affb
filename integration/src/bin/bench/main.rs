// SPDX-License-Identifier: Apache-2.0

//! Benchmarks of Crab beside containerd's own shim, on real containerd. `scripts/bench`
//! builds everything and runs them in the test host.

mod capture;
mod crowd;
mod density;
mod figures;
mod fork;
mod host;
mod inspector;
mod lifecycle;
mod memory;
mod replay;
mod replay_report;
mod report;
mod series;
mod shim;

use std::{
    env,
    path::PathBuf,
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail, ensure};
use crab_integration::Testbed;
use serde::Serialize;

use crate::figures::parts_of;

const USAGE: &str = "usage: bench lifecycle [--json] [--rounds N] [--sandboxes N] [--cycles N] [--no-critest]
       bench inspector [--json] [--turns N] [--seed N] [--sandboxes N] [--rounds N] [--only PART[,PART]]
       bench capture [--json] [--rounds N] [--cycles N] [--kills N] [--seed N] [--only PART[,PART]]
       bench fork [--json] [--rounds N]
       bench density [--json] [--sandboxes N] [--turns N] [--scale X] [--seed N] [--traces DIR] [--quick]
                     [--only PART[,PART]]
       bench replay [--json] [--scale X] [--fast-scale X] [--seed N] [--traces DIR] [--no-own] [--trace TEXT]
                    [--turns N]
                    [--client ctr|docker] [--driver exec|shell|tmux] [--ways WAY[,WAY]] [--at-once N]
                    [--out DIR] [--quick] [--only PART[,PART]]
       bench report FILE [--html OUT] [--readme FILE]
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
        Some("lifecycle") => lifecycle(args),
        Some("inspector") => inspector(args),
        Some("capture") => capture(args),
        Some("fork") => fork(args),
        Some("density") => density(args),
        Some("replay") => replay(args),
        Some("report") => report_replay(args),
        Some("-h" | "--help") => {
            println!("{USAGE}");
            Ok(())
        }
        other => bail!("{} is no benchmark; {USAGE}", other.unwrap_or("nothing")),
    }
}

/// The value of an option.
fn number<T: std::str::FromStr>(args: &mut impl Iterator<Item = String>, of: &str) -> Result<T> {
    let text = args
        .next()
        .with_context(|| format!("{of} wants a number"))?;
    let number = text.parse().ok().filter(|_| text != "0");
    number.with_context(|| format!("{of} {text}: not a number above 0"))
}

/// A seed for who names none.
fn by_the_clock() -> Result<u64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs())
}

fn lifecycle(mut args: impl Iterator<Item = String>) -> Result<()> {
    let mut json = false;
    let mut plan = lifecycle::Plan::default();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--json" => json = true,
            "--no-critest" => plan.critest = false,
            "--rounds" => plan.rounds = number(&mut args, &arg)?,
            "--sandboxes" => plan.sandboxes = number(&mut args, &arg)?,
            "--cycles" => plan.cycles = number(&mut args, &arg)?,
            _ => bail!("{arg} is no option of lifecycle; {USAGE}"),
        }
    }
    let measured = lifecycle::measure(&Testbed::here()?, &plan)?;
    tell(&measured, json, report::table)
}

fn inspector(mut args: impl Iterator<Item = String>) -> Result<()> {
    let mut json = false;
    let mut plan = inspector::Plan {
        parts: inspector::PARTS.iter().copied().collect(),
        turns: 10_000,
        seed: by_the_clock()?,
        sandboxes: 50,
        rounds: 7,
    };
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--json" => json = true,
            "--turns" => plan.turns = number(&mut args, &arg)?,
            "--seed" => plan.seed = number(&mut args, &arg)?,
            "--sandboxes" => plan.sandboxes = number(&mut args, &arg)?,
            "--rounds" => plan.rounds = number(&mut args, &arg)?,
            "--only" => {
                let list = args.next().context("--only wants parts")?;
                plan.parts = parts_of(&list, inspector::PARTS)?;
            }
            _ => bail!("{arg} is no option of inspector; {USAGE}"),
        }
    }
    let measured = inspector::measure(&Testbed::here()?, &plan)?;
    tell(&measured, json, figures::table)
}

fn capture(mut args: impl Iterator<Item = String>) -> Result<()> {
    let mut json = false;
    let mut plan = capture::Plan {
        parts: capture::PARTS.iter().copied().collect(),
        rounds: 20,
        cycles: 20,
        kills: 1000,
        seed: by_the_clock()?,
    };
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--json" => json = true,
            "--rounds" => plan.rounds = number(&mut args, &arg)?,
            "--cycles" => plan.cycles = number(&mut args, &arg)?,
            "--kills" => plan.kills = number(&mut args, &arg)?,
            "--seed" => plan.seed = number(&mut args, &arg)?,
            "--only" => {
                let list = args.next().context("--only wants parts")?;
                plan.parts = parts_of(&list, capture::PARTS)?;
            }
            _ => bail!("{arg} is no option of capture; {USAGE}"),
        }
    }
    let measured = capture::measure(&Testbed::here()?, &plan)?;
    tell(&measured, json, figures::table)
}

fn fork(mut args: impl Iterator<Item = String>) -> Result<()> {
    let (mut json, mut rounds) = (false, 12);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--json" => json = true,
            "--rounds" => rounds = number(&mut args, &arg)?,
            _ => bail!("{arg} is no option of fork; {USAGE}"),
        }
    }
    let measured = fork::measure(&Testbed::here()?, rounds)?;
    tell(&measured, json, figures::table)
}

fn density(mut args: impl Iterator<Item = String>) -> Result<()> {
    let mut json = false;
    let mut plan = density::Plan::new(by_the_clock()?);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--json" => json = true,
            "--quick" => plan.quick(),
            "--sandboxes" => plan.sandboxes = number(&mut args, &arg)?,
            "--turns" => plan.turns = number(&mut args, &arg)?,
            "--scale" => plan.scale = scale(&mut args, &arg)?,
            "--seed" => plan.seed = number(&mut args, &arg)?,
            "--traces" => {
                plan.traces = Some(args.next().context("--traces wants a folder")?.into())
            }
            "--only" => {
                let list = args.next().context("--only wants parts")?;
                plan.parts = parts_of(&list, density::PARTS)?;
            }
            _ => bail!("{arg} is no option of density; {USAGE}"),
        }
    }
    let measured = density::measure(&Testbed::here()?, &plan)?;
    tell(&measured, json, figures::table)
}

fn replay(args: impl Iterator<Item = String>) -> Result<()> {
    let (plan, json) = replay::arguments(args)?;
    let measured = replay::measure(&Testbed::here()?, &plan)?;
    tell(&measured, json, figures::table)
}

/// Makes a page and a table of what a replay has found. Nothing is measured, so it needs no
/// test host.
fn report_replay(mut args: impl Iterator<Item = String>) -> Result<()> {
    let (mut record, mut html, mut readme) = (None, None, None);
    while let Some(arg) = args.next() {
        let place = match arg.as_str() {
            "--html" => &mut html,
            "--readme" => &mut readme,
            "-h" | "--help" => {
                println!("{USAGE}");
                return Ok(());
            }
            option if option.starts_with('-') => bail!("{arg} is no option of report; {USAGE}"),
            _ if record.is_some() => bail!("one record at a time, {arg} is another; {USAGE}"),
            _ => {
                record = Some(PathBuf::from(arg));
                continue;
            }
        };
        let path = args.next().with_context(|| format!("{arg} wants a file"))?;
        *place = Some(PathBuf::from(path));
    }
    let record = record.context("report wants the file that `bench replay` wrote")?;
    replay_report::report(&replay_report::Plan {
        record,
        html,
        readme,
    })
}

/// What waits are multiplied by.
fn scale(args: &mut impl Iterator<Item = String>, of: &str) -> Result<f64> {
    let scale: f64 = number(args, of)?;
    ensure!(
        (0.001..=1000.0).contains(&scale),
        "{of} wants 0.001 to 1000"
    );
    Ok(scale)
}

fn tell<T: Serialize>(measured: &T, json: bool, table: fn(&T) -> String) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string(measured)?);
    } else {
        print!("{}", table(measured));
    }
    Ok(())
}
