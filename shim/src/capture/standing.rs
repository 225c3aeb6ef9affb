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
use crate::{
    decide::{self, ProcessHalf, Seen},
    still::Still,
};

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
        let (still, frozen) = self.freeze()?;
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

    /// Whether the processes that stand still are those of the newest capture, and as they
    /// were then; else how they differ.
    ///
    /// # Errors
    /// When they do not stand still any more.
    pub(super) fn as_captured(&self, standing: &Standing) -> Result<Result<(), String>> {
        let moved = standing.now.since(&standing.before);
        if moved.started + moved.ended > 0 {
            return Ok(Err(format!("processes: {moved}")));
        }
        let mut half = self.half(&standing.before);
        if !standing.now.all_ignored() && !standing.have_rested() {
            half = half.went_on();
        }
        if let ProcessHalf::Ran(ran) = &half {
            let Standing {
                frozen,
                before,
                now,
                ..
            } = standing;
            half = self.by_content(frozen, before, now, ran)?.0;
        }
        Ok(match half {
            ProcessHalf::Unchanged => Ok(()),
            ProcessHalf::Gone(why) | ProcessHalf::Ran(why) | ProcessHalf::Image(why) => Err(why),
        })
    }

    /// Whether nothing that could have changed a file was counted since the newest capture.
    pub(super) fn are_files_as_captured(&self, standing: &Standing) -> bool {
        let effects = standing.effects.clone().ok_or_else(String::new);
        let unseen = standing.now.writes_unseen() || self.known.unseen || !self.watches_root();
        let seen = decide::seen(self.known.base.as_ref(), &effects, unseen);
        !self.known.owed && seen == Seen::FilesUntouched
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
        Epoch::is_still(self.running.as_ref(), self.effects.as_ref())
    }
}
