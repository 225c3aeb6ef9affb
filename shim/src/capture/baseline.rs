// SPDX-License-Identifier: Apache-2.0
//! The processes as of the newest capture, and how those of now compare with them.
//!
//! ```text
//! the same ones? --no--> image
//!   | yes
//! has any run? --no--> unchanged
//!   | yes
//! freeze: does each hold what it held? --no--> image
//!   | yes
//! unchanged
//! ```

use crab_runtime::procs::{Content, Difference, Set};

use crate::decide::ProcessHalf;

/// What is known of the processes of the newest capture.
#[derive(Clone)]
pub(crate) struct Baseline {
    /// Which they are.
    set: Set,
    /// The same after the capture, none of which had gone on until then; nothing if that
    /// is not known.
    rested: Option<Set>,
    /// What they held; nothing if it could not be read.
    content: Option<Content>,
}

impl Baseline {
    pub(super) fn new(set: Set, rested: Option<Set>, content: Option<Content>) -> Self {
        Self {
            set,
            rested,
            content,
        }
    }

    /// Of processes that were not touched since they were looked at.
    pub(crate) fn untouched(set: Set) -> Self {
        let rested = Some(set.clone());
        Self::new(set, rested, None)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.set.is_empty()
    }

    /// How the processes of now differ, by which they are and whether they ran.
    pub(super) fn difference(&self, now: &Set) -> Difference {
        match &self.rested {
            Some(rested) => now.since(rested),
            None => now.since_unknown(&self.set),
        }
    }

    /// Whether there were some, and all of them ignored.
    pub(super) fn only_ignored(&self) -> bool {
        let set = self.rested.as_ref().unwrap_or(&self.set);
        !set.is_empty() && set.all_ignored()
    }

    /// They themselves after the capture, if none had gone on until then.
    pub(super) fn rested(&self) -> Option<&Set> {
        self.rested.as_ref()
    }

    /// What they held, if that is known.
    pub(super) fn content(&self) -> Option<&Content> {
        self.content.as_ref()
    }

    /// Decides on processes that `ran`, by what they hold now.
    pub(super) fn compare(&self, ran: &str, now: &Result<Content, String>) -> ProcessHalf {
        match (now, &self.content) {
            (Err(error), _) => ProcessHalf::Image(format!("{ran}; {error}")),
            (Ok(_), None) => ProcessHalf::Image(ran.into()),
            (Ok(now), Some(before)) => match now.since(before) {
                None => ProcessHalf::Unchanged,
                Some(changed) => ProcessHalf::Image(format!("{ran}; {changed}")),
            },
        }
    }

    /// They hold what they held, and are at rest again, if that is known.
    pub(super) fn rests(&mut self, rested: Option<Set>) {
        self.rested = rested;
    }
}
