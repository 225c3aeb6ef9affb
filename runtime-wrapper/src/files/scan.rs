// SPDX-License-Identifier: Apache-2.0
//! What changed in one root since its [`Index`]: the *net* effect.
//!
//! An entry whose identity is as recorded is not touched. Any other is looked
//! at: attributes are read, and the content too where only reading can tell.
//! What turns out to be as it was is no change, whatever happened in between:
//! a file made and deleted, renamed away and back, rewritten with the same
//! bytes and times, copied up by overlayfs because it was opened for writing.
//!
//! Works on a running container. What moves meanwhile is reported as torn, and
//! a scan with torn paths is only good for being made again, frozen. It does
//! not, however, notice a change that came and was over *between* two reads:
//! that is what the caller's epoch is for.

use std::{
    collections::{HashMap, HashSet},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

use crab_store::{Segment, Time, Tree};
use rustix::{
    fs::{FileType, Mode, OFlags, ResolveFlags, open, openat2},
    io::Errno,
};

use super::{
    beneath::{Stat, is_race, open_name, reopen},
    change::{Change, Found, Over, compare, link},
    content::{equal_files, equals_segments},
    index::{Content, Index, IndexError, Node, now, settled},
    lower::{Lower, Lowers, open_root},
    shape::read_link,
    walk::{Descend, Visit, WalkError, walk},
    xattr::{self, Rules},
};
use crate::overlay::OverlayMount;

/// A root directory and how to look at it.
#[derive(Debug)]
pub struct Scanner {
    pub(crate) root: OwnedFd,
    pub(crate) rules: Rules,
    lowers: Vec<OwnedFd>,
}

/// A root that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("open {path}: {source}")]
pub struct OpenError {
    path: String,
    source: std::io::Error,
}

/// What a scan found. Turned into a capture by [`Scanner::stage`], or, where
/// there is nothing to capture, into a fresher index by [`Scan::into_index`].
#[derive(Debug)]
pub struct Scan {
    nodes: Vec<Found>,
    started: Time,
    mapped: HashSet<u64>,
    changes: Vec<Change>,
    torn: Vec<Vec<u8>>,
    /// All was read that had to be.
    whole: bool,
}

impl Scanner {
    /// For the upper directory of an overlay, with its lower layers to tell a
    /// copy from a change.
    pub fn overlay(mount: &OverlayMount) -> Result<Self, OpenError> {
        let opened = |path: &PathBuf| {
            open_root(path).map_err(|errno| OpenError {
                path: path.display().to_string(),
                source: errno.into(),
            })
        };
        Ok(Self {
            root: opened(&mount.upper)?,
            rules: Rules::overlay(mount.user_xattr),
            lowers: mount.lowers.iter().map(opened).collect::<Result<_, _>>()?,
        })
    }

    /// For what is mounted at `mount_point` in the mount namespace of process
    /// `pid`, a tmpfs for example. Holds the mount, not the process.
    pub fn mounted(pid: u32, mount_point: &Path) -> Result<Self, OpenError> {
        let failed = |errno: Errno| OpenError {
            path: format!("{} of process {pid}", mount_point.display()),
            source: errno.into(),
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = open(format!("/proc/{pid}/root"), flags, Mode::empty()).map_err(failed)?;
        // Mount points in mountinfo have no symlinks in them, so one that does
        // was put there to lead the way out.
        let resolve =
            ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let root = openat2(&top, mount_point, flags, Mode::empty(), resolve).map_err(failed)?;
        let stat = Stat::of(root.as_fd()).map_err(failed)?;
        if !stat.mount_root {
            return Err(failed(Errno::XDEV));
        }
        Ok(Self::directory(root))
    }

    /// For any directory, without layers below it.
    pub fn directory(root: OwnedFd) -> Self {
        Self {
            root,
            rules: Rules::Plain,
            lowers: Vec::new(),
        }
    }

    /// The directory that is looked at.
    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// The index of this root when it was just made to be `tree`, and nothing
    /// has run in it yet: against it, the next scan finds no change.
    pub fn index_restored(&self, tree: &Tree) -> Result<Index, IndexError> {
        Index::of_restored(self.root(), tree, self.rules)
    }

    /// Compares the root with what `index` says. Files at the paths of
    /// `forced` are read whatever their times say: those that a process maps
    /// shared and writable, since stores to a mapping move the times only when
    /// a page becomes dirty. The index that comes of this scan remembers them,
    /// so that a mapping that is gone by the next one is not forgotten.
    pub fn scan(&self, index: &Index, forced: &HashSet<Vec<u8>>) -> Result<Scan, WalkError> {
        self.compare_with(index, index, forced, Read::Doubtful, None)
    }

    /// As [`Self::scan`], with every regular file read, whatever its times say. On a
    /// tmpfs a store to a mapped page moves no time at all.
    pub fn scan_everything(&self, index: &Index) -> Result<Scan, WalkError> {
        self.compare_with(index, index, &HashSet::new(), Read::All, None)
    }

    /// As [`Self::scan_everything`], against an index that tells of contents and
    /// attributes alone: content is read also where the time is another.
    pub(crate) fn scan_anew(
        &self,
        index: &Index,
        forced: &HashSet<Vec<u8>>,
    ) -> Result<Scan, WalkError> {
        self.compare_with(index, index, forced, Read::Anew, None)
    }

    /// As [`Self::scan`], after a [`Self::scan_anew`] that gave `index`: what may be another
    /// since is compared with `contents` again, and so is `everything` where that is asked for.
    /// Nothing if more than so many bytes had to be read.
    pub(crate) fn scan_again(
        &self,
        index: &Index,
        contents: &Index,
        forced: &HashSet<Vec<u8>>,
        everything: bool,
        bytes: &mut u64,
    ) -> Result<Option<Scan>, WalkError> {
        let read = if everything { Read::Anew } else { Read::Again };
        let scan = self.compare_with(index, contents, forced, read, Some(bytes))?;
        Ok(scan.whole.then_some(scan))
    }

    /// What the layers below show.
    pub(crate) fn lowers(&self) -> rustix::io::Result<Lowers> {
        Lowers::new(self.rules, &self.lowers)
    }

    fn compare_with(
        &self,
        index: &Index,
        contents: &Index,
        forced: &HashSet<Vec<u8>>,
        read: Read,
        bytes: Option<&mut u64>,
    ) -> Result<Scan, WalkError> {
        let started = now();
        let lowers = self
            .lowers()
            .map_err(|errno| WalkError::io("open the layers of", b"", errno))?;
        let mapped: HashSet<u64> = forced
            .iter()
            .filter_map(|path| index.nodes.get(path.as_slice()))
            .map(|node| node.stat.ino)
            .collect();
        let mut run = Run {
            index,
            contents,
            forced,
            read,
            left: bytes,
            whole: true,
            mapped,
            rules: self.rules,
            lowers,
            nodes: Vec::with_capacity(index.nodes.len()),
            torn: Vec::new(),
            verified: HashMap::new(),
        };
        let mut torn = walk(self.root(), |visit| run.examine(visit))?;
        let mut nodes = run.nodes;
        torn.append(&mut run.torn);
        torn.sort();
        torn.dedup();
        nodes.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        link(&mut nodes, self.rules);
        let changes = compare(index, &nodes, self.rules);
        Ok(Scan {
            nodes,
            started,
            mapped: run.mapped,
            changes,
            torn,
            whole: run.whole,
        })
    }
}

impl Scan {
    /// What changed, by path. May be wrong where something is torn.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// What changed while it was looked at.
    pub fn torn(&self) -> &[Vec<u8>] {
        &self.torn
    }

    /// What there is, whatever of it has changed. Contents that are not on record are unread.
    pub(crate) fn into_live(self) -> Index {
        let (nodes, _, mut index) = self.into_parts();
        let nodes = nodes.into_iter().map(|found| (found.path, found.node));
        index.nodes.extend(nodes);
        index
    }

    pub(crate) fn into_parts(self) -> (Vec<Found>, Vec<Vec<u8>>, Index) {
        let index = Index {
            nodes: HashMap::with_capacity(self.nodes.len()),
            started: self.started,
            mapped: self.mapped,
        };
        (self.nodes, self.torn, index)
    }

    /// Where nothing of this scan is captured, although something has changed: the next
    /// one is to be compared with the same index again. Only what a mapping may still
    /// change is taken over, since the mapping may be gone by then.
    pub fn pass_over(self, index: &mut Index) {
        index.mapped.extend(self.mapped);
    }

    /// The index to compare the next scan with, if this one found no change:
    /// it no longer needs to read what this one has read.
    pub fn into_index(self) -> Option<Index> {
        if !self.changes.is_empty() || !self.torn.is_empty() {
            return None;
        }
        Some(self.into_live())
    }
}

/// Which contents are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Read {
    /// Those that may be others, by their times.
    Doubtful,
    /// All whose time is on record.
    All,
    /// All whose length is on record.
    Anew,
    /// Of those the ones that may be others.
    Again,
}

struct Run<'a> {
    index: &'a Index,
    /// What contents are compared with.
    contents: &'a Index,
    forced: &'a HashSet<Vec<u8>>,
    read: Read,
    /// How many bytes may still be read, where there is a limit.
    left: Option<&'a mut u64>,
    whole: bool,
    /// The inodes of those.
    mapped: HashSet<u64>,
    rules: Rules,
    lowers: Lowers,
    nodes: Vec<Found>,
    torn: Vec<Vec<u8>>,
    /// Inodes with several names whose content was read and is this.
    verified: HashMap<u64, Arc<[Segment]>>,
}

