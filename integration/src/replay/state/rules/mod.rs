// SPDX-License-Identifier: Apache-2.0

//! What two runs cannot have alike: the one list that the comparison goes by, and that the
//! documentation and a report show.
//!
//! A rule that hides a change is worse than a difference too many. So each is about one exact
//! form, a time is passed over only if it is one of the run itself, and beside each there is a
//! test that its neighbour still shows.

mod archives;
mod git;
mod moments;
mod ports;
mod python;
mod sums;
mod temporary;

use std::{borrow::Cow, sync::Arc, time::SystemTime};

pub(super) use self::sums::Sums;
use super::kept::nanoseconds;
use crate::replay::Rule;

/// Ports that the kernel gives to who asks for none (`ip_local_port_range`, as it is by default).
const CHOSEN: std::ops::RangeInclusive<u16> = 32_768..=60_999;
/// A clock is read a little before what it says is written, and rounded, in seconds.
const SLACK: i64 = 2;

/// What is a run's own: the time from when the witness was made until a file was last changed,
/// and sums of what it has written.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// Both in seconds since the epoch.
    from: i64,
    to: i64,
    pub(super) sums: Arc<Sums>,
}

/// What a rule looks into.
enum Applies {
    /// By construction: it is in no normal form.
    LeftOut,
    /// A file of one format. Nothing if it is of another one.
    Content(fn(&[u8], &Window) -> Option<Vec<u8>>),
    /// Text of any kind: that of files, names, command lines. Nothing if nothing is to be done.
    Text(fn(&[u8], &Window) -> Option<Vec<u8>>),
    /// The name of a file, by its whole path; also within text.
    Name(fn(&[u8]) -> Option<Vec<u8>>),
    /// A port of a socket that has a peer.
    Port,
    /// What descriptor 0 is.
    Stdin,
}

struct Entry {
    what: &'static str,
    why: &'static str,
    applies: Applies,
}

const TABLE: [Entry; 14] = [
    Entry {
        what: "times of files",
        why: "two runs are not at one time",
        applies: Applies::LeftOut,
    },
    Entry {
        what: "sizes, times and link counts of directories",
        why: "any temporary file moves them, and they depend on the layer that a directory is in",
        applies: Applies::LeftOut,
    },
    Entry {
        what: "process ids and start times",
        why: "the kernel counts on; a process is known by its place below the init and its command line",
        applies: Applies::LeftOut,
    },
    Entry {
        what: "inode numbers of files, pipes, sockets and namespaces",
        why: "the kernel and the file system choose them",
        applies: Applies::LeftOut,
    },
    Entry {
        what: "whether a stdin that the client did not ask for is `/dev/null` or a pipe that nobody inside writes to",
        why: "the stock shim gives the one, Crab the other, and both are at their end",
        applies: Applies::Stdin,
    },
    Entry {
        what: "ports that the kernel chose for a socket with a peer",
        why: "it takes any that is free; those that are listened at are compared",
        applies: Applies::Port,
    },
    Entry {
        what: "the same in text, as Python writes an address",
        why: "a server logs who asked it",
        applies: Applies::Text(ports::text),
    },
    Entry {
        what: "names that mktemp and Python's tempfile make, directly in /tmp or /var/tmp",
        why: "they are drawn by chance; what they name is compared",
        applies: Applies::Name(temporary::name),
    },
    Entry {
        what: "stat data in git's index, and its checksum",
        why: "git keeps each file's times and inode number there to see changes sooner; modes, names and objects are compared",
        applies: Applies::Content(git::index),
    },
    Entry {
        what: "the source's time in the head of Python's byte code",
        why: "Python keeps it there to see whether the source is newer; size and code are compared",
        applies: Applies::Content(python::byte_code),
    },
    Entry {
        what: "times in the heads of tar archives",
        why: "tar keeps each file's time; the rest of each head and all contents are compared",
        applies: Applies::Content(archives::tar),
    },
    Entry {
        what: "how gzip has packed, and the time in its head",
        why: "it depends on what is passed over within; what is packed is compared, by these rules",
        applies: Applies::Content(archives::gzip),
    },
    Entry {
        what: "dates with a time of day and Unix times, in text and in names, that lie within the run",
        why: "programs write down when they did something; any other time is compared",
        applies: Applies::Text(moments::text),
    },
    Entry {
        what: "SHA-256 sums in text, of files that these rules make another of",
        why: "the sum of a file with a time in it is another; it stands for what is compared of that file",
        applies: Applies::Text(sums::text),
    },
];

