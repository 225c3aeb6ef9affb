// SPDX-License-Identifier: Apache-2.0

//! Which checkpoints nobody wants to keep. Pure.
//!
//! A checkpoint is complete in itself: the halves that it shares with another one are objects
//! that stay for as long as any checkpoint refers to them. So one can go without regard to
//! those before and after it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::id::TurnId;

/// How much of a sandbox's history is kept. What is not said is not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// So many checkpoints, those not counted that must stay anyway.
    pub count: Option<u64>,
    /// Those that are at most so old, in milliseconds.
    pub age_ms: Option<u64>,
    /// The newest that need no more than so many bytes of disk together.
    pub bytes: Option<u64>,
}

impl Limits {
    /// Whether everything is kept.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// The stricter of two, one by one.
    pub fn stricter(self, other: Self) -> Self {
        let least = |a: Option<u64>, b| a.into_iter().chain(b).min();
        Self {
            count: least(self.count, other.count),
            age_ms: least(self.age_ms, other.age_ms),
            bytes: least(self.bytes, other.bytes),
        }
    }
}

/// What is known of a checkpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) turn: TurnId,
    pub(crate) created_ms: u64,
}

/// Why each checkpoint goes that `limits` do not keep, by number and by age. `stay` names
/// those that must not go.
pub(crate) fn unwanted(
    candidates: &[Candidate],
    stay: &BTreeSet<TurnId>,
    limits: &Limits,
    now_ms: u64,
) -> BTreeMap<TurnId, String> {
    let mut unwanted = BTreeMap::new();
    let mut free: Vec<&Candidate> = candidates
        .iter()
        .filter(|candidate| !stay.contains(&candidate.turn))
        .collect();
    free.sort_by_key(|candidate| std::cmp::Reverse(candidate.turn));
    if let Some(count) = limits.count {
        let kept = usize::try_from(count).unwrap_or(usize::MAX);
        for candidate in free.iter().skip(kept) {
            let why = match count {
                0 => "only what must stay is kept".to_owned(),
                1 => "one newer is kept".to_owned(),
                count => format!("{count} newer ones are kept"),
            };
            unwanted.insert(candidate.turn, why);
        }
    }
    if let Some(age_ms) = limits.age_ms {
        for candidate in &free {
            // A clock that was set back makes nothing old.
            if now_ms.saturating_sub(candidate.created_ms) > age_ms {
                unwanted
                    .entry(candidate.turn)
                    .or_insert_with(|| format!("older than {}", period(age_ms)));
            }
        }
    }
    unwanted
}

/// `90 s`, `12 h`, `30 days`.
fn period(ms: u64) -> String {
    match ms / 1000 {
        s @ 0..120 => format!("{s} s"),
        s @ 120..7_200 => format!("{} min", s / 60),
        s @ 7_200..172_800 => format!("{} h", s / 3_600),
        s => format!("{} days", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_limits_the_stricter_holds() {
        let limits = |count, bytes| Limits {
            count,
            age_ms: None,
            bytes,
        };
        let own = limits(Some(9), None);
        let host = limits(Some(5), Some(100));
        assert_eq!(own.stricter(host), host);
        assert_eq!(
            limits(Some(2), None).stricter(host),
            limits(Some(2), Some(100))
        );
        assert!(Limits::default().stricter(Limits::default()).is_none());
    }

    fn gone(limits: Limits, stay: &[u64], now_ms: u64) -> Vec<u64> {
        let candidates: Vec<Candidate> = (0..6)
            .map(|turn| Candidate {
                turn: TurnId(turn),
                created_ms: turn * 1000,
            })
            .collect();
        let stay = stay.iter().copied().map(TurnId).collect();
        unwanted(&candidates, &stay, &limits, now_ms)
            .keys()
            .map(|turn| turn.0)
            .collect()
    }

    #[test]
    fn without_a_limit_everything_stays() {
        assert_eq!(gone(Limits::default(), &[], u64::MAX), [0; 0]);
    }

    #[test]
    fn the_newest_stay_and_what_must_stay_is_not_counted() {
        let limits = Limits {
            count: Some(2),
            ..Limits::default()
        };
        assert_eq!(gone(limits, &[], 0), [0, 1, 2, 3]);
        assert_eq!(gone(limits, &[5, 1], 0), [0, 2]);
        let none = Limits {
            count: Some(0),
            ..limits
        };
        assert_eq!(gone(none, &[5], 0), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn what_is_too_old_goes_unless_the_clock_was_set_back() {
        let limits = Limits {
            age_ms: Some(2_000),
            ..Limits::default()
        };
        assert_eq!(gone(limits, &[0], 5_000), [1, 2]);
        assert_eq!(gone(limits, &[], 10), [0; 0]);
    }
}
