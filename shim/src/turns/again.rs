// SPDX-License-Identifier: Apache-2.0
//! What came to nothing is tried again, though nothing else happens.
//!
//! ```text
//! no checkpoint of a turn, or no image in it --2 s--> try --fails--> 4 s, 8 s, ... 60 s, ... 30 min
//!                                              |        \--> a turn of its own, `retry`
//!                                              +-- another turn begins: its end is looked at anyway
//! ```
//! The next turn makes up for one without a checkpoint. But that may be hours away, or never come,
//! and what failed is often right a moment later: there is room again, or a processor. The record of
//! the turn that failed stays as it is, and what a try captures is on record with a number of its
//! own. A try in vain is not written down, which a full disk would not bear.
//!
//! A disk that was full is left alone until it has more room: a try in vain would fill it once more.
//! A sandbox for which nothing is owed is not looked at. A failed process image is tried for a few
//! times only ([`crate::capture`]): each time the sandbox stands still.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use crab_store::{Trigger, TurnId, WriteError};

use super::{
    record::Way,
    task::{History, Open, Task},
};
use crate::{directories::free_bytes, phase::Phase};

/// The pause before the first try; the longest one, and that between tries of what has failed often.
const FIRST: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(60);
const LONGEST: Duration = Duration::from_secs(1800);
/// How often that is.
const OFTEN: u32 = 10;
/// In times that the last try took: the least pause.
const SHARE: u32 = 20;

/// The next try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Again {
    pub(super) at: Instant,
    pause: Duration,
    /// How often it has failed.
    tries: u32,
    /// What it takes, if the last one failed for want of room.
    room: Option<Room>,
}

/// The room that was lacking in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Room {
    /// Bytes that surely suffice.
    needed: u64,
    /// How many were free when that was not enough.
    free: u64,
}

/// How much more room makes another try worth it, in bytes.
const MORE: u64 = 1 << 20;

impl Room {
    /// So much has not been enough, whatever is said to be needed.
    fn lacking(needed: u64, free: u64) -> Self {
        let needed = match free >= needed {
            true => free.saturating_add(MORE),
            false => needed,
        };
        Self { needed, free }
    }

    /// Whether it may be enough now that so much is free.
    fn may_do(self, free: u64) -> bool {
        free >= self.needed || free >= self.free.saturating_add(MORE)
    }
}

/// How many bytes are free there; if that is not known, it has to be tried.
fn free(store: &Path) -> u64 {
    free_bytes(store).unwrap_or(u64::MAX)
}

impl Again {
    /// After one `before`, if there was one.
    fn after(before: Option<Self>, now: Instant) -> Self {
        let tries = before.map_or(0, |before| before.tries) + 1;
        let longest = if tries > OFTEN { LONGEST } else { LONG };
        let pause = before.map_or(FIRST, |before| (before.pause * 2).min(longest));
        Self {
            at: now + pause,
            pause,
            tries,
            room: None,
        }
    }

    /// There has been no try, for want of room.
    fn put_off(&mut self, now: Instant) {
        self.pause = (self.pause * 2).min(LONG);
        self.at = now + self.pause;
    }
}

impl Task {
    /// Something is owed from now on, or still.
    pub(super) fn owe(&mut self) {
        self.again = Some(Again::after(self.again, Instant::now()));
    }

    /// It is owed for want of room in the store, where so many bytes surely suffice.
    pub(super) fn owe_until_room(&mut self, needed: u64) {
        let free = free(&self.container.config.store);
        if let Some(again) = &mut self.again {
            again.room = Some(Room::lacking(needed, free));
        }
    }

    /// What failed took so long, for which the sandbox may have stood still.
    pub(super) fn owe_after(&mut self, took: Duration) {
        if let Some(again) = &mut self.again {
            again.at = again.at.max(Instant::now() + took * SHARE);
        }
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
        let room = self.again.and_then(|again| again.room);
        if room.is_some_and(|room| !room.may_do(free(&self.container.config.store))) {
            if let Some(again) = &mut self.again {
                again.put_off(Instant::now());
            }
            return;
        }
        // A capture that panicked is not there any more.
        if history.capture.is_none() && self.early.is_none() {
            self.again = None;
            return;
        }
        let open = Open::new(history.next, Trigger::Retry, String::new(), Duration::ZERO);
        let start = Instant::now();
        // What failed is told already.
        if self.boundary(open, Way::Again).await.is_err() {
            self.owe_after(start.elapsed());
        }
        if let Some(inside) = &mut self.inside {
            inside.was_stopped();
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
    fn a_full_disk_is_tried_when_it_has_more_room() {
        let room = Room {
            needed: 30 * MORE,
            free: 9 * MORE,
        };
        assert!(!room.may_do(0) && !room.may_do(9 * MORE));
        assert!(room.may_do(10 * MORE), "it may be compressed");
        let nearly = Room {
            needed: 9 * MORE,
            ..room
        };
        assert!(nearly.may_do(9 * MORE), "others have made room meanwhile");
        // More is written than what was staged.
        assert!(!Room::lacking(9 * MORE, 9 * MORE).may_do(9 * MORE));
        assert!(Room::lacking(9 * MORE, 9 * MORE).may_do(10 * MORE));
        assert!(room.may_do(free(Path::new("/no/such/store"))));
    }

    #[test]
    fn pauses_double_up_to_a_minute_and_after_many_tries_to_half_an_hour() {
        let now = Instant::now();
        let mut again = None;
        let mut pauses = Vec::new();
        for _ in 0..16 {
            let next = Again::after(again, now);
            assert_eq!(next.at, now + next.pause);
            pauses.push(next.pause.as_secs());
            again = Some(next);
        }
        assert_eq!(pauses[..7], [2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(pauses[8..], [60, 60, 120, 240, 480, 960, 1800, 1800]);
    }
}
