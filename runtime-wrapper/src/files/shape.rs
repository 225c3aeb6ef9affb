// SPDX-License-Identifier: Apache-2.0
//! What is at one path, whether a live root, a tree of the store or a lower layer says so:
//! what has to be compared to know whether a process in the container would notice.
//!
//! Of a directory its times are left out: they tell of entries that came and went, which
//! are compared themselves. Of a socket as well: CRIU makes its name anew when it restores who
//! listens there, and all that its time tells is when.

use std::os::fd::{AsFd, BorrowedFd};

use crab_store::{EntryKind, Segment, Time, Tree, TreeEntry};
use rustix::{
    fs::{FileType, OFlags, readlinkat},
    io::{Errno, Result},
};

use super::{
    beneath::reopen,
    content::equals_segments,
    lower::Lower,
    node::{Content, Node},
    xattr::{self, Rules, Xattrs},
};

/// What is at a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape<'a> {
    pub(crate) kind: Kind<'a>,
    mode: u32,
    owner: (u32, u32),
    mtime: Time,
    pub(crate) xattrs: &'a Xattrs,
}

/// Its kind, and what is particular to that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind<'a> {
    /// It hides what a lower layer has.
    Whiteout,
    Dir,
    File {
        size: u64,
        /// Nothing if it was not read, as it is none that was known.
        content: Option<&'a [Segment]>,
    },
    Symlink(&'a [u8]),
    Device(FileType, u64),
    /// Another name of this one.
    Link(&'a [u8]),
    /// Something is mounted there.
    Mount {
        is_dir: bool,
    },
}

/// Of which kind something is, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// A directory.
    Dir,
    /// A regular file.
    File,
    /// A symbolic link.
    Symlink,
    /// A device, FIFO or socket.
    Special,
}

impl Sort {
    pub(crate) fn of(file_type: FileType) -> Self {
        match file_type {
            FileType::Directory => Self::Dir,
            FileType::RegularFile | FileType::Unknown => Self::File,
            FileType::Symlink => Self::Symlink,
            _ => Self::Special,
        }
    }
}

impl<'a> Shape<'a> {
    pub(crate) fn of_node(node: &'a Node, rules: Rules) -> Self {
        let stat = &node.stat;
        let kind = match (&node.link_to, stat.file_type) {
            _ if node.mount_point => Kind::Mount {
                is_dir: stat.is_dir(),
            },
            _ if rules.is_overlay() && stat.is_null_device() => Kind::Whiteout,
            (Some(to), _) => Kind::Link(to),
            (None, FileType::Directory) => Kind::Dir,
            (None, FileType::Symlink) => Kind::Symlink(&node.target),
            (None, FileType::RegularFile | FileType::Unknown) => Kind::File {
                size: stat.size,
                content: match &node.content {
                    Content::Known(content) => Some(content),
                    Content::None | Content::Unread => None,
                },
            },
            (None, other) => Kind::Device(other, stat.rdev),
        };
        Self {
            kind,
            mode: stat.mode,
            owner: (stat.uid, stat.gid),
            mtime: stat.mtime,
            xattrs: &node.xattrs,
        }
    }

    pub(crate) fn of_entry(entry: &'a TreeEntry, rules: Rules) -> Self {
        let kind = match &entry.kind {
            EntryKind::CharDevice { rdev: 0 } if rules.is_overlay() => Kind::Whiteout,
            EntryKind::Dir => Kind::Dir,
            EntryKind::File { size, content } => Kind::File {
                size: *size,
                content: Some(content),
            },
            EntryKind::Symlink { target } => Kind::Symlink(target),
            EntryKind::CharDevice { rdev } => Kind::Device(FileType::CharacterDevice, *rdev),
            EntryKind::BlockDevice { rdev } => Kind::Device(FileType::BlockDevice, *rdev),
            EntryKind::Fifo => Kind::Device(FileType::Fifo, 0),
            EntryKind::Socket => Kind::Device(FileType::Socket, 0),
            EntryKind::HardLink { to } => Kind::Link(to),
        };
        Self {
            kind,
            mode: entry.mode,
            owner: (entry.uid, entry.gid),
            mtime: entry.mtime,
            xattrs: &entry.xattrs,
        }
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.kind == Kind::Dir
    }

    /// Whether its time is its own, and tells of it.
    fn has_time(&self) -> bool {
        !matches!(self.kind, Kind::Dir | Kind::Device(FileType::Socket, _))
    }

    /// For people; nothing of a whiteout. Another name is of the kind of the first.
    pub(crate) fn sort(&self, tree: &Tree) -> Option<Sort> {
        Some(match self.kind {
            Kind::Whiteout => return None,
            Kind::Dir | Kind::Mount { is_dir: true } => Sort::Dir,
            Kind::File { .. } | Kind::Mount { is_dir: false } => Sort::File,
            Kind::Symlink(_) => Sort::Symlink,
            Kind::Device(..) => Sort::Special,
            Kind::Link(to) => match tree.get(to).map(|first| &first.kind) {
                Some(EntryKind::Symlink { .. }) => Sort::Symlink,
                Some(EntryKind::File { .. }) | None => Sort::File,
                Some(_) => Sort::Special,
            },
        })
    }

