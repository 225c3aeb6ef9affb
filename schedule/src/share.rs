// SPDX-License-Identifier: Apache-2.0
//! How much of the captures' time each sandbox has had, against the others.
//!
//! Start-time fair queueing (Goyal, Vin, Cheng 1996): a sandbox's clock advances by what its captures
//! take, divided by its weight, and the host's clock follows the one that is least far of those that
//! ask. A sandbox whose clock is far ahead of the host's has had more than its share *while
//! others asked*, and comes after them. What was idle is not saved up.

use std::time::Duration;

use crate::time::micros;

/// The weight of a sandbox that counts once.
pub const WHOLE: u32 = 100;

/// How far a sandbox may be ahead: a few captures, so that shares do not overrule the
/// order among those that behave alike.
const AHEAD: u64 = 2_000_000;

/// A sandbox's own clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Share(u64);

/// The host's.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Virtual(u64);

impl Virtual {
    /// Whether a sandbox has had more than its share.
    pub(crate) fn is_over(self, share: Share) -> bool {
        share.0 > self.0.saturating_add(AHEAD)
    }

    /// A sandbox is granted a capture that is expected to take so long, while others ask of which
    /// this is the least far one.
    pub(crate) fn granted(
        &mut self,
        share: &mut Share,
        cost: Duration,
        weight: u32,
        others: Option<Share>,
    ) {
        let start = share.0.max(self.0);
        share.0 = start.saturating_add(by_weight(micros(cost), weight));
        let least = others.map_or(start, |other| start.min(other.0));
        self.0 = self.0.max(least);
    }
}

impl Share {
    /// It took so long instead.
    pub(crate) fn correct(&mut self, expected: Duration, took: Duration, weight: u32) {
        let (expected, took) = (micros(expected), micros(took));
        self.0 = self
            .0
            .saturating_sub(by_weight(expected, weight))
            .saturating_add(by_weight(took, weight));
    }
}

/// An amount per weight.
pub(crate) fn by_weight(amount: u64, weight: u32) -> u64 {
    amount.saturating_mul(u64::from(WHOLE)) / u64::from(weight.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_had_more_while_others_asked_is_over_its_share() {
        let (mut host, mut greedy, modest) = (Virtual::default(), Share(0), Share(0));
        for _ in 0..3 {
            let second = Duration::from_secs(1);
            host.granted(&mut greedy, second, WHOLE, Some(modest));
        }
        assert!(host.is_over(greedy));
        assert!(!host.is_over(modest));
    }

    #[test]
    fn who_was_alone_owes_nobody() {
        let (mut host, mut alone) = (Virtual::default(), Share(0));
        let second = Duration::from_secs(1);
        (0..100).for_each(|_| host.granted(&mut alone, second, WHOLE, None));
        assert!(!host.is_over(alone));
    }

    #[test]
    fn twice_the_weight_makes_a_capture_count_half() {
        assert_eq!(by_weight(100, 2 * WHOLE), 50);
        assert_eq!(by_weight(100, 0), 10_000, "no weight is the least one");
    }
}
