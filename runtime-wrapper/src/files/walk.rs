// SPDX-License-Identifier: Apache-2.0
//! A walk over one file system below one directory, while it may be changing.
//!
//! No recursion, no path handed to the kernel in one piece, one descriptor
//! open at a time: a tree may be as deep as it likes. Each directory is opened
//! by its path from the root, must be the inode that its parent listed, and is
//! looked at again after it was listed; where that fails the path is reported
//! as torn and the walk goes on. Mount points are visited and not entered.

use std::{
    ffi::{CStr, CString},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{OFlags, RawDir},
    io::Errno,
};
use thiserror::Error;

use super::beneath::{Stat, is_race, open_beneath};

/// Bytes of paths that one walk may hold: full paths of a deep chain of
/// directories grow with the square of its depth, and a container may make one.
pub(crate) const PATH_BYTES: usize = 256 << 20;

/// One path that the walk found.
pub(crate) struct Visit<'a> {
    pub(crate) path: &'a [u8],
    pub(crate) stat: Stat,
    pub(crate) mount_point: bool,
}

/// Why a walk could not be finished.
#[derive(Debug, Error)]
pub enum WalkError {
    /// A system call failed for a reason other than a change underneath.
    #[error("{verb} {path}: {source}")]
    Io {
        /// What was tried.
        verb: &'static str,
        /// Where, relative to the root of the walk.
        path: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The tree is too large to be held in memory.
    #[error("the paths below {path} take more than {PATH_BYTES} bytes")]
    TooLarge {
        /// Where the limit was hit.
        path: String,
    },
}

impl WalkError {
    pub(crate) fn io(verb: &'static str, path: &[u8], errno: Errno) -> Self {
        Self::Io {
            verb,
            path: shown(path),
            source: errno.into(),
        }
    }

    pub(crate) fn too_large(path: &[u8]) -> Self {
        let path = shown(path);
        Self::TooLarge { path }
    }
}

/// A path of a container as it can be put into a message.
pub(crate) fn shown(path: &[u8]) -> String {
    if path.is_empty() {
        return ".".into();
    }
    crab_store::clip(&crab_store::escape(path), 256)
}

/// A name in a directory, as a path from the root.
pub(crate) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(dir.len() + 1 + name.len());
    path.extend_from_slice(dir);
    if !dir.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// Opens a directory to be listed; nothing if it is not the one that was seen.
pub(crate) fn enter(
    root: BorrowedFd<'_>,
    path: &[u8],
    seen: &Stat,
) -> Result<Option<OwnedFd>, WalkError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOATIME;
    let dir = match open_beneath(root, path, flags) {
        Ok(dir) => dir,
        Err(errno) if is_race(errno) => return Ok(None),
        Err(errno) => return Err(WalkError::io("open", path, errno)),
    };
    let found = Stat::of(dir.as_fd()).map_err(|errno| WalkError::io("stat", path, errno))?;
    Ok((found.ino == seen.ino && found.dev == seen.dev).then_some(dir))
}

/// Whether nothing has come, gone or been renamed in a directory since it was seen: only
/// then is a list of it, or what is on record of it, complete.
pub(crate) fn is_as_seen(dir: BorrowedFd<'_>, path: &[u8], seen: &Stat) -> Result<bool, WalkError> {
    let after = Stat::of(dir).map_err(|errno| WalkError::io("stat", path, errno))?;
    Ok(after.same_identity(seen))
}

/// The names in a directory.
pub(crate) fn names(dir: BorrowedFd<'_>, path: &[u8]) -> Result<Vec<CString>, WalkError> {
    let mut names = Vec::new();
    let mut buffer = vec![MaybeUninit::uninit(); 32 << 10];
    let mut entries = RawDir::new(dir, &mut buffer);
    let mut budget = PATH_BYTES;
    while let Some(entry) = entries.next() {
        let entry = entry.map_err(|errno| WalkError::io("list", path, errno))?;
        let name = entry.file_name();
        if !matches!(name.to_bytes(), b"." | b"..") {
            take(&mut budget, name.count_bytes(), path)?;
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

fn take(budget: &mut usize, bytes: usize, path: &[u8]) -> Result<(), WalkError> {
    let left = budget.checked_sub(bytes);
    *budget = left.ok_or_else(|| WalkError::too_large(path))?;
    Ok(())
}

/// What is there; nothing if it has just gone, which moves the times of its directory.
pub(crate) fn stat_of(
    dir: BorrowedFd<'_>,
    name: &CStr,
    path: impl Fn() -> Vec<u8>,
) -> Result<Option<Stat>, WalkError> {
    match Stat::at(dir, name) {
        Ok(stat) => Ok(Some(stat)),
        Err(errno) if is_race(errno) => Ok(None),
        Err(errno) => Err(WalkError::io("stat", &path(), errno)),
    }
}

/// Visits everything below `root`, the root first and parents before their
/// children. Returns the paths of directories that changed meanwhile.
pub(crate) fn walk(
    root: BorrowedFd<'_>,
    mut visit: impl FnMut(&Visit<'_>),
) -> Result<Vec<Vec<u8>>, WalkError> {
    let stat = Stat::of(root).map_err(|errno| WalkError::io("stat", b"", errno))?;
    let mount = stat.mount;
    let mut torn = Vec::new();
    let mut budget = PATH_BYTES;
    visit(&Visit {
        path: b"",
        stat,
        mount_point: false,
    });
    let mut pending = vec![(Vec::new(), stat)];
    while let Some((parent, seen)) = pending.pop() {
        let Some(dir) = enter(root, &parent, &seen)? else {
            torn.push(parent);
            continue;
        };
        for name in names(dir.as_fd(), &parent)? {
            let path = join(&parent, name.to_bytes());
            let Some(stat) = stat_of(dir.as_fd(), &name, || path.clone())? else {
                continue;
            };
            take(&mut budget, path.len(), &path)?;
            let mount_point = stat.is_mount_point(mount);
            visit(&Visit {
                path: &path,
                stat,
                mount_point,
            });
            if stat.is_dir() && !mount_point {
                pending.push((path, stat));
            }
        }
        if !is_as_seen(dir.as_fd(), &parent, &seen)? {
            torn.push(parent);
        }
    }
    Ok(torn)
}
