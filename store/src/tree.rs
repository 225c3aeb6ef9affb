// SPDX-License-Identifier: Apache-2.0

//! The file image's data: one directory tree, exactly as it was.
//!
//! Invariant of a checked [`Tree`]: entries are sorted by path and unique,
//! paths are relative and have no `.`, `..` or empty component, the parent of
//! each entry is a directory of the same tree (so that putting it back never
//! goes through a symlink), hard links point at an earlier entry that is a
//! file, and segments of a file ascend, do not overlap and lie within its
//! size. The store neither takes nor hands out a tree that breaks it.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{MAX_OBJECT, digest::Digest, text::escape};

/// A directory tree, sorted by path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    /// What is in it. The root itself has the empty path.
    #[serde(deserialize_with = "crate::budget::list")]
    pub entries: Vec<TreeEntry>,
}

/// One path of a [`Tree`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeEntry {
    /// Relative to the root, without a leading slash. Any bytes but NUL.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: EntryKind,
    /// Permission bits with set-uid, set-gid and sticky (`st_mode & 0o7777`).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// When its content changed.
    pub mtime: Time,
    /// Extended attributes, name and value, sorted by name.
    #[serde(deserialize_with = "crate::budget::list")]
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// A point in time as the file system keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Time {
    /// Seconds since the Unix epoch.
    pub sec: i64,
    /// Nanoseconds within the second.
    pub nsec: u32,
}

/// What a path is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    /// A directory.
    Dir,
    /// A regular file.
    File {
        /// Its length.
        size: u64,
        /// Its bytes; what no segment covers is a hole.
        #[serde(deserialize_with = "crate::budget::list")]
        content: Vec<Segment>,
    },
    /// A symbolic link.
    Symlink {
        /// Where to, as it stands.
        target: Vec<u8>,
    },
    /// A character device. With number 0 it is an overlay whiteout.
    CharDevice {
        /// Its number (`st_rdev`).
        rdev: u64,
    },
    /// A block device.
    BlockDevice {
        /// Its number (`st_rdev`).
        rdev: u64,
    },
    /// A named pipe.
    Fifo,
    /// A socket's name.
    Socket,
    /// Another name of a file. Its attributes are those of the first.
    HardLink {
        /// The first name, an earlier entry of the same tree.
        to: Vec<u8>,
    },
}

/// A run of bytes whose content is one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Where it begins.
    pub offset: u64,
    /// How long it is: the length of the object.
    pub len: u32,
    /// The object.
    pub digest: Digest,
}

/// How a tree, or a list of segments, breaks the invariant.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum TreeError {
    /// A path that is absolute, has a `..`, or the like.
    #[error("{0}: no plain relative path")]
    BadPath(String),
    /// Out of order, or there twice.
    #[error("{0}: out of order")]
    Unsorted(String),
    /// Its parent is missing or no directory.
    #[error("{0}: its parent is no directory of the tree")]
    NoParent(String),
    /// A hard link to something that is no earlier file.
    #[error("{0}: hard link to something that is no earlier file")]
    BadHardLink(String),
    /// Segments overlap or exceed the file.
    #[error("{0}: its segments overlap or exceed its size")]
    BadSegments(String),
}

fn plain(path: &[u8]) -> bool {
    !path.contains(&0)
        && path
            .split(|byte| *byte == b'/')
            .all(|name| !matches!(name, b"" | b"." | b".."))
}

/// Checks that segments ascend, do not overlap and lie within `size`.
pub(crate) fn segments_fit(segments: &[Segment], size: u64) -> bool {
    let mut end = 0;
    segments.iter().all(|segment| {
        let begins_after = segment.offset >= end && segment.len > 0;
        end = segment.offset.saturating_add(segment.len.into());
        begins_after && end <= size && segment.len as usize <= MAX_OBJECT
    })
}

impl Tree {
    /// Sorts the entries by path, as the invariant wants.
    pub fn sort(&mut self) {
        self.entries.sort_by(|a, b| a.path.cmp(&b.path));
    }

    /// The entry at a path.
    pub fn get(&self, path: &[u8]) -> Option<&TreeEntry> {
        let at = self
            .entries
            .binary_search_by(|entry| entry.path.as_slice().cmp(path));
        at.ok().map(|at| &self.entries[at])
    }

