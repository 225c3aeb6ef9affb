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
    collections::HashSet,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

use crab_store::Tree;
use rustix::{
    fs::{Mode, OFlags, open},
    io::Errno,
};

use super::{
    beneath::Stat,
    change::{Change, Found, are_all_names, compare, link},
    examine::{Comparison, Limit, Read},
    index::{Index, IndexError, now},
    lower::{Lowers, open_root},
    narrow::{ChangedInodes, Narrow},
    survey::{Surveyed, survey},
    walk::WalkError,
    xattr::Rules,
};
use crate::{
    in_root::{Links, open_in_root},
    overlay::OverlayMount,
};

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

impl OpenError {
    /// It may well be opened in a moment: this process or the kernel had nothing left to do it
    /// with. Anything else lasts: another mount hides it, or one that it is below of answers nobody.
    pub fn may_pass(&self) -> bool {
        let passing = [
            libc::EMFILE,
            libc::ENFILE,
            libc::ENOMEM,
            libc::EINTR,
            libc::EAGAIN,
        ];
        self.source
            .raw_os_error()
            .is_some_and(|errno| passing.contains(&errno))
    }

    pub(crate) fn new(path: &Path, errno: Errno) -> Self {
        Self {
            path: path.display().to_string(),
            source: errno.into(),
        }
    }
}

/// What a scan found. Turned into a capture by [`Scanner::stage`], or, where
/// there is nothing to capture, into a fresher index by [`Scan::into_index`].
#[derive(Debug)]
pub struct Scan {
    /// All that there is.
    index: Index,
    /// What of it was looked at, by path.
    found: Vec<Found>,
    changes: Vec<Change>,
    torn: Vec<Vec<u8>>,
    /// All was looked at and read that had to be.
    whole: bool,
}

impl Scanner {
    /// For the upper directory of an overlay, with its lower layers to tell a
    /// copy from a change.
    pub fn overlay(mount: &OverlayMount) -> Result<Self, OpenError> {
        let opened = |path: &PathBuf| open_root(path).map_err(|errno| OpenError::new(path, errno));
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
        let root = open_in_root(&top, mount_point, flags, Links::Refused).map_err(failed)?;
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
        self.everything(index, index, forced, Read::Doubtful, None)
    }

    /// As [`Self::scan`], where these inodes are all that changed since `index` was taken:
    /// nothing else is looked at. Nothing if that does not account for one of them.
    pub fn scan_changed(
        &self,
        index: &Index,
        forced: &HashSet<Vec<u8>>,
        changed: &ChangedInodes,
    ) -> Result<Option<Scan>, WalkError> {
        let narrow = Narrow::new(index, changed, forced);
        let scan = self.compare_with(Comparison {
            scanner: self,
            index,
            contents: index,
            forced,
            read: Read::Doubtful,
            limit: None,
            narrow: Some(&narrow),
        })?;
        Ok(scan.whole.then_some(scan))
    }

    /// As [`Self::scan`], with every regular file read, whatever its times say. On a
    /// tmpfs a store to a mapped page moves no time at all.
    pub fn scan_everything(&self, index: &Index) -> Result<Scan, WalkError> {
        self.everything(index, index, &HashSet::new(), Read::All, None)
    }

    /// As [`Self::scan_everything`], against an index that tells of contents and
    /// attributes alone: content is read also where the time is another.
    pub(crate) fn scan_anew(
        &self,
        index: &Index,
        forced: &HashSet<Vec<u8>>,
    ) -> Result<Scan, WalkError> {
        self.everything(index, index, forced, Read::Anew, None)
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
        let limit = Limit::new(*bytes);
        let scan = self.everything(index, contents, forced, read, Some(&limit))?;
        *bytes = limit.left();
        Ok(scan.whole.then_some(scan))
    }

    /// What the layers below show.
    pub(crate) fn lowers(&self) -> rustix::io::Result<Lowers> {
        Lowers::new(self.rules, &self.lowers)
    }

    /// The same, for who walks.
    pub(crate) fn opened_lowers(&self) -> Result<Lowers, WalkError> {
        let lowers = self.lowers();
        lowers.map_err(|errno| WalkError::io("open the layers of", b"", errno))
    }

    fn everything(
        &self,
        index: &Index,
        contents: &Index,
        forced: &HashSet<Vec<u8>>,
        read: Read,
        limit: Option<&Limit>,
    ) -> Result<Scan, WalkError> {
        self.compare_with(Comparison {
            scanner: self,
            index,
            contents,
            forced,
            read,
            limit,
            narrow: None,
        })
    }

    fn compare_with(&self, comparison: Comparison<'_>) -> Result<Scan, WalkError> {
        let started = now();
        let Comparison {
            index,
            limit,
            narrow,
            ..
        } = comparison;
        let Surveyed {
            index: mut now,
            findings,
        } = survey(comparison)?;
        let explained = narrow.is_none_or(|narrow| {
            narrow.is_explained(&findings.met) && are_all_names(&now, &findings.linked)
        });
        now.started = started;
        now.mapped = findings.mapped;
        let mut found = findings.found;
        found.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        link(&mut now, findings.linked, &mut found, self.rules);
        let changes = compare(index, &now, &found, self.rules);
        let mut torn = findings.torn;
        torn.sort();
        torn.dedup();
        Ok(Scan {
            index: now,
            found,
            changes,
            torn,
            whole: explained && limit.is_none_or(Limit::is_kept),
        })
    }
}

impl Scan {
    /// What changed, by path. May be wrong where something is torn.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Notes with what to ask, next time, which inodes have changed since: the answer must
    /// tell of all that changed after this scan began. The index that comes of it has it.
    pub fn marked(mut self, mark: Option<&str>) -> Self {
        self.index.set_mark(mark.map(Arc::from));
        self
    }

    /// What changed while it was looked at.
    pub fn torn(&self) -> &[Vec<u8>] {
        &self.torn
    }

    /// What there is, whatever of it has changed. Contents that are not on record are unread.
    pub(crate) fn into_live(self) -> Index {
        self.index
    }

    /// What there is, what of it was looked at, and what is torn.
    pub(crate) fn into_parts(self) -> (Index, Vec<Found>, Vec<Vec<u8>>) {
        (self.index, self.found, self.torn)
    }

    /// Where nothing of this scan is captured, although something has changed: the next
    /// one is to be compared with the same index again. Only what a mapping may still
    /// change is taken over, since the mapping may be gone by then.
    pub fn pass_over(self, index: &mut Index) {
        index.mapped.extend(self.index.mapped);
    }

    /// The index to compare the next scan with, if this one found no change:
    /// it no longer needs to read what this one has read.
    pub fn into_index(self) -> Option<Index> {
        if !self.changes.is_empty() || !self.torn.is_empty() {
            return None;
        }
        Some(self.index)
    }
}
