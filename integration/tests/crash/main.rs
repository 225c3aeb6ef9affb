// SPDX-License-Identifier: Apache-2.0

//! SIGKILL to anything at any time: what was published comes back, no change is
//! missed, and no container dies or stands still for it.

mod as_stock;
mod checkpoints;
mod crabd;
mod everything;
mod lost;
mod steps;

use std::time::Duration;

use crab_integration::Turn;

const LIMIT: Duration = Duration::from_secs(20);

fn changed(turn: &Turn) -> Vec<&str> {
    let paths = turn.record.changed.iter();
    paths.map(|changed| changed.path.as_str()).collect()
}
