// SPDX-License-Identifier: Apache-2.0

//! How two views of one root differ, path by path.

use std::{collections::BTreeSet, io};

use crab_store::{Change, EntryKind, escape};
use serde::Serialize;

use super::{
    unified::{self, Text},
    view::{Below, Entry, Kind, Seen, View, same_content},
};

/// A path that differs.
#[derive(Serialize)]
pub(super) struct Difference {
    pub(super) change: Change,
    /// The path in the container, escaped.
    pub(super) path: String,
    /// What it is, or was.
    pub(super) kind: &'static str,
    /// What it was, if it is something else now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kind_before: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) size_before: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) size: Option<u64>,
    /// In what it differs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) attributes: Vec<Attribute>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) text: Option<Text>,
}

/// What differs of a path that both have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "what", rename_all = "lowercase")]
pub(super) enum Attribute {
    Kind,
    Content {
        /// Whether it is only not known to be the same.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        unsure: bool,
    },
    Target {
        before: String,
        now: String,
    },
    Device,
    Mode {
        before: String,
        now: String,
    },
    Owner {
        before: String,
        now: String,
    },
    Time,
    Xattr {
        names: Vec<String>,
    },
}

/// What is compared, and what came of it.
pub(super) struct Comparison<'a> {
    pub(super) a: View<'a>,
    pub(super) b: View<'a>,
    /// Where the root is mounted; empty for the sandbox's own.
    pub(super) mount: &'a [u8],
}

impl Comparison<'_> {
    /// Adds what differs, and a line for what could not be told.
    pub(super) fn run(
        &self,
        texts: &mut Option<unified::Budget>,
        found: &mut Vec<Difference>,
        notes: &mut Vec<String>,
    ) -> io::Result<()> {
        let mut unknown = 0_u64;
        for path in self.candidates()? {
            let (before, now) = (self.a.see(&path)?, self.b.see(&path)?);
            let difference = match (&before, &now) {
                // In the image, unless the one checkpoint does not say so.
                (Seen::Unknown, Seen::Unknown) => None,
                (Seen::Unknown, Seen::Nothing) => {
                    unknown += 1;
                    let mut gone = self.difference(Change::Removed, &path, None, None);
                    gone.kind = "unknown";
                    Some(gone)
                }
                (Seen::Nothing, Seen::Unknown) => {
                    unknown += 1;
                    let mut back = self.difference(Change::Added, &path, None, None);
                    back.kind = "unknown";
                    Some(back)
                }
                (Seen::Unknown, Seen::Here(now)) => {
                    unknown += 1;
                    Some(self.difference(Change::Added, &path, None, Some(now)))
                }
                (Seen::Here(before), Seen::Unknown) => {
                    unknown += 1;
                    Some(self.difference(Change::Removed, &path, Some(before), None))
                }
                (Seen::Nothing, Seen::Nothing) => None,
                (Seen::Nothing, Seen::Here(now)) => {
                    Some(self.difference(Change::Added, &path, None, Some(now)))
                }
                (Seen::Here(before), Seen::Nothing) => {
                    Some(self.difference(Change::Removed, &path, Some(before), None))
                }
                (Seen::Here(before), Seen::Here(now)) => {
                    let attributes = attributes(before, now)?;
                    (!attributes.is_empty()).then(|| {
                        let mut changed =
                            self.difference(Change::Changed, &path, Some(before), Some(now));
                        changed.attributes = attributes;
                        changed
                    })
                }
            };
            let Some(mut difference) = difference else {
                continue;
            };
            if let Some(budget) = texts
                && unified::is_wanted(&difference)
            {
                let side = |seen| match seen {
                    Seen::Here(entry) => Some(entry),
                    Seen::Nothing | Seen::Unknown => None,
                };
                let (before, now) = (side(before), side(now));
                difference.text = Some(budget.text(self, &difference.path, before, now)?);
            }
            found.push(difference);
        }
        if unknown > 0 && matches!(self.a.below, Below::Missing) {
            notes.push(format!(
                "the layers of the image are not there: {unknown} paths that are told as added or \
                 removed may be in it too"
            ));
        } else if unknown > 0 {
            notes.push(format!(
                "{unknown} paths lie in directories that were renamed: what the image has there is not told"
            ));
        }
        Ok(())
    }

    /// The paths at which the two may differ.
    fn candidates(&self) -> io::Result<BTreeSet<Vec<u8>>> {
        let mut paths = BTreeSet::new();
        for view in [&self.a, &self.b] {
            paths.extend(view.tree.entries.iter().map(|entry| entry.path.clone()));
        }
        let Below::Image(image) = self.a.below else {
            return Ok(paths);
        };
        // What the image has in a directory that one of the two replaced.
        for view in [&self.a, &self.b] {
            let dirs = view.tree.entries.iter();
            let dirs = dirs.filter(|entry| entry.kind == EntryKind::Dir && view.hides_image(entry));
            for dir in dirs {
                for name in image.names(&dir.path)? {
                    paths.insert([&dir.path, b"/".as_slice(), &name].concat());
                }
            }
        }
        Ok(paths)
    }

    fn difference(
        &self,
        change: Change,
        path: &[u8],
        before: Option<&Entry>,
        now: Option<&Entry>,
    ) -> Difference {
        let kind = |entry: &Entry| entry.kind.word();
        let (was, is) = (before.map(kind), now.map(kind));
        let mut whole = self.mount.to_vec();
        if whole.is_empty() || !path.is_empty() {
            whole.push(b'/');
        }
        whole.extend_from_slice(path);
        Difference {
            change,
            path: escape(&whole),
            kind: is.or(was).unwrap_or_default(),
            kind_before: was.filter(|was| is.is_some_and(|is| is != *was)),
            size_before: before.and_then(|entry| entry.kind.size()),
            size: now.and_then(|entry| entry.kind.size()),
            attributes: Vec::new(),
            text: None,
        }
    }
}