    /// What is not alike, in words; nothing if nothing is. `inert`: what a directory would
    /// hide of lower layers is not there.
    pub(crate) fn unlike(
        &self,
        other: &Self,
        rules: Rules,
        inert: impl FnOnce() -> Result<bool>,
    ) -> Result<Option<String>> {
        if let (Kind::Mount { is_dir }, kind) | (kind, Kind::Mount { is_dir }) =
            (self.kind, other.kind)
        {
            // What it is mounted on is not to be seen.
            let alike = match kind {
                Kind::Mount { is_dir: other } => is_dir == other,
                Kind::Dir => is_dir,
                Kind::File { .. } => !is_dir,
                _ => false,
            };
            return Ok((!alike).then(|| "kind".into()));
        }
        let mut unlike = Vec::new();
        match (self.kind, other.kind) {
            (Kind::Whiteout, Kind::Whiteout) => return Ok(None),
            (Kind::Link(one), Kind::Link(two)) => {
                // The rest is the first name's.
                return Ok((one != two).then(|| "names".into()));
            }
            (Kind::Dir, Kind::Dir) => {}
            (Kind::File { size: a, .. }, Kind::File { size: b, .. }) if a != b => {
                unlike.push("size");
            }
            (Kind::File { content: a, .. }, Kind::File { content: b, .. }) => {
                if a.is_none() || a != b {
                    unlike.push("content");
                }
            }
            (Kind::Symlink(one), Kind::Symlink(two)) => {
                if one != two {
                    unlike.push("target");
                }
            }
            (Kind::Device(one, a), Kind::Device(two, b)) if one == two => {
                if a != b {
                    unlike.push("device number");
                }
            }
            _ => return Ok(Some("kind".into())),
        }
        // A symlink has none of its own.
        if self.mode != other.mode && !matches!(self.kind, Kind::Symlink(_)) {
            unlike.push("mode");
        }
        if self.owner != other.owner {
            unlike.push("owner");
        }
        if self.mtime != other.mtime && self.has_time() {
            unlike.push("time");
        }
        if self.xattrs != other.xattrs {
            let seen = |xattrs: &Xattrs| rules.visible(xattrs.clone());
            let same_but_inert = self.is_dir()
                && seen(self.xattrs) == seen(other.xattrs)
                && [self, other]
                    .iter()
                    .all(|shape| !rules.is_redirected(shape.xattrs))
                && inert()?;
            if !same_but_inert {
                unlike.push("attributes");
            }
        }
        Ok((!unlike.is_empty()).then(|| unlike.join(", ")))
    }

    /// What makes it another than what lower layers show without it, in words.
    pub(crate) fn unlike_lower(
        &self,
        lower: Option<&Lower>,
        rules: Rules,
    ) -> Result<Option<String>> {
        let presence = |is: bool| Ok((!is).then(|| "there".to_string()));
        let Some(lower) = lower else {
            return presence(self.kind == Kind::Whiteout);
        };
        if self.kind == Kind::Whiteout {
            return presence(false);
        }
        let stat = &lower.stat;
        let xattrs = xattr::read(lower.fd.as_fd())?;
        let steered = |xattrs: &Xattrs| rules.steers_merge(xattrs);
        if steered(self.xattrs) || (!stat.is_dir() && steered(&xattrs)) {
            return Ok(Some("attributes".into()));
        }
        let same = match (self.kind, stat.file_type) {
            (Kind::Dir, FileType::Directory) => true,
            (Kind::Symlink(target), FileType::Symlink) => read_link(lower.fd.as_fd())? == target,
            (Kind::Device(kind, rdev), found) => kind == found && rdev == stat.rdev,
            (
                Kind::File {
                    size,
                    content: Some(content),
                },
                FileType::RegularFile,
            ) if size == stat.size => {
                let file = reopen(lower.fd.as_fd(), OFlags::RDONLY | OFlags::NOATIME)?;
                equals_segments(file.as_fd(), size, content)?
            }
            _ => false,
        };
        if !same {
            return Ok(Some("content".into()));
        }
        let mode = self.mode == stat.mode || stat.file_type == FileType::Symlink;
        let time = self.mtime == stat.mtime || !self.has_time();
        let alike = mode
            && time
            && self.owner == (stat.uid, stat.gid)
            && *self.xattrs == rules.visible(xattrs);
        Ok((!alike).then(|| "attributes".into()))
    }
}

/// Where a symbolic link leads to, as it stands.
pub(crate) fn read_link(fd: BorrowedFd<'_>) -> Result<Vec<u8>> {
    readlinkat(fd, c"", Vec::new()).map(|target| target.into_bytes())
}

/// What a lower layer has, as an entry of a tree: its content stays where it is.
pub(crate) fn entry_of_lower(path: &[u8], lower: &Lower, rules: Rules) -> Result<TreeEntry> {
    let stat = &lower.stat;
    let kind = match stat.file_type {
        FileType::Directory => EntryKind::Dir,
        FileType::Symlink => EntryKind::Symlink {
            target: read_link(lower.fd.as_fd())?,
        },
        FileType::RegularFile => EntryKind::File {
            size: stat.size,
            content: Vec::new(),
        },
        FileType::CharacterDevice => EntryKind::CharDevice { rdev: stat.rdev },
        FileType::BlockDevice => EntryKind::BlockDevice { rdev: stat.rdev },
        FileType::Fifo => EntryKind::Fifo,
        FileType::Socket => EntryKind::Socket,
        FileType::Unknown => return Err(Errno::INVAL),
    };
    Ok(TreeEntry {
        path: path.to_vec(),
        kind,
        mode: stat.mode,
        uid: stat.uid,
        gid: stat.gid,
        mtime: stat.mtime,
        xattrs: rules.visible(xattr::read(lower.fd.as_fd())?),
    })
}
