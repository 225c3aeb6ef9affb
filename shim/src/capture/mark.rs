// SPDX-License-Identifier: Apache-2.0
//! Looks that are taken back.
//!
//! A turn's end may turn out to be none: an exec follows at once. What was looked at and
//! staged until then is dropped, and the next look has to begin where that one began.

use anyhow::Result;
use crab_api::tracer::Effects;
use crab_runtime::{procs::Set, system_v::Objects};

use super::{Baseline, Capture, Taken};

/// Everything that a look without a freeze moves on, as it was before.
pub(crate) struct Mark {
    base: Option<Effects>,
    baseline: Option<Baseline>,
    captured: Option<Set>,
    some_processes: bool,
    unseen: bool,
    reread: bool,
    owed: bool,
    passed_over: bool,
    objects: Option<Objects>,
}

impl Capture {
    /// As [`Self::take`], if that needs no freeze; nothing if it does, and then nothing
    /// has moved. The mark takes back what was taken.
    pub(crate) fn take_running_only(&mut self) -> (Mark, Result<Option<Taken>>) {
        let mark = Mark {
            base: self.base.clone(),
            baseline: self.baseline.clone(),
            captured: self.captured.clone(),
            some_processes: self.some_processes,
            unseen: self.unseen,
            reread: self.reread,
            owed: self.owed,
            passed_over: self.passed_over,
            objects: self.lasting.captured(),
        };
        let taken = self.take_if(false, false);
        (mark, taken)
    }

    /// As if the look with this mark had never been. Indexes of roots without a change may
    /// be fresher than before, which is as true.
    pub(crate) fn go_back(&mut self, mark: Mark) {
        self.base = mark.base;
        self.baseline = mark.baseline;
        self.captured = mark.captured;
        self.some_processes = mark.some_processes;
        self.unseen = mark.unseen;
        self.reread = mark.reread;
        self.owed = mark.owed;
        self.passed_over = mark.passed_over;
        self.lasting.capture(mark.objects);
    }
}
