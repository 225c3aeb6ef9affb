// SPDX-License-Identifier: Apache-2.0
//! Making a directory that cannot be exchanged for another be a tree: the tmpfs of
//! a container that was created and not started yet, or a root that is no overlay.
//!
//! A tmpfs holds what runc put there (the entries of `/dev`), and other mounts.
//! What is right already is left alone, down to the inode; mount points, and
//! the directories that lead to them, are never removed. No process of the
//! container may run.
//!
//! What fails, or is killed, half way leaves the directory neither the one nor the other. Doing
//! it again, with the same tree or with that of before, is what helps.

use std::{
    collections::{HashMap, HashSet},
    os::fd::{AsFd, BorrowedFd},
};

use crab_store::{EntryKind, ObjectReader, Tree, TreeEntry};
use rustix::{
    fs::{AtFlags, FileType, OFlags, readlinkat, unlinkat},
    io::Errno,
};

use super::{
    beneath::{Stat, open_name, reopen, split},
    content::equals_segments,
    index::Index,
    restore::{Placer, RestoreError},
    walk::{shown, walk},
    xattr::{self, Rules},
};

struct Present {
    stat: Stat,
    mount_point: bool,
}

/// Makes what is in `root` be `tree`, changing no more than needed. Files that are as `known` has
/// them are not read for that.
pub fn apply(
    tree: &Tree,
    reader: &ObjectReader,
    root: BorrowedFd<'_>,
    known: &Index,
) -> Result<(), RestoreError> {
    tree.check()?;
    let mut present: HashMap<Vec<u8>, Present> = HashMap::new();
    walk(root, |visit| {
        let found = Present {
            stat: visit.stat,
            mount_point: visit.mount_point,
        };
        present.insert(visit.path.to_vec(), found);
    })?;
    let mut leads_to_mount: HashSet<&[u8]> = HashSet::new();
    for (path, _) in present.iter().filter(|(_, found)| found.mount_point) {
        let mut above = split(path).0;
        while leads_to_mount.insert(above) && !above.is_empty() {
            above = split(above).0;
        }
    }
    let linked = tree.link_targets();

    let mut place = Placer::new(root, reader, Rules::Plain);
    let mut kept: HashSet<&[u8]> = HashSet::new();
    let mut paths: Vec<&[u8]> = present.keys().map(Vec::as_slice).collect();
    paths.sort_unstable_by(|a, b| b.cmp(a));
    for path in paths {
        let found = &present[path];
        if found.mount_point {
            continue;
        }
        let keep = match tree.get(path) {
            _ if path.is_empty() => true,
            Some(wanted) => {
                // Names of one inode are made anew rather than sorted out.
                let single = found.stat.nlink == 1 && !linked.contains(path);
                (found.stat.is_dir() || single) && is_it(&mut place, wanted, &found.stat, known)?
            }
            None => false,
        };
        if keep {
            kept.insert(path);
        } else if leads_to_mount.contains(path) {
            if tree.get(path).is_some() {
                return Err(RestoreError::MountPoint { path: shown(path) });
            }
        } else {
            let flags = match found.stat.is_dir() {
                true => AtFlags::REMOVEDIR,
                false => AtFlags::empty(),
            };
            let (dir, name) = place.parent(path)?;
            unlinkat(dir, name, flags).map_err(RestoreError::io("remove", path))?;
        }
    }

    let mut mounted: Option<&[u8]> = None;
    let mut directories = Vec::new();
    for entry in &tree.entries {
        let path = entry.path.as_slice();
        if mounted.is_some_and(|mount| is_below(path, mount)) {
            continue;
        }
        if present.get(path).is_some_and(|found| found.mount_point) {
            mounted = Some(path);
            continue;
        }
        if entry.kind == EntryKind::Dir {
            directories.push(entry);
        }
        if !kept.contains(path) {
            if !path.is_empty() {
                place.create(entry)?;
            }
        } else if entry.kind != EntryKind::Dir
            && !has_attributes(&mut place, entry, &present[path].stat)?
        {
            place.amend(entry)?;
        }
    }
    place.finish(directories.into_iter().rev())
}

fn is_below(path: &[u8], above: &[u8]) -> bool {
    path.strip_prefix(above)
        .is_some_and(|rest| rest.first() == Some(&b'/'))
}

/// Whether what is there is of the wanted kind, and has the wanted content.
fn is_it(
    place: &mut Placer<'_>,
    wanted: &TreeEntry,
    stat: &Stat,
    known: &Index,
) -> Result<bool, RestoreError> {
    let path = wanted.path.as_slice();
    Ok(match (&wanted.kind, stat.file_type) {
        (EntryKind::Dir, FileType::Directory)
        | (EntryKind::Fifo, FileType::Fifo)
        | (EntryKind::Socket, FileType::Socket) => true,
        (EntryKind::CharDevice { rdev }, FileType::CharacterDevice)
        | (EntryKind::BlockDevice { rdev }, FileType::BlockDevice) => *rdev == stat.rdev,
        (EntryKind::Symlink { target }, FileType::Symlink) => {
            let (dir, name) = place.parent(path)?;
            let found =
                readlinkat(dir, name, Vec::new()).map_err(RestoreError::io("read", path))?;
            found.to_bytes() == target.as_slice()
        }
        (EntryKind::File { size, content }, FileType::RegularFile) => {
            *size == stat.size && {
                if let Some(found) = known.content_of(path, stat) {
                    return Ok(found == content.as_slice());
                }
                let (dir, name) = place.parent(path)?;
                open_name(dir, name)
                    .and_then(|fd| reopen(fd.as_fd(), OFlags::RDONLY | OFlags::NOATIME))
                    .and_then(|file| equals_segments(file.as_fd(), *size, content))
                    .map_err(RestoreError::io("read", path))?
            }
        }
        _ => false,
    })
}

fn has_attributes(
    place: &mut Placer<'_>,
    wanted: &TreeEntry,
    stat: &Stat,
) -> Result<bool, RestoreError> {
    let mode = wanted.mode == stat.mode || stat.file_type == FileType::Symlink;
    if !mode || (wanted.uid, wanted.gid) != (stat.uid, stat.gid) || wanted.mtime != stat.mtime {
        return Ok(false);
    }
    let path = wanted.path.as_slice();
    let (dir, name) = place.parent(path)?;
    let xattrs = open_name(dir, name).and_then(|fd| xattr::read(fd.as_fd()));
    match xattrs {
        Ok(found) => Ok(found == wanted.xattrs),
        Err(Errno::NOTSUP) => Ok(wanted.xattrs.is_empty()),
        Err(errno) => Err(RestoreError::io("read attributes of", path)(errno)),
    }
}
