// SPDX-License-Identifier: Apache-2.0
//! Opening things that a container made, and never what they point at.
//!
//! Every open is relative to a directory descriptor and resolved by
//! `openat2` with no symlinks, no magic links, no way up and no way onto
//! another mount. What is opened for its content is first opened with `O_PATH`
//! and checked, then opened again through `/proc/self/fd`, so that a regular
//! file swapped for a device or a FIFO is never opened for reading.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crab_store::Time;
use rustix::{
    fs::{
        AtFlags, FileType, Mode, OFlags, ResolveFlags, Statx, StatxAttributes, StatxFlags, makedev,
        openat, openat2, statx,
    },
    io::{Errno, Result},
    path::Arg,
};

/// Longest path handed to the kernel at once; `PATH_MAX` is 4096 with the NUL.
const STEP: usize = 3072;

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// Opens `path`, relative to `root`; the empty path is `root` itself. Of any length.
pub(crate) fn open_beneath(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let through = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut rest = path;
    let mut at: Option<OwnedFd> = None;
    while rest.len() > STEP {
        let cut = rest[..STEP]
            .iter()
            .rposition(|byte| *byte == b'/')
            .ok_or(Errno::NAMETOOLONG)?;
        let from = at.as_ref().map_or(root, |fd| fd.as_fd());
        at = Some(openat2(
            from,
            &rest[..cut],
            through,
            Mode::empty(),
            RESOLVE,
        )?);
        rest = &rest[cut + 1..];
    }
    let from = at.as_ref().map_or(root, |fd| fd.as_fd());
    let last: &[u8] = if rest.is_empty() { b"." } else { rest };
    openat2(from, last, flags, Mode::empty(), RESOLVE)
}

/// Opens one name in a directory as `O_PATH`; a symlink is opened itself.
pub(crate) fn open_name<P: Arg>(dir: BorrowedFd<'_>, name: P) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(dir, name, flags, Mode::empty(), RESOLVE)
}

/// Opens what an `O_PATH` descriptor stands for, which is known to be a
/// regular file or a directory.
pub(crate) fn reopen(fd: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK;
    openat(rustix::fs::CWD, proc_path(fd), flags, Mode::empty())
}

/// The name by which calls without an `AT_EMPTY_PATH` reach a descriptor.
pub(crate) fn proc_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Splits a relative path into its parent (empty for the root) and last name.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

/// Whether an error of a look-up means that the container changed what was
/// about to be opened, and not that something is wrong.
pub(crate) fn is_race(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::STALE | Errno::AGAIN
    )
}

/// What tells inodes apart below one root: its device and its number. A subvolume of btrfs, which
/// whoever may write to a directory may make in it, counts its inodes from the beginning again; and
/// an overlay takes the numbers of several file systems.
pub(crate) type Inode = (u64, u64);

/// What `statx` says about one inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) ino: u64,
    pub(crate) dev: u64,
    pub(crate) mount: u64,
    pub(crate) mount_root: bool,
    pub(crate) file_type: FileType,
    /// Permission bits with set-uid, set-gid and sticky.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) nlink: u32,
    pub(crate) size: u64,
    pub(crate) rdev: u64,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
}

const WANTED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::MNT_ID);

impl Stat {
    /// Of a name in a directory, or of the directory itself where `name` is empty.
    pub(crate) fn at<P: Arg>(dir: BorrowedFd<'_>, name: P) -> Result<Self> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH;
        statx(dir, name, flags, WANTED).map(Self::from)
    }

    /// Of an open descriptor.
    pub(crate) fn of(fd: BorrowedFd<'_>) -> Result<Self> {
        Self::at(fd, c"")
    }

    /// Whether everything that a change of the inode would alter is the same.
    /// Device and mount are left out: their numbers change when the same file
    /// system is mounted anew.
    pub(crate) fn same_identity(&self, other: &Self) -> bool {
        let key = |stat: &Self| Self {
            dev: 0,
            mount: 0,
            mount_root: false,
            ..*stat
        };
        key(self) == key(other)
    }

    pub(crate) fn inode(&self) -> Inode {
        (self.dev, self.ino)
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.file_type == FileType::Directory
    }

    pub(crate) fn is_file(&self) -> bool {
        self.file_type == FileType::RegularFile
    }

    /// Whether something is mounted there, seen from a place on this mount.
    pub(crate) fn is_mount_point(&self, from: u64) -> bool {
        self.mount_root || self.mount != from
    }

    /// The device with number 0 by which overlayfs hides a lower entry.
    pub(crate) fn is_null_device(&self) -> bool {
        self.file_type == FileType::CharacterDevice && self.rdev == 0
    }
}

impl From<Statx> for Stat {
    fn from(stat: Statx) -> Self {
        let time = |stamp: rustix::fs::StatxTimestamp| Time {
            sec: stamp.tv_sec,
            nsec: stamp.tv_nsec,
        };
        let mode = u32::from(stat.stx_mode);
        Self {
            ino: stat.stx_ino,
            dev: makedev(stat.stx_dev_major, stat.stx_dev_minor),
            mount: stat.stx_mnt_id,
            mount_root: stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
            file_type: FileType::from_raw_mode(mode),
            mode: mode & 0o7777,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            nlink: stat.stx_nlink,
            size: stat.stx_size,
            rdev: makedev(stat.stx_rdev_major, stat.stx_rdev_minor),
            mtime: time(stat.stx_mtime),
            ctime: time(stat.stx_ctime),
        }
    }
}

/// Nanoseconds since the epoch, for arithmetic.
pub(crate) fn nanoseconds(time: Time) -> i128 {
    i128::from(time.sec) * 1_000_000_000 + i128::from(time.nsec)
}
