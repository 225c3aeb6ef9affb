// SPDX-License-Identifier: Apache-2.0
//! What came to nothing is tried again, though nothing else happens.
//!
//! ```text
//! no checkpoint of a turn, or no image in it --2 s--> try --fails--> 4 s, 8 s, ... 60 s
//!                                              |        \--> a turn of its own, `retry`
//!                                              +-- another turn begins: its end is looked at anyway
//! ```
//! The next turn makes up for one without a checkpoint. But that may be hours away, or never come,
//! and what failed is often right a moment later: there is room again, or a processor. The record of
//! the turn that failed stays as it is, and what a try captures is on record with a number of its
//! own. A try in vain is not written down, which a full disk would not bear.
//!
//! A sandbox for which nothing is owed is not looked at. A failed process image is tried for a few
//! times only ([`crate::capture`]): each time the sandbox stands still.

use std::time::{Duration, Instant};

use crab_store::{Trigger, TurnId, WriteError};

use super::{
    record::Way,
    task::{History, Open, Task},
};
use crate::phase::Phase;

/// The pause before the first try, and the longest one.
const FIRST: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(60);

/// The next try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Again {
    pub(super) at: Instant,
    pause: Duration,
}

impl Again {
    /// After one `before`, if there was one.
    fn after(before: Option<Self>, now: Instant) -> Self {
        let pause = before.map_or(FIRST, |before| (before.pause * 2).min(LONGEST));
        Self {
            at: now + pause,
            pause,
        }
    }
}

impl Task {
    /// Something is owed from now on, or still.
    pub(super) fn owe(&mut self) {
        self.again = Some(Again::after(self.again, Instant::now()));
    }

    /// The newest state is a checkpoint; if that lacks an image which may be had soon, it is owed.
    pub(super) fn settle_owed(&mut self) {
        let lacks = match &self.history {
            Ok(History {
                capture: Some(capture),
                ..
            }) => capture.lacks_image_for_now(),
            _ => false,
        };
        if lacks {
            self.owe();
        } else {
            self.again = None;
        }
    }

    /// When it is tried again; nothing as long as a turn is under way.
    pub(super) fn owed_at(&self) -> Option<Instant> {
        let is_open = self.open.is_some() || self.closing.is_some();
        let is_pending = matches!(&self.history, Ok(history) if history.pending.is_some());
        let again = self.again.filter(|_| !is_open && !is_pending)?;
        Some(again.at)
    }

    /// Tries again.
    pub(super) async fn try_again(&mut self) {
        let phase = self.container.processes.init();
        if matches!(phase, Err(_) | Ok(Phase::Stopped(..))) {
            self.again = None;
            return;
        }
        // Neither what has not begun, nor what its client holds still.
        if !matches!(phase, Ok(Phase::Running(_))) || self.beginning.is_some() {
            self.owe();
            return;
        }
        let Ok(history) = &self.history else {
            if let Err(error) = self.open_again().await {
                tracing::info!(error = %format!("{error:#}"), "no history yet");
            }
            return;
        };
        // A capture that panicked is not there any more.
        if history.capture.is_none() && self.early.is_none() {
            self.again = None;
            return;
        }
        let open = Open::new(history.next, Trigger::Retry, String::new(), Duration::ZERO);
        // What failed is told already.
        if let Ok(done) = self.boundary(open, Way::Again).await {
            let turn = done.turn.0;
            self.tell(|status| status.turn = status.turn.max(turn));
        }
    }

    /// A try was in vain: as if it had not been, but for the next one.
    pub(super) fn tried_in_vain(&mut self, turn: TurnId, error: &anyhow::Error) {
        tracing::info!(error = %format!("{error:#}"), "tried again in vain");
        if let Ok(history) = &mut self.history
            // Nobody else has the number, neither in the store nor since.
            && !matches!(error.downcast_ref(), Some(WriteError::TurnExists(_)))
            && history.next == turn.next()
        {
            history.next = turn;
        }
        self.owe();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_minute() {
        let now = Instant::now();
        let mut again = None;
        let mut pauses = Vec::new();
        for _ in 0..7 {
            let next = Again::after(again, now);
            assert_eq!(next.at, now + next.pause);
            pauses.push(next.pause.as_secs());
            again = Some(next);
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 60, 60]);
    }
}
