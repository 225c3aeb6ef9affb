// SPDX-License-Identifier: Apache-2.0
//! Looks that are taken back.
//!
//! A turn's end may turn out to be none: an exec follows at once. What was looked at and
//! staged until then is dropped, and the next look has to begin where that one began.

use anyhow::Result;
use crab_api::tracer::Effects;
use crab_runtime::{
    procs::{References, Set},
    system_v::Objects,
};

use super::{Baseline, Capture, Taken, Wish, lack::Lack};

/// What the next look compares with and owes: all that a look without a freeze moves on.
#[derive(Clone, Default)]
pub(crate) struct Known {
    /// The counters up to which everything is captured.
    pub(crate) base: Option<Effects>,
    /// The processes as of the newest capture; nothing if they were not
    /// recorded.
    pub(crate) baseline: Option<Baseline>,
    /// The same, whatever they have done since: told, and nothing is decided by it.
    pub(crate) captured: Option<Set>,
    /// By which paths they held what they hold, at their newest image.
    pub(crate) references: References,
    /// The newest capture holds processes, by an image or as missing.
    pub(crate) some_processes: bool,
    /// The image that the newest capture lacks; nothing if it has what it needs.
    pub(crate) lack: Option<Lack>,
    /// System V IPC objects as of the newest capture; nothing if they could not be listed.
    pub(crate) objects: Option<Objects>,
    /// At the newest look, a process had the means to write with no system call.
    pub(crate) unseen: bool,
    /// Memory-backed files were made while nobody watched: they are read again.
    pub(crate) reread: bool,
    /// A capture failed: files are looked at whatever the counters say.
    pub(crate) owed: bool,
    /// When processes that ran were last compared by content, they had only woken up: a dump
    /// is got ready only once they are known to need one.
    pub(crate) woke_only: bool,
    /// Changes that do not call for a checkpoint were left out of the newest one, or may
    /// have been.
    pub(crate) passed_over: bool,
}

impl Capture {
    /// As [`Self::take`], if that needs no freeze; nothing if it does, and then nothing
    /// has moved. What was known before takes back what was taken.
    pub(crate) fn take_running_only(&mut self) -> (Known, Result<Option<Taken>>) {
        let before = self.known.clone();
        let taken = self.take_if(false, Wish::Turn);
        (before, taken)
    }

    /// As if the look before which this was known had never been. Indexes of roots without
    /// a change may be fresher than before, which is as true.
    pub(crate) fn go_back(&mut self, before: Known) {
        self.known = before;
        if self.keep_alive.is_some() {
            // What that look could not tell of the init, the next one may.
            self.doubt = None;
        }
    }
}
