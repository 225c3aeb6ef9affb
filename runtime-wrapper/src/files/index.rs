// SPDX-License-Identifier: Apache-2.0
//! What was in a tree when it was last looked at, and how to see that it is
//! still the same without reading it.
//!
//! Invariant: an entry whose identity (inode, size, both times, mode, owner,
//! device, links) is the recorded one, and whose change time is safely older
//! than the walk that recorded it, has the recorded content. An entry changed
//! *while* that walk ran may carry the same time (the kernel's clock for files
//! ticks every 1 to 10 ms), so it is read again: git's racy rule.

use std::{
    collections::{HashMap, HashSet},
    os::fd::BorrowedFd,
    sync::Arc,
};

use crab_store::{EntryKind, Segment, Time, Tree, TreeEntry};
use rustix::{
    fs::FileType,
    time::{ClockId, clock_gettime},
};

use super::{
    beneath::{Stat, nanoseconds},
    walk::{Descend, WalkError, shown, walk},
    xattr::{Rules, Xattrs},
};

/// Two ticks of the slowest kernel clock.
const MARGIN: i128 = 20_000_000;

/// For file systems that keep whole seconds (ext4 with small inodes).
const MARGIN_OF_SECONDS: i128 = 2_000_000_000;

/// The state of one root, to compare the next scan with.
///
/// An empty one ([`Index::default`]) knows nothing: against it everything is
/// new, except what a lower layer has just the same.
#[derive(Clone, Default)]
pub struct Index {
    pub(crate) nodes: HashMap<Box<[u8]>, Arc<Node>>,
    /// When the walk that filled it began.
    pub(crate) started: Time,
    /// Inodes that a process had mapped shared and writable then. Stores to a
    /// page that was dirty already move no time, and the process may be gone
    /// when the next scan asks who maps what: these are read again once more.
    pub(crate) mapped: HashSet<u64>,
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Index({} entries)", self.nodes.len())
    }
}

/// What is known of one path.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) stat: Stat,
    /// Those that belong to an image.
    pub(crate) xattrs: Xattrs,
    /// Of a symlink.
    pub(crate) target: Vec<u8>,
    pub(crate) content: Content,
    /// The first name of the same inode, where this is not it.
    pub(crate) link_to: Option<Arc<[u8]>>,
    /// A directory of an overlay that is not merged with lower ones.
    pub(crate) hides_lower: bool,
    /// In the upper directory, but the merged view is as it was without it.
    pub(crate) nets_out: bool,
    /// Something is mounted on it; what lies beneath cannot be seen, and is
    /// taken for an empty file or directory.
    pub(crate) mount_point: bool,
}

/// The content of a regular file.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// It is no regular file.
    None,
    /// These bytes, by name.
    Known(Arc<[Segment]>),
    /// Not read yet, or found to differ from what was known.
    Unread,
}

impl Index {
    /// How many paths it knows.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether it knows none.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// What a tree says, and nothing of any inode: whatever a scan finds is looked at.
    pub(crate) fn of_tree(tree: &Tree, rules: Rules) -> Self {
        let contents = contents_of(tree);
        let nodes = tree.entries.iter().map(|entry| {
            let first = match &entry.kind {
                EntryKind::HardLink { to } => tree.get(to).unwrap_or(entry),
                _ => entry,
            };
            let node = Node::of_entry(entry, first, contents.get(first.path.as_slice()), rules);
            (entry.path.as_slice().into(), Arc::new(node))
        });
        Self {
            nodes: nodes.collect(),
            ..Self::default()
        }
    }

    /// All that it knows, as a tree. What is no more than a copy of a lower layer's, and was
    /// never read, is left out.
    pub fn tree(&self) -> Tree {
        let mut tree = Tree {
            entries: self
                .nodes
                .iter()
                .filter_map(|(path, node)| node.entry(path))
                .collect(),
        };
        tree.sort();
        tree
    }

