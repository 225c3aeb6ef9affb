// SPDX-License-Identifier: Apache-2.0

//! A live sandbox goes back to an earlier turn, and stays the same sandbox.

mod drift;
mod elsewhere;
mod failing;
mod going_back;
mod identity;
mod points;
mod refused;
mod server;
mod verified;
mod warm;

use std::{collections::BTreeSet, time::Duration};

use anyhow::Result;
use crab_integration::{Sandbox, processes};

const LIMIT: Duration = Duration::from_secs(20);

/// How long the processes inside that only sleep were told to.
fn sleepers(sandbox: &Sandbox) -> Result<Vec<String>> {
    let inside: BTreeSet<u32> = sandbox.processes()?.into_iter().collect();
    let mut found: Vec<String> = processes::all()
        .into_iter()
        .filter(|(pid, words)| inside.contains(pid) && words[0] == "sleep")
        .map(|(_, words)| words[1].clone())
        .filter(|how_long| how_long != "infinity")
        .collect();
    found.sort();
    Ok(found)
}
