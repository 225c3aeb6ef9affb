// SPDX-License-Identifier: Apache-2.0
//! When the parts of a look and of a capture took place.
//!
//! They are measured by a clock that never goes back, and told by the one on the wall: all of a turn's by
//! the same relation between the two, so that they lie to each other as they were.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crab_store::{Span, Spans};

use super::micros;

/// From when on, and for how long.
pub(crate) type Part = (Instant, Duration);

/// The parts up to the moment in which the sandbox is let go of.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Times {
    pub(crate) decide: Option<Part>,
    pub(crate) wait: Option<Part>,
    pub(crate) capture: Option<Part>,
    pub(crate) frozen: Option<Part>,
}

/// One clock by the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wall {
    now: Instant,
    then_us: u64,
}

impl Wall {
    pub(crate) fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            now: Instant::now(),
            then_us: micros(since.unwrap_or_default()),
        }
    }

    pub(crate) fn span(&self, (at, took): Part) -> Span {
        let ago = micros(self.now.saturating_duration_since(at));
        let ahead = micros(at.saturating_duration_since(self.now));
        Span {
            at_us: self.then_us.saturating_add(ahead).saturating_sub(ago),
            took_us: micros(took),
        }
    }
}

impl Times {
    /// By the clock on the wall.
    pub(crate) fn spans(&self) -> Spans {
        let wall = Wall::now();
        let span = |part: Option<Part>| part.map(|part| wall.span(part));
        Spans {
            decide: span(self.decide),
            wait: span(self.wait),
            capture: span(self.capture),
            frozen: span(self.frozen),
            ..Spans::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_to_each_other_as_they_were() {
        let now = Instant::now();
        let ms = Duration::from_millis;
        let times = Times {
            decide: Some((now - ms(30), ms(10))),
            capture: Some((now - ms(20), ms(15))),
            frozen: Some((now - ms(18), ms(4))),
            wait: None,
        };
        let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let spans = times.spans();
        let (decide, capture) = (spans.decide.unwrap(), spans.capture.unwrap());
        assert_eq!(decide.end_us(), capture.at_us);
        assert_eq!(spans.frozen.unwrap().at_us - capture.at_us, 2000);
        assert_eq!((capture.took_us, spans.wait), (15_000, None));
        let ago = micros(before).abs_diff(capture.at_us);
        assert!(ago < 60_000_000, "{ago} us off");
    }
}
