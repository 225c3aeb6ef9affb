// SPDX-License-Identifier: Apache-2.0
//! A tree as the archive in which CRIU keeps a tmpfs mount.
//!
//! CRIU stores each tmpfs as `tmpfs-dev-<minor>.tar.gz.img`, which is the plain
//! output of `tar --create --gzip --one-file-system --sparse --numeric-owner`
//! from within the mount, and restores it with `tar --extract --gzip`. An
//! archive made here takes its place in a copy of an image directory, so that
//! processes of one turn come back with the files of another.
//!
//! GNU format: long names as `L` and `K` members, holes as old GNU sparse
//! members (shared memory is often a large file with little in it). Times to
//! the nanosecond, and extended attributes, are in pax headers, which GNU tar
//! reads from any archive; CRIU does not ask it to restore the attributes.
//! Sockets are left out, as tar does: CRIU makes those of the processes itself.

use std::io::{self, Write};

use crab_store::{EntryKind, ObjectReader, ReadError, Segment, Tree, TreeEntry};
use flate2::{Compression, write::GzEncoder};
use rustix::fs::{major, minor};
use tar::{EntryType, GnuExtSparseHeader, Header};

use super::walk::shown;

/// Why an archive could not be made.
#[derive(Debug, thiserror::Error)]
pub enum TarError {
    /// It could not be written.
    #[error("write the archive of a tmpfs: {0}")]
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

const BLOCK: usize = 512;
/// Sparse map entries in a header, and in a block that continues one.
const IN_HEADER: usize = 4;
const IN_BLOCK: usize = 21;

/// Writes `tree` as CRIU would have stored the tmpfs that it was taken from.
/// What was mounted on it is in the tree as empty directories, and so here.
pub fn write_tmpfs_archive<W: Write>(
    tree: &Tree,
    reader: &ObjectReader,
    to: W,
) -> Result<W, TarError> {
    let mut out = GzEncoder::new(to, Compression::fast());
    for entry in &tree.entries {
        let mut first = entry;
        let mut link: Option<&[u8]> = None;
        if let EntryKind::HardLink { to } = &entry.kind {
            // Its attributes are those of the first name.
            first = tree.get(to).unwrap_or(entry);
            link = Some(to);
        }
        member(&mut out, entry, first, link, reader)?;
    }
    // The end: two blocks of zeros, filled up to tar's usual record of 20 is not needed.
    out.write_all(&[0; 2 * BLOCK])?;
    Ok(out.finish()?)
}

fn member(
    out: &mut impl Write,
    entry: &TreeEntry,
    first: &TreeEntry,
    link: Option<&[u8]>,
    reader: &ObjectReader,
) -> Result<(), TarError> {
    let mut name = b"./".to_vec();
    name.extend_from_slice(&entry.path);
    let mut target = Vec::new();
    if let Some(to) = link {
        target.extend_from_slice(b"./");
        target.extend_from_slice(to);
    }
    let mut header = Header::new_gnu();
    let mut content: &[Segment] = &[];
    let mut length = 0;
    header.set_size(0);
    let entry_type = match &first.kind {
        _ if link.is_some() => EntryType::Link,
        EntryKind::Dir => {
            if !entry.path.is_empty() {
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

    if link.is_none() {
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
        let bytes = reader
            .get(segment.digest)
            .map_err(|source| TarError::Content {
                path: shown(&entry.path),
                source,
            })?;
        if bytes.len() != segment.len as usize {
            let why = format!("an object of {} has the wrong length", shown(&entry.path));
            return Err(TarError::Write(io::Error::other(why)));
        }
        out.write_all(&bytes)?;
    }
    Ok(pad(out, stored)?)
}

fn pad(out: &mut impl Write, len: u64) -> io::Result<()> {
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