/// What is passed over between two runs, and why.
pub fn rules() -> Vec<Rule> {
    let rule = |entry: &Entry| Rule {
        what: entry.what.into(),
        why: entry.why.into(),
    };
    TABLE.iter().map(rule).collect()
}

impl Window {
    /// From a moment until now.
    pub(super) fn since(began: SystemTime, sums: Arc<Sums>) -> Self {
        let seconds = |time| (nanoseconds(time) / 1_000_000_000) as i64;
        Self {
            from: seconds(began) - SLACK,
            to: seconds(SystemTime::now()) + SLACK,
            sums,
        }
    }

    /// Until a file was changed, in nanoseconds since the epoch: what is in it is no younger.
    pub(super) fn until(&self, changed: i128) -> Self {
        Self {
            to: ((changed / 1_000_000_000) as i64 + SLACK).min(self.to),
            ..self.clone()
        }
    }

    /// Whether one of these seconds is in it.
    fn meets(&self, first: i64, last: i64) -> bool {
        first <= self.to && last >= self.from
    }
}

/// Whether a port may be one that the kernel chose.
pub(super) fn is_chosen(port: u16) -> bool {
    CHOSEN.contains(&port)
}

/// What counts of a file; nothing if all of it does.
pub(super) fn content(bytes: &[u8], window: &Window) -> Option<Vec<u8>> {
    for entry in &TABLE {
        if let Applies::Content(rule) = entry.applies
            && let Some(ruled) = rule(bytes, window)
        {
            return Some(ruled);
        }
    }
    match is_text(bytes) {
        true => ruled_text(bytes, window),
        false => None,
    }
}

/// What may be in a file that people read.
fn is_text(bytes: &[u8]) -> bool {
    !bytes.contains(&0) && std::str::from_utf8(bytes).is_ok()
}

fn ruled_text(bytes: &[u8], window: &Window) -> Option<Vec<u8>> {
    let mut ruled = Cow::Borrowed(bytes);
    for entry in &TABLE {
        let next = match entry.applies {
            Applies::Text(rule) => rule(&ruled, window),
            Applies::Name(rule) => names_within(&ruled, rule),
            _ => None,
        };
        if let Some(next) = next {
            ruled = Cow::Owned(next);
        }
    }
    match ruled {
        Cow::Borrowed(_) => None,
        Cow::Owned(ruled) => Some(ruled),
    }
}

/// The name of a file, of which the path ends with it; nothing if it is as it is.
pub(super) fn name(path: &[u8], name: &[u8], window: &Window) -> Option<Vec<u8>> {
    for entry in &TABLE {
        let ruled = match entry.applies {
            Applies::Name(rule) => rule(path),
            Applies::Text(rule) => rule(name, window),
            _ => None,
        };
        if ruled.is_some() {
            return ruled;
        }
    }
    None
}

/// A whole path.
pub(super) fn path(path: &[u8], window: &Window) -> Vec<u8> {
    let mut ruled = Vec::with_capacity(path.len());
    let mut so_far = Vec::with_capacity(path.len());
    for (n, part) in path.split(|byte| *byte == b'/').enumerate() {
        if n > 0 {
            ruled.push(b'/');
            so_far.push(b'/');
        }
        so_far.extend_from_slice(part);
        match name(&so_far, part, window) {
            Some(other) => ruled.extend(other),
            None => ruled.extend_from_slice(part),
        }
    }
    ruled
}

/// A stdin as it is told, and whether it is a pipe that comes from outside; nothing if it is as it
/// is.
pub(super) fn stdin(told: &[u8], from_outside: Option<bool>) -> Option<Vec<u8>> {
    let none = from_outside.unwrap_or_else(|| told.starts_with(b"/dev/null, "));
    none.then(|| b"nothing".to_vec())
}

/// A command line.
pub(super) fn command(line: &[u8], window: &Window) -> Vec<u8> {
    ruled_text(line, window).unwrap_or_else(|| line.to_vec())
}

/// Text that holds paths and no times.
pub(super) fn words(text: &[u8]) -> Vec<u8> {
    let mut ruled = text.to_vec();
    for entry in &TABLE {
        if let Applies::Name(rule) = entry.applies
            && let Some(next) = names_within(&ruled, rule)
        {
            ruled = next;
        }
    }
    ruled
}

