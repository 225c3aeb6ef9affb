// SPDX-License-Identifier: Apache-2.0

//! What the inspector says of turns, beside what is so.

mod cgroups;
mod external;
mod left_behind;
mod outside;
mod random;

use anyhow::{Result, ensure};
use crab_integration::proof::Life;
use crab_store::Class;

/// One operation of the agent as a turn, which has to have this class and to have changed
/// just that.
fn turn_of(life: &mut Life, class: Class, operation: &str) -> Result<()> {
    let lived = life.turn(operation.into())?;
    let (record, judgement) = (&lived.record, &lived.judgement);
    let missed = &judgement.missed;
    ensure!(
        missed.is_empty(),
        "{operation} is {}: missed {missed:?}",
        record.class
    );
    ensure!(
        record.class == class,
        "{operation} is {} and not {class}: {}; {:?}",
        record.class,
        record.reason,
        judgement.change
    );
    Ok(())
}
