// SPDX-License-Identifier: Apache-2.0
//! The BPF file system that holds the pins: found, or mounted where there is
//! none.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use thiserror::Error;

const BPF_FS_MAGIC: u64 = 0xcafe_4a11;
const SYSFS_MAGIC: u64 = 0x6265_6572;

/// Why there is no BPF file system for the pins.
#[derive(Debug, Error)]
pub enum MountError {
    /// The directory cannot be made or looked at.
    #[error("{verb} {path}: {source}")]
    Directory {
        /// What was tried.
        verb: &'static str,
        /// The directory.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The mount was refused.
    #[error("mount a bpf file system at {path}: {source}")]
    Mount {
        /// Where.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Makes `dir` a directory on a BPF file system.
///
/// Where none is, one is mounted at `dir` itself; or, below a directory of
/// sysfs, where nobody can make directories, at that directory: so
/// `/sys/fs/bpf/crab` gets its bpffs at the usual `/sys/fs/bpf`.
pub(crate) fn ensure(dir: &Path) -> Result<(), MountError> {
    let existing = nearest_existing(dir);
    let kind = kind(&existing)?;
    if kind != BPF_FS_MAGIC {
        let point = match make(dir) {
            Ok(()) => dir.to_path_buf(),
            // Only there: what else refuses a directory may be anything, `/proc` or `/`.
            Err(_) if existing != dir && kind == SYSFS_MAGIC => existing,
            Err(error) => return Err(error),
        };
        mount(
            "bpf",
            &point,
            "bpf",
            MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC,
            Some(c"mode=0700"),
        )
        .map_err(|source| MountError::Mount {
            path: point,
            source: source.into(),
        })?;
    }
    make(dir)
}

/// Whether pins can be in `dir`: it is there, and on a BPF file system.
pub(crate) fn holds(dir: &Path) -> Result<bool, MountError> {
    Ok(dir.is_dir() && kind(dir)? == BPF_FS_MAGIC)
}

/// Undoes [`ensure`] as far as nobody else can have come to lean on it: an
/// empty directory is removed, a bpffs of its own unmounted; the host's usual
/// one stays.
pub(crate) fn release(dir: &Path) -> io::Result<()> {
    let own = fs::metadata(dir)?;
    let parent = match dir.parent() {
        Some(parent) => fs::metadata(parent)?,
        None => return Ok(()),
    };
    if own.dev() != parent.dev() {
        // Lazily: whoever still has it open for a moment finds it empty.
        unmount(dir, UnmountFlags::DETACH)?;
    }
    match fs::remove_dir(dir) {
        // sysfs, or somebody else's pins.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::PermissionDenied | io::ErrorKind::DirectoryNotEmpty
            ) =>
        {
            Ok(())
        }
        other => other,
    }
}

fn make(dir: &Path) -> Result<(), MountError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|source| MountError::Directory {
            verb: "create",
            path: dir.to_path_buf(),
            source,
        })
}

fn nearest_existing(dir: &Path) -> PathBuf {
    dir.ancestors()
        .find(|ancestor| ancestor.exists())
        .unwrap_or(Path::new("/"))
        .to_path_buf()
}

/// The magic number of the file system that a directory is on.
fn kind(dir: &Path) -> Result<u64, MountError> {
    match rustix::fs::statfs(dir) {
        Ok(stat) => Ok(stat.f_type as u64 & 0xffff_ffff),
        Err(source) => Err(MountError::Directory {
            verb: "statfs",
            path: dir.to_path_buf(),
            source: source.into(),
        }),
    }
}
