// SPDX-License-Identifier: Apache-2.0

//! Nothing is left on the host of many containers: counted before and after.

mod living;

use std::{env, time::Duration};

use anyhow::{Context, Result, ensure};
use crab_integration::{Client, Cycles, Runtime, Testbed};

const LIMIT: Duration = Duration::from_secs(20);

/// How many containers come and go one by one; `CRAB_LEAK_CYCLES` says another number. What is
/// left is counted to the last descriptor, so that a few show what each of them leaves. The
/// benchmark runs 500.
const CYCLES: usize = 30;
/// How many live at once.
const AT_ONCE: usize = 30;

fn cycles() -> Result<usize> {
    match env::var("CRAB_LEAK_CYCLES") {
        Ok(number) => number.parse().context("read CRAB_LEAK_CYCLES"),
        Err(_) => Ok(CYCLES),
    }
}

fn leaves_nothing(client: Client) -> Result<()> {
    let cycles = cycles()?;
    let left = Cycles {
        client,
        runtime: Runtime::Crab,
    }
    .leaks(cycles, AT_ONCE)?;
    ensure!(
        left.is_empty(),
        "{cycles} containers one by one and {AT_ONCE} at once left: {}",
        left.join(", ")
    );
    Ok(())
}

#[test]
fn many_containers_one_by_one_and_at_once_leave_nothing_under_containerd() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    leaves_nothing(testbed.ctr())
}

#[test]
fn many_containers_one_by_one_and_at_once_leave_nothing_under_docker() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    leaves_nothing(testbed.docker())
}
