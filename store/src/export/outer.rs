// SPDX-License-Identifier: Apache-2.0

//! The archive around it all. The name and the length of a blob are known when it is written, so its
//! header is written last, before it: nothing is read twice, and nothing lies anywhere else
//! meanwhile.

use std::{
    fs::File,
    io::{self, Seek, SeekFrom, Write},
    os::unix::fs::FileExt,
};

use oci_spec::image::{Descriptor, MediaType, Sha256Digest};
use sha2::{Digest as _, Sha256};
use tar::{EntryType, Header};

use super::{BLOBS, Progress, Stopped};
use crate::archive::{ArchiveError, BLOCK, pad};

/// An archive in the making.
pub(super) struct Outer<'a> {
    file: File,
    at: u64,
    mtime: u64,
    written: Vec<String>,
    done: u64,
    total: u64,
    progress: &'a mut Progress<'a>,
}

impl<'a> Outer<'a> {
    /// In an empty file. `total`: how many bytes of contents there will be.
    pub(super) fn new(file: File, mtime: u64, total: u64, progress: &'a mut Progress<'a>) -> Self {
        Self {
            file,
            at: 0,
            mtime,
            written: Vec::new(),
            done: 0,
            total,
            progress,
        }
    }

    /// So many bytes of contents are done.
    pub(super) fn advance(&mut self, bytes: u64) -> io::Result<()> {
        self.done += bytes;
        match (self.progress)(self.done.min(self.total), self.total) {
            true => Ok(()),
            false => Err(Stopped::error()),
        }
    }

    pub(super) fn directory(&mut self, name: &str) -> io::Result<()> {
        let header = self.header(name, EntryType::Directory, 0o755, 0)?;
        self.append(header.as_bytes())
    }

    /// A file as a whole.
    pub(super) fn small(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.begin(name, bytes.len() as u64)?;
        self.append(bytes)?;
        self.finish_file(bytes.len() as u64)
    }

    /// A file of this length, which is then given with [`Self::append`].
    pub(super) fn begin(&mut self, name: &str, len: u64) -> io::Result<()> {
        let header = self.header(name, EntryType::Regular, 0o644, len)?;
        self.append(header.as_bytes())
    }

    pub(super) fn finish_file(&mut self, len: u64) -> io::Result<()> {
        let mut rest = Vec::new();
        pad(&mut rest, len)?;
        self.append(&rest)
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.at)?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// A blob that is there.
    pub(super) fn blob(
        &mut self,
        media_type: &str,
        bytes: &[u8],
    ) -> Result<Descriptor, ArchiveError> {
        self.stream(media_type, |_, out| Ok(out.write_all(bytes)?))
    }

    /// A blob that comes piece by piece.
    pub(super) fn stream(
        &mut self,
        media_type: &str,
        write: impl FnOnce(&mut Self, &mut Blob) -> Result<(), ArchiveError>,
    ) -> Result<Descriptor, ArchiveError> {
        let start = self.at;
        let mut file = self.file.try_clone()?;
        file.seek(SeekFrom::Start(start + BLOCK as u64))?;
        let mut blob = Blob {
            file: io::BufWriter::with_capacity(1 << 20, file),
            hash: Sha256::new(),
            len: 0,
        };
        write(self, &mut blob)?;
        blob.file.flush()?;
        let (hash, len) = (blob.hash.finalize(), blob.len);
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        let bad = |error: oci_spec::OciSpecError| io::Error::other(error.to_string());
        let digest: Sha256Digest = hex.parse().map_err(bad)?;
        let descriptor = Descriptor::new(MediaType::Other(media_type.into()), len, digest);
        if self.written.contains(&hex) {
            // Two that hold the same are one.
            self.file.set_len(start)?;
            return Ok(descriptor);
        }
        let header = self.header(&format!("{BLOBS}{hex}"), EntryType::Regular, 0o644, len)?;
        self.append(header.as_bytes())?;
        self.at += len;
        self.finish_file(len)?;
        self.written.push(hex);
        Ok(descriptor)
    }

    /// Ends it. It is on the disk when this returns.
    pub(super) fn end(mut self) -> io::Result<u64> {
        self.append(&[0; 2 * BLOCK])?;
        self.file.sync_all()?;
        Ok(self.at)
    }

    fn header(&self, name: &str, kind: EntryType, mode: u32, len: u64) -> io::Result<Header> {
        let mut header = Header::new_gnu();
        header.set_path(name)?;
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(self.mtime);
        header.set_size(len);
        header.set_cksum();
        Ok(header)
    }
}

/// A blob on its way into the archive.
pub(super) struct Blob {
    file: io::BufWriter<File>,
    hash: Sha256,
    len: u64,
}

impl Write for Blob {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.hash.update(&bytes[..count]);
        self.len += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