/// Applies the rule of a name to each path in a text.
fn names_within(text: &[u8], rule: fn(&[u8]) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    let mut ruled: Option<Vec<u8>> = None;
    let mut done = 0;
    let mut at = 0;
    while let Some(slash) = text[at..].iter().position(|byte| *byte == b'/') {
        let begin = at + slash;
        // A path begins here: no part of another.
        let inner = begin > 0 && is_of_path(text[begin - 1]);
        let length = text[begin..]
            .iter()
            .position(|byte| !is_of_path(*byte))
            .unwrap_or(text.len() - begin);
        let path = &text[begin..begin + length];
        at = begin + length.max(1);
        if inner {
            continue;
        }
        // Up to each of its parts.
        let ends = path.iter().enumerate().skip(1);
        let ends = ends.filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
        for end in ends.chain([path.len()]) {
            let start = path[..end]
                .iter()
                .rposition(|byte| *byte == b'/')
                .map_or(0, |slash| slash + 1);
            if let Some(name) = rule(&path[..end]) {
                let ruled = ruled.get_or_insert_default();
                ruled.extend_from_slice(&text[done..begin + start]);
                ruled.extend(name);
                done = begin + end;
            }
        }
    }
    if let Some(ruled) = &mut ruled {
        ruled.extend_from_slice(&text[done..]);
    }
    ruled
}

fn is_of_path(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"/._-+".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From 2026-11-30 22:00:00 UTC for one hour.
    pub(super) fn hour() -> Window {
        Window {
            from: 1_796_076_000,
            to: 1_796_079_600,
            sums: Arc::default(),
        }
    }

    #[test]
    fn each_rule_is_told_with_its_reason() {
        let rules = rules();
        assert_eq!(rules.len(), TABLE.len());
        for rule in &rules {
            assert!(!rule.what.is_empty() && !rule.why.is_empty());
        }
        let document = include_str!("../../../../../docs/replay.md");
        for rule in &rules {
            let line = format!("| {} | {} |", rule.what, rule.why);
            assert!(document.contains(&line), "docs/replay.md lacks:\n{line}");
        }
    }

    #[test]
    fn a_window_ends_where_a_file_was_changed() {
        let window = hour().until(1_796_077_000 * 1_000_000_000);
        assert!(window.meets(1_796_077_001, 1_796_077_001));
        assert!(!window.meets(1_796_077_100, 1_796_077_200));
        assert!(!window.meets(1_796_075_000, 1_796_075_999) && window.meets(0, i64::MAX));
    }

    #[test]
    fn what_is_no_text_and_of_no_known_format_counts_whole() {
        assert_eq!(content(b"\0 2026-11-30 22:10:00", &hour()), None);
        assert_eq!(content(b"plain", &hour()), None);
        assert_eq!(
            content(b"at 2026-11-30 22:10:00 in /tmp/tmpab_12cd3/x", &hour()).unwrap(),
            b"at (time) in /tmp/(temporary)/x"
        );
    }

    #[test]
    fn a_stdin_from_outside_is_nothing_and_a_pipe_within_is_one() {
        let ruled = |told: &[u8], from_outside| stdin(told, from_outside);
        assert_eq!(
            ruled(b"/dev/null, read", None),
            ruled(b"pipe, read", Some(true))
        );
        assert_eq!(ruled(b"pipe, read", Some(false)), None);
        assert_eq!(ruled(b"/dev/nullx, read", None), None);
        assert_eq!(ruled(b"/dev/pts/0, read and written", None), None);
    }

    #[test]
    fn paths_are_found_within_text() {
        let of = |text: &str| String::from_utf8(words(text.as_bytes())).unwrap();
        assert_eq!(of("cat '/tmp/tmp.aB3dE6gH9k'"), "cat '/tmp/(temporary)'");
        assert_eq!(of("/tmp/tmpabcd1234/a /x/y"), "/tmp/(temporary)/a /x/y");
        // Another directory's, and another path's end.
        for other in ["/case/tmp/tmpabcd1234", "x/tmp/tmpabcd1234", "/tmp/tmpabc"] {
            assert_eq!(of(other), other);
        }
    }

    #[test]
    fn a_path_is_ruled_part_by_part() {
        let of = |text: &str| String::from_utf8(path(text.as_bytes(), &hour())).unwrap();
        assert_eq!(of("/tmp/tmpabcd1234/b"), "/tmp/(temporary)/b");
        assert_eq!(of("/b/copy-20261130-221000.tar"), "/b/copy-(time).tar");
        assert_eq!(
            of("/b/copy-20251130-221000.tar"),
            "/b/copy-20251130-221000.tar"
        );
        assert_eq!(of("/a/b"), "/a/b");
    }
}
