// SPDX-License-Identifier: Apache-2.0

//! The members of a layer, as archive/member.rs writes them: GNU tar, and nothing that it does not
//! write. What is no content has a limit here, which a general reader has not: a few bytes of zstd are
//! as many headers, names and attributes as anybody likes.

use std::io::{self, Read};

use tar::{EntryType, GnuExtSparseHeader, Header};

use super::{Fault, refused};
use crate::archive::BLOCK;

/// More than any path of a tree has, in bytes.
const MAX_NAME: u64 = 1 << 20;

/// Reads one member after the other.
pub(super) struct Members<'a> {
    from: Box<dyn Read + 'a>,
    /// How many bytes that are no content may still come.
    overhead: u64,
}

/// What is told of a member before its content.
pub(super) struct Member {
    pub(super) path: Vec<u8>,
    /// Whether it is a regular file.
    pub(super) is_file: bool,
    /// How long it is.
    pub(super) size: u64,
    /// How many bytes of it follow; what its holes take is not there.
    pub(super) stored: u64,
}

impl<'a> Members<'a> {
    pub(super) fn new(from: Box<dyn Read + 'a>, overhead: u64) -> Self {
        Self { from, overhead }
    }

    /// So many bytes are no content.
    fn spend(&mut self, bytes: u64) -> Result<(), Fault> {
        match self.overhead.checked_sub(bytes) {
            Some(rest) => self.overhead = rest,
            None => {
                return Err(refused(
                    "a layer tells more of its files than there is to tell",
                ));
            }
        }
        Ok(())
    }

    /// The next one; nothing at the end. The content of the one before has to be read.
    pub(super) fn next(&mut self) -> Result<Option<Member>, Fault> {
        let mut long = None;
        loop {
            let mut header = Header::new_old();
            self.spend(BLOCK as u64)?;
            self.from.read_exact(header.as_mut_bytes())?;
            if header.as_bytes().iter().all(|byte| *byte == 0) {
                return match long {
                    None => Ok(None),
                    Some(_) => Err(refused("a layer ends with a name and no file")),
                };
            }
            let sum: u32 = checksum(&header);
            if header.cksum().ok() != Some(sum) {
                return Err(refused("a header in a layer is damaged"));
            }
            let malformed = |_| refused("a header in a layer is malformed");
            let stored = header.entry_size().map_err(malformed)?;
            match header.entry_type() {
                EntryType::GNULongName => {
                    if stored > MAX_NAME {
                        return Err(refused("a name in a layer is too long"));
                    }
                    let mut name = self.take(stored)?;
                    if name.pop() != Some(0) || long.is_some() {
                        return Err(refused("a name in a layer is malformed"));
                    }
                    long = Some(name);
                }
                EntryType::GNULongLink | EntryType::XHeader => self.pass(stored)?,
                kind => {
                    let path = long.unwrap_or_else(|| header.path_bytes().into_owned());
                    let size = match kind {
                        EntryType::GNUSparse => self.real_size(&header)?,
                        _ => stored,
                    };
                    return Ok(Some(Member {
                        path,
                        is_file: matches!(kind, EntryType::Regular | EntryType::GNUSparse),
                        size,
                        stored,
                    }));
                }
            }
        }
    }

    /// How long a file with holes is. Where they are is known from elsewhere.
    fn real_size(&mut self, header: &Header) -> Result<u64, Fault> {
        let gnu = header
            .as_gnu()
            .ok_or_else(|| refused("a header in a layer is malformed"))?;
        let malformed = |_| refused("a header in a layer is malformed");
        let size = gnu.real_size().map_err(malformed)?;
        let mut more = gnu.is_extended();
        while more {
            let mut block = GnuExtSparseHeader::new();
            self.spend(BLOCK as u64)?;
            self.from.read_exact(block.as_mut_bytes())?;
            more = block.is_extended();
        }
        Ok(size)
    }

    /// So many bytes of the member's content.
    pub(super) fn bytes(&mut self, len: usize) -> Result<Vec<u8>, Fault> {
        let mut bytes = vec![0; len];
        self.from.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// What fills up a content that is so long.
    pub(super) fn skip_padding(&mut self, len: u64) -> Result<(), Fault> {
        let over = (len % BLOCK as u64) as usize;
        if over > 0 {
            self.bytes(BLOCK - over)?;
        }
        Ok(())
    }

    /// Goes past a content, however long it is, with no more than a buffer.
    fn pass(&mut self, len: u64) -> Result<(), Fault> {
        self.spend(len)?;
        let mut content = self.from.by_ref().take(len);
        if io::copy(&mut content, &mut io::sink())? < len {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        self.skip_padding(len)
    }

    fn take(&mut self, len: u64) -> Result<Vec<u8>, Fault> {
        self.spend(len)?;
        let bytes = self.bytes(len as usize)?;
        self.skip_padding(len)?;
        Ok(bytes)
    }
}

/// As tar counts it: with spaces in the place of the sum.
fn checksum(header: &Header) -> u32 {
    let bytes = header.as_bytes().iter().enumerate();
    bytes
        .map(|(at, byte)| {
            u32::from(if (148..156).contains(&at) {
                b' '
            } else {
                *byte
            })
        })
        .sum()
}
