// SPDX-License-Identifier: Apache-2.0
//! Where threads are blocked (`/proc/<pid>/syscall`), and whether they are back there.

use std::{collections::BTreeMap, iter};

use serde::{Deserialize, Serialize};

/// What `/proc/<pid>/syscall` begins with for a thread that is blocked, but in no call.
pub(super) const NO_CALL: &str = "-1";
/// And for one that is not blocked.
const RUNNING: &str = "running";
/// And for one whose call was interrupted and goes on: `restart_syscall`, on x86-64.
const RESTART: &str = "219";

/// Where each thread was blocked. Sorted, without ids: those change over a
/// restore.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Places(Vec<String>);

impl FromIterator<String> for Places {
    fn from_iter<T: IntoIterator<Item = String>>(places: T) -> Self {
        let mut places: Vec<String> = places.into_iter().collect();
        places.sort_unstable();
        Self(places)
    }
}

impl Places {
    /// Whether these are the ones of before: the same calls from the same frames. The
    /// arguments may be others: what was interrupted goes on as `restart_syscall`, or is
    /// called again with what is left of its time.
    pub(super) fn are(&self, before: &Self) -> bool {
        let mut left = Counts::default();
        before.0.iter().for_each(|place| left.put(Site::of(place)));
        let elsewhere = self.0.iter().map(|place| Site::of(place));
        let mut elsewhere: Vec<Site> = elsewhere.filter(|site| !left.take(site)).collect();
        // One that was interrupted before may have been called anew.
        elsewhere.retain(|site| {
            let restarted = Site {
                call: RESTART,
                frame: site.frame,
            };
            !left.take(&restarted)
        });
        let mut frames = Counts::default();
        left.into_iter().for_each(|site| frames.put(site.frame));
        self.0.len() == before.0.len()
            && elsewhere
                .iter()
                .all(|site| site.call == RESTART && frames.take(&site.frame))
    }

    /// Whether all are blocked in a call.
    pub(super) fn are_calls(&self) -> bool {
        let is_none = |place: &String| place == RUNNING || place.starts_with(NO_CALL);
        !self.0.iter().any(is_none)
    }
}

/// From where a thread has called what: of `number arguments... stack counter`
/// (proc_pid_syscall(5)).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Site<'a> {
    call: &'a str,
    /// Stack pointer and program counter.
    frame: (&'a str, &'a str),
}

impl<'a> Site<'a> {
    fn of(place: &'a str) -> Self {
        let mut words = place.split(' ');
        let call = words.next().unwrap_or_default();
        let counter = words.next_back().unwrap_or_default();
        let stack = words.next_back().unwrap_or_default();
        Self {
            call,
            frame: (stack, counter),
        }
    }
}

/// How often there is what.
struct Counts<T>(BTreeMap<T, usize>);

impl<T> Default for Counts<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Ord + Clone> Counts<T> {
    fn put(&mut self, what: T) {
        *self.0.entry(what).or_default() += 1;
    }

    /// One of it; false if there is none.
    fn take(&mut self, what: &T) -> bool {
        match self.0.get_mut(what) {
            Some(count @ 1..) => {
                *count -= 1;
                true
            }
            _ => false,
        }
    }

    fn into_iter(self) -> impl Iterator<Item = T> {
        let each = self.0.into_iter();
        each.flat_map(|(what, count)| iter::repeat_n(what, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_was_interrupted_and_goes_on_is_the_same() {
        let places = |all: &[&str]| Places::from_iter(all.iter().map(ToString::to_string));
        let before = places(&["230 0x0 0x1 0x7ffc 0x7f01", "0 0x3 0x2 0x7ffd 0x7f02"]);
        for same in [
            ["0 0x3 0x2 0x7ffd 0x7f02", "230 0x0 0x1 0x7ffc 0x7f01"],
            ["0 0x3 0x2 0x7ffd 0x7f02", "219 0x0 0x1 0x7ffc 0x7f01"],
            // With what is left of its time.
            ["230 0x0 0x0 0x7ffc 0x7f01", "0 0x3 0x2 0x7ffd 0x7f02"],
        ] {
            assert!(places(&same).are(&before), "{same:?}");
        }
        for other in [
            &["230 0x0 0x1 0x7ffc 0x7f01", RUNNING][..],
            &["230 0x0 0x1 0x7ffc 0x7f01"],
            &["0 0x3 0x2 0x7ffd 0x7f02", "0 0x3 0x2 0x7ffd 0x7f02"],
            &["219 0x3 0x2 0x7ffd 0x7f02", "219 0x3 0x2 0x7ffd 0x7f02"],
            &["230 0x0 0x1 0x7ff0 0x7f01", "0 0x3 0x2 0x7ffd 0x7f02"],
            // One instruction may make all the calls of a program.
            &["1 0x0 0x1 0x7ffc 0x7f01", "0 0x3 0x2 0x7ffd 0x7f02"],
        ] {
            assert!(!places(other).are(&before), "{other:?}");
        }
        let restarted = places(&["219 0x0 0x1 0x7ffc 0x7f01", "0 0x3 0x2 0x7ffd 0x7f02"]);
        assert!(before.are(&restarted) && restarted.are(&restarted));
        let elsewhere = places(&["230 0x0 0x1 0x7ff0 0x7f01", "0 0x3 0x2 0x7ffd 0x7f02"]);
        assert!(!elsewhere.are(&restarted));
        assert!(before.are_calls());
        assert!(!places(&["-1 0x7ffc 0x7f01"]).are_calls());
        assert!(!places(&[RUNNING]).are_calls());
    }
}
