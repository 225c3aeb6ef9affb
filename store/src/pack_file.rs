// SPDX-License-Identifier: Apache-2.0

//! A pack that is being written.

use std::{fs::File, io::Write, path::PathBuf};

use crate::{
    digest::Digest,
    durable,
    error::FileError,
    pack::{self, Location},
};

/// How much is collected before it is written.
const BUFFER: usize = 1 << 20;

/// A file that becomes a pack when it is finished.
pub(crate) struct PackFile {
    path: PathBuf,
    file: File,
    buffer: Vec<u8>,
    /// Where the next byte goes, those in the buffer counted.
    end: u64,
    objects: Vec<(Digest, Location)>,
}

impl PackFile {
    /// Makes the file, which must not be there yet.
    pub(crate) fn create(path: PathBuf) -> Result<Self, FileError> {
        Ok(Self {
            file: durable::create_new(&path)?,
            path,
            buffer: pack::header().to_vec(),
            end: pack::HEADER_LEN as u64,
            objects: Vec::new(),
        })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &PathBuf {
        &self.path
    }

    /// For reading back what was flushed.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// How long it is.
    pub(crate) fn len(&self) -> u64 {
        self.end
    }

    /// What is in it.
    pub(crate) fn objects(&self) -> &[(Digest, Location)] {
        &self.objects
    }

    /// Adds an object in the form in which it is stored.
    pub(crate) fn append(
        &mut self,
        digest: Digest,
        raw_len: u32,
        method: u32,
        stored: &[u8],
    ) -> Result<Location, FileError> {
        let location = Location {
            at: self.end + pack::OBJECT_HEADER_LEN as u64,
            raw_len,
            stored_len: stored.len() as u32,
            flags: pack::flags(method, stored),
        };
        self.write(&pack::object_header(&digest, &location))?;
        self.write(stored)?;
        self.objects.push((digest, location));
        Ok(location)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.buffer.extend_from_slice(bytes);
        self.end += bytes.len() as u64;
        if self.buffer.len() >= BUFFER {
            self.flush()?;
        }
        Ok(())
    }

    /// Writes out what was collected.
    pub(crate) fn flush(&mut self) -> Result<(), FileError> {
        self.file
            .write_all(&self.buffer)
            .map_err(FileError::of("write", &self.path))?;
        self.buffer.clear();
        Ok(())
    }

    /// Makes the pack whole, and its content durable; its name is the directory's.
    pub(crate) fn finish(&mut self) -> Result<(), FileError> {
        let trailer = pack::trailer(&self.objects, self.end);
        self.write(&trailer)?;
        self.flush()?;
        self.file
            .sync_data()
            .map_err(FileError::of("sync", &self.path))
    }
}
