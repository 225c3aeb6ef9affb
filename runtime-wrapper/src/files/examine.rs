// SPDX-License-Identifier: Apache-2.0
//! Looking at one entry of a root: whether it is as the index has it, and if not, all that
//! there is to know of it.

use std::{
    collections::{HashMap, HashSet},
    ffi::CStr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use crab_store::Segment;
use rustix::fs::{FileType, OFlags};

use super::{
    beneath::{Inode, Stat, is_race, open_name, reopen},
    change::Over,
    content::{equal_files, equals_segments},
    index::{Index, settled},
    lower::{Lower, Lowers},
    narrow::Narrow,
    node::{Content, Node},
    scan::Scanner,
    shape::read_link,
    walk::WalkError,
    xattr::{self, Rules},
};

/// Which contents are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Read {
    /// Those that may be others, by their times.
    Doubtful,
    /// All whose time is on record.
    All,
    /// All whose length is on record.
    Anew,
    /// Of those the ones that may be others.
    Again,
}

/// How many bytes may be read, by all threads together.
#[derive(Debug)]
pub(crate) struct Limit {
    left: AtomicU64,
    is_kept: AtomicBool,
}

impl Limit {
    pub(crate) fn new(bytes: u64) -> Self {
        Self {
            left: AtomicU64::new(bytes),
            is_kept: AtomicBool::new(true),
        }
    }

    /// Counts bytes that are read; false if they would be too many.
    fn allows(&self, bytes: u64) -> bool {
        let take = |left: u64| left.checked_sub(bytes);
        let order = Ordering::Relaxed;
        if self.left.fetch_update(order, order, take).is_err() {
            self.is_kept.store(false, order);
        }
        self.is_kept()
    }

    pub(crate) fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    /// Whether all was read that had to be.
    pub(crate) fn is_kept(&self) -> bool {
        self.is_kept.load(Ordering::Relaxed)
    }
}

/// What a root is compared with, and how.
#[derive(Clone, Copy)]
pub(crate) struct Comparison<'a> {
    pub(crate) scanner: &'a Scanner,
    /// Tells what is as it was.
    pub(crate) index: &'a Index,
    /// What contents are compared with.
    pub(crate) contents: &'a Index,
    /// Files to be read whatever their times say.
    pub(crate) forced: &'a HashSet<Vec<u8>>,
    pub(crate) read: Read,
    pub(crate) limit: Option<&'a Limit>,
    /// Where not everything has to be looked at.
    pub(crate) narrow: Option<&'a Narrow>,
}

/// One entry, as it was found.
pub(crate) struct Entry<'a> {
    /// The directory that it is in (for the root, the root).
    pub(crate) dir: BorrowedFd<'a>,
    /// Its name there; `.` for the root.
    pub(crate) name: &'a CStr,
    pub(crate) path: &'a [u8],
    pub(crate) stat: Stat,
    /// Whether lower directories are merged with the one that it is in.
    pub(crate) merged: bool,
    pub(crate) old: Option<&'a Arc<Node>>,
}

/// Looks at entries, one after the other. Each thread has its own.
pub(crate) struct Examiner<'a> {
    with: Comparison<'a>,
    /// Of the root. What is on another device may be something else with the same number and the
    /// same times, a snapshot of a subvolume for one: that is always looked at.
    dev: u64,
    /// The inodes of those that are forced.
    pub(crate) mapped: HashSet<u64>,
    lowers: Lowers,
    /// Inodes with several names whose content was read and is this.
    verified: HashMap<Inode, Arc<[Segment]>>,
}

impl<'a> Examiner<'a> {
    pub(crate) fn new(with: Comparison<'a>) -> Result<Self, WalkError> {
        let forced = with.forced.iter();
        let root = Stat::of(with.scanner.root());
        Ok(Self {
            dev: root.map_err(|errno| WalkError::io("stat", b"", errno))?.dev,
            mapped: forced
                .filter_map(|path| with.index.get(path))
                .map(|node| node.stat.ino)
                .collect(),
            lowers: with.scanner.opened_lowers()?,
            verified: HashMap::new(),
            with,
        })
    }

    /// Whether the entry is known to be as it was. `path` is only asked for if it matters.
    pub(crate) fn is_as_it_was(
        &mut self,
        stat: &Stat,
        old: &Node,
        path: impl Fn() -> Vec<u8>,
    ) -> bool {
        old.stat.same_identity(stat)
            && stat.dev == self.dev
            && old.stat.dev == stat.dev
            && !self.with.narrow.is_some_and(|it| it.is_touched(stat.ino))
            && settled(stat.ctime, self.with.index.started)
            && !self.is_forced(stat, path)
    }

    fn is_forced(&mut self, stat: &Stat, path: impl Fn() -> Vec<u8>) -> bool {
        if !stat.is_file() {
            return false;
        }
        let Comparison {
            index,
            forced,
            read,
            ..
        } = self.with;
        if !forced.is_empty() && forced.contains(&path()) {
            self.mapped.insert(stat.ino);
        }
        matches!(read, Read::All | Read::Anew)
            || self.mapped.contains(&stat.ino)
            || index.mapped.contains(&stat.ino)
    }