    /// Checks the invariant.
    pub fn check(&self) -> Result<(), TreeError> {
        let mut before: Option<&TreeEntry> = None;
        for entry in &self.entries {
            let name = || escape(&entry.path);
            if before.is_some_and(|before| before.path >= entry.path) {
                return Err(TreeError::Unsorted(name()));
            }
            before = Some(entry);
            if entry.path.is_empty() {
                if entry.kind != EntryKind::Dir {
                    return Err(TreeError::BadPath(name()));
                }
                continue;
            }
            if !plain(&entry.path) {
                return Err(TreeError::BadPath(name()));
            }
            if let Some(slash) = entry.path.iter().rposition(|byte| *byte == b'/') {
                let parent = self.get(&entry.path[..slash]);
                if parent.is_none_or(|parent| parent.kind != EntryKind::Dir) {
                    return Err(TreeError::NoParent(name()));
                }
            }
            match &entry.kind {
                EntryKind::File { size, content } if !segments_fit(content, *size) => {
                    return Err(TreeError::BadSegments(name()));
                }
                EntryKind::HardLink { to } => {
                    let first = self.get(to).filter(|first| first.path < entry.path);
                    if first.is_none_or(|first| {
                        matches!(first.kind, EntryKind::Dir | EntryKind::HardLink { .. })
                    }) {
                        return Err(TreeError::BadHardLink(name()));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The paths that other entries are hard links to.
    pub fn link_targets(&self) -> HashSet<&[u8]> {
        let entries = self.entries.iter();
        entries
            .filter_map(|entry| match &entry.kind {
                EntryKind::HardLink { to } => Some(to.as_slice()),
                _ => None,
            })
            .collect()
    }

    /// Every segment of every file.
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.entries.iter().flat_map(|entry| match &entry.kind {
            EntryKind::File { content, .. } => content.as_slice(),
            _ => &[],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str, kind: EntryKind) -> TreeEntry {
        TreeEntry {
            path: path.into(),
            kind,
            mode: 0o644,
            uid: 0,
            gid: 0,
            mtime: Time::default(),
            xattrs: Vec::new(),
        }
    }

    fn check(entries: Vec<TreeEntry>) -> Result<(), TreeError> {
        Tree { entries }.check()
    }

    fn file(size: u64, content: &[(u64, u32)]) -> EntryKind {
        let content = content
            .iter()
            .map(|&(offset, len)| Segment {
                offset,
                len,
                digest: Digest::of(b""),
            })
            .collect();
        EntryKind::File { size, content }
    }

    #[test]
    fn a_well_formed_tree_passes() {
        check(vec![
            entry("", EntryKind::Dir),
            entry("a", EntryKind::Dir),
            entry("a-b", file(0, &[])),
            entry("a/b", file(9, &[(0, 4), (5, 4)])),
            entry(
                "a/c",
                EntryKind::HardLink {
                    to: b"a/b".to_vec(),
                },
            ),
        ])
        .unwrap();
    }

    #[test]
    fn no_path_leaves_the_root() {
        for path in ["/a", "..", "a/../b", "a//b", "a/", ".", "a\0"] {
            let got = check(vec![
                entry("a", EntryKind::Dir),
                entry(path, EntryKind::Dir),
            ]);
            assert!(got.is_err(), "{path:?}");
        }
    }

    #[test]
    fn nothing_lies_below_a_symlink() {
        let link = EntryKind::Symlink {
            target: b"/etc".to_vec(),
        };
        assert_eq!(
            check(vec![entry("a", link), entry("a/b", file(0, &[]))]),
            Err(TreeError::NoParent("a/b".into()))
        );
    }

    #[test]
    fn hard_links_point_backwards_at_files() {
        for to in ["a", "c", "b", "missing"] {
            let link = EntryKind::HardLink { to: to.into() };
            let got = check(vec![
                entry("a", EntryKind::Dir),
                entry("b", link),
                entry("c", file(0, &[])),
            ]);
            assert_eq!(got, Err(TreeError::BadHardLink("b".into())), "{to}");
        }
    }

    #[test]
    fn segments_stay_within_the_file() {
        let cases: [(u64, &[(u64, u32)]); 4] = [
            (3, &[(0, 4)]),
            (9, &[(0, 4), (3, 4)]),
            (9, &[(u64::MAX, 4)]),
            (9, &[(0, 0)]),
        ];
        for (size, content) in cases {
            let got = check(vec![entry("a", file(size, content))]);
            assert_eq!(got, Err(TreeError::BadSegments("a".into())));
        }
    }
}
