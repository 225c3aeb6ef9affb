// SPDX-License-Identifier: Apache-2.0

//! What Crab has written down of a sandbox, read from its store as it comes.

use anyhow::Result;
use crab_store::{JournalRecord, SandboxId, SandboxStore, Store, TurnRecord};

use crate::sandbox::Sandbox;

/// Where the store is.
pub const STORE: &str = "/var/lib/crab";
/// In steps of so many microseconds an exec was held back: to ask whether it may go on takes
/// some, also where it may.
const GATE_US: u64 = 100;

/// What there is of a sandbox.
pub fn store_of(sandbox: &Sandbox) -> Result<SandboxStore> {
    let id = SandboxId::new(sandbox.client().namespace(), sandbox.id())?;
    Ok(Store::open(STORE)?.sandbox(&id)?)
}

/// The turns in its journal.
pub fn turns_of(sandbox: &Sandbox) -> Result<Vec<TurnRecord>> {
    let records = store_of(sandbox)?.journal()?.records.into_iter();
    let turns = records.filter_map(|record| match record {
        JournalRecord::Turn(record) => Some(record),
        _ => None,
    });
    Ok(turns.collect())
}

/// For how long the first exec of a turn was held back, in milliseconds.
pub fn held_back_ms(record: &TurnRecord) -> f64 {
    (record.cost.gate_us / GATE_US * GATE_US) as f64 / 1e3
}
