// SPDX-License-Identifier: Apache-2.0

//! The part in which time and bytes are measured: each play in each way, with its waits.

use std::{path::Path, time::Instant};

use anyhow::{Context, Result};
use crab_integration::{
    Testbed,
    journal::STORE,
    replay::{Part, Timed, Way},
};

use super::{plan::Plan, states::remark};
use crate::{
    crowd::some_at_a_time,
    density::length,
    host::{Host, without_crab},
};

/// All plays in one way.
pub(super) struct Run {
    pub(super) way: Way,
    /// In the order of the plays; nothing where one broke off, or cannot be.
    pub(super) plays: Vec<Option<Timed>>,
    /// What was written for all of them.
    pub(super) bytes: Option<u64>,
}

/// Plays all.
pub(super) fn run(
    testbed: &Testbed,
    plan: &Plan,
    way: Way,
    plays: &[Part],
    remarks: &mut Vec<String>,
) -> Result<Run> {
    without_crab()?;
    let _host = way.config().map(Host::with).transpose()?;
    let stored = || length(Path::new(STORE));
    let before = way.config().map(|_| stored()).transpose()?;
    let began = Instant::now();
    let timed = some_at_a_time(plan.at_once, plays, |part| {
        if !way.is_for(part.client) {
            return Ok(None);
        }
        let timed = Timed::of(testbed, part, way, plan.pace());
        timed.map(Some).with_context(|| part.name())
    });
    eprintln!(
        "{}: played in {:.0} s",
        way.name(),
        began.elapsed().as_secs_f64()
    );
    let mut all = Vec::new();
    for timed in timed {
        all.push(timed.unwrap_or_else(|error| {
            remark(remarks, format!("{}: broke off: {error:#}", way.name()));
            None
        }));
    }
    let bytes = match way {
        Way::Crab(_) => Some(stored()?.saturating_sub(before.unwrap_or(0))),
        Way::Full | Way::ChatFiles => {
            let turns = all.iter().flatten().flat_map(|timed| &timed.turns);
            Some(turns.map(|turn| turn.bytes).sum())
        }
        _ => None,
    };
    Ok(Run {
        way,
        plays: all,
        bytes,
    })
}
