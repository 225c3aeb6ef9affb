// SPDX-License-Identifier: Apache-2.0
//! Deciding, from what a scan found and what the index says, what changed.
//! Pure: nothing here touches a file.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use rustix::fs::FileType;

use super::{
    index::{Content, Index, Node},
    xattr::Rules,
};

/// One path that is not as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Relative to the root, which is the empty path.
    pub path: Vec<u8>,
    /// What happened to it, as a process in the container sees it: a new
    /// whiteout is a removal.
    pub kind: ChangeKind,
    /// What it is, or was.
    pub entry: FileKind,
    /// Its length, for a regular file that is there.
    pub size: u64,
    /// The length that it had, if it was a regular file before.
    pub before: Option<u64>,
}

/// What happened to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It was not there.
    Added,
    /// It is something else, or has other content or attributes.
    Changed,
    /// It is gone.
    Removed,
}

/// What a path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A device, FIFO or socket.
    Special,
    /// What hides an entry of a lower layer.
    Whiteout,
}

#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) path: Box<[u8]>,
    pub(crate) node: Arc<Node>,
    /// What a lower layer shows at this path, if it was looked up.
    pub(crate) over: Option<Over>,
}

/// An entry of a lower layer that one of the upper directory covers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Over {
    /// Its length, if it is a regular file.
    pub(crate) size: Option<u64>,
}

impl Found {
    /// Whether its content has to be read before there can be an image.
    pub(crate) fn is_unread(&self) -> bool {
        matches!(self.node.content, Content::Unread) && self.node.link_to.is_none()
    }
}

/// Gives each inode with several names one that holds it, the first, and lets
/// the others point there. Done anew for each scan: renaming a directory moves
/// names without touching the inodes.
pub(crate) fn link(nodes: &mut [Found], rules: Rules) {
    let mut groups: HashMap<u64, Vec<usize>> = HashMap::new();
    for (at, found) in nodes.iter().enumerate() {
        let stat = &found.node.stat;
        // Overlayfs links all whiteouts to one inode; that means nothing.
        let whiteout = rules.is_overlay() && stat.is_null_device();
        if stat.nlink > 1 && !stat.is_dir() && !found.node.mount_point && !whiteout {
            groups.entry(stat.ino).or_default().push(at);
        }
    }
    for names in groups.values() {
        let known = names.iter().find_map(|at| match &nodes[*at].node.content {
            Content::Known(content) => Some(content.clone()),
            Content::None | Content::Unread => None,
        });
        let first: Arc<[u8]> = (*nodes[names[0]].path).into();
        for (place, at) in names.iter().enumerate() {
            let link_to = (place > 0).then(|| first.clone());
            let node = &mut nodes[*at].node;
            let unread = matches!(node.content, Content::Unread);
            if node.link_to != link_to || unread && known.is_some() {
                let node = Arc::make_mut(node);
                node.link_to = link_to;
                if let (true, Some(known)) = (unread, &known) {
                    node.content = Content::Known(known.clone());
                }
            }
        }
    }
}

/// What the nodes, which are sorted by path, show that the index does not.
pub(crate) fn compare(index: &Index, nodes: &[Found], rules: Rules) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut kept = 0;
    for found in nodes {
        let old = index.nodes.get(&found.path);
        kept += usize::from(old.is_some());
        let node = &found.node;
        let unchanged = match old {
            Some(old) => {
                Arc::ptr_eq(old, node)
                    || old.nets_out && node.nets_out
                    || old.same_effect(node, rules)
            }
            None => node.nets_out,
        };
        if unchanged {
            continue;
        }
        let entry = file_kind(node, rules);
        let kind = match (entry, old) {
            (FileKind::Whiteout, _) => ChangeKind::Removed,
            (_, Some(old)) if file_kind(old, rules) == FileKind::Whiteout => ChangeKind::Added,
            (_, None) if found.over.is_none() => ChangeKind::Added,
            _ => ChangeKind::Changed,
        };
        changes.push(Change {
            path: found.path.to_vec(),
            kind,
            entry,
            size: match entry {
                FileKind::File => node.stat.size,
                _ => 0,
            },
            before: match old {
                Some(old) if !old.nets_out => size_of_file(old),
                // The upper directory says nothing of what was there.
                _ => found.over.and_then(|over| over.size),
            },
        });
    }
    if kept < index.nodes.len() {
        let here: HashSet<&[u8]> = nodes.iter().map(|found| &*found.path).collect();
        for (path, old) in &index.nodes {
            let entry = file_kind(old, rules);
            if here.contains(&**path) || old.nets_out && entry == FileKind::Whiteout {
                continue;
            }
            changes.push(Change {
                path: path.to_vec(),
                kind: match entry {
                    // What it hid is visible again.
                    FileKind::Whiteout => ChangeKind::Added,
                    _ => ChangeKind::Removed,
                },
                entry,
                size: 0,
                before: size_of_file(old),
            });
        }
        changes.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    }
    changes
}

fn size_of_file(node: &Node) -> Option<u64> {
    node.stat.is_file().then_some(node.stat.size)
}

fn file_kind(node: &Node, rules: Rules) -> FileKind {
    match node.stat.file_type {
        FileType::Directory => FileKind::Dir,
        FileType::Symlink => FileKind::Symlink,
        FileType::RegularFile => FileKind::File,
        _ if rules.is_overlay() && node.stat.is_null_device() => FileKind::Whiteout,
        _ => FileKind::Special,
    }
}
