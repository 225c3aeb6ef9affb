// SPDX-License-Identifier: Apache-2.0

//! Where in an archive its blobs are. Nothing is unpacked.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, BufReader, Read},
    os::unix::fs::FileExt,
};

use oci_spec::image::{Descriptor, DigestAlgorithm};
use sha2::{Digest as _, Sha256};

use super::{Fault, refused};
use crate::export::{BLOBS, INDEX, LAYOUT};

/// How many members an archive may have.
const MAX_MEMBERS: usize = 100_000;
/// Largest file that is no blob.
const MAX_TOP: u64 = 1 << 20;

/// An archive whose members are known.
pub(super) struct Outer {
    file: File,
    /// Where each begins, and how long it is.
    members: HashMap<String, (u64, u64)>,
}

impl Outer {
    pub(super) fn read(file: File) -> Result<Self, Fault> {
        let len = file.metadata()?.len();
        let mut members = HashMap::new();
        let mut archive = tar::Archive::new(&file);
        // Raw: no name or attribute of a member is read into memory, however long it says it is.
        let entries = archive.entries_with_seek()?.raw(true);
        for (number, entry) in entries.enumerate() {
            let entry = entry?;
            let (start, size) = (entry.raw_file_position(), entry.header().entry_size()?);
            if number >= MAX_MEMBERS {
                return Err(refused("it has too many members"));
            }
            if start.checked_add(size).is_none_or(|end| end > len) {
                return Err(refused("it ends too early"));
            }
            let Ok(name) = String::from_utf8(entry.header().path_bytes().into_owned()) else {
                continue;
            };
            let is_wanted = name == LAYOUT || name == INDEX || name.starts_with(BLOBS);
            if !is_wanted || name == BLOBS {
                continue;
            }
            if !entry.header().entry_type().is_file() {
                return Err(refused(format!("{name:?} is no regular file")));
            }
            if members.insert(name.clone(), (start, size)).is_some() {
                return Err(refused(format!("{name:?} is there twice")));
            }
        }
        Ok(Self { file, members })
    }

    /// A file of the layout that is no blob.
    pub(super) fn small(&self, name: &str) -> Result<Vec<u8>, Fault> {
        let Some(&(start, len)) = self.members.get(name) else {
            return Err(refused(format!("it has no {name}")));
        };
        if len > MAX_TOP {
            return Err(refused(format!("its {name} is too long")));
        }
        let mut bytes = vec![0; len as usize];
        self.file.read_exact_at(&mut bytes, start)?;
        Ok(bytes)
    }

    /// A blob, to be read piece by piece.
    pub(super) fn blob(&self, descriptor: &Descriptor) -> Result<Blob<'_>, Fault> {
        let digest = descriptor.digest();
        if *digest.algorithm() != DigestAlgorithm::Sha256 {
            return Err(refused(format!("{digest} is no SHA-256")));
        }
        let hex = digest.digest().to_owned();
        let Some(&(start, len)) = self.members.get(&format!("{BLOBS}{hex}")) else {
            return Err(refused(format!("it has no blob {digest}")));
        };
        if len != descriptor.size() {
            return Err(refused(format!(
                "blob {digest} has another length than it should"
            )));
        }
        let at = At {
            file: &self.file,
            at: start,
            left: len,
        };
        Ok(Blob {
            from: BufReader::with_capacity(1 << 20, at),
            hash: Sha256::new(),
            hex,
        })
    }

    /// A blob that is not too long, as a whole.
    pub(super) fn whole(&self, descriptor: &Descriptor, limit: u64) -> Result<Vec<u8>, Fault> {
        if descriptor.size() > limit {
            return Err(refused(format!("blob {} is too long", descriptor.digest())));
        }
        let mut blob = self.blob(descriptor)?;
        let mut bytes = Vec::new();
        blob.read_to_end(&mut bytes)?;
        blob.finish()?;
        Ok(bytes)
    }
}

/// Part of a file.
struct At<'a> {
    file: &'a File,
    at: u64,
    left: u64,
}

impl Read for At<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.left.min(buffer.len() as u64) as usize;
        let count = self.file.read_at(&mut buffer[..len], self.at)?;
        if count == 0 && len > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.at += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}

/// A blob that is being read.
pub(super) struct Blob<'a> {
    from: BufReader<At<'a>>,
    hash: Sha256,
    hex: String,
}

impl Read for Blob<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        self.hash.update(&buffer[..count]);
        Ok(count)
    }
}

impl Blob<'_> {
    /// Reads what is left of it, and checks all.
    pub(super) fn finish(mut self) -> Result<(), Fault> {
        io::copy(&mut self, &mut io::sink())?;
        let hash = self.hash.finalize();
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        match hex == self.hex {
            true => Ok(()),
            false => Err(refused(format!("blob sha256:{} is damaged", self.hex))),
        }
    }
}