    /// The index of a directory that was just made to be `tree`, with nothing
    /// running in it yet. Fails if the two are not alike.
    pub(crate) fn of_restored(
        root: BorrowedFd<'_>,
        tree: &Tree,
        rules: Rules,
    ) -> Result<Self, IndexError> {
        let started = now();
        let mut nodes = HashMap::with_capacity(tree.entries.len());
        let contents = contents_of(tree);
        let differs = |path: &[u8]| Err(IndexError::Differs { path: shown(path) });
        let mut wrong = None;
        let torn = walk(root, |visit| {
            let descend = Descend::Yes { tag: true };
            let Some(entry) = tree.get(visit.path) else {
                // A tree need not describe its root.
                if !visit.path.is_empty() {
                    wrong.get_or_insert(visit.path.to_vec());
                }
                return Ok(descend);
            };
            let node = if visit.mount_point {
                Node::mount_point(&visit.stat)
            } else {
                let first = match &entry.kind {
                    EntryKind::HardLink { to } => tree.get(to),
                    _ => Some(entry),
                };
                let Some(first) = first.filter(|first| fits(first, &visit.stat)) else {
                    wrong.get_or_insert(visit.path.to_vec());
                    return Ok(descend);
                };
                let content = contents.get(first.path.as_slice());
                Node {
                    stat: visit.stat,
                    ..Node::of_entry(entry, first, content, rules)
                }
            };
            nodes.insert(visit.path.into(), Arc::new(node));
            Ok(descend)
        })?;
        if let Some(path) = wrong.or_else(|| torn.into_iter().next()) {
            return differs(&path);
        }
        let missing = |entry: &&TreeEntry| !nodes.contains_key(entry.path.as_slice());
        match tree.entries.iter().find(missing) {
            Some(entry) => differs(&entry.path),
            None => Ok(Self {
                nodes,
                started,
                mapped: HashSet::new(),
            }),
        }
    }
}

/// The contents of a tree's files, by their first names.
fn contents_of(tree: &Tree) -> HashMap<&[u8], Arc<[Segment]>> {
    let files = tree.entries.iter().filter_map(|entry| match &entry.kind {
        EntryKind::File { content, .. } => Some((entry.path.as_slice(), content.as_slice().into())),
        _ => None,
    });
    files.collect()
}

/// Why a restored directory has no index.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// It could not be walked.
    #[error(transparent)]
    Walk(#[from] WalkError),
    /// It is not what was restored.
    #[error("{path} is not as it was restored")]
    Differs {
        /// The first path that is not alike.
        path: String,
    },
}

fn fits(entry: &TreeEntry, stat: &Stat) -> bool {
    let kind = match (&entry.kind, stat.file_type) {
        (EntryKind::File { size, .. }, FileType::RegularFile) => *size == stat.size,
        (EntryKind::Dir, FileType::Directory)
        | (EntryKind::Symlink { .. }, FileType::Symlink)
        | (EntryKind::Fifo, FileType::Fifo)
        | (EntryKind::Socket, FileType::Socket) => true,
        (EntryKind::CharDevice { rdev }, FileType::CharacterDevice)
        | (EntryKind::BlockDevice { rdev }, FileType::BlockDevice) => *rdev == stat.rdev,
        _ => false,
    };
    let mode = entry.mode == stat.mode || stat.file_type == FileType::Symlink;
    kind && mode && entry.uid == stat.uid && entry.gid == stat.gid
}

impl Node {
    /// A place that something is mounted on.
    pub(crate) fn mount_point(over: &Stat) -> Self {
        let dir = over.is_dir();
        let stat = Stat {
            ino: 0,
            dev: 0,
            mount: 0,
            mount_root: true,
            file_type: if dir {
                FileType::Directory
            } else {
                FileType::RegularFile
            },
            // As runc makes them.
            mode: if dir { 0o755 } else { 0o644 },
            uid: 0,
            gid: 0,
            nlink: 1,
            size: 0,
            rdev: 0,
            mtime: Time::default(),
            ctime: Time::default(),
        };
        Self {
            stat,
            xattrs: Xattrs::new(),
            target: Vec::new(),
            content: if dir {
                Content::None
            } else {
                Content::Known(Arc::from([]))
            },
            link_to: None,
            hides_lower: false,
            nets_out: false,
            mount_point: true,
        }
    }

