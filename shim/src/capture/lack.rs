// SPDX-License-Identifier: Apache-2.0
//! That the newest checkpoint lacks the image of its processes, and when it is tried for again.
//!
//! ```text
//! capture --needs an image, has none--> lacking --look: due?--> image needed
//!                                         |  ^                    | fails again
//!                                         |  +--------------------+
//!                                         +--image, or no process is left--> nothing is lacking
//! ```
//! Processes that do not change call for no image, and would be without one for as long as they
//! live. What was in the way may be gone (a CRIU is installed), and what failed may work now (a
//! full directory has room). Each try of the second kind holds the sandbox still: some follow at the
//! next looks, and then one now and then. Who asks for a checkpoint asks for a try, too.

use std::time::{Duration, Instant};

use super::Capture;

/// How many tries in vain it takes until there is a pause between them, if they are short.
const IN_A_ROW: u32 = 3;
/// How long a short one may hold the sandbox still.
const SHORT: Duration = Duration::from_secs(2);
/// That pause, at least, and in times that the last try took.
const PAUSE: Duration = Duration::from_secs(60);
const SHARE: u32 = 20;

/// Why there is no image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// Something was in the way, which is known without a freeze.
    Obstacle,
    /// It was tried, and failed.
    Failure,
}

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Lack {
    cause: Cause,
    /// How often it was tried in vain, and when last.
    tries: u32,
    newest: Instant,
    /// How long that took.
    took: Duration,
}

impl Lack {
    /// Once more in vain until `now`, after what was known `before`.
    pub(super) fn after(before: Option<Self>, cause: Cause, now: Instant, took: Duration) -> Self {
        Self {
            cause,
            tries: before.map_or(0, |before| before.tries).saturating_add(1),
            newest: now,
            took,
        }
    }

    /// The newest try has failed, and not for something that was in the way.
    pub(super) fn is_failure(&self) -> bool {
        self.cause == Cause::Failure
    }

    /// Whether it is to be tried, for somebody who `asked` or at any look.
    fn is_due(&self, asked: bool, now: Instant) -> bool {
        let pause = (self.took * SHARE).max(PAUSE);
        asked || self.may_follow() || now.saturating_duration_since(self.newest) >= pause
    }

    /// Whether another try may follow at once.
    fn may_follow(&self) -> bool {
        self.tries < IN_A_ROW && self.took <= SHORT
    }
}

impl Capture {
    /// An image failed, and may well be had in a moment.
    pub(crate) fn lacks_image_for_now(&self) -> bool {
        let lack = self.known.lack.as_ref();
        lack.is_some_and(|lack| lack.is_failure() && lack.may_follow())
    }

    /// Why an image is needed although nothing has changed, if one is lacking that may be had now.
    pub(super) fn owed_image(&mut self, asked: bool) -> Option<String> {
        let lack = self.known.lack.clone()?;
        if !lack.is_due(asked, Instant::now()) {
            return None;
        }
        match lack.cause {
            Cause::Failure => Some("their image failed before".into()),
            Cause::Obstacle if self.can_dump().is_ok() => {
                Some("nothing is in the way of their image any more".into())
            }
            Cause::Obstacle => {
                let now = Instant::now();
                let again = Lack::after(Some(lack), Cause::Obstacle, now, Duration::ZERO);
                self.known.lack = Some(again);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_vain(times: u32, at: Instant, took: Duration) -> Lack {
        let again = |lack, _| Some(Lack::after(lack, Cause::Failure, at, took));
        (0..times).fold(None, again).unwrap()
    }

    #[test]
    fn a_failed_image_is_tried_for_at_once_and_then_ever_so_often() {
        let now = Instant::now();
        for times in 1..IN_A_ROW {
            assert!(in_vain(times, now, SHORT).is_due(false, now), "{times}");
        }
        let often = in_vain(IN_A_ROW, now, SHORT);
        assert!(!often.is_due(false, now));
        assert!(!often.is_due(false, now + PAUSE / 2));
        assert!(often.is_due(false, now + PAUSE));
        assert!(often.is_due(true, now), "somebody asks");
    }

    #[test]
    fn one_that_takes_long_to_fail_is_seldom_tried() {
        let (now, took) = (Instant::now(), Duration::from_secs(120));
        let once = in_vain(1, now, took);
        assert!(!once.may_follow() && !once.is_due(false, now + PAUSE));
        assert!(once.is_due(false, now + took * SHARE));
        assert!(once.is_due(true, now), "somebody asks");
    }
}
