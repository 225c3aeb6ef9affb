// SPDX-License-Identifier: Apache-2.0
//! A walk over one file system below one directory, while it may be changing.
//!
//! No recursion, no path handed to the kernel in one piece, one descriptor
//! open at a time: a tree may be as deep as it likes. Each directory is opened
//! by its path from the root, must be the inode that its parent listed, and is
//! looked at again after it was listed; where that fails the path is reported
//! as torn and the walk goes on. Mount points are visited and not entered.

use std::{ffi::CStr, mem::MaybeUninit, os::fd::BorrowedFd};

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
    /// The directory that it is in (for the root, the root).
    pub(crate) dir: BorrowedFd<'a>,
    /// Its name there; `.` for the root.
    pub(crate) name: &'a CStr,
    pub(crate) path: &'a [u8],
    pub(crate) stat: Stat,
    pub(crate) mount_point: bool,
    /// What the visitor said when it let the walk into the directory.
    pub(crate) tag: bool,
}

/// Whether to go into what was visited; the tag comes back with each child.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Descend {
    No,
    Yes { tag: bool },
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
}

/// A path of a container as it can be put into a message.
pub(crate) fn shown(path: &[u8]) -> String {
    if path.is_empty() {
        return ".".into();
    }
    crab_store::clip(&crab_store::escape(path), 256)
}

/// Visits everything below `root`, the root first and parents before their
/// children. Returns the paths of directories that changed meanwhile.
pub(crate) fn walk(
    root: BorrowedFd<'_>,
    mut visit: impl FnMut(&Visit<'_>) -> Result<Descend, WalkError>,
) -> Result<Vec<Vec<u8>>, WalkError> {
    let stat = Stat::of(root).map_err(|errno| WalkError::io("stat", b"", errno))?;
    let mount = stat.mount;
    let mut torn = Vec::new();
    let mut budget = PATH_BYTES;
    let mut pending = Vec::new();
    let first = Visit {
        dir: root,
        name: c".",
        path: b"",
        stat,
        mount_point: false,
        tag: true,
    };
    if let Descend::Yes { tag } = visit(&first)? {
        pending.push((Vec::new(), stat, tag));
    }

    let mut buffer = vec![MaybeUninit::uninit(); 64 << 10];
    let mut path = Vec::new();
    while let Some((parent, before, tag)) = pending.pop() {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOATIME;
        let dir = match open_beneath(root, &parent, flags) {
            Ok(dir) => dir,
            Err(errno) if is_race(errno) => {
                torn.push(parent);
                continue;
            }
            Err(errno) => return Err(WalkError::io("open", &parent, errno)),
        };
        let dir = std::os::fd::AsFd::as_fd(&dir);
        let found = Stat::of(dir).map_err(|errno| WalkError::io("stat", &parent, errno))?;
        if found.ino != before.ino || found.dev != before.dev {
            torn.push(parent);
            continue;
        }
        path.clear();
        path.extend_from_slice(&parent);
        if !parent.is_empty() {
            path.push(b'/');
        }
        let stem = path.len();
        let mut entries = RawDir::new(dir, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(|errno| WalkError::io("list", &parent, errno))?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            path.truncate(stem);
            path.extend_from_slice(name.to_bytes());
            let stat = match Stat::at(dir, name) {
                Ok(stat) => stat,
                Err(errno) if is_race(errno) => continue,
                Err(errno) => return Err(WalkError::io("stat", &path, errno)),
            };
            budget = budget
                .checked_sub(path.len())
                .ok_or_else(|| WalkError::TooLarge { path: shown(&path) })?;
            let mount_point = stat.mount_root || stat.mount != mount;
            let seen = Visit {
                dir,
                name,
                path: &path,
                stat,
                mount_point,
                tag,
            };
            let descend = visit(&seen)?;
            if let Descend::Yes { tag } = descend
                && stat.is_dir()
                && !mount_point
            {
                pending.push((path.clone(), stat, tag));
            }
        }
        // An entry that came, went or was renamed while the list was read has
        // moved these, and only then can the list be incomplete.
        let after = Stat::of(dir).map_err(|errno| WalkError::io("stat", &parent, errno))?;
        if !after.same_identity(&before) {
            torn.push(parent);
        }
    }
    Ok(torn)
}