impl Run<'_> {
    /// The tag of a directory says whether lower ones are merged with it.
    fn examine(&mut self, visit: &Visit<'_>) -> Result<Descend, WalkError> {
        if visit.mount_point {
            self.push(visit.path, Arc::new(Node::mount_point(&visit.stat)), None);
            return Ok(Descend::No);
        }
        let forced = self.is_forced(visit);
        let old = self.index.nodes.get(visit.path);
        if let Some(old) = old
            && !forced
            && old.stat.same_identity(&visit.stat)
            && settled(visit.stat.ctime, self.index.started)
        {
            let tag = visit.tag && !old.hides_lower;
            self.push(visit.path, old.clone(), None);
            return Ok(Descend::Yes { tag });
        }
        match self.look(visit) {
            Ok(Some((node, over))) => {
                let tag = visit.tag && !node.hides_lower;
                self.push(visit.path, Arc::new(node), over);
                Ok(Descend::Yes { tag })
            }
            Ok(None) => {
                self.torn.push(visit.path.to_vec());
                Ok(Descend::No)
            }
            Err(errno) if is_race(errno) => {
                self.torn.push(visit.path.to_vec());
                Ok(Descend::No)
            }
            Err(errno) => Err(WalkError::io("read", visit.path, errno)),
        }
    }

    fn is_forced(&mut self, visit: &Visit<'_>) -> bool {
        if !visit.stat.is_file() {
            return false;
        }
        let ino = visit.stat.ino;
        if !self.forced.is_empty() && self.forced.contains(visit.path) {
            self.mapped.insert(ino);
        }
        matches!(self.read, Read::All | Read::Anew)
            || self.mapped.contains(&ino)
            || self.index.mapped.contains(&ino)
    }

    fn push(&mut self, path: &[u8], node: Arc<Node>, over: Option<Over>) {
        let path = path.into();
        self.nodes.push(Found { path, node, over });
    }

    /// Reads what there is to know of an entry; nothing if it is changing.
    fn look(&mut self, visit: &Visit<'_>) -> rustix::io::Result<Option<(Node, Option<Over>)>> {
        let fd = open_name(visit.dir, visit.name)?;
        let stat = Stat::of(fd.as_fd())?;
        if stat.ino != visit.stat.ino
            || stat.file_type != visit.stat.file_type
            || stat.mount != visit.stat.mount
        {
            return Ok(None);
        }
        let xattrs = self.rules.keep(xattr::read(fd.as_fd())?);
        let known = self.contents.nodes.get(visit.path).map(|known| &**known);
        let mut node = Node {
            hides_lower: stat.is_dir() && self.rules.hides_lower(&xattrs),
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
        if self.rules.is_overlay() && known.is_none_or(|known| known.nets_out) {
            let lower = match visit.tag {
                true => self.lowers.find(visit.path)?,
                false => None,
            };
            over = lower.as_ref().map(|lower| Over {
                size: lower.stat.is_file().then_some(lower.stat.size),
            });
            node.nets_out = match &lower {
                Some(lower) => {
                    let reads = stat.is_file() && lower.stat.size == stat.size;
                    (!reads || self.may_read(stat.size)) && is_copy(self.rules, &fd, &node, lower)?
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
        old: Option<&Node>,
    ) -> rustix::io::Result<Content> {
        let stat = &node.stat;
        let Some(Content::Known(content)) = old
            .filter(|old| old.stat.is_file() && old.stat.size == stat.size)
            .filter(|old| {
                matches!(self.read, Read::Anew | Read::Again) || old.stat.mtime == stat.mtime
            })
            .map(|old| &old.content)
        else {
            return Ok(Content::Unread);
        };
        let verified = self.verified.get(&stat.ino);
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
            self.verified.insert(stat.ino, content.clone());
        }
        Ok(Content::Known(content.clone()))
    }

    /// Counts bytes that are read; false if they would be too many.
    fn may_read(&mut self, bytes: u64) -> bool {
        let Some(left) = &mut self.left else {
            return true;
        };
        match left.checked_sub(bytes) {
            Some(rest) => **left = rest,
            None => self.whole = false,
        }
        self.whole
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
