// SPDX-License-Identifier: Apache-2.0
//! What all captures of a host may use together.

use std::time::Duration;

use crate::time::{Time, micros};

/// The limits of one host. None of them is ever exceeded by a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budgets {
    /// Process dumps at a time.
    pub dumps: usize,
    /// Publications at a time: each keeps a processor busy.
    pub publishers: usize,
    /// Bytes that publications may write in a second; nothing is no limit.
    pub disk_bytes_per_s: Option<u64>,
    /// Bytes that may lie in memory between capture and publication; nothing is no limit.
    pub staging_bytes: Option<u64>,
}

/// Bytes that come at a steady rate, and may be saved up for one second.
///
/// What is larger than that goes when the bucket is full, and leaves it in debt: in any time `t`, at
/// most `rate · (t + 1 s)` bytes begin to be written, beside the excess of one of those.
#[derive(Debug, Clone)]
pub struct TokenBucket {
    rate: u64,
    tokens: i128,
    at: Time,
}

/// Tokens per byte, so that no rate loses a fraction of one to rounding.
const PER_BYTE: i128 = 1_000_000;

impl TokenBucket {
    /// A full one. A rate of nothing would hold up everything for ever, and counts as 1.
    pub fn new(bytes_per_s: u64, now: Time) -> Self {
        let rate = bytes_per_s.max(1);
        Self {
            rate,
            tokens: i128::from(rate) * PER_BYTE,
            at: now,
        }
    }

    fn refill(&mut self, now: Time) {
        let gained = i128::from(self.rate) * i128::from(micros(now.since(self.at)));
        self.tokens = (self.tokens + gained).min(i128::from(self.rate) * PER_BYTE);
        self.at = self.at.max(now);
    }

    /// Takes so many bytes if they are there.
    pub fn take(&mut self, bytes: u64, now: Time) -> bool {
        self.refill(now);
        let there = self.tokens >= i128::from(bytes.min(self.rate)) * PER_BYTE;
        if there {
            self.tokens -= i128::from(bytes) * PER_BYTE;
        }
        there
    }

    /// How long after `now` so many bytes are there.
    pub fn when(&self, bytes: u64, now: Time) -> Duration {
        let mut then = self.clone();
        then.refill(now);
        let missing = i128::from(bytes.min(self.rate)) * PER_BYTE - then.tokens;
        let rate = i128::from(self.rate);
        let left = (missing.max(0) + rate - 1) / rate;
        Duration::from_micros(u64::try_from(left).unwrap_or(u64::MAX))
    }
}

/// Memory that is spoken for.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    limit: Option<u64>,
    reserved: u64,
}

impl Staging {
    pub(crate) fn new(limit: Option<u64>) -> Self {
        Self { limit, reserved: 0 }
    }

    /// What a capture of so many bytes counts for: one that is larger than everything goes by
    /// itself (and its shim stages it on the disk).
    pub(crate) fn counted(&self, bytes: u64) -> u64 {
        self.limit.map_or(bytes, |limit| bytes.min(limit))
    }

    /// Whether there is room.
    pub(crate) fn fits(&self, bytes: u64) -> bool {
        let wanted = self.reserved.saturating_add(self.counted(bytes));
        self.limit.is_none_or(|limit| wanted <= limit)
    }

    /// What is taken is there, whether it fits or not: nobody asked before.
    pub(crate) fn reserve(&mut self, bytes: u64) -> u64 {
        let counted = self.counted(bytes);
        self.reserved = self.reserved.saturating_add(counted);
        counted
    }

    pub(crate) fn release(&mut self, counted: u64) {
        self.reserved = self.reserved.saturating_sub(counted);
    }

    pub(crate) fn reserved(&self) -> u64 {
        self.reserved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_at_their_rate_and_are_saved_up_for_a_second() {
        let mut bucket = TokenBucket::new(1000, Time(0));
        assert!(bucket.take(600, Time(0)));
        assert!(!bucket.take(600, Time(0)));
        assert_eq!(bucket.when(600, Time(0)), Duration::from_millis(200));
        assert!(!bucket.take(600, Time(199_999)));
        assert!(bucket.take(600, Time(200_000)));
        assert!(bucket.take(1000, Time(9_000_000)), "no more than is saved");
        assert!(!bucket.take(1, Time(9_000_000)));
    }

    #[test]
    fn what_is_larger_than_the_bucket_is_paid_for_afterwards() {
        let mut bucket = TokenBucket::new(1000, Time(0));
        assert!(bucket.take(5000, Time(0)));
        assert_eq!(bucket.when(1, Time(0)), Duration::from_millis(4001));
        assert!(!bucket.take(1, Time(4_000_000)));
        assert!(bucket.take(1, Time(4_001_000)));
    }

    #[test]
    fn a_capture_that_is_larger_than_all_memory_goes_by_itself() {
        let mut staging = Staging::new(Some(100));
        assert!(staging.fits(1000));
        let counted = staging.reserve(1000);
        assert!(!staging.fits(1));
        staging.release(counted);
        assert_eq!(staging.reserved(), 0);
    }
}
