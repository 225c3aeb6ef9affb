// SPDX-License-Identifier: Apache-2.0
//! What is known of one path of a root.

use std::sync::Arc;

use crab_store::{EntryKind, Segment, Time, TreeEntry};
use rustix::fs::FileType;

use super::{
    beneath::Stat,
    xattr::{Rules, Xattrs},
};

/// What is known of one path.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) stat: Stat,
    /// Those that belong to an image.
    pub(crate) xattrs: Xattrs,
    /// Of a symlink.
    pub(crate) target: Vec<u8>,
    pub(crate) content: Content,
    /// The first name of the same inode, where this is not it.
    pub(crate) link_to: Option<Arc<[u8]>>,
    /// A directory of an overlay that is not merged with lower ones.
    pub(crate) hides_lower: bool,
    /// In the upper directory, but the merged view is as it was without it.
    pub(crate) nets_out: bool,
    /// Something is mounted on it; what lies beneath cannot be seen, and is
    /// taken for an empty file or directory.
    pub(crate) mount_point: bool,
}

/// The content of a regular file.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// It is no regular file.
    None,
    /// These bytes, by name.
    Known(Arc<[Segment]>),
    /// Not read yet, or found to differ from what was known.
    Unread,
}

impl Node {
    /// A place that something is mounted on.
    pub(crate) fn mount_point(over: &Stat) -> Self {
        let dir = over.is_dir();
        let stat = Stat {
            ino: 0,
            dev: 0,
            mount: 0,
            mount_root: true,
            file_type: if dir {
                FileType::Directory
            } else {
                FileType::RegularFile
            },
            // As runc makes them.
            mode: if dir { 0o755 } else { 0o644 },
            uid: 0,
            gid: 0,
            nlink: 1,
            size: 0,
            rdev: 0,
            mtime: Time::default(),
            ctime: Time::default(),
        };
        Self {
            stat,
            xattrs: Xattrs::new(),
            target: Vec::new(),
            content: if dir {
                Content::None
            } else {
                Content::Known(Arc::from([]))
            },
            link_to: None,
            hides_lower: false,
            nets_out: false,
            mount_point: true,
        }
    }

    /// Whether its content has to be read before there can be an image.
    pub(crate) fn is_unread(&self) -> bool {
        matches!(self.content, Content::Unread) && self.link_to.is_none()
    }

    /// As an entry of a tree has it; `first` is the one of the same file.
    pub(crate) fn of_entry(
        entry: &TreeEntry,
        first: &TreeEntry,
        content: Option<&Arc<[Segment]>>,
        rules: Rules,
    ) -> Self {
        let (file_type, size, rdev) = match &first.kind {
            EntryKind::Dir => (FileType::Directory, 0, 0),
            EntryKind::File { size, .. } => (FileType::RegularFile, *size, 0),
            EntryKind::Symlink { target } => (FileType::Symlink, target.len() as u64, 0),
            EntryKind::CharDevice { rdev } => (FileType::CharacterDevice, 0, *rdev),
            EntryKind::BlockDevice { rdev } => (FileType::BlockDevice, 0, *rdev),
            EntryKind::Fifo => (FileType::Fifo, 0, 0),
            EntryKind::Socket => (FileType::Socket, 0, 0),
            EntryKind::HardLink { .. } => (FileType::Unknown, 0, 0),
        };
        Self {
            stat: Stat {
                ino: 0,
                dev: 0,
                mount: 0,
                mount_root: false,
                file_type,
                mode: first.mode,
                uid: first.uid,
                gid: first.gid,
                nlink: 1,
                size,
                rdev,
                mtime: first.mtime,
                ctime: Time::default(),
            },
            xattrs: first.xattrs.clone(),
            target: match &first.kind {
                EntryKind::Symlink { target } => target.clone(),
                _ => Vec::new(),
            },
            content: content.map_or(Content::None, |content| Content::Known(content.clone())),
            link_to: match &entry.kind {
                EntryKind::HardLink { to } => Some(to.as_slice().into()),
                _ => None,
            },
            hides_lower: rules.hides_lower(&first.xattrs),
            nets_out: false,
            mount_point: false,
        }
    }

    /// Its entry in an image; the path again, if its content was never read.
    pub(crate) fn entry(&self, path: Vec<u8>) -> Result<TreeEntry, Vec<u8>> {
        let kind = match &self.link_to {
            Some(to) => EntryKind::HardLink { to: to.to_vec() },
            None => match self.stat.file_type {
                FileType::Directory => EntryKind::Dir,
                FileType::Symlink => EntryKind::Symlink {
                    target: self.target.clone(),
                },
                FileType::CharacterDevice => EntryKind::CharDevice {
                    rdev: self.stat.rdev,
                },
                FileType::BlockDevice => EntryKind::BlockDevice {
                    rdev: self.stat.rdev,
                },
                FileType::Fifo => EntryKind::Fifo,
                FileType::Socket => EntryKind::Socket,
                FileType::RegularFile | FileType::Unknown => match &self.content {
                    Content::Known(content) => EntryKind::File {
                        size: self.stat.size,
                        content: content.to_vec(),
                    },
                    Content::None | Content::Unread => return Err(path),
                },
            },
        };
        Ok(TreeEntry {
            path,
            kind,
            mode: self.stat.mode,
            uid: self.stat.uid,
            gid: self.stat.gid,
            mtime: self.stat.mtime,
            xattrs: self.xattrs.clone(),
        })
    }

    /// Whether putting one in the place of the other would be noticed.
    pub(crate) fn same_effect(&self, other: &Self, rules: Rules) -> bool {
        let (a, b) = (&self.stat, &other.stat);
        if self.mount_point || other.mount_point {
            return self.mount_point == other.mount_point && a.file_type == b.file_type;
        }
        if rules.is_overlay() && a.is_null_device() && b.is_null_device() {
            return true;
        }
        let owner = a.file_type == b.file_type && (a.mode, a.uid, a.gid) == (b.mode, b.uid, b.gid);
        if !owner || self.xattrs != other.xattrs {
            return false;
        }
        if a.is_dir() {
            // Its times tell of entries that came and went, which are compared themselves.
            return true;
        }
        let content = match (&self.content, &other.content) {
            (Content::Known(one), Content::Known(two)) => Arc::ptr_eq(one, two) || one == two,
            (Content::None, Content::None) => true,
            _ => false,
        };
        content
            && a.mtime == b.mtime
            && a.rdev == b.rdev
            && (!a.is_file() || a.size == b.size)
            && self.target == other.target
            && self.link_to == other.link_to
    }
}
