// SPDX-License-Identifier: Apache-2.0

//! A tree as a layer of an OCI image: what an overlay's upper directory hides is told by the names
//! `.wh.NAME` and `.wh..wh..opq`, as the OCI image specification has it, and not by the kernel's own
//! means.

use std::io::Write;

use super::{
    ArchiveError, Get, end,
    member::{self, member},
};
use crate::tree::{EntryKind, Time, Tree, TreeEntry};

/// How every path begins.
pub(crate) const PREFIX: &[u8] = b"./";
/// How the name begins of what tells that another name is not there.
const HIDDEN: &[u8] = b".wh.";
/// In a directory: nothing of the layers below is in it.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Overlayfs' own attributes.
const OWN: [&[u8]; 2] = [b"trusted.overlay.", b"user.overlay."];

/// Writes a tree as a layer. `below`: where it lies in the root, for a mount in memory; of an upper
/// directory, nothing.
pub(crate) fn write_layer(
    tree: &Tree,
    below: Option<&[u8]>,
    out: &mut impl Write,
    get: &mut Get<'_>,
) -> Result<(), ArchiveError> {
    let prefix = prefix(below);
    for entry in &tree.entries {
        let hides = below.is_none();
        if hides && entry.kind == (EntryKind::CharDevice { rdev: 0 }) {
            let (parent, name) = split(&entry.path);
            let marker = [parent, HIDDEN, name].concat();
            // A name that a file of the container has as well tells nothing.
            if tree.get(&marker).is_none() {
                mark(out, [&prefix, &*marker].concat(), get)?;
            }
            continue;
        }
        let mut seen = entry.clone();
        seen.xattrs
            .retain(|(name, _)| !hides || OWN.iter().all(|own| !name.starts_with(own)));
        member::entry(out, tree, &seen, &prefix, get)?;
        let is_opaque = |(name, value): &(Vec<u8>, Vec<u8>)| {
            value == b"y"
                && OWN
                    .iter()
                    .any(|own| name == &[own, &b"opaque"[..]].concat())
        };
        if hides && entry.kind == EntryKind::Dir && entry.xattrs.iter().any(is_opaque) {
            let dir = match entry.path.is_empty() {
                true => prefix.clone(),
                false => [&prefix, &*entry.path, b"/"].concat(),
            };
            mark(out, [&dir, OPAQUE].concat(), get)?;
        }
    }
    Ok(end(out)?)
}

/// How the paths of a layer begin.
pub(crate) fn prefix(below: Option<&[u8]>) -> Vec<u8> {
    let mut prefix = PREFIX.to_vec();
    if let Some(mount) = below {
        prefix.extend_from_slice(mount.strip_prefix(b"/").unwrap_or(mount));
        if !prefix.ends_with(b"/") {
            prefix.push(b'/');
        }
    }
    prefix
}

/// An empty file.
fn mark(out: &mut impl Write, name: Vec<u8>, get: &mut Get<'_>) -> Result<(), ArchiveError> {
    let entry = TreeEntry {
        path: Vec::new(),
        kind: EntryKind::File {
            size: 0,
            content: Vec::new(),
        },
        mode: 0,
        uid: 0,
        gid: 0,
        mtime: Time::default(),
        xattrs: Vec::new(),
    };
    member(out, name, &entry, None, get)
}

/// The directory of a path, with its slash, and the name in it.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let slash = path.iter().rposition(|byte| *byte == b'/');
    path.split_at(slash.map_or(0, |slash| slash + 1))
}
