// SPDX-License-Identifier: Apache-2.0
//! Writing a tree into an empty directory, exactly.
//!
//! The directory is nobody else's: a new upper directory beside the old one,
//! put in its place by the caller when it is complete. Still, nothing is opened
//! but beneath it, and a tree that breaks the store's invariant is refused
//! before anything is written.
//!
//! Order matters: contents, then owner (which clears set-uid bits and
//! capabilities), then attributes (an ACL alters the mode), then mode, then
//! times. Directories come last, the deepest first: their times move with what
//! is made in them, and a default ACL or a set-gid bit would be inherited.

use std::{
    fs::File,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use crab_store::{EntryKind, ObjectReader, ReadError, Tree, TreeEntry, TreeError};
use rustix::{
    fs::{
        AtFlags, FileType, Gid, Mode, OFlags, RawDir, Timespec, Timestamps, UTIME_OMIT, Uid, chmod,
        chownat, fchmod, linkat, mkdirat, mknodat, openat, removexattr, symlinkat, syncfs,
        utimensat,
    },
    io::Errno,
};

use super::{
    beneath::{Stat, open_beneath, open_name, proc_path, reopen, split},
    lower::open_root,
    walk::{WalkError, shown},
    xattr::{self, Rules},
};

/// Whether restored files have to survive a power cut from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The kernel writes them back when it likes. The checkpoint stays the
    /// truth, and restoring it again is always possible.
    WriteBack,
    /// The file system is synchronised before the call returns.
    Synced,
}

