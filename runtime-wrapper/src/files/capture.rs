// SPDX-License-Identifier: Apache-2.0
//! Taking the file image of a scanned root, in two steps.
//!
//! [`Scanner::stage`] copies what was not read yet out of the container's
//! reach, into memory or, above a budget, into unnamed files: all that has to
//! happen while the sandbox stands still. [`Staged::persist`] hashes,
//! compresses and writes, while it runs again.
//!
//! Each file must be, before and after it is copied, the one that the scan saw.
//! If one is not, the capture is torn and cannot be persisted.

use std::{
    collections::HashMap,
    fs::File,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

use crab_store::{Digest, PackWriter, Segment, Tree, WriteError};
use rustix::{
    fs::{Mode, OFlags, copy_file_range, ftruncate, ioctl_ficlone, open, openat, unlinkat},
    io::{Errno, pread, pwrite},
};

use super::{
    beneath::{Stat, is_race, open_beneath, reopen},
    change::Found,
    content::{chunk_bytes, chunks, runs},
    index::Index,
    node::{Content, Node},
    scan::{Scan, Scanner},
    walk::shown,
};

/// Where staged contents go.
#[derive(Clone, Copy, Debug)]
pub struct Staging<'a> {
    /// How many bytes of contents may be held in memory.
    pub memory: u64,
    /// A directory for what exceeds them, best on the file system of the root,
    /// where files may share their blocks. Its files have no names.
    pub directory: &'a Path,
}

/// A capture that is out of the container's reach.
#[derive(Debug)]
pub struct Staged {
    /// With contents that are unread: those below.
    index: Index,
    /// By path.
    contents: Vec<(Vec<u8>, Copy)>,
    torn: Vec<Vec<u8>>,
    bytes: u64,
}

/// A content read and not yet written.
#[derive(Debug)]
enum Copy {
    Memory(Vec<(u64, Vec<u8>)>),
    File(File),
}

/// Why contents could not be staged.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// A file of the container could not be read.
    #[error("read {path}: {source}")]
    Read {
        /// Relative to the root.
        path: String,
        /// Why not.
        source: std::io::Error,
    },
    /// A copy could not be written; the disk may be full.
    #[error("write a copy into {}: {source}", directory.display())]
    Write {
        /// The staging directory.
        directory: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
}

/// Why a staged capture has no image.
#[derive(Debug, thiserror::Error)]
pub enum PersistError {
    /// Something changed while it was read.
    #[error("{path} changed while it was read")]
    Torn {
        /// The first such path.
        path: String,
    },
    /// The store refused.
    #[error(transparent)]
    Store(#[from] WriteError),
}

/// A file image, its contents in a pack.
#[derive(Debug)]
pub struct Captured {
    /// The whole tree.
    pub tree: Tree,
    /// What to compare the next scan with, once the pack is published: it
    /// takes the contents for stored.
    pub index: Index,
}

impl Scanner {
    /// Copies what `scan` has not read.
    pub fn stage(&self, scan: Scan, staging: &Staging<'_>) -> Result<Staged, StageError> {
        let (index, found, mut torn) = scan.into_parts();
        let mut copier = Copier {
            staging,
            left: staging.memory,
            directory: None,
            clones: true,
        };
        let mut contents = Vec::new();
        let mut bytes = 0;
        for Found { path, .. } in found {
            let Some(node) = index.get(&path).filter(|node| node.is_unread()) else {
                continue;
            };
            match self.copy(&path, &node.stat, &mut copier)? {
                Some(copy) => {
                    bytes += node.stat.size;
                    contents.push((path, copy));
                }
                None => torn.push(path),
            }
        }
        Ok(Staged {
            index,
            contents,
            torn,
            bytes,
        })
    }

    /// Copies one file; nothing if it is not what the scan saw.
    fn copy(
        &self,
        path: &[u8],
        expected: &Stat,
        copier: &mut Copier<'_>,
    ) -> Result<Option<Copy>, StageError> {
        let failed = |errno: Errno| StageError::Read {
            path: shown(path),
            source: errno.into(),
        };
        let opened = open_beneath(self.root(), path, OFlags::PATH).and_then(|fd| {
            if !Stat::of(fd.as_fd())?.same_identity(expected) {
                return Err(Errno::STALE);
            }
            reopen(fd.as_fd(), OFlags::RDONLY | OFlags::NOATIME)
        });
        let file = match opened {
            Ok(file) => file,
            Err(errno) if is_race(errno) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        };
        let copy = match copier.copy(file.as_fd(), expected.size) {
            Ok(copy) => copy,
            Err(CopyError::Read(errno)) => return Err(failed(errno)),
            Err(CopyError::Write(errno)) => {
                return Err(StageError::Write {
                    directory: copier.staging.directory.to_owned(),
                    source: errno.into(),
                });
            }
        };
        let after = Stat::of(file.as_fd()).map_err(failed)?;
        Ok(copy.filter(|_| after.same_identity(expected)))
    }
}

impl Staged {
    /// What changed while it was read. If anything, this capture is void.
    pub fn torn(&self) -> &[Vec<u8>] {
        &self.torn
    }

