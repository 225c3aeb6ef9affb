// SPDX-License-Identifier: Apache-2.0
//! A sandbox that is held still for something other than a capture: to be compared with a
//! checkpoint, or to have its files put back under its processes.
//!
//! A freeze wakes every thread for a moment. So what is known of the processes has to be
//! brought up to date afterwards, or the next look takes them for changed.

use std::time::Duration;

use anyhow::Result;
use crab_api::tracer::Effects;
use crab_runtime::{
    cgroup::Frozen,
    procs::{Places, Set},
};

use super::{Baseline, Capture, evidence::Epoch};
use crate::still::Still;

/// It stands still for as long as this is there.
pub(super) struct Standing {
    pub(super) frozen: Frozen,
    still: Still,
    /// Right before.
    before: Set,
    places: Places,
    running: Option<Epoch>,
    /// The processes that stand still.
    pub(super) now: Set,
    /// The counters since then; nothing if crabd did not answer at once.
    pub(super) effects: Option<Effects>,
}

impl Capture {
    /// Holds it still.
    pub(super) fn stand(&self) -> Result<Standing> {
        let mut before = self.processes()?;
        let mut running = None;
        if !before.is_empty() {
            running = self.epoch(&before);
            // One set tells what ran and where all are blocked.
            before = self.processes()?;
        }
        let places = before.places();
        let still = Still::stand_when_entered(self.container.clone());
        let limit = self.container.config.runtime.freeze_timeout();
        let frozen = self.cgroup.freeze(limit)?;
        Ok(Standing {
            now: self.processes()?,
            effects: self.effects_now(),
            frozen,
            still,
            before,
            places,
            running,
        })
    }

    /// Whether the processes have done nothing at all since they were last seen.
    fn rest_on(&self, standing: &Standing) -> bool {
        let rested = self.known.baseline.as_ref().and_then(Baseline::rested);
        standing.have_rested()
            && rested.is_some_and(|rested| standing.before.since(rested).is_none())
    }

    /// Lets it go on, and tells for how long it stood still. `as_captured`: the processes are
    /// known to be as they were at the newest capture.
    pub(super) fn go_on(&mut self, standing: Standing, as_captured: bool) -> Result<Duration> {
        let rest = as_captured || self.rest_on(&standing);
        let Standing {
            frozen,
            still,
            places,
            ..
        } = standing;
        let last = self.processes()?;
        let thawed = (rest && !last.is_empty())
            .then(|| self.epoch(&last))
            .flatten();
        let stood = frozen.thaw()?;
        // Otherwise they have run, and what they hold has to tell anyway.
        if rest && !last.is_empty() {
            let rested = self.settle(&places, thawed.as_ref())?;
            if let Some(baseline) = &mut self.known.baseline {
                baseline.rests(rested);
            }
        }
        // Not before: what is started would be taken for what they do.
        drop(still);
        Ok(stood)
    }
}

impl Standing {
    /// Whether nothing was completed from right before the freeze until it had taken hold.
    fn have_rested(&self) -> bool {
        match (&self.running, &self.effects) {
            (Some(running), Some(now)) => running.still_at(now),
            _ => false,
        }
    }
}
