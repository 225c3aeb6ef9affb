// SPDX-License-Identifier: Apache-2.0
//! Deciding, from what a scan found and what the index says, what changed.
//! Pure: nothing here touches a file.

use std::{collections::HashMap, sync::Arc};

use rustix::fs::FileType;

use super::{
    beneath::Inode,
    index::Index,
    node::{Content, Node},
    walk::join,
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

/// An entry that was looked at. What it is, is in the index of the same scan.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) path: Vec<u8>,
    /// What a lower layer shows at this path, if it was looked up.
    pub(crate) over: Option<Over>,
    /// What was there before.
    pub(crate) old: Option<Arc<Node>>,
}

/// One name of an inode that has several.
#[derive(Debug)]
pub(crate) struct Linked {
    pub(crate) path: Vec<u8>,
    pub(crate) inode: Inode,
}

/// An entry of a lower layer that one of the upper directory covers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Over {
    /// Its length, if it is a regular file.
    pub(crate) size: Option<u64>,
}

/// Whether every name of these inodes is among them. Overlayfs links all whiteouts to one inode,
/// and keeps a name of it to itself; that means nothing.
pub(crate) fn are_all_names(index: &Index, linked: &[Linked]) -> bool {
    let mut missing: HashMap<Inode, i64> = HashMap::new();
    for Linked { path, inode } in linked {
        let Some(node) = index.get(path) else {
            return false;
        };
        if !node.stat.is_null_device() {
            *missing.entry(*inode).or_insert(node.stat.nlink.into()) -= 1;
        }
    }
    missing.values().all(|missing| *missing == 0)
}

/// Gives each inode with several names one that holds it, the first, and lets
/// the others point there. Done anew for each scan: renaming a directory moves
/// names without touching the inodes. `found` is sorted, and what is changed is added.
pub(crate) fn link(
    index: &mut Index,
    mut linked: Vec<Linked>,
    found: &mut Vec<Found>,
    rules: Rules,
) {
    linked.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    let mut groups: HashMap<Inode, Vec<Vec<u8>>> = HashMap::new();
    for Linked { path, inode } in linked {
        groups.entry(inode).or_default().push(path);
    }
    let mut added = Vec::new();
    for names in groups.values() {
        // Overlayfs links all whiteouts to one inode; that means nothing.
        let is_whiteout = |node: &Node| rules.is_overlay() && node.stat.is_null_device();
        let mut nodes = Vec::with_capacity(names.len());
        nodes.extend(names.iter().filter_map(|name| index.get(name).cloned()));
        if nodes.len() < names.len() || nodes.iter().any(|node| is_whiteout(node)) {
            continue;
        }
        let known = nodes.iter().find_map(|node| match &node.content {
            Content::Known(content) => Some(content.clone()),
            Content::None | Content::Unread => None,
        });
        let first: Arc<[u8]> = names[0].as_slice().into();
        for (place, (path, mut node)) in names.iter().zip(nodes).enumerate() {
            let link_to = (place > 0).then(|| first.clone());
            let unread = matches!(node.content, Content::Unread);
            if node.link_to == link_to && !(unread && known.is_some()) {
                continue;
            }
            if found.binary_search_by(|it| it.path.cmp(path)).is_err() {
                added.push(Found {
                    path: path.clone(),
                    over: None,
                    old: Some(node.clone()),
                });
            }
            let changed = Arc::make_mut(&mut node);
            changed.link_to = link_to;
            if let (true, Some(known)) = (unread, &known) {
                changed.content = Content::Known(known.clone());
            }
            index.insert(path, node);
        }
    }
    if !added.is_empty() {
        found.extend(added);
        found.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    }
}

/// What a scan found that the index before it does not have. What was not looked at is as
/// it was, or gone.
pub(crate) fn compare(old: &Index, now: &Index, found: &[Found], rules: Rules) -> Vec<Change> {
    let mut changes = Vec::new();
    for found in found {
        let Some(node) = now.get(&found.path) else {
            continue;
        };
        let old = found.old.as_ref();
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
            path: found.path.clone(),
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
    for (dir, names) in old.dirs() {
        let here = now.dir(dir);
        if here.is_some_and(|here| Arc::ptr_eq(here, names)) {
            continue;
        }
        for named in names.entries() {
            let gone = here.is_none_or(|here| here.get(&named.name).is_none());
            let entry = file_kind(&named.node, rules);
            if !gone || named.node.nets_out && entry == FileKind::Whiteout {
                continue;
            }
            changes.push(Change {
                path: join(dir, named.name.to_bytes()),
                kind: match entry {
                    // What it hid is visible again.
                    FileKind::Whiteout => ChangeKind::Added,
                    _ => ChangeKind::Removed,
                },
                entry,
                size: 0,
                before: size_of_file(&named.node),
            });
        }
    }
    changes.sort_unstable_by(|a, b| a.path.cmp(&b.path));
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