    /// The length of what was copied.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Puts the contents into the pack and makes the tree. The tree itself is
    /// the caller's to store.
    pub fn persist(self, pack: &mut PackWriter) -> Result<Captured, PersistError> {
        if let Some(path) = self.torn.first() {
            return Err(PersistError::Torn { path: shown(path) });
        }
        let mut index = self.index;
        let mut read: HashMap<Vec<u8>, Arc<[Segment]>> = HashMap::new();
        // In the order of the paths, so that the same capture gives the same pack.
        for (path, copy) in self.contents {
            let segments: Arc<[Segment]> = copy.put(pack)?.into();
            if let Some(node) = index.get(&path) {
                let mut node = Node::clone(node);
                if node.stat.nlink > 1 {
                    read.insert(path.clone(), segments.clone());
                }
                node.content = Content::Known(segments);
                index.insert(&path, Arc::new(node));
            }
        }
        index.update(|node| {
            // Another name of a file that was read knows its content, too.
            let content = match &node.link_to {
                Some(to) => read.get(&**to),
                None => None,
            };
            (node.nets_out || content.is_some()).then(|| Node {
                nets_out: false,
                content: content.map_or(node.content.clone(), |it| Content::Known(it.clone())),
                ..node.clone()
            })
        });
        let mut tree = Tree {
            entries: Vec::with_capacity(index.len()),
        };
        for (path, node) in index.iter() {
            let unread = |path: Vec<u8>| PersistError::Torn { path: shown(&path) };
            tree.entries.push(node.entry(path).map_err(unread)?);
        }
        tree.sort();
        Ok(Captured { tree, index })
    }
}

impl Copy {
    fn put(self, pack: &mut PackWriter) -> Result<Vec<Segment>, WriteError> {
        match self {
            Self::File(file) => pack.put_file(&file).map(|content| content.segments),
            Self::Memory(chunks) => chunks
                .into_iter()
                .map(|(offset, bytes)| {
                    let digest: Digest = pack.put(&bytes)?;
                    Ok(Segment {
                        offset,
                        len: bytes.len() as u32,
                        digest,
                    })
                })
                .collect(),
        }
    }
}

/// Files of at least this size are cloned where that works.
const CLONED: u64 = 1 << 20;

struct Copier<'a> {
    staging: &'a Staging<'a>,
    left: u64,
    directory: Option<OwnedFd>,
    /// Until the file system says that it cannot.
    clones: bool,
}

enum CopyError {
    Read(Errno),
    Write(Errno),
}

impl Copier<'_> {
    /// Nothing if the file is shorter than `size`.
    fn copy(&mut self, file: BorrowedFd<'_>, size: u64) -> Result<Option<Copy>, CopyError> {
        if self.clones && size >= CLONED {
            let clone = self.create().map_err(CopyError::Write)?;
            if ioctl_ficlone(&clone, file).is_ok() {
                return Ok(Some(Copy::File(clone)));
            }
            self.clones = false;
        }
        let runs = runs(file, size).map_err(CopyError::Read)?;
        let held = chunk_bytes(&runs, size);
        if held <= self.left {
            self.left -= held;
            let mut held = Vec::new();
            let whole = chunks(file, size, |offset, bytes| held.push((offset, bytes)));
            return Ok(whole
                .map_err(CopyError::Read)?
                .then_some(Copy::Memory(held)));
        }
        let copy = self.create().map_err(CopyError::Write)?;
        ftruncate(&copy, size).map_err(CopyError::Write)?;
        for run in runs {
            if !copy_run(file, copy.as_fd(), run.start, run.end)? {
                return Ok(None);
            }
        }
        Ok(Some(Copy::File(copy)))
    }

    /// A file without a name in the staging directory.
    fn create(&mut self) -> rustix::io::Result<File> {
        let directory = match &self.directory {
            Some(directory) => directory,
            None => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let opened = open(self.staging.directory, flags, Mode::empty())?;
                self.directory.insert(opened)
            }
        };
        let mode = Mode::RUSR | Mode::WUSR;
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        match openat(directory, c".", flags | OFlags::TMPFILE, mode) {
            Ok(file) => Ok(file.into()),
            Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
                let name = format!("staged-{}", std::process::id());
                let flags = flags | OFlags::CREATE | OFlags::EXCL;
                let file = openat(directory, &name, flags, mode)?;
                unlinkat(directory, &name, rustix::fs::AtFlags::empty())?;
                Ok(file.into())
            }
            Err(errno) => Err(errno),
        }
    }
}

fn copy_run(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    start: u64,
    end: u64,
) -> Result<bool, CopyError> {
    let mut at = start;
    while at < end {
        let (mut source, mut target) = (at, at);
        let len = usize::try_from(end - at).unwrap_or(usize::MAX).min(1 << 30);
        match copy_file_range(from, Some(&mut source), to, Some(&mut target), len) {
            Ok(0) => return Ok(false),
            Ok(count) => at += count as u64,
            Err(Errno::INTR) => {}
            // Between these file systems the kernel does not copy.
            Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => break,
            // It does not say which side failed; only a write can for these.
            Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => {
                return Err(CopyError::Write(errno));
            }
            Err(errno) => return Err(CopyError::Read(errno)),
        }
    }
    let mut buffer = vec![0; 1 << 20];
    while at < end {
        let len = (end - at).min(buffer.len() as u64) as usize;
        let count = match pread(from, &mut buffer[..len], at) {
            Ok(0) => return Ok(false),
            Ok(count) => count,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(CopyError::Read(errno)),
        };
        let mut done = 0;
        while done < count {
            match pwrite(to, &buffer[done..count], at + done as u64) {
                Ok(written) => done += written,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(CopyError::Write(errno)),
            }
        }
        at += count as u64;
    }
    Ok(true)
}