    /// Reads what there is to know of an entry; nothing if it is changing.
    pub(crate) fn look(
        &mut self,
        entry: &Entry<'_>,
    ) -> Result<Option<(Node, Option<Over>)>, WalkError> {
        // Remembered even where it is read anyway.
        self.is_forced(&entry.stat, || entry.path.to_vec());
        match self.read(entry) {
            Ok(looked) => Ok(looked),
            Err(errno) if is_race(errno) => Ok(None),
            Err(errno) => Err(WalkError::io("read", entry.path, errno)),
        }
    }

    fn read(&mut self, entry: &Entry<'_>) -> rustix::io::Result<Option<(Node, Option<Over>)>> {
        let rules = self.with.scanner.rules;
        let known = self.with.contents.get(entry.path);
        let fd = open_name(entry.dir, entry.name)?;
        let stat = Stat::of(fd.as_fd())?;
        if stat.inode() != entry.stat.inode()
            || stat.file_type != entry.stat.file_type
            || stat.mount != entry.stat.mount
        {
            return Ok(None);
        }
        let xattrs = rules.keep(xattr::read(fd.as_fd())?);
        let mut node = Node {
            hides_lower: stat.is_dir() && rules.hides_lower(&xattrs),
            stat,
            xattrs,
            target: Vec::new(),
            content: Content::None,
            link_to: None,
            nets_out: false,
            mount_point: false,
        };
        match stat.file_type {
            FileType::Symlink => node.target = read_link(fd.as_fd())?,
            FileType::RegularFile if stat.size == 0 => node.content = Content::Known([].into()),
            FileType::RegularFile => {
                node.content = self.known_content(&fd, &node, known)?;
            }
            _ => {}
        }
        let mut over = None;
        if rules.is_overlay() && known.is_none_or(|known| known.nets_out) {
            let lower = match entry.merged {
                true => self.lowers.find(entry.path)?,
                false => None,
            };
            over = lower.as_ref().map(|lower| Over {
                size: lower.stat.is_file().then_some(lower.stat.size),
            });
            node.nets_out = match &lower {
                Some(lower) => {
                    let reads = stat.is_file() && lower.stat.size == stat.size;
                    (!reads || self.may_read(stat.size)) && is_copy(rules, &fd, &node, lower)?
                }
                // A whiteout that hides nothing.
                None => node.stat.is_null_device(),
            };
        }
        let after = Stat::of(fd.as_fd())?;
        Ok(after.same_identity(&stat).then_some((node, over)))
    }

    /// The content on record, if reading shows that it is still there. Read
    /// only where size and time speak for it: else it is read once, by the capture.
    fn known_content(
        &mut self,
        fd: &OwnedFd,
        node: &Node,
        old: Option<&Arc<Node>>,
    ) -> rustix::io::Result<Content> {
        let stat = &node.stat;
        let Some(Content::Known(content)) = old
            .filter(|old| old.stat.is_file() && old.stat.size == stat.size)
            .filter(|old| {
                matches!(self.with.read, Read::Anew | Read::Again) || old.stat.mtime == stat.mtime
            })
            .map(|old| &old.content)
        else {
            return Ok(Content::Unread);
        };
        let verified = self.verified.get(&stat.inode());
        if verified.is_some_and(|verified| Arc::ptr_eq(verified, content)) {
            return Ok(Content::Known(content.clone()));
        }
        if !self.may_read(stat.size) {
            return Ok(Content::Unread);
        }
        let file = reopen(fd.as_fd(), OFlags::RDONLY | OFlags::NOATIME)?;
        if !equals_segments(file.as_fd(), stat.size, content)? {
            return Ok(Content::Unread);
        }
        if stat.nlink > 1 {
            self.verified.insert(stat.inode(), content.clone());
        }
        Ok(Content::Known(content.clone()))
    }

    fn may_read(&self, bytes: u64) -> bool {
        self.with.limit.is_none_or(|limit| limit.allows(bytes))
    }
}

/// Whether an entry of the upper directory is only a copy of the lower one.
pub(crate) fn is_copy(
    rules: Rules,
    fd: &OwnedFd,
    node: &Node,
    lower: &Lower,
) -> rustix::io::Result<bool> {
    let (a, b) = (&node.stat, &lower.stat);
    let alike = a.file_type == b.file_type
        && (a.mode, a.uid, a.gid, a.rdev) == (b.mode, b.uid, b.gid, b.rdev)
        && (a.is_dir() || a.mtime == b.mtime)
        && (!a.is_file() || a.size == b.size);
    if !alike || rules.steers_merge(&node.xattrs) {
        return Ok(false);
    }
    let xattrs = xattr::read(lower.fd.as_fd())?;
    if a.is_file() && rules.steers_merge(&xattrs) {
        // Its data lies elsewhere (metacopy).
        return Ok(false);
    }
    if node.xattrs != rules.visible(xattrs) {
        return Ok(false);
    }
    match a.file_type {
        FileType::Symlink => Ok(node.target == read_link(lower.fd.as_fd())?),
        FileType::RegularFile if a.size > 0 => {
            let flags = OFlags::RDONLY | OFlags::NOATIME;
            let upper = reopen(fd.as_fd(), flags)?;
            let lower = reopen(lower.fd.as_fd(), flags)?;
            equal_files(upper.as_fd(), lower.as_fd(), a.size)
        }
        _ => Ok(true),
    }
}
