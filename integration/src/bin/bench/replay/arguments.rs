// SPDX-License-Identifier: Apache-2.0

//! How a replay is asked for.

use anyhow::{Context, Result, bail, ensure};
use crab_integration::replay::{Driver, Way};

use super::plan::{PARTS, Plan};
use crate::{USAGE, by_the_clock, figures::parts_of, number, scale};

/// What is asked for, and whether the figures are wanted as JSON.
pub(crate) fn arguments(args: impl Iterator<Item = String>) -> Result<(Plan, bool)> {
    let args: Vec<String> = args.collect();
    let command = format!("scripts/bench replay {}", args.join(" "));
    let mut args = args.into_iter();
    let mut json = false;
    let mut plan = Plan::new(by_the_clock()?, command);
    let mut seeded = false;
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--json" => json = true,
            "--quick" => plan.quick(),
            "--no-own" => plan.own = false,
            "--turns" => plan.turns = number(&mut args, &arg)?,
            "--at-once" => plan.at_once = number(&mut args, &arg)?,
            "--scale" => plan.scale = scale(&mut args, &arg)?,
            "--fast-scale" => plan.fast_scale = scale(&mut args, &arg)?,
            "--seed" => {
                plan.seed = number(&mut args, &arg)?;
                seeded = true;
            }
            "--trace" | "--client" | "--out" | "--traces" => {
                let value = args
                    .next()
                    .with_context(|| format!("{arg} wants a value"))?;
                match arg.as_str() {
                    "--trace" => plan.only_traces = Some(value),
                    "--out" => plan.out = value.into(),
                    "--traces" => plan.traces = Some(value.into()),
                    _ => {
                        ensure!(
                            ["ctr", "docker"].contains(&value.as_str()),
                            "--client wants ctr or docker"
                        );
                        plan.client = Some(value);
                    }
                }
            }
            "--driver" => {
                let name = args.next().unwrap_or_default();
                let mut all = Driver::ALL.into_iter();
                let driver = all.find(|driver| driver.name() == name);
                plan.driver = Some(driver.context("--driver wants exec, shell or tmux")?);
            }
            "--ways" => {
                let list = args.next().context("--ways wants some of them")?;
                let way = |name: &str| {
                    Way::named(name).with_context(|| format!("{name} is no way to keep anything"))
                };
                plan.ways = list.split(',').map(way).collect::<Result<_>>()?;
            }
            "--only" => {
                let list = args.next().context("--only wants parts")?;
                plan.parts = parts_of(&list, PARTS)?;
            }
            _ => bail!("{arg} is no option of replay; {USAGE}"),
        }
    }
    if !seeded {
        plan.command.push_str(&format!(" --seed {}", plan.seed));
    }
    Ok((plan, json))
}
