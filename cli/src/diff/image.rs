// SPDX-License-Identifier: Apache-2.0

//! What a sandbox's image shows at a path: the layers below its upper directory, merged as
//! overlayfs merges them.
//!
//! They are looked up by the rules of the runtime wrapper's `files/lower.rs`, here apart
//! from it: `crab` is not linked with what runs containers. The layers do not change, but
//! what is in them is not to be trusted: nothing is followed, and only what is a regular
//! file is ever opened.

use std::{
    collections::BTreeSet,
    fs::File,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use crab_store::{ImageLayers, Time};
use rustix::{
    fs::{Dir, FileType, Mode, OFlags, fstat, getxattr, listxattr, open, openat, readlinkat},
    io::{Errno, Result},
};

use super::view::{Entry, Kind, Source, Xattrs};

/// The layers of an image, the uppermost first.
pub(super) struct Image {
    layers: Vec<OwnedFd>,
    pub(super) prefix: &'static [u8],
}

/// What is at a path of the image.
pub(super) enum Found {
    Nothing,
    Here(OwnedFd),
    /// It lies below a directory that was renamed from elsewhere.
    Unknown,
}

/// What one layer says.
enum Step {
    /// Look at the next one.
    Below,
    Hidden,
    Found {
        fd: OwnedFd,
        last_layer: bool,
    },
    Redirected,
}

/// What overlayfs' own attributes begin with.
pub(super) fn prefix(layers: &ImageLayers) -> &'static [u8] {
    if layers.user_xattr {
        b"user.overlay."
    } else {
        b"trusted.overlay."
    }
}

impl Image {
    /// Opens the layers, or tells which one is not there.
    pub(super) fn open(layers: &ImageLayers) -> std::result::Result<Self, String> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = layers.dirs().map(|dir| {
            open(&dir, flags, Mode::empty()).map_err(|errno| format!("{}: {errno}", dir.display()))
        });
        Ok(Self {
            layers: opened.collect::<std::result::Result<_, _>>()?,
            prefix: prefix(layers),
        })
    }

    /// What is at a path, relative to the root.
    pub(super) fn find(&self, path: &[u8]) -> Result<Found> {
        for layer in &self.layers {
            match self.step(layer, path)? {
                Step::Below => {}
                Step::Hidden => return Ok(Found::Nothing),
                Step::Redirected => return Ok(Found::Unknown),
                Step::Found { fd, .. } => return Ok(Found::Here(fd)),
            }
        }
        Ok(Found::Nothing)
    }

    /// The names in a directory of the image; none if it is no directory.
    pub(super) fn names(&self, path: &[u8]) -> Result<BTreeSet<Vec<u8>>> {
        let mut names = BTreeSet::new();
        let mut hidden = BTreeSet::new();
        for layer in &self.layers {
            match self.step(layer, path)? {
                Step::Below => {}
                Step::Hidden | Step::Redirected => break,
                Step::Found { fd, last_layer } => {
                    if !is(&fd, FileType::Directory)? {
                        break;
                    }
                    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                    let dir = openat(&fd, c".", flags, Mode::empty())?;
                    for entry in Dir::read_from(&dir)? {
                        let entry = entry?;
                        let name = entry.file_name().to_bytes();
                        if matches!(name, b"." | b"..") || hidden.contains(name) {
                            continue;
                        }
                        let there = open_name(dir.as_fd(), name)?;
                        if there.is_some_and(|fd| self.is_whiteout(&fd).unwrap_or(true)) {
                            hidden.insert(name.to_vec());
                        } else {
                            names.insert(name.to_vec());
                        }
                    }
                    if last_layer {
                        break;
                    }
                }
            }
        }
        Ok(names)
    }

    fn step(&self, layer: &OwnedFd, path: &[u8]) -> Result<Step> {
        let mut fd = openat(layer, c".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let mut last_layer = false;
        for name in path.split(|byte| *byte == b'/').filter(|n| !n.is_empty()) {
            if !is(&fd, FileType::Directory)? {
                return Ok(Step::Hidden);
            }
            fd = match open_name(fd.as_fd(), name)? {
                Some(fd) => fd,
                None if last_layer => return Ok(Step::Hidden),
                None => return Ok(Step::Below),
            };
            if self.is_whiteout(&fd)? {
                return Ok(Step::Hidden);
            }
            if is(&fd, FileType::Directory)? {
                if self.own(&fd, b"redirect")?.is_some() {
                    return Ok(Step::Redirected);
                }
                last_layer |= self.own(&fd, b"opaque")?.as_deref() == Some(b"y");
            }
        }
        Ok(Step::Found { fd, last_layer })
    }

    /// One of overlayfs' own attributes.
    fn own(&self, fd: &OwnedFd, name: &[u8]) -> Result<Option<Vec<u8>>> {
        value(fd.as_fd(), &[self.prefix, name].concat())
    }

    fn is_whiteout(&self, fd: &OwnedFd) -> Result<bool> {
        let stat = fstat(fd)?;
        Ok(match FileType::from_raw_mode(stat.st_mode) {
            FileType::CharacterDevice => stat.st_rdev == 0,
            FileType::RegularFile if stat.st_size == 0 => self.own(fd, b"whiteout")?.is_some(),
            _ => false,
        })
    }

    /// What is known of an entry.
    pub(super) fn entry(&self, fd: OwnedFd) -> Result<Entry> {
        let stat = fstat(&fd)?;
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Kind::Dir,
            FileType::RegularFile => Kind::File {
                size: stat.st_size.max(0) as u64,
            },
            FileType::Symlink => Kind::Symlink {
                target: readlinkat(&fd, c"", Vec::new())?.into_bytes(),
            },
            FileType::CharacterDevice => Kind::CharDevice { rdev: stat.st_rdev },
            FileType::BlockDevice => Kind::BlockDevice { rdev: stat.st_rdev },
            FileType::Fifo => Kind::Fifo,
            _ => Kind::Socket,
        };
        let xattrs = xattrs(fd.as_fd())?;
        // With metacopy its bytes lie in another layer.
        let elsewhere = [self.prefix, b"metacopy"].concat();
        let source = match kind {
            Kind::File { .. } if xattrs.iter().any(|(name, _)| *name == elsewhere) => {
                Source::Elsewhere
            }
            Kind::File { .. } => Source::Image(reopen(&fd)?),
            _ => Source::None,
        };
        Ok(Entry {
            kind,
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            mtime: Time {
                sec: stat.st_mtime,
                nsec: stat.st_mtime_nsec as u32,
            },
            xattrs: super::view::visible(xattrs, self.prefix),
            source,
        })
    }
}