impl Kind {
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Dir => "directory",
            Self::File { .. } => "file",
            Self::Symlink { .. } => "symlink",
            Self::CharDevice { .. } | Self::BlockDevice { .. } => "device",
            Self::Fifo => "fifo",
            Self::Socket => "socket",
        }
    }

    pub(super) fn size(&self) -> Option<u64> {
        match self {
            Self::File { size } => Some(*size),
            _ => None,
        }
    }
}

fn attributes(a: &Entry, b: &Entry) -> io::Result<Vec<Attribute>> {
    if a.kind.word() != b.kind.word() {
        return Ok(vec![Attribute::Kind]);
    }
    let mut found = Vec::new();
    match (&a.kind, &b.kind) {
        (Kind::File { size }, Kind::File { size: now }) => {
            let same = match size == now {
                true => same_content(&a.source, &b.source, *size)?,
                false => Some(false),
            };
            if same != Some(true) {
                let unsure = same.is_none();
                found.push(Attribute::Content { unsure });
            }
        }
        (Kind::Symlink { target }, Kind::Symlink { target: now }) if target != now => {
            found.push(Attribute::Target {
                before: escape(target),
                now: escape(now),
            });
        }
        (one, two) if one != two => found.push(Attribute::Device),
        _ => {}
    }
    if a.mode != b.mode && !matches!(a.kind, Kind::Symlink { .. }) {
        found.push(Attribute::Mode {
            before: format!("{:04o}", a.mode),
            now: format!("{:04o}", b.mode),
        });
    }
    if (a.uid, a.gid) != (b.uid, b.gid) {
        found.push(Attribute::Owner {
            before: format!("{}:{}", a.uid, a.gid),
            now: format!("{}:{}", b.uid, b.gid),
        });
    }
    // A directory's tells of entries that came and went, which are compared themselves.
    if a.mtime != b.mtime && a.kind != Kind::Dir {
        found.push(Attribute::Time);
    }
    let differ = |(name, value): &&(Vec<u8>, Vec<u8>), other: &Entry| {
        !other.xattrs.iter().any(|(n, v)| n == name && v == value)
    };
    let mut names: BTreeSet<&[u8]> = BTreeSet::new();
    for (one, other) in [(a, b), (b, a)] {
        let own = one.xattrs.iter().filter(|xattr| differ(xattr, other));
        names.extend(own.map(|(name, _)| name.as_slice()));
    }
    if !names.is_empty() {
        found.push(Attribute::Xattr {
            names: names.into_iter().map(escape).collect(),
        });
    }
    Ok(found)
}
