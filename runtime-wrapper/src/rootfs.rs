// SPDX-License-Identifier: Apache-2.0
//! What a container's root is: an overlay of its own, or a directory of a file system that it
//! shares with the host and with other containers.
//!
//! ```text
//!  overlayfs snapshotter, overlay2     overlay mounted at the root     upper directory, own superblock
//!  native snapshotter                  bind mount at the root          the whole root, the host's superblock
//!  btrfs snapshotter                   subvolume mounted at the root   the whole root, everybody's superblock
//!  ctr run --rootfs                    nothing mounted                 the whole root, the host's superblock
//! ```
//! A directory is opened through a mount of its own that is attached nowhere: what is mounted in
//! the root later, on the host or inside, is not in the way, and the client can unmount the root.
//!
//! Refuses file systems on which the times of an inode do not tell that it has changed: those of
//! another machine (NFS, 9p, virtiofs), and FUSE. Also those that nobody has tried.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, Mode, OFlags, StatVfsMountFlags, fstatfs, fstatvfs, open},
    mount::{OpenTreeFlags, open_tree},
};

use crate::{
    files::{OpenError, Scanner},
    overlay::{OverlayError, OverlayMount},
};

/// What a container's root is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootFs {
    /// An overlay of its own.
    Overlay(OverlayMount),
    /// A directory, all of which is captured.
    Directory(DirectoryRoot),
}

/// A root that is a directory of some file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryRoot {
    path: PathBuf,
    in_memory: bool,
}

/// Why a root cannot be captured.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// It is an overlay that cannot be worked with, or its mount cannot be found.
    #[error(transparent)]
    Overlay(#[from] OverlayError),
    /// It cannot be looked at.
    #[error("{verb} rootfs {}: {source}", path.display())]
    Io {
        /// What was tried.
        verb: &'static str,
        /// The root.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Nothing can be written to it, nor put back.
    #[error("rootfs {} is mounted read-only: nothing could be put back in it", .0.display())]
    ReadOnly(PathBuf),
    /// Its times do not tell of changes, or nobody knows whether they do.
    #[error(
        "rootfs {} is on {fstype}, whose files cannot be told to be unchanged; use overlayfs, or a \
         directory on ext4, xfs, btrfs or tmpfs", path.display()
    )]
    FileSystem {
        /// The root.
        path: PathBuf,
        /// What it is on.
        fstype: String,
    },
}

/// `statfs(2)`.
const EXT: u64 = 0xef53;
const XFS: u64 = 0x5846_5342;
const BTRFS: u64 = 0x9123_683e;
const TMPFS: u64 = 0x0102_1994;
const OVERLAYFS: u64 = 0x794c_7630;

impl RootFs {
    /// Finds out what is at `path` in the mount namespace of this process.
    ///
    /// # Errors
    /// When it is nothing that can be captured and put back.
    pub fn find(path: &Path) -> Result<Self, RootError> {
        // The kernel's table has the places of mounts without symlinks.
        let path = &path.canonicalize().map_err(|source| RootError::Io {
            verb: "find",
            path: path.into(),
            source,
        })?;
        match OverlayMount::find(std::process::id(), path) {
            Ok(overlay) => Ok(Self::Overlay(overlay)),
            Err(
                OverlayError::NotOverlay { fstype, .. } | OverlayError::NotMounted { fstype, .. },
            ) => DirectoryRoot::find(path, fstype).map(Self::Directory),
            Err(error) => Err(error.into()),
        }
    }

    /// The superblock that is this container's alone, by its device number: what is counted there
    /// is the container's, and all of it.
    pub fn own_device(&self) -> Option<u64> {
        match self {
            Self::Overlay(overlay) => Some(overlay.dev),
            Self::Directory(_) => None,
        }
    }

    /// Whether its files are in memory, where a store to a mapping moves no time.
    pub fn is_in_memory(&self) -> bool {
        matches!(self, Self::Directory(root) if root.in_memory)
    }

