// SPDX-License-Identifier: Apache-2.0
//! The bytes of regular files: where they are, and whether they are the same.
//!
//! Holes are never read: a container may make a file of 8 EiB that holds
//! nothing. Comparison does not depend on where the holes are, because the
//! kernel moves them (delayed allocation, a copy that fills them with zeros).

use std::os::fd::BorrowedFd;

use crab_store::{CHUNK, Cutter, GAP, LARGE, Segment};
use rustix::{
    fs::{SeekFrom, seek},
    io::{Errno, Result},
};

const STEP: u64 = CHUNK as u64;
const BLOCK: u64 = crab_store::BLOCK as u64;

/// A run of bytes of a file that is not a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// Where the data at or after `from` begins, if there is any.
fn next_data(fd: BorrowedFd<'_>, from: u64) -> Result<Option<u64>> {
    crab_store::next_data(fd, from).map_err(errno)
}

/// The runs of data in the first `size` bytes.
pub(crate) fn runs(fd: BorrowedFd<'_>, size: u64) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    let mut at = 0;
    while at < size {
        let Some(start) = next_data(fd, at)?.filter(|start| *start < size) else {
            break;
        };
        let end = match seek(fd, SeekFrom::Hole(start)) {
            Ok(end) => end.min(size),
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NXIO) => size,
            Err(errno) => return Err(errno),
        };
        // A hole that was punched between the two calls.
        if end > start {
            runs.push(Run { start, end });
        }
        at = end.max(start + 1);
    }
    Ok(runs)
}

/// What the chunks of the first `size` bytes take in memory at most: the data, and zeros
/// between that do not end a piece.
pub(crate) fn chunk_bytes(runs: &[Run], size: u64) -> u64 {
    if size <= LARGE {
        return size;
    }
    let mut end = None;
    let mut bytes = 0;
    for run in runs {
        let (from, to) = (
            run.start - run.start % BLOCK,
            run.end.next_multiple_of(BLOCK),
        );
        let from = match end {
            Some(end) if from < end + GAP => end,
            _ => from,
        };
        bytes += to.saturating_sub(from);
        end = Some(to);
    }
    bytes.min(size)
}

/// Hands out the chunks of the first `size` bytes that hold anything but
/// zeros, as [`crab_store::PackWriter::put_file`] cuts them. False if the file ends before.
pub(crate) fn chunks(
    fd: BorrowedFd<'_>,
    size: u64,
    mut each: impl FnMut(u64, Vec<u8>),
) -> Result<bool> {
    let mut cutter = Cutter::new(&fd, size);
    while let Some((offset, bytes)) = cutter.next().map_err(errno)? {
        each(offset, bytes.to_vec());
    }
    Ok(!cutter.is_short())
}

/// Fills `buffer` from `offset`; false if the file ends before.
pub(crate) fn read_full(fd: BorrowedFd<'_>, buffer: &mut [u8], offset: u64) -> Result<bool> {
    crab_store::read_full(fd, buffer, offset).map_err(errno)
}

/// Whether the first `size` bytes are those of `segments`.
pub(crate) fn equals_segments(fd: BorrowedFd<'_>, size: u64, segments: &[Segment]) -> Result<bool> {
    crab_store::holds(fd, size, segments).map_err(errno)
}

/// Whether the first `size` bytes of two files are the same.
pub(crate) fn equal_files(one: BorrowedFd<'_>, other: BorrowedFd<'_>, size: u64) -> Result<bool> {
    let (mut left, mut right) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < size {
        let data = [next_data(one, at)?, next_data(other, at)?];
        let Some(start) = data.into_iter().flatten().min().filter(|at| *at < size) else {
            return Ok(true);
        };
        let len = (size - start).min(STEP) as usize;
        left.resize(len, 0);
        right.resize(len, 0);
        if !read_full(one, &mut left, start)?
            || !read_full(other, &mut right, start)?
            || left != right
        {
            return Ok(false);
        }
        at = start + len as u64;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::os::{fd::AsFd, unix::fs::FileExt};

    use crab_store::Digest;

    use super::*;

    #[test]
    fn memory_is_counted_as_chunks_take_it() {
        let run = |start, end| Run { start, end };
        let large = 100 * STEP;
        assert_eq!(
            chunk_bytes(&[run(5, 9), run(7 * STEP, 8 * STEP)], large),
            BLOCK + STEP
        );
        assert_eq!(
            chunk_bytes(&[run(5, 9), run(20, STEP + 1)], large),
            STEP + BLOCK
        );
        // Too short a hole to be left out.
        assert_eq!(
            chunk_bytes(&[run(0, STEP), run(2 * STEP - BLOCK, 2 * STEP)], large),
            2 * STEP
        );
        assert_eq!(chunk_bytes(&[run(5, 9)], STEP), STEP);
    }

    #[test]
    fn comparison_does_not_care_where_the_holes_are() {
        let size = 40 * STEP;
        let sparse = tempfile::tempfile().unwrap();
        sparse.set_len(size).unwrap();
        sparse.write_all_at(b"crab", 5 * STEP).unwrap();
        let full = tempfile::tempfile().unwrap();
        full.write_all_at(&vec![0; size as usize], 0).unwrap();
        full.write_all_at(b"crab", 5 * STEP).unwrap();
        assert!(equal_files(sparse.as_fd(), full.as_fd(), size).unwrap());

        let segments_of = |file: &std::fs::File| {
            let mut segments = Vec::new();
            let whole = chunks(file.as_fd(), size, |offset, bytes| {
                segments.push(Segment {
                    offset,
                    len: bytes.len() as u32,
                    digest: Digest::of(&bytes),
                });
            });
            assert!(whole.unwrap());
            segments
        };
        let segments = segments_of(&sparse);
        assert_eq!(segments.len(), 1);
        assert_eq!(segments, segments_of(&full));
        assert!(equals_segments(full.as_fd(), size, &segments).unwrap());
        full.write_all_at(b"!", size - 1).unwrap();
        assert!(!equals_segments(full.as_fd(), size, &segments).unwrap());
        assert!(!equal_files(sparse.as_fd(), full.as_fd(), size).unwrap());
    }
}