    /// As an entry of a tree has it; `first` is the one of the same file.
    fn of_entry(
        entry: &TreeEntry,
        first: &TreeEntry,
        content: Option<&Arc<[Segment]>>,
        rules: Rules,
    ) -> Self {
        let (file_type, size, rdev) = match &first.kind {
            EntryKind::Dir => (FileType::Directory, 0, 0),
            EntryKind::File { size, .. } => (FileType::RegularFile, *size, 0),
            EntryKind::Symlink { target } => (FileType::Symlink, target.len() as u64, 0),
            EntryKind::CharDevice { rdev } => (FileType::CharacterDevice, 0, *rdev),
            EntryKind::BlockDevice { rdev } => (FileType::BlockDevice, 0, *rdev),
            EntryKind::Fifo => (FileType::Fifo, 0, 0),
            EntryKind::Socket => (FileType::Socket, 0, 0),
            EntryKind::HardLink { .. } => (FileType::Unknown, 0, 0),
        };
        Self {
            stat: Stat {
                ino: 0,
                dev: 0,
                mount: 0,
                mount_root: false,
                file_type,
                mode: first.mode,
                uid: first.uid,
                gid: first.gid,
                nlink: 1,
                size,
                rdev,
                mtime: first.mtime,
                ctime: Time::default(),
            },
            xattrs: first.xattrs.clone(),
            target: match &first.kind {
                EntryKind::Symlink { target } => target.clone(),
                _ => Vec::new(),
            },
            content: content.map_or(Content::None, |content| Content::Known(content.clone())),
            link_to: match &entry.kind {
                EntryKind::HardLink { to } => Some(to.as_slice().into()),
                _ => None,
            },
            hides_lower: rules.hides_lower(&first.xattrs),
            nets_out: false,
            mount_point: false,
        }
    }

    /// Its entry in an image, or nothing if its content was never read.
    pub(crate) fn entry(&self, path: &[u8]) -> Option<TreeEntry> {
        let kind = match &self.link_to {
            Some(to) => EntryKind::HardLink { to: to.to_vec() },
            None => match self.stat.file_type {
                FileType::Directory => EntryKind::Dir,
                FileType::Symlink => EntryKind::Symlink {
                    target: self.target.clone(),
                },
                FileType::CharacterDevice => EntryKind::CharDevice {
                    rdev: self.stat.rdev,
                },
                FileType::BlockDevice => EntryKind::BlockDevice {
                    rdev: self.stat.rdev,
                },
                FileType::Fifo => EntryKind::Fifo,
                FileType::Socket => EntryKind::Socket,
                FileType::RegularFile | FileType::Unknown => match &self.content {
                    Content::Known(content) => EntryKind::File {
                        size: self.stat.size,
                        content: content.to_vec(),
                    },
                    Content::None | Content::Unread => return None,
                },
            },
        };
        Some(TreeEntry {
            path: path.to_vec(),
            kind,
            mode: self.stat.mode,
            uid: self.stat.uid,
            gid: self.stat.gid,
            mtime: self.stat.mtime,
            xattrs: self.xattrs.clone(),
        })
    }

    /// Whether putting one in the place of the other would be noticed.
    pub(crate) fn same_effect(&self, other: &Self, rules: Rules) -> bool {
        let (a, b) = (&self.stat, &other.stat);
        if self.mount_point || other.mount_point {
            return self.mount_point == other.mount_point && a.file_type == b.file_type;
        }
        if rules.is_overlay() && a.is_null_device() && b.is_null_device() {
            return true;
        }
        let owner = a.file_type == b.file_type && (a.mode, a.uid, a.gid) == (b.mode, b.uid, b.gid);
        if !owner || self.xattrs != other.xattrs {
            return false;
        }
        if a.is_dir() {
            // Its times tell of entries that came and went, which are compared themselves.
            return true;
        }
        let content = match (&self.content, &other.content) {
            (Content::Known(one), Content::Known(two)) => Arc::ptr_eq(one, two) || one == two,
            (Content::None, Content::None) => true,
            _ => false,
        };
        content
            && a.mtime == b.mtime
            && a.rdev == b.rdev
            && (!a.is_file() || a.size == b.size)
            && self.target == other.target
            && self.link_to == other.link_to
    }
}

/// The clock that file times are taken from.
pub(crate) fn now() -> Time {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    Time {
        sec: now.tv_sec,
        nsec: now.tv_nsec as u32,
    }
}

/// Whether a change that came after the walk that began at `started` must have
/// moved a change time of `ctime`.
pub(crate) fn settled(ctime: Time, started: Time) -> bool {
    let margin = if ctime.nsec == 0 {
        MARGIN_OF_SECONDS
    } else {
        MARGIN
    };
    nanoseconds(ctime) + margin < nanoseconds(started)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_time_close_to_the_walk_settles_nothing() {
        let at = |sec, nsec| Time { sec, nsec };
        let started = at(100, 500_000_000);
        assert!(settled(at(100, 400_000_000), started));
        assert!(!settled(at(100, 490_000_000), started));
        assert!(!settled(at(101, 1), started), "the clock was set back");
        assert!(!settled(at(99, 0), started), "a clock of whole seconds");
        assert!(settled(at(98, 0), started));
    }
}
