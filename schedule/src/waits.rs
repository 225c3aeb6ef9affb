// SPDX-License-Identifier: Apache-2.0
//! How long a sandbox's agent has waited for its model so far, and what that foretells.

use std::{collections::VecDeque, time::Duration};

/// How many of the newest waits are remembered: an agent changes its pace with its task.
const KEPT: usize = 32;
/// The part of like waits that may end sooner than foretold, in percent. Small, because to
/// be late holds an agent up, and to be early only changes the order.
const SOONER: usize = 10;
/// What is foretold where nothing is known: the median over the recorded runs.
const USUAL: Duration = Duration::from_millis(3000);

/// A sandbox's newest waits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Waits(VecDeque<Duration>);

impl Waits {
    /// Takes note of one that has ended.
    pub fn note(&mut self, wait: Duration) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(wait);
    }

    /// From the oldest on.
    pub fn iter(&self) -> impl Iterator<Item = Duration> {
        self.0.iter().copied()
    }

    /// How much longer a wait goes on that has lasted for so long: a low quantile of what was
    /// left to those that had lasted as long.
    pub fn left(&self, lasted: Duration) -> Duration {
        if self.0.is_empty() {
            return match USUAL.checked_sub(lasted) {
                Some(left) if !left.is_zero() => left,
                _ => lasted / 2,
            };
        }
        let mut longer: Vec<Duration> = self.iter().filter(|wait| *wait > lasted).collect();
        if longer.is_empty() {
            // Longer than any before: what has lasted long lasts on.
            return lasted / 2;
        }
        longer.sort_unstable();
        longer[(longer.len() - 1) * SOONER / 100] - lasted
    }
}

impl FromIterator<Duration> for Waits {
    fn from_iter<I: IntoIterator<Item = Duration>>(waits: I) -> Self {
        let mut all = Self::default();
        waits.into_iter().for_each(|wait| all.note(wait));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn a_wait_is_foretold_by_those_that_had_lasted_as_long() {
        let waits = [2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 30];
        let waits: Waits = waits.map(S).into_iter().collect();
        assert_eq!(waits.left(S(0)), S(3), "one in ten is shorter");
        assert_eq!(waits.left(S(1)), S(2));
        assert_eq!(waits.left(S(4)), S(26));
        assert_eq!(waits.left(S(40)), S(20), "longer than any");
    }

    #[test]
    fn an_unknown_agent_is_taken_for_a_usual_one() {
        let none = Waits::default();
        assert_eq!(none.left(S(0)), USUAL);
        assert_eq!(none.left(S(1)), USUAL - S(1));
        assert_eq!(none.left(S(8)), S(4));
    }

    #[test]
    fn only_the_newest_waits_count() {
        let waits: Waits = (0..100).map(|n| S(if n < 68 { 1 } else { 9 })).collect();
        assert_eq!(waits.iter().count(), KEPT);
        assert_eq!(waits.left(S(0)), S(9));
    }
}
