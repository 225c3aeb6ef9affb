// SPDX-License-Identifier: Apache-2.0
//! Which inodes changed: reading the log of a superblock, as `c/changes.h` declares it.
//!
//! ```text
//!  made | begun | ended | inode, inode, ... (a ring)
//!                          ^since      ^begun: the next mark
//! ```
//! Says too much rather than too little: what cannot be told is told to be unknown.

use std::collections::HashMap;
use std::thread;

use aya::maps::{HashMap as Map, MapData, MapError};

use crate::ids::Device;

/// `CRAB_LOGGED`
const LOGGED: usize = 2048;
const MADE: usize = 0;
const BEGUN: usize = 1;
const ENDED: usize = 2;
const INODES: usize = 3;

/// `CRAB_NAMELESS`
const NAMELESS: u64 = 1 << 63;

/// `struct crab_changes`
pub(crate) type Words = [u64; INODES + LOGGED];

const _: () = assert!(size_of::<Words>() == 16408);

/// How often it is tried to read a log in which nobody writes at that moment.
const TRIES: usize = 8;

/// What changed since an earlier question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// To ask with the next time: whatever changes after this answer is in that one.
    /// Empty where there is nothing to ask with.
    pub mark: String,
    /// The inodes of the upper directory, each once; nothing if they cannot be told.
    pub inodes: Option<Vec<Changed>>,
}

/// An inode of the upper directory that changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Changed {
    /// Its number.
    pub inode: u64,
    /// With its newest change no name led to it any more. The number may be another's by now,
    /// which is told by a later change then.
    pub nameless: bool,
}

/// A log, read while nobody wrote.
pub(crate) struct Log(Box<Words>);

impl Log {
    /// Of a superblock; makes it where there is none yet, `now`. Nothing if it is written
    /// to all the time.
    pub(crate) fn read(
        map: &mut Map<MapData, u64, Words>,
        device: Device,
        now: u64,
    ) -> Result<Option<Self>, MapError> {
        match map.get(&device.0, 0) {
            Err(MapError::KeyNotFound) => {
                let mut words = [0; INODES + LOGGED];
                words[MADE] = now;
                map.insert(device.0, words, 0)?;
            }
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        for _ in 0..TRIES {
            // What was ended before had begun, and nothing has begun since: the entries in
            // between are whole.
            let ended = map.get(&device.0, 0)?[ENDED];
            let words = Box::new(map.get(&device.0, 0)?);
            let begun = map.get(&device.0, 0)?[BEGUN];
            if ended == begun {
                return Ok((words[BEGUN] == begun).then_some(Self(words)));
            }
            thread::yield_now();
        }
        Ok(None)
    }

    /// What was logged in `period`, in which `lost` events were lost so far, since a mark.
    pub(crate) fn since(&self, mark: &str, period: &str, lost: u64) -> Changes {
        let [made, begun] = [self.0[MADE], self.0[BEGUN]];
        let of_this_log = |at: u64| format!("{at:x} of {made:x} but {lost:x} in {period}");
        let at = mark.split(' ').next();
        let at = at.and_then(|at| u64::from_str_radix(at, 16).ok());
        let at = at.filter(|&at| mark == of_this_log(at));
        Changes {
            mark: of_this_log(begun),
            inodes: at.and_then(|at| self.entries(at)),
        }
    }

    fn entries(&self, since: u64) -> Option<Vec<Changed>> {
        let begun = self.0[BEGUN];
        let count = begun.checked_sub(since)?;
        if count > LOGGED as u64 {
            return None;
        }
        let mut newest = HashMap::new();
        for at in since..begun {
            let entry = self.0[INODES + (at % LOGGED as u64) as usize];
            if entry == 0 {
                return None;
            }
            newest.insert(entry & !NAMELESS, entry & NAMELESS != 0);
        }
        let mut inodes: Vec<_> = newest
            .into_iter()
            .map(|(inode, nameless)| Changed { inode, nameless })
            .collect();
        inodes.sort_unstable();
        Some(inodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(entries: &[u64]) -> Log {
        let mut words = Box::new([0; INODES + LOGGED]);
        words[MADE] = 7;
        for (at, entry) in entries.iter().enumerate() {
            words[INODES + at % LOGGED] = *entry;
        }
        words[BEGUN] = entries.len() as u64;
        words[ENDED] = entries.len() as u64;
        Log(words)
    }

    fn changed(inode: u64, nameless: bool) -> Changed {
        Changed { inode, nameless }
    }

    #[test]
    fn what_is_told_is_what_came_after_the_mark() {
        let mark = log(&[1, 2]).since("", "p", 0).mark;
        let now = log(&[1, 2, 3, 2, 3]);
        let told = now.since(&mark, "p", 0);
        assert_eq!(
            told.inodes,
            Some(vec![changed(2, false), changed(3, false)])
        );
        assert_eq!(now.since(&told.mark, "p", 0).inodes, Some(Vec::new()));
    }

    #[test]
    fn a_mark_of_anything_else_tells_nothing() {
        let now = log(&[1, 2]);
        let mark = now.since("", "p", 0).mark;
        assert_eq!(now.since("", "p", 0).inodes, None);
        assert_eq!(now.since(&mark, "another period", 0).inodes, None);
        assert_eq!(now.since(&mark, "p", 1).inodes, None, "one was lost");
        assert_eq!(log(&[1]).since(&mark, "p", 0).inodes, None, "of the future");
        let mut other = log(&[1, 2]);
        other.0[MADE] = 8;
        assert_eq!(other.since(&mark, "p", 0).inodes, None, "another log");
    }

    #[test]
    fn one_that_cannot_be_told_makes_all_unknown() {
        let mark = log(&[1]).since("", "p", 0).mark;
        assert_eq!(log(&[1, 0, 2]).since(&mark, "p", 0).inodes, None);
        let mark = log(&[1, 0]).since("", "p", 0).mark;
        assert!(log(&[1, 0, 2]).since(&mark, "p", 0).inodes.is_some());
    }

    #[test]
    fn who_comes_too_late_is_told_nothing() {
        let first = log(&[9]).since("", "p", 0).mark;
        let mut entries = vec![9];
        entries.extend((0..LOGGED).map(|_| 5));
        let told = log(&entries).since(&first, "p", 0).inodes;
        assert_eq!(told, Some(vec![changed(5, false)]));
        entries.push(5);
        assert_eq!(log(&entries).since(&first, "p", 0).inodes, None);
    }

    #[test]
    fn the_newest_change_tells_whether_a_name_leads_to_it() {
        let mark = log(&[]).since("", "p", 0).mark;
        let told = log(&[4, 4 | NAMELESS, 5 | NAMELESS, 5]).since(&mark, "p", 0);
        assert_eq!(told.inodes, Some(vec![changed(4, true), changed(5, false)]));
    }
}