    /// Opens what is captured: the upper directory, or the root itself.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn scanner(&self) -> Result<Scanner, OpenError> {
        match self {
            Self::Overlay(overlay) => Scanner::overlay(overlay),
            Self::Directory(root) => root.scanner(),
        }
    }
}

impl DirectoryRoot {
    fn find(path: &Path, fstype: String) -> Result<Self, RootError> {
        let failed = |verb| {
            move |errno: rustix::io::Errno| RootError::Io {
                verb,
                path: path.into(),
                source: errno.into(),
            }
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(path, flags, Mode::empty()).map_err(failed("open"))?;
        let kind = fstatfs(&root).map_err(failed("look at"))?.f_type as u64;
        let in_memory = match kind {
            EXT | XFS | BTRFS | OVERLAYFS => false,
            TMPFS => true,
            _ => {
                return Err(RootError::FileSystem {
                    path: path.into(),
                    fstype,
                });
            }
        };
        let mounted = fstatvfs(&root).map_err(failed("look at"))?;
        if mounted.f_flag.contains(StatVfsMountFlags::RDONLY) {
            return Err(RootError::ReadOnly(path.into()));
        }
        Ok(Self {
            path: path.into(),
            in_memory,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn scanner(&self) -> Result<Scanner, OpenError> {
        let root = self
            .open()
            .map_err(|errno| OpenError::new(&self.path, errno))?;
        Ok(Scanner::directory(root))
    }

    /// Through a mount of its own.
    fn open(&self) -> rustix::io::Result<OwnedFd> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        open_tree(CWD, &self.path, flags)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, fs};

    use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};

    use super::*;
    use crate::files::Index;

    #[test]
    fn a_plain_directory_is_a_root_whatever_is_mounted_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let (root, within) = (dir.path().join("root"), dir.path().join("root/within"));
        fs::create_dir_all(&within).unwrap();
        fs::write(within.join("hidden"), "x").unwrap();
        if mount(c"none", &within, c"tmpfs", MountFlags::empty(), None).is_err() {
            eprintln!("skipped: nothing can be mounted here");
            return;
        }
        fs::write(within.join("on-top"), "x").unwrap();
        let found = RootFs::find(&root).unwrap();
        assert_eq!(found.own_device(), None);
        let scan = found
            .scanner()
            .unwrap()
            .scan(&Index::default(), &HashSet::new());
        let scan = scan.unwrap();
        let paths: Vec<_> = scan.changes().iter().map(|it| it.path.clone()).collect();
        unmount(&within, UnmountFlags::empty()).unwrap();
        assert_eq!(paths, [&b""[..], b"within", b"within/hidden"]);
    }

    #[test]
    fn an_open_root_can_be_unmounted_and_read_only_ones_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (layer, root) = (dir.path().join("layer"), dir.path().join("root"));
        fs::create_dir(&layer).unwrap();
        fs::create_dir(&root).unwrap();
        if mount_bind(&layer, &root).is_err() {
            eprintln!("skipped: nothing can be mounted here");
            return;
        }
        let scanner = RootFs::find(&root).unwrap().scanner().unwrap();
        let read_only = MountFlags::BIND | MountFlags::RDONLY;
        rustix::mount::mount_remount(&root, read_only, c"").unwrap();
        let refused = RootFs::find(&root);
        let unmounted = unmount(&root, UnmountFlags::empty());
        assert!(
            matches!(refused, Err(RootError::ReadOnly(_))),
            "{refused:?}"
        );
        unmounted.unwrap();
        fs::write(layer.join("later"), "x").unwrap();
        let scan = scanner.scan(&Index::default(), &HashSet::new()).unwrap();
        assert_eq!(scan.changes().len(), 2);
    }

    #[test]
    fn a_file_system_whose_times_tell_nothing_is_refused_with_its_name() {
        let refused = RootFs::find(Path::new("/proc/self")).unwrap_err();
        assert!(
            refused.to_string().contains("is on proc, whose"),
            "{refused}"
        );
    }
}
