// SPDX-License-Identifier: Apache-2.0

//! Entries of a tree as members of a tar archive.
//!
//! GNU format: long names as `L` and `K` members, holes as old GNU sparse members (a
//! container chooses how long its files are, and shared memory is often a large file with
//! little in it). Times to the nanosecond, and extended attributes, are in pax headers, which
//! GNU tar, CRIU and Go read from any archive. Sockets are left out, as tar does.

use std::io::{self, Write};

use rustix::fs::{major, minor};
use tar::{EntryType, GnuExtSparseHeader, Header};

use crate::{
    error::ReadError,
    text::escape,
    tree::{EntryKind, Segment, Tree, TreeEntry},
};

/// Why an archive could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// It could not be written.
    #[error("write an archive: {0}")]
    Write(#[from] io::Error),
    /// A content could not be read back.
    #[error("read the content of {path}: {source}")]
    Content {
        /// Whose.
        path: String,
        /// Why not.
        source: ReadError,
    },
}

pub(crate) const BLOCK: usize = 512;
/// Sparse map entries in a header, and in a block that continues one.
const IN_HEADER: usize = 4;
const IN_BLOCK: usize = 21;

/// The end of an archive: two blocks of zeros. Filling them up to tar's usual record of 20 is not
/// needed.
pub(crate) fn end(out: &mut impl Write) -> io::Result<()> {
    out.write_all(&[0; 2 * BLOCK])
}

/// The bytes of a segment.
pub(crate) type Get<'a> = dyn FnMut(&Segment) -> Result<Vec<u8>, ReadError> + 'a;

/// Writes an entry of a tree, whose path in the archive begins with `prefix`.
pub(crate) fn entry(
    out: &mut impl Write,
    tree: &Tree,
    entry: &TreeEntry,
    prefix: &[u8],
    get: &mut Get<'_>,
) -> Result<(), ArchiveError> {
    let name = [prefix, &entry.path].concat();
    match &entry.kind {
        // Its attributes are those of the first name.
        EntryKind::HardLink { to } => {
            let target = [prefix, to].concat();
            let first = tree.get(to).unwrap_or(entry);
            member(out, name, first, Some(target), get)
        }
        _ => member(out, name, entry, None, get),
    }
}

/// Writes a member. With a link, it is another name of that one.
pub(crate) fn member(
    out: &mut impl Write,
    mut name: Vec<u8>,
    first: &TreeEntry,
    link: Option<Vec<u8>>,
    get: &mut Get<'_>,
) -> Result<(), ArchiveError> {
    let is_link = link.is_some();
    let mut target = link.unwrap_or_default();
    let mut header = Header::new_gnu();
    let mut content: &[Segment] = &[];
    let mut length = 0;
    header.set_size(0);
    let entry_type = match &first.kind {
        _ if is_link => EntryType::Link,
        EntryKind::Dir => {
            if !name.ends_with(b"/") {
                name.push(b'/');
            }
            EntryType::Directory
        }
        EntryKind::File {
            size,
            content: segments,
        } => {
            content = segments;
            length = *size;
            EntryType::Regular
        }
        EntryKind::Symlink { target: to } => {
            target.clone_from(to);
            EntryType::Symlink
        }
        EntryKind::CharDevice { rdev } | EntryKind::BlockDevice { rdev } => {
            header.set_device_major(major(*rdev))?;
            header.set_device_minor(minor(*rdev))?;
            match first.kind {
                EntryKind::CharDevice { .. } => EntryType::Char,
                _ => EntryType::Block,
            }
        }
        EntryKind::Fifo => EntryType::Fifo,
        EntryKind::Socket | EntryKind::HardLink { .. } => return Ok(()),
    };
    header.set_entry_type(entry_type);
    header.set_mode(first.mode);
    header.set_uid(first.uid.into());
    header.set_gid(first.gid.into());
    header.set_mtime(u64::try_from(first.mtime.sec).unwrap_or(0));

    if !is_link {
        pax(out, first)?;
    }
    long_name(out, EntryType::GNULongLink, &target, &mut header)?;
    long_name(out, EntryType::GNULongName, &name, &mut header)?;
    let stored: u64 = content.iter().map(|segment| u64::from(segment.len)).sum();
    if stored < length {
        sparse_header(out, header, content, length, stored)?;
    } else {
        header.set_size(length);
        header.set_cksum();
        out.write_all(header.as_bytes())?;
    }
    for segment in content {
        let failed = |source| ArchiveError::Content {
            path: escape(&name),
            source,
        };
        let bytes = get(segment).map_err(failed)?;
        if bytes.len() != segment.len as usize {
            let why = format!("{} bytes instead of {}", bytes.len(), segment.len);
            return Err(failed(ReadError::Malformed {
                digest: segment.digest,
                why,
            }));
        }
        out.write_all(&bytes)?;
    }
    Ok(pad(out, stored)?)
}

