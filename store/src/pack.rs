// SPDX-License-Identifier: Apache-2.0

//! Packs: the objects that one checkpoint added, in one append-only file.
//!
//! ```text
//! header  "CRABPACK" version:u32 0:u32
//! object  digest:[32] raw_len:u32 stored_len:u32 flags:u32 bytes      (n times)
//! index   digest:[32] at:u64 raw_len:u32 stored_len:u32 flags:u32     (n times)
//! footer  "CRABPIDX" index_at:u64 count:u64 blake3:[32] of header, index
//!         and footer up to here
//! ```
//!
//! Integers are little-endian. The lowest byte of `flags` is how the bytes are stored, the others are
//! a checksum of compressed ones. `at` is where an object's bytes begin. A pack
//! without a sound footer is not believed; an object is believed if its bytes
//! have its digest. The object headers repeat the index, so that a pack whose
//! end is lost can still be salvaged.

use std::{collections::HashMap, fs::File, io, os::unix::fs::FileExt, path::Path};

use crate::{
    MAX_OBJECT,
    digest::Digest,
    error::{FileError, ReadError},
    id::PackId,
    version,
};

const MAGIC: &[u8; 8] = b"CRABPACK";
const FOOTER_MAGIC: &[u8; 8] = b"CRABPIDX";
const VERSION: u32 = 1;
pub(crate) const HEADER_LEN: usize = 16;
pub(crate) const OBJECT_HEADER_LEN: usize = 32 + 4 + 4 + 4;
const INDEX_ENTRY_LEN: usize = 32 + 8 + 4 + 4 + 4;
const FOOTER_LEN: usize = 8 + 8 + 8 + 32;

/// The object's bytes are compressed with zstd.
pub(crate) const FLAG_ZSTD: u32 = 1;
/// Of the flags: how the bytes are stored. The others are the checksum of compressed ones.
const METHOD: u32 = 0xff;
const SUM_BITS: u32 = 24;

/// Where an object is within its pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) at: u64,
    pub(crate) raw_len: u32,
    pub(crate) stored_len: u32,
    pub(crate) flags: u32,
}

impl Location {
    /// How the object's bytes are stored: 0 as they are, or [`FLAG_ZSTD`].
    pub(crate) fn method(&self) -> u32 {
        self.flags & METHOD
    }

    /// Whether these stored bytes are those that were written. What an earlier version has
    /// compressed has no checksum.
    pub(crate) fn is_as_written(&self, stored: &[u8]) -> bool {
        let sum = self.flags >> (u32::BITS - SUM_BITS);
        sum == 0 || sum == checksum_of(stored)
    }
}

/// The flags of an object. A decompressor passes over bits that mean nothing to it, so compressed
/// bytes have a checksum; others have the object's digest itself.
pub(crate) fn flags(method: u32, stored: &[u8]) -> u32 {
    match method {
        0 => 0,
        _ => method | checksum_of(stored) << (u32::BITS - SUM_BITS),
    }
}

/// Of [`SUM_BITS`], and never 0.
fn checksum_of(stored: &[u8]) -> u32 {
    let [a, b, c, ..] = *blake3::hash(stored).as_bytes();
    u32::from_le_bytes([a, b, c, 0]).max(1)
}

pub(crate) fn header() -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header
}

pub(crate) fn object_header(digest: &Digest, location: &Location) -> [u8; OBJECT_HEADER_LEN] {
    let mut header = [0; OBJECT_HEADER_LEN];
    header[..32].copy_from_slice(&digest.0);
    header[32..36].copy_from_slice(&location.raw_len.to_le_bytes());
    header[36..40].copy_from_slice(&location.stored_len.to_le_bytes());
    header[40..].copy_from_slice(&location.flags.to_le_bytes());
    header
}

/// Index and footer of a pack whose objects end at `index_at`.
pub(crate) fn trailer(objects: &[(Digest, Location)], index_at: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(objects.len() * INDEX_ENTRY_LEN + FOOTER_LEN);
    for (digest, location) in objects {
        out.extend_from_slice(&digest.0);
        out.extend_from_slice(&location.at.to_le_bytes());
        out.extend_from_slice(&location.raw_len.to_le_bytes());
        out.extend_from_slice(&location.stored_len.to_le_bytes());
        out.extend_from_slice(&location.flags.to_le_bytes());
    }
    out.extend_from_slice(FOOTER_MAGIC);
    out.extend_from_slice(&index_at.to_le_bytes());
    out.extend_from_slice(&(objects.len() as u64).to_le_bytes());
    let checksum = checksum(&header(), &out);
    out.extend_from_slice(&checksum);
    out
}

