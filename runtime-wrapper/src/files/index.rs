// SPDX-License-Identifier: Apache-2.0
//! What was in a tree when it was last looked at, and how to see that it is
//! still the same without reading it.
//!
//! Invariant: an entry whose identity (inode, size, both times, mode, owner,
//! device, links) is the recorded one, and whose change time is safely older
//! than the walk that recorded it, has the recorded content; a directory, the
//! recorded names. An entry changed *while* that walk ran may carry the same
//! time (the kernel's clock for files ticks every 1 to 10 ms), so it is read
//! again: git's racy rule.
//!
//! Kept by directory, each shared by all indexes in which nothing of it is
//! another: what a scan costs beyond looking at everything is what changed.

use std::{
    collections::{HashMap, HashSet},
    ffi::{CStr, CString},
    os::fd::BorrowedFd,
    sync::Arc,
};

use crab_store::{EntryKind, Segment, Time, Tree, TreeEntry};
use rustix::{
    fs::FileType,
    time::{ClockId, clock_gettime},
};

use super::{
    beneath::{Stat, nanoseconds, split},
    node::{Content, Node},
    survey::{Names, Part},
    walk::{WalkError, join, shown, walk},
    xattr::Rules,
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
    root: Option<Arc<Node>>,
    /// By path: each directory that was entered.
    dirs: HashMap<Arc<[u8]>, Arc<Dir>>,
    /// When the walk that filled it began.
    pub(crate) started: Time,
    /// Inodes that a process had mapped shared and writable then. Stores to a
    /// page that was dirty already move no time, and the process may be gone
    /// when the next scan asks who maps what: these are read again once more.
    pub(crate) mapped: HashSet<u64>,
    /// Directories of which not all is known, as something changed while it was looked at:
    /// they are listed again, whatever their times say.
    pub(crate) incomplete: HashSet<Vec<u8>>,
    mark: Option<Arc<str>>,
}

/// What is in one directory, sorted by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dir(Vec<Named>);

/// One entry of a directory.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) name: CString,
    pub(crate) node: Arc<Node>,
}

impl Dir {
    /// Of entries in any order.
    pub(crate) fn new(mut entries: Vec<Named>) -> Self {
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Self(entries)
    }

    pub(crate) fn entries(&self) -> &[Named] {
        &self.0
    }

    pub(crate) fn place(&self, name: &[u8]) -> Result<usize, usize> {
        self.0
            .binary_search_by(|entry| entry.name.to_bytes().cmp(name))
    }

    pub(crate) fn get(&self, name: &CStr) -> Option<&Arc<Node>> {
        let at = self.place(name.to_bytes()).ok()?;
        Some(&self.0[at].node)
    }
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Index({} entries)", self.len())
    }
}

impl Index {
    /// With what to ask which inodes have changed since it was taken: see [`Scan::marked`].
    ///
    /// [`Scan::marked`]: super::Scan::marked
    pub fn mark(&self) -> Option<&str> {
        self.mark.as_deref()
    }

    pub(crate) fn set_mark(&mut self, mark: Option<Arc<str>>) {
        self.mark = mark;
    }

    /// How many paths it knows.
    pub fn len(&self) -> usize {
        let within: usize = self.dirs.values().map(|dir| dir.0.len()).sum();
        usize::from(self.root.is_some()) + within
    }

    /// Whether it knows none.
    pub fn is_empty(&self) -> bool {
        self.root.is_none() && self.dirs.values().all(|dir| dir.0.is_empty())
    }

    pub(crate) fn get(&self, path: &[u8]) -> Option<&Arc<Node>> {
        if path.is_empty() {
            return self.root.as_ref();
        }
        let (parent, name) = split(path);
        let dir = self.dirs.get(parent)?;
        Some(&dir.0[dir.place(name).ok()?].node)
    }

