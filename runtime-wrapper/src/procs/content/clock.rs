// SPDX-License-Identifier: Apache-2.0
//! Which words are the time.
//!
//! Who waits keeps until when it does, or since when, beside its call: in a register or on
//! its stack, as nanoseconds of the monotonic clock. (Python's every wait with a limit
//! does.) It is another after each round of a loop that does nothing, and to a program
//! that is restored it only says what the clock itself says better.

use std::ops::RangeInclusive;

use rustix::time::{ClockId, clock_gettime};

/// How far from now an instant may be that is taken for the time, in nanoseconds.
const NEAR: u64 = 60_000_000_000;

/// The monotonic clock at an instant.
#[derive(Clone, Debug)]
pub(super) struct Clock(RangeInclusive<u64>);

impl Clock {
    pub(super) fn now() -> Self {
        let now = clock_gettime(ClockId::Monotonic);
        Self::at(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
    }

    fn at(now: u64) -> Self {
        // Of a host that has just begun, small numbers are no times.
        let near = NEAR.min(now / 16);
        Self(now - near..=now + near)
    }

    /// Puts zero in the place of every word that is the time.
    pub(super) fn wipe(&self, bytes: &mut [u8]) {
        for word in bytes.chunks_exact_mut(8) {
            let mut value = [0; 8];
            value.copy_from_slice(word);
            if self.0.contains(&u64::from_ne_bytes(value)) {
                word.fill(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wiped(clock: &Clock, words: [u64; 3]) -> [u64; 3] {
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        clock.wipe(&mut bytes);
        let mut words = bytes.chunks_exact(8);
        std::array::from_fn(|_| u64::from_ne_bytes(words.next().unwrap().try_into().unwrap()))
    }

    #[test]
    fn an_instant_near_now_is_the_time_and_a_counter_is_not() {
        let hour = 3600 * 1_000_000_000;
        let clock = Clock::at(hour);
        assert_eq!(wiped(&clock, [hour - 5, 41, hour + NEAR]), [0, 41, 0]);
        let far = [hour - 2 * NEAR, u64::MAX, hour * 2];
        assert_eq!(wiped(&clock, far), far);
    }

    #[test]
    fn on_a_host_that_has_just_begun_small_numbers_are_no_times() {
        let clock = Clock::at(1_000_000_000);
        assert_eq!(wiped(&clock, [0, 1, 1000]), [0, 1, 1000]);
    }
}