fn checksum(header: &[u8], index_and_footer: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(header).update(index_and_footer);
    *hasher.finalize().as_bytes()
}

/// The little-endian integer at the front of `bytes`, and the rest.
fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (front, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*front)
}

fn entry(bytes: &mut &[u8]) -> Option<(Digest, Location)> {
    let digest = Digest(take(bytes)?);
    let location = Location {
        at: u64::from_le_bytes(take(bytes)?),
        raw_len: u32::from_le_bytes(take(bytes)?),
        stored_len: u32::from_le_bytes(take(bytes)?),
        flags: u32::from_le_bytes(take(bytes)?),
    };
    Some((digest, location))
}

/// Reads the index of a pack, if its footer is sound.
pub(crate) fn read_index(path: &Path) -> Result<Vec<(Digest, Location)>, ReadError> {
    let damaged = |why: &str| ReadError::Damaged {
        path: path.to_owned(),
        why: why.to_owned(),
    };
    let file = File::open(path).map_err(FileError::of("open", path))?;
    let len = file.metadata().map_err(FileError::of("read", path))?.len();
    if len < (HEADER_LEN + FOOTER_LEN) as u64 {
        return Err(damaged("it is too short"));
    }
    let read = |at: u64, len: usize| -> Result<Vec<u8>, ReadError> {
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, at)
            .map_err(FileError::of("read", path))?;
        Ok(bytes)
    };

    let head = read(0, HEADER_LEN)?;
    let mut fields = head.as_slice();
    if take(&mut fields) != Some(*MAGIC) {
        return Err(damaged("it is no pack"));
    }
    let version = take(&mut fields).map_or(0, u32::from_le_bytes);
    version::check(path, version, VERSION)?;

    let footer = read(len - FOOTER_LEN as u64, FOOTER_LEN)?;
    let mut fields = footer.as_slice();
    if take(&mut fields) != Some(*FOOTER_MAGIC) {
        return Err(damaged("it has no footer"));
    }
    let index_at = take(&mut fields).map_or(0, u64::from_le_bytes);
    let count = take(&mut fields).map_or(0, u64::from_le_bytes);
    let index_len = len
        .checked_sub(FOOTER_LEN as u64)
        .and_then(|end| end.checked_sub(index_at))
        .filter(|len| count.checked_mul(INDEX_ENTRY_LEN as u64) == Some(*len))
        .ok_or_else(|| damaged("its index has the wrong size"))?;

    let mut tail = read(index_at, index_len as usize + FOOTER_LEN - 32)?;
    if checksum(&head, &tail) != fields {
        return Err(damaged("the checksum of its index is wrong"));
    }
    tail.truncate(index_len as usize);
    let mut entries = tail.as_slice();
    let mut index = Vec::with_capacity(count as usize);
    while let Some((digest, location)) = entry(&mut entries) {
        let end = location.at.checked_add(location.stored_len.into());
        if end.is_none_or(|end| end > index_at) || location.raw_len as usize > MAX_OBJECT {
            return Err(damaged("its index points beyond it"));
        }
        index.push((digest, location));
    }
    Ok(index)
}

/// Reads one object and checks that its bytes have its digest.
pub(crate) fn read_object(
    file: &File,
    path: &Path,
    digest: Digest,
    location: Location,
) -> Result<Vec<u8>, ReadError> {
    let stored = read_stored(file, path, digest, location)?;
    unpack(stored, path, digest, location)
}

fn damaged(path: &Path, digest: Digest, why: impl std::fmt::Display) -> ReadError {
    ReadError::Damaged {
        path: path.to_owned(),
        why: format!("object {digest}: {why}"),
    }
}

/// Reads one object's bytes as they are stored, unchecked.
pub(crate) fn read_stored(
    file: &File,
    path: &Path,
    digest: Digest,
    location: Location,
) -> Result<Vec<u8>, ReadError> {
    let mut stored = vec![0; location.stored_len as usize];
    match file.read_exact_at(&mut stored, location.at) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Err(damaged(path, digest, "it is cut off"))
        }
        read => {
            read.map_err(FileError::of("read", path))?;
            Ok(stored)
        }
    }
}