    /// The content that a file at a path has without a doubt, as it is the one that was looked
    /// at and has not changed since.
    pub(crate) fn content_of(&self, path: &[u8], stat: &Stat) -> Option<&[Segment]> {
        let old = self.get(path)?;
        let unchanged = old.stat.same_identity(stat)
            && old.stat.dev == stat.dev
            && self.root.as_ref()?.stat.dev == stat.dev
            && settled(stat.ctime, self.started)
            && !self.mapped.contains(&stat.ino);
        match &old.content {
            Content::Known(content) if unchanged => Some(content),
            _ => None,
        }
    }

    /// What is in the directory at a path.
    pub(crate) fn dir(&self, path: &[u8]) -> Option<&Arc<Dir>> {
        self.dirs.get(path)
    }

    pub(crate) fn dirs(&self) -> impl Iterator<Item = (&[u8], &Arc<Dir>)> {
        self.dirs.iter().map(|(path, dir)| (&**path, dir))
    }

    /// Every path with what is there, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Vec<u8>, &Arc<Node>)> {
        let root = self.root.iter().map(|node| (Vec::new(), node));
        root.chain(self.dirs.iter().flat_map(|(path, dir)| {
            let each = dir.0.iter();
            each.map(|entry| (join(path, entry.name.to_bytes()), &entry.node))
        }))
    }

    pub(crate) fn insert(&mut self, path: &[u8], node: Arc<Node>) {
        if path.is_empty() {
            self.root = Some(node);
            return;
        }
        let (parent, name) = split(path);
        // None has a NUL in it.
        let Ok(owned) = CString::new(name) else {
            return;
        };
        let dir = match self.dirs.get_mut(parent) {
            Some(dir) => dir,
            None => self.dirs.entry(parent.into()).or_default(),
        };
        let dir = Arc::make_mut(dir);
        match dir.place(name) {
            Ok(at) => dir.0[at].node = node,
            Err(at) => dir.0.insert(at, Named { name: owned, node }),
        }
    }

    /// Takes the path away. What is on record below it has to be taken away, too.
    pub(crate) fn remove(&mut self, path: &[u8]) {
        if path.is_empty() {
            self.root = None;
            return;
        }
        let (parent, name) = split(path);
        if let Some(dir) = self.dirs.get_mut(parent)
            && let Ok(at) = dir.place(name)
        {
            Arc::make_mut(dir).0.remove(at);
        }
    }

    /// What a survey found. The parts of one directory come in any order. Directories of
    /// `unless_found` that were not entered are as they were, if something still leads there.
    pub(crate) fn of_parts(
        root: Option<Arc<Node>>,
        parts: Vec<Part>,
        unless_found: Option<&Self>,
    ) -> Self {
        let mut found: HashMap<Arc<[u8]>, Arc<Dir>> = HashMap::with_capacity(parts.len());
        let dirs = &mut found;
        let mut gone: HashMap<Arc<[u8]>, HashSet<usize>> = HashMap::new();
        let mut listed: HashMap<Arc<[u8]>, Vec<Named>> = HashMap::new();
        for Part { dir, is } in parts {
            match is {
                Names::AsBefore(names, others) => {
                    let now = dirs.entry(dir.clone()).or_insert(names);
                    for (at, node) in others {
                        match node {
                            Some(node) => Arc::make_mut(now).0[at].node = node,
                            None => drop(gone.entry(dir.clone()).or_default().insert(at)),
                        }
                    }
                }
                Names::Listed(entries) => listed.entry(dir).or_default().extend(entries),
            }
        }
        for (dir, gone) in gone {
            if let Some(dir) = dirs.get_mut(&dir) {
                let mut places = 0..;
                let stays = |_: &Named| places.next().is_some_and(|at| !gone.contains(&at));
                Arc::make_mut(dir).0.retain(stays);
            }
        }
        let listed = listed.into_iter();
        dirs.extend(listed.map(|(path, entries)| (path, Arc::new(Dir::new(entries)))));
        if let Some(old) = unless_found {
            let gone = old.gone_since(&found);
            let leads_there = |path: &[u8]| gone.is_empty() || !is_in(path, &gone);
            for (path, dir) in &old.dirs {
                if !found.contains_key(path) && leads_there(path) {
                    found.insert(path.clone(), dir.clone());
                }
            }
        }
        Self {
            root,
            dirs: found,
            ..Self::default()
        }
    }

    /// Directories that are none any more, by what was found in those that held them.
    fn gone_since(&self, found: &HashMap<Arc<[u8]>, Arc<Dir>>) -> HashSet<Vec<u8>> {
        let is_dir = |node: &Node| node.stat.is_dir() && !node.mount_point;
        let mut gone = HashSet::new();
        for (path, now) in found {
            let Some(before) = self.dirs.get(path) else {
                continue;
            };
            if Arc::ptr_eq(before, now) {
                continue;
            }
            let dirs = before.0.iter().filter(|named| is_dir(&named.node));
            let is_there = |named: &&Named| now.get(&named.name).is_some_and(|node| is_dir(node));
            gone.extend(
                dirs.filter(|named| !is_there(named))
                    .map(|named| join(path, named.name.to_bytes())),
            );
        }
        gone
    }

    /// Changes nodes for which `other` has another.
    pub(crate) fn update(&mut self, other: impl Fn(&Node) -> Option<Node>) {
        if let Some(root) = &mut self.root
            && let Some(node) = other(root)
        {
            *root = Arc::new(node);
        }
        for dir in self.dirs.values_mut() {
            let each = dir.0.iter().enumerate();
            let others: Vec<_> = each
                .filter_map(|(at, entry)| Some((at, Arc::new(other(&entry.node)?))))
                .collect();
            for (at, node) in others {
                Arc::make_mut(dir).0[at].node = node;
            }
        }
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
            (entry.path.as_slice(), Arc::new(node))
        });
        Self::of_nodes(nodes)
    }

    fn of_nodes<'a>(nodes: impl Iterator<Item = (&'a [u8], Arc<Node>)>) -> Self {
        let mut root = None;
        let mut dirs: HashMap<&[u8], Vec<Named>> = HashMap::new();
        for (path, node) in nodes {
            let (parent, name) = split(path);
            match CString::new(name) {
                Ok(_) if path.is_empty() => root = Some(node),
                Ok(name) => dirs.entry(parent).or_default().push(Named { name, node }),
                // There is no such name, and no tree of the store that has one.
                Err(_) => {}
            }
        }
        let dirs = dirs.into_iter();
        Self {
            root,
            dirs: dirs
                .map(|(path, entries)| (path.into(), Arc::new(Dir::new(entries))))
                .collect(),
            ..Self::default()
        }
    }

    /// All that it knows, as a tree. What is no more than a copy of a lower layer's, and was
    /// never read, is left out.
    pub fn tree(&self) -> Tree {
        let mut tree = Tree {
            entries: self
                .iter()
                .filter_map(|(path, node)| node.entry(path).ok())
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
            let Some(entry) = tree.get(visit.path) else {
                // A tree need not describe its root.
                if !visit.path.is_empty() {
                    wrong.get_or_insert(visit.path.to_vec());
                }
                return;
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
                    return;
                };
                let content = contents.get(first.path.as_slice());
                Node {
                    stat: visit.stat,
                    ..Node::of_entry(entry, first, content, rules)
                }
            };
            nodes.insert(entry.path.as_slice(), Arc::new(node));
        })?;
        if let Some(path) = wrong.or_else(|| torn.into_iter().next()) {
            return differs(&path);
        }
        let missing = |entry: &&TreeEntry| !nodes.contains_key(entry.path.as_slice());
        match tree.entries.iter().find(missing) {
            Some(entry) => differs(&entry.path),
            None => Ok(Self {
                started,
                ..Self::of_nodes(nodes.into_iter())
            }),
        }
    }
}

/// Whether a path is one of these, or below one.
fn is_in(path: &[u8], dirs: &HashSet<Vec<u8>>) -> bool {
    let mut at = path;
    loop {
        if dirs.contains(at) {
            return true;
        }
        if at.is_empty() {
            return false;
        }
        at = split(at).0;
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
