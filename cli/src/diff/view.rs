// SPDX-License-Identifier: Apache-2.0

//! One root of a sandbox as a process in it saw it at the end of a turn: what the
//! checkpoint holds above what the image has.

use std::{fs::File, io, os::unix::fs::FileExt};

use crab_store::{EntryKind, ObjectReader, Segment, Time, Tree, TreeEntry, holds};

use super::image::{Found, Image};

/// Name and value, sorted by name.
pub(super) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// What is at a path.
pub(super) struct Entry {
    pub(super) kind: Kind,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mtime: Time,
    /// Without those that are overlayfs' own.
    pub(super) xattrs: Xattrs,
    pub(super) source: Source,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Dir,
    File { size: u64 },
    Symlink { target: Vec<u8> },
    CharDevice { rdev: u64 },
    BlockDevice { rdev: u64 },
    Fifo,
    Socket,
}

/// Where the bytes of a regular file are.
pub(super) enum Source {
    /// It is no regular file.
    None,
    Store(Vec<Segment>),
    Image(File),
    /// Not where they can be read.
    Elsewhere,
}

/// What a view shows at a path.
pub(super) enum Seen {
    Nothing,
    Here(Entry),
    /// The image would have to be asked, and cannot be.
    Unknown,
}

/// One root at the end of one turn.
pub(super) struct View<'a> {
    pub(super) tree: Tree,
    pub(super) reader: &'a ObjectReader,
    pub(super) below: Below<'a>,
    /// What overlayfs' own attributes begin with.
    pub(super) prefix: &'static [u8],
}

/// What lies below a tree.
#[derive(Clone, Copy)]
pub(super) enum Below<'a> {
    /// Nothing: it is a file system of its own.
    Nothing,
    Image(&'a Image),
    /// An image that is not there.
    Missing,
}

/// What a tree says about a path before the image is asked.
enum Above<'t> {
    Hidden,
    Redirected,
    Entry(&'t TreeEntry),
    /// It lies in a directory that is merged with the image's.
    Silent,
}

impl View<'_> {
    pub(super) fn see(&self, path: &[u8]) -> io::Result<Seen> {
        match self.above(path) {
            Above::Hidden => return Ok(Seen::Nothing),
            Above::Redirected => return Ok(Seen::Unknown),
            Above::Entry(entry) => return Ok(Seen::Here(self.entry(entry))),
            Above::Silent => {}
        }
        match self.below {
            Below::Nothing => Ok(Seen::Nothing),
            Below::Missing => Ok(Seen::Unknown),
            Below::Image(image) => Ok(match image.find(path)? {
                Found::Nothing => Seen::Nothing,
                Found::Unknown => Seen::Unknown,
                Found::Here(fd) => Seen::Here(image.entry(fd)?),
            }),
        }
    }

    /// Whether a directory of the tree shows nothing of the image's.
    pub(super) fn hides_image(&self, dir: &TreeEntry) -> bool {
        self.has(dir, b"opaque") || matches!(self.above_parents(&dir.path), Some(Above::Hidden))
    }

    fn above(&self, path: &[u8]) -> Above<'_> {
        if let Some(entry) = self.tree.get(path) {
            return if self.is_whiteout(entry) {
                Above::Hidden
            } else {
                Above::Entry(entry)
            };
        }
        self.above_parents(path).unwrap_or(Above::Silent)
    }

    /// What the directories on the way to a path say.
    fn above_parents(&self, path: &[u8]) -> Option<Above<'_>> {
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let parents = slashes.map(|(at, _)| &path[..at]);
        for entry in parents.filter_map(|parent| self.tree.get(parent)) {
            if entry.kind != EntryKind::Dir || self.has(entry, b"opaque") {
                return Some(Above::Hidden);
            }
            if self.has(entry, b"redirect") {
                return Some(Above::Redirected);
            }
        }
        None
    }

    fn has(&self, entry: &TreeEntry, own: &[u8]) -> bool {
        entry
            .xattrs
            .iter()
            .any(|(name, _)| name.strip_prefix(self.prefix) == Some(own))
    }

    fn is_whiteout(&self, entry: &TreeEntry) -> bool {
        if matches!(self.below, Below::Nothing) {
            return false;
        }
        match &entry.kind {
            EntryKind::CharDevice { rdev } => *rdev == 0,
            EntryKind::File { size: 0, .. } => self.has(entry, b"whiteout"),
            _ => false,
        }
    }

    fn entry(&self, named: &TreeEntry) -> Entry {
        let first = match &named.kind {
            EntryKind::HardLink { to } => self.tree.get(to).unwrap_or(named),
            _ => named,
        };
        let mut source = Source::None;
        let kind = match &first.kind {
            EntryKind::Dir => Kind::Dir,
            EntryKind::File { size, content } => {
                source = if self.has(first, b"metacopy") {
                    Source::Elsewhere
                } else {
                    Source::Store(content.clone())
                };
                Kind::File { size: *size }
            }
            EntryKind::Symlink { target } => Kind::Symlink {
                target: target.clone(),
            },
            EntryKind::CharDevice { rdev } => Kind::CharDevice { rdev: *rdev },
            EntryKind::BlockDevice { rdev } => Kind::BlockDevice { rdev: *rdev },
            EntryKind::Fifo => Kind::Fifo,
            // A checked tree has no link to a link.
            EntryKind::Socket | EntryKind::HardLink { .. } => Kind::Socket,
        };
        Entry {
            kind,
            mode: first.mode,
            uid: first.uid,
            gid: first.gid,
            mtime: first.mtime,
            xattrs: visible(first.xattrs.clone(), self.prefix),
            source,
        }
    }

    /// The bytes of a file, if there are `size`; nothing if they cannot be read.
    pub(super) fn bytes(&self, source: &Source, size: u64) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = vec![0; size as usize];
        match source {
            Source::None | Source::Elsewhere => return Ok(None),
            Source::Image(file) => file.read_exact_at(&mut bytes, 0)?,
            Source::Store(segments) => {
                for segment in segments {
                    let content = self.reader.get(segment.digest).map_err(io::Error::other)?;
                    let at = segment.offset as usize;
                    let place = bytes.get_mut(at..at + content.len());
                    place
                        .ok_or_else(|| io::Error::other("a segment exceeds its file"))?
                        .copy_from_slice(&content);
                }
            }
        }
        Ok(Some(bytes))
    }
}

/// What a process sees of attributes.
pub(super) fn visible(mut xattrs: Xattrs, prefix: &[u8]) -> Xattrs {
    xattrs.retain(|(name, _)| name != b"security.evm" && !name.starts_with(prefix));
    xattrs
}

/// Whether two files of one length hold the same; nothing if one of them cannot be read.
pub(super) fn same_content(one: &Source, two: &Source, size: u64) -> io::Result<Option<bool>> {
    match (one, two) {
        (Source::Store(one), Source::Store(two)) => Ok(Some(one == two)),
        // A layer does not change.
        (Source::Image(_), Source::Image(_)) => Ok(Some(true)),
        (Source::Store(segments), Source::Image(file))
        | (Source::Image(file), Source::Store(segments)) => holds(file, size, segments).map(Some),
        _ => Ok(None),
    }
}