/// An object's bytes from how they are stored, if they have its digest.
pub(crate) fn unpack(
    stored: Vec<u8>,
    path: &Path,
    digest: Digest,
    location: Location,
) -> Result<Vec<u8>, ReadError> {
    let raw = match location.method() {
        0 => stored,
        FLAG_ZSTD => zstd::bulk::decompress(&stored, location.raw_len as usize)
            .map_err(|error| damaged(path, digest, error))?,
        method => {
            let why = format!("it is stored by an unknown method ({method})");
            return Err(damaged(path, digest, why));
        }
    };
    if raw.len() != location.raw_len as usize || Digest::of(&raw) != digest {
        return Err(damaged(path, digest, "its bytes have changed"));
    }
    Ok(raw)
}

/// How much of a pack an object takes.
pub(crate) fn room(location: &Location) -> u64 {
    (OBJECT_HEADER_LEN + INDEX_ENTRY_LEN) as u64 + u64::from(location.stored_len)
}

/// Whether the objects of a sound pack follow each other without a gap, each with its own
/// header before it that says what the index says: then no byte of the pack is unaccounted
/// for.
pub(crate) fn check_layout(path: &Path, objects: &[(Digest, Location)]) -> Result<(), ReadError> {
    let file = File::open(path).map_err(FileError::of("open", path))?;
    let mut end = HEADER_LEN as u64;
    for (digest, location) in objects {
        let mut header = [0; OBJECT_HEADER_LEN];
        file.read_exact_at(&mut header, end)
            .map_err(FileError::of("read", path))?;
        end += OBJECT_HEADER_LEN as u64;
        if location.at != end {
            return Err(damaged(path, *digest, "it is not where it was written"));
        }
        if header != object_header(digest, location) {
            return Err(damaged(path, *digest, "its header has changed"));
        }
        end += u64::from(location.stored_len);
    }
    Ok(())
}

/// What a pack holds by the headers of its objects, whatever has become of its index. Each
/// is one whose bytes have its digest.
pub(crate) fn salvage(path: &Path) -> Result<Vec<(Digest, Location)>, FileError> {
    let file = File::open(path).map_err(FileError::of("open", path))?;
    let mut found = Vec::new();
    let mut at = HEADER_LEN as u64;
    let mut header = [0; OBJECT_HEADER_LEN];
    while file.read_exact_at(&mut header, at).is_ok() {
        let mut fields = header.as_slice();
        let (Some(digest), Some(raw_len), Some(stored_len), Some(flags)) = (
            take(&mut fields).map(Digest),
            take(&mut fields).map(u32::from_le_bytes),
            take(&mut fields).map(u32::from_le_bytes),
            take(&mut fields).map(u32::from_le_bytes),
        ) else {
            break;
        };
        let location = Location {
            at: at + OBJECT_HEADER_LEN as u64,
            raw_len,
            stored_len,
            flags,
        };
        // Of no object: the index begins, or the chain is broken.
        if raw_len as usize > MAX_OBJECT
            || stored_len > raw_len
            || location.method() & !FLAG_ZSTD != 0
        {
            break;
        }
        if read_object(&file, path, digest, location).is_ok() {
            found.push((digest, location));
        }
        at = location.at + u64::from(stored_len);
    }
    Ok(found)
}

/// The objects of several packs.
#[derive(Default)]
pub(crate) struct Index {
    /// Names of the packs, in the order of their numbers.
    packs: Vec<PackId>,
    objects: HashMap<Digest, (u32, Location)>,
}

impl Index {
    /// Adds a pack's objects; the first place of an object stays.
    pub(crate) fn add(&mut self, pack: PackId, objects: &[(Digest, Location)]) {
        let number = self.packs.len() as u32;
        self.packs.push(pack);
        for (digest, location) in objects {
            self.objects.entry(*digest).or_insert((number, *location));
        }
    }

    /// Forgets what a pack holds. An object that another one holds too is then known to
    /// none, and stored anew if it comes again.
    pub(crate) fn remove(&mut self, pack: PackId) {
        let is_it = |number: u32| self.packs[number as usize] == pack;
        self.objects.retain(|_, (number, _)| !is_it(*number));
    }

    /// Where an object is.
    pub(crate) fn find(&self, digest: &Digest) -> Option<(PackId, Location)> {
        let (number, location) = self.objects.get(digest)?;
        Some((self.packs[*number as usize], *location))
    }
}
