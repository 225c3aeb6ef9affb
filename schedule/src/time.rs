// SPDX-License-Identifier: Apache-2.0
//! A point on the clock of whoever feeds the scheduler.

use std::{
    ops::{Add, Sub},
    time::Duration,
};

/// Since an instant of the caller's choice, in whole microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub u64);

impl Time {
    /// For how long it has been since `earlier`; zero if that is yet to come.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, after: Duration) -> Self {
        Self(self.0.saturating_add(micros(after)))
    }
}

impl Sub<Duration> for Time {
    type Output = Self;

    fn sub(self, before: Duration) -> Self {
        Self(self.0.saturating_sub(micros(before)))
    }
}

pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