/// Why a tree could not be written.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The tree breaks the invariant of trees.
    #[error("refuse to restore: {0}")]
    Tree(#[from] TreeError),
    /// The target is not empty.
    #[error("{} is not empty", .0.display())]
    NotEmpty(PathBuf),
    /// A system call failed.
    #[error("{verb} {path}: {source}")]
    Io {
        /// What was tried.
        verb: &'static str,
        /// Relative to the target.
        path: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The target could not be looked at.
    #[error(transparent)]
    Walk(#[from] WalkError),
    /// A content could not be read back, or written.
    #[error("restore the content of {path}: {source}")]
    Content {
        /// Relative to the target.
        path: String,
        /// Why.
        source: ReadError,
    },
    /// Something is mounted where the tree has something else.
    #[error("{path} is in the way: something is mounted there")]
    MountPoint {
        /// Relative to the target.
        path: String,
    },
}

impl RestoreError {
    pub(crate) fn io(verb: &'static str, path: &[u8]) -> impl FnOnce(Errno) -> Self {
        let path = shown(path);
        move |errno| Self::Io {
            verb,
            path,
            source: errno.into(),
        }
    }
}

/// Makes the empty directory `target` be `tree`.
pub fn build(
    tree: &Tree,
    reader: &ObjectReader,
    target: &Path,
    durability: Durability,
) -> Result<(), RestoreError> {
    tree.check()?;
    let failed = |verb| RestoreError::io(verb, target.as_os_str().as_encoded_bytes());
    let root = open_root(target).map_err(failed("open"))?;
    if !is_empty(root.as_fd()).map_err(failed("list"))? {
        return Err(RestoreError::NotEmpty(target.to_owned()));
    }
    // Inherited from where it was made, it would be inherited on.
    let _ = removexattr(proc_path(root.as_fd()), c"system.posix_acl_default");

    let mut place = Placer::new(root.as_fd(), reader, Rules::Plain);
    for entry in &tree.entries {
        if !entry.path.is_empty() {
            place.create(entry)?;
        }
    }
    place.finish(tree.entries.iter().rev())?;
    if durability == Durability::Synced {
        // `syncfs` wants a descriptor that is open for reading.
        let dir = open_beneath(root.as_fd(), b"", OFlags::RDONLY | OFlags::DIRECTORY);
        dir.and_then(syncfs).map_err(failed("synchronise"))?;
    }
    Ok(())
}

fn is_empty(root: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    let dir = open_beneath(root, b"", OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut buffer = Vec::with_capacity(1 << 10);
    let mut entries = RawDir::new(dir, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Makes entries of a tree below a root.
pub(crate) struct Placer<'a> {
    root: BorrowedFd<'a>,
    reader: &'a ObjectReader,
    /// Which attributes are exchanged on directories that were there before.
    rules: Rules,
    /// The directory of the entry before, which mostly is that of the next.
    parent: Option<(Vec<u8>, OwnedFd)>,
}

impl<'a> Placer<'a> {
    pub(crate) fn new(root: BorrowedFd<'a>, reader: &'a ObjectReader, rules: Rules) -> Self {
        Self {
            root,
            reader,
            rules,
            parent: None,
        }
    }

    /// The directory that holds `path`, open.
    pub(crate) fn parent<'p>(
        &mut self,
        path: &'p [u8],
    ) -> Result<(BorrowedFd<'_>, &'p [u8]), RestoreError> {
        let (parent, name) = split(path);
        let known = self.parent.take().filter(|(known, _)| known == parent);
        let known = match known {
            Some(known) => known,
            None => {
                let fd = open_beneath(self.root, parent, OFlags::PATH | OFlags::DIRECTORY)
                    .map_err(RestoreError::io("open", parent))?;
                (parent.to_vec(), fd)
            }
        };
        Ok((self.parent.insert(known).1.as_fd(), name))
    }

    /// Makes an entry that is not there. A directory is not finished by this.
    pub(crate) fn create(&mut self, entry: &TreeEntry) -> Result<(), RestoreError> {
        self.make(entry, None)
    }

    /// The same of a regular file, with the content of one that is a lower layer's.
    pub(crate) fn copy(&mut self, entry: &TreeEntry, from: &OwnedFd) -> Result<(), RestoreError> {
        self.make(entry, Some(from))
    }

    fn make(&mut self, entry: &TreeEntry, from: Option<&OwnedFd>) -> Result<(), RestoreError> {
        let path = entry.path.as_slice();
        let failed = |verb| RestoreError::io(verb, path);
        let (root, reader) = (self.root, self.reader);
        let (dir, name) = self.parent(path)?;
        let private = Mode::RWXU;
        let special = |file_type, rdev| {
            mknodat(dir, name, file_type, Mode::empty(), rdev).map_err(failed("make"))
        };
        match &entry.kind {
            EntryKind::Dir => return mkdirat(dir, name, private).map_err(failed("make")),
            EntryKind::HardLink { to } => {
                let (parent, first) = split(to);
                let from = open_beneath(root, parent, OFlags::PATH | OFlags::DIRECTORY)
                    .map_err(failed("link"))?;
                return linkat(&from, first, dir, name, AtFlags::empty()).map_err(failed("link"));
            }
            EntryKind::File { size, content } => {
                let flags = OFlags::RDWR
                    | OFlags::CREATE
                    | OFlags::EXCL
                    | OFlags::NOFOLLOW
                    | OFlags::CLOEXEC;
                let file: File = openat(dir, name, flags, Mode::RUSR | Mode::WUSR)
                    .map_err(failed("make"))?
                    .into();
                match from {
                    Some(from) => copy_content(from, &file).map_err(failed("copy"))?,
                    None => reader
                        .read_segments(content, *size, &file)
                        .map_err(|source| RestoreError::Content {
                            path: shown(path),
                            source,
                        })?,
                }
            }
            EntryKind::Symlink { target } => {
                symlinkat(target.as_slice(), dir, name).map_err(failed("make"))?;
            }
            EntryKind::CharDevice { rdev } => special(FileType::CharacterDevice, *rdev)?,
            EntryKind::BlockDevice { rdev } => special(FileType::BlockDevice, *rdev)?,
            EntryKind::Fifo => special(FileType::Fifo, 0)?,
            EntryKind::Socket => special(FileType::Socket, 0)?,
        }
        self.set_attributes(entry)
    }

    /// Sets owner, attributes, mode and times of an entry that was just made.
    fn set_attributes(&mut self, entry: &TreeEntry) -> Result<(), RestoreError> {
        let path = entry.path.as_slice();
        let failed = |verb| RestoreError::io(verb, path);
        let (dir, name) = self.parent(path)?;
        let nofollow = AtFlags::SYMLINK_NOFOLLOW;
        let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
        chownat(dir, name, Some(uid), Some(gid), nofollow).map_err(failed("chown"))?;
        let is_symlink = matches!(entry.kind, EntryKind::Symlink { .. });
        if !entry.xattrs.is_empty() || !is_symlink {
            let fd = open_name(dir, name).map_err(failed("open"))?;
            xattr::add(fd.as_fd(), &entry.xattrs).map_err(failed("set attributes of"))?;
            if !is_symlink {
                let mode = Mode::from_raw_mode(entry.mode);
                chmod(proc_path(fd.as_fd()), mode).map_err(failed("chmod"))?;
            }
        }
        utimensat(dir, name, &times(entry), nofollow).map_err(failed("set times of"))
    }

    /// Makes an entry that is there, and is of the right kind, have the right
    /// owner, attributes, mode and times.
    pub(crate) fn amend(&mut self, entry: &TreeEntry) -> Result<(), RestoreError> {
        let path = entry.path.as_slice();
        let failed = |verb| RestoreError::io(verb, path);
        let (dir, name) = self.parent(path)?;
        let fd = open_name(dir, name).map_err(failed("open"))?;
        xattr::replace(fd.as_fd(), &Vec::new(), Rules::Plain).map_err(failed("clear"))?;
        self.set_attributes(entry)
    }

    /// Finishes the directories among `entries`, which come children first. Those that are right
    /// already are not touched: it may be that nobody can.
    pub(crate) fn finish<'e>(
        &mut self,
        entries: impl Iterator<Item = &'e TreeEntry>,
    ) -> Result<(), RestoreError> {
        self.parent = None;
        for entry in entries.filter(|entry| entry.kind == EntryKind::Dir) {
            let failed = |verb| RestoreError::io(verb, &entry.path);
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let dir = open_beneath(self.root, &entry.path, flags).map_err(failed("open"))?;
            let is = Stat::of(dir.as_fd()).map_err(failed("look at"))?;
            let wanted = (entry.mode, entry.uid, entry.gid, entry.mtime);
            if (is.mode, is.uid, is.gid, is.mtime) == wanted {
                let xattrs = xattr::read(dir.as_fd()).map_err(failed("read attributes of"))?;
                if self.rules.keep(xattrs) == entry.xattrs {
                    continue;
                }
            }
            let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
            rustix::fs::fchown(&dir, Some(uid), Some(gid)).map_err(failed("chown"))?;
            xattr::replace(dir.as_fd(), &entry.xattrs, self.rules)
                .map_err(failed("set attributes of"))?;
            fchmod(&dir, Mode::from_raw_mode(entry.mode)).map_err(failed("chmod"))?;
            rustix::fs::futimens(&dir, &times(entry)).map_err(failed("set times of"))?;
        }
        Ok(())
    }
}

/// What is in a regular file, which may be open as a mere place.
fn copy_content(from: &OwnedFd, to: &File) -> rustix::io::Result<()> {
    let from = reopen(from.as_fd(), OFlags::RDONLY | OFlags::NOATIME)?;
    let (mut from, mut to) = (File::from(from), to);
    std::io::copy(&mut from, &mut to)
        .map(drop)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// The entry's time of change; that of the last access stays.
pub(crate) fn times(entry: &TreeEntry) -> Timestamps {
    Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        last_modification: Timespec {
            tv_sec: entry.mtime.sec,
            tv_nsec: entry.mtime.nsec.into(),
        },
    }
}