pub(crate) fn pad(out: &mut impl Write, len: u64) -> io::Result<()> {
    let over = (len % BLOCK as u64) as usize;
    match over {
        0 => Ok(()),
        _ => out.write_all(&[0; BLOCK][over..]),
    }
}

/// Puts a name into the header or, where it does not fit, before it.
fn long_name(
    out: &mut impl Write,
    kind: EntryType,
    name: &[u8],
    header: &mut Header,
) -> io::Result<()> {
    let old = header.as_old_mut();
    let field = match kind {
        EntryType::GNULongLink => &mut old.linkname,
        _ => &mut old.name,
    };
    let fits = name.len().min(field.len());
    field[..fits].copy_from_slice(&name[..fits]);
    // A full field has no NUL, and is still complete.
    if name.len() <= field.len() {
        return Ok(());
    }
    let mut data = name.to_vec();
    data.push(0);
    extra(out, kind, b"././@LongLink", &data)
}

/// A member that describes the next one.
fn extra(out: &mut impl Write, kind: EntryType, name: &[u8], data: &[u8]) -> io::Result<()> {
    let mut header = match kind {
        EntryType::XHeader => Header::new_ustar(),
        _ => Header::new_gnu(),
    };
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(data.len() as u64);
    header.set_cksum();
    out.write_all(header.as_bytes())?;
    out.write_all(data)?;
    pad(out, data.len() as u64)
}

fn pax(out: &mut impl Write, entry: &TreeEntry) -> io::Result<()> {
    let mut records = Vec::new();
    let time = entry.mtime;
    // Before the epoch, pax counts the fraction downwards.
    let stamp = match (time.sec, time.nsec) {
        (sec, nsec) if sec >= 0 || nsec == 0 => format!("{sec}.{nsec:09}"),
        (sec, nsec) => format!("-{}.{:09}", -(sec + 1), 1_000_000_000 - nsec),
    };
    record(&mut records, b"mtime", stamp.as_bytes());
    for (name, value) in &entry.xattrs {
        // `=` ends a keyword; GNU tar writes such names so, too.
        let mut keyword = b"SCHILY.xattr.".to_vec();
        for byte in name {
            match byte {
                b'=' => keyword.extend_from_slice(b"%3D"),
                b'%' => keyword.extend_from_slice(b"%25"),
                byte => keyword.push(*byte),
            }
        }
        record(&mut records, &keyword, value);
    }
    extra(out, EntryType::XHeader, b"./PaxHeaders/crab", &records)
}

/// Adds `<length> <keyword>=<value>\n`, where the length counts itself.
fn record(records: &mut Vec<u8>, keyword: &[u8], value: &[u8]) {
    let rest = keyword.len() + value.len() + 3;
    let mut length = rest;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    records.extend_from_slice(format!("{length} ").as_bytes());
    records.extend_from_slice(keyword);
    records.push(b'=');
    records.extend_from_slice(value);
    records.push(b'\n');
}

/// Writes the header of a file with holes, and the map of what is in it.
fn sparse_header(
    out: &mut impl Write,
    mut header: Header,
    content: &[Segment],
    length: u64,
    stored: u64,
) -> io::Result<()> {
    let mut map: Vec<(u64, u64)> = Vec::new();
    for segment in content {
        let len = u64::from(segment.len);
        match map.last_mut() {
            Some((start, run)) if *start + *run == segment.offset => *run += len,
            _ => map.push((segment.offset, len)),
        }
    }
    if map.last().is_none_or(|(start, len)| start + len < length) {
        // An empty run at the end says how long the file is.
        map.push((length, 0));
    }
    header.set_entry_type(EntryType::GNUSparse);
    header.set_size(stored);
    let (inline, rest) = map.split_at(map.len().min(IN_HEADER));
    let gnu = header
        .as_gnu_mut()
        .ok_or_else(|| io::Error::other("no GNU header"))?;
    gnu.set_real_size(length);
    gnu.set_is_extended(!rest.is_empty());
    for (slot, (offset, len)) in gnu.sparse.iter_mut().zip(inline) {
        slot.set_offset(*offset);
        slot.set_length(*len);
    }
    header.set_cksum();
    out.write_all(header.as_bytes())?;
    let blocks = rest.chunks(IN_BLOCK);
    let last = blocks.len().saturating_sub(1);
    for (at, part) in blocks.enumerate() {
        let mut block = GnuExtSparseHeader::new();
        for (slot, (offset, len)) in block.sparse_mut().iter_mut().zip(part) {
            slot.set_offset(*offset);
            slot.set_length(*len);
        }
        block.set_is_extended(at < last);
        out.write_all(block.as_bytes())?;
    }
    Ok(())
}