fn is(fd: &OwnedFd, wanted: FileType) -> Result<bool> {
    Ok(FileType::from_raw_mode(fstat(fd)?.st_mode) == wanted)
}

/// An entry of a directory, without opening what it stands for.
fn open_name(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Option<OwnedFd>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(dir, name, flags, Mode::empty()) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

fn proc_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// A regular file, which is known to be one, for reading.
fn reopen(fd: &OwnedFd) -> Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    open(proc_path(fd.as_fd()), flags, Mode::empty()).map(Into::into)
}

/// The kernel's own limit of a value and of a list.
const XATTR_MAX: usize = 64 << 10;

fn value(fd: BorrowedFd<'_>, name: &[u8]) -> Result<Option<Vec<u8>>> {
    let mut buffer = vec![0; XATTR_MAX];
    match getxattr(proc_path(fd), name, &mut buffer) {
        Ok(len) => {
            buffer.truncate(len);
            Ok(Some(buffer))
        }
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(None),
        Err(errno) => Err(errno),
    }
}

fn xattrs(fd: BorrowedFd<'_>) -> Result<Xattrs> {
    let mut names = vec![0; XATTR_MAX];
    let len = match listxattr(proc_path(fd), &mut names) {
        Ok(len) => len,
        Err(Errno::NOTSUP) => 0,
        Err(errno) => return Err(errno),
    };
    let names = names[..len].split(|byte| *byte == 0);
    let mut found = Xattrs::new();
    for name in names.filter(|name| !name.is_empty()) {
        if let Some(value) = value(fd, name)? {
            found.push((name.to_vec(), value));
        }
    }
    found.sort();
    Ok(found)
}
