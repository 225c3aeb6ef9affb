// SPDX-License-Identifier: Apache-2.0

//! Contents as chunks; what is zero is not stored.
//!
//! A sandbox chooses the apparent size of its files freely, up to exabytes, so
//! nothing here costs more than the data that a file really has.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
};

use crate::{
    cut::Cutter,
    error::{ReadError, WriteError},
    pack_writer::PackWriter,
    reader::ObjectReader,
    tree::{Segment, segments_fit},
};

/// Length of a chunk, on average where content decides on where it begins ([`Cutter`]).
pub const CHUNK: usize = 128 << 10;
/// Zeros of this length and alignment become holes in a restored file.
pub const BLOCK: usize = 4096;

static ZEROS: [u8; CHUNK] = [0; CHUNK];

pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    bytes.len() <= CHUNK && bytes == &ZEROS[..bytes.len()]
}

/// What was stored of a stream or a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// Its length.
    pub size: u64,
    /// Its bytes; what no segment covers is a hole.
    pub segments: Vec<Segment>,
}

/// Fills `buffer` as far as the stream goes.
fn fill(stream: &mut (impl Read + ?Sized), buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match stream.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

impl PackWriter {
    fn put_chunk(
        &mut self,
        segments: &mut Vec<Segment>,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), WriteError> {
        if bytes.is_empty() || is_zero(bytes) {
            return Ok(());
        }
        let digest = self.put(bytes)?;
        segments.push(Segment {
            offset,
            len: bytes.len() as u32,
            digest,
        });
        Ok(())
    }

    /// Stores a stream to its end.
    pub fn put_stream(&mut self, stream: &mut (impl Read + ?Sized)) -> Result<Content, WriteError> {
        let mut content = Content::default();
        let mut buffer = vec![0; CHUNK];
        loop {
            let n = fill(stream, &mut buffer).map_err(WriteError::Source)?;
            self.put_chunk(&mut content.segments, content.size, &buffer[..n])?;
            content.size += n as u64;
            if n < CHUNK {
                return Ok(content);
            }
        }
    }

    /// Stores a regular file, passing over its holes.
    ///
    /// The length is the one that it has at the beginning: what is appended
    /// meanwhile is left out, what is cut off becomes a hole. Noticing that the
    /// file changed under the capture is the caller's part.
    pub fn put_file(&mut self, file: &File) -> Result<Content, WriteError> {
        let metadata = file.metadata().map_err(WriteError::Source)?;
        let mut content = Content {
            size: metadata.len(),
            segments: Vec::new(),
        };
        let mut cutter = Cutter::new(file, content.size);
        while let Some((offset, bytes)) = cutter.next().map_err(WriteError::Source)? {
            self.put_chunk(&mut content.segments, offset, bytes)?;
        }
        Ok(content)
    }
}

impl ObjectReader {
    /// The bytes of each segment of something so long.
    pub(crate) fn contents<'a>(
        &self,
        segments: &'a [Segment],
        size: u64,
    ) -> Result<impl Iterator<Item = Result<(&'a Segment, Vec<u8>), ReadError>>, ReadError> {
        if !segments_fit(segments, size) {
            let why = "segments overlap or exceed the size";
            return Err(ReadError::Target(io::Error::other(why)));
        }
        Ok(segments.iter().map(|segment| {
            let bytes = self.get(segment.digest)?;
            if bytes.len() != segment.len as usize {
                return Err(ReadError::Malformed {
                    digest: segment.digest,
                    why: format!("{} bytes instead of {}", bytes.len(), segment.len),
                });
            }
            Ok((segment, bytes))
        }))
    }

    /// Writes content into a file, in place of what it had: with holes where
    /// the segments have gaps or blocks of zeros, and `size` long.
    pub fn read_segments(
        &self,
        segments: &[Segment],
        size: u64,
        file: &File,
    ) -> Result<(), ReadError> {
        let contents = self.contents(segments, size)?;
        file.set_len(0).map_err(ReadError::Target)?;
        for content in contents {
            let (segment, bytes) = content?;
            // Runs of blocks that are not zero, each in one write.
            let mut begin = 0;
            while begin < bytes.len() {
                let mut end = begin;
                let block = |at: usize| &bytes[at..bytes.len().min(at + BLOCK)];
                while end < bytes.len() && !is_zero(block(end)) {
                    end += block(end).len();
                }
                file.write_all_at(&bytes[begin..end], segment.offset + begin as u64)
                    .map_err(ReadError::Target)?;
                begin = end.saturating_add(BLOCK);
            }
        }
        file.set_len(size).map_err(ReadError::Target)
    }
}
