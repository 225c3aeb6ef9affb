// SPDX-License-Identifier: Apache-2.0

//! Files with holes, which are never read: a container may make one of 8 EiB that holds nothing.
//! Comparison does not depend on where the holes are, because the kernel moves them (delayed
//! allocation, a copy that fills them with zeros).

use std::{io, os::fd::AsFd};

use rustix::{
    fs::{SeekFrom, seek},
    io::{Errno, pread},
};

use crate::{CHUNK, digest::Digest, tree::Segment};

/// Where the data of a file at or after `from` begins, if there is any.
pub fn next_data(file: impl AsFd, from: u64) -> io::Result<Option<u64>> {
    match seek(file, SeekFrom::Data(from)) {
        Ok(at) => Ok(Some(at)),
        // Holes only, up to the end.
        Err(Errno::NXIO) => Ok(None),
        // A file system without holes: everything is data.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some(from)),
        Err(error) => Err(error.into()),
    }
}

/// Whether the first `size` bytes of a file are those of `segments`, and zero elsewhere. False if it
/// ends before.
pub fn holds(file: impl AsFd, size: u64, segments: &[Segment]) -> io::Result<bool> {
    let file = file.as_fd();
    let mut buffer = Vec::new();
    let mut at = 0;
    for segment in segments {
        if !is_zero(file, at, segment.offset, &mut buffer)? {
            return Ok(false);
        }
        buffer.resize(segment.len as usize, 0);
        if !read_full(file, &mut buffer, segment.offset)? || Digest::of(&buffer) != segment.digest {
            return Ok(false);
        }
        at = segment.offset + u64::from(segment.len);
    }
    is_zero(file, at, size, &mut buffer)
}

fn is_zero(file: impl AsFd, from: u64, to: u64, buffer: &mut Vec<u8>) -> io::Result<bool> {
    let file = file.as_fd();
    let mut at = from;
    while at < to {
        let Some(start) = next_data(file, at)?.filter(|start| *start < to) else {
            return Ok(true);
        };
        let len = (to - start).min(CHUNK as u64) as usize;
        buffer.resize(len, 0);
        if !read_full(file, buffer, start)? || buffer.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at = start + len as u64;
    }
    Ok(true)
}

/// Fills `buffer` from `offset` of a file; false if it ends before.
pub fn read_full(file: impl AsFd, buffer: &mut [u8], offset: u64) -> io::Result<bool> {
    let file = file.as_fd();
    let mut done = 0;
    while done < buffer.len() {
        match pread(file, &mut buffer[done..], offset + done as u64) {
            Ok(0) => return Ok(false),
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn what_segments_leave_out_has_to_be_zero_or_a_hole() {
        let size = 5 * CHUNK as u64;
        let file = tempfile::tempfile().unwrap();
        file.set_len(size).unwrap();
        file.write_all_at(b"crab", CHUNK as u64).unwrap();
        let segment = |digest| Segment {
            offset: CHUNK as u64,
            len: 4,
            digest,
        };
        let right = [segment(Digest::of(b"crab"))];
        assert!(holds(&file, size, &right).unwrap());
        assert!(!holds(&file, size, &[segment(Digest::of(b"crap"))]).unwrap());
        assert!(!holds(&file, size, &[]).unwrap());
        file.write_all_at(&[0], size - 7).unwrap();
        assert!(holds(&file, size, &right).unwrap());
        file.write_all_at(&[1], size - 1).unwrap();
        assert!(!holds(&file, size, &right).unwrap());
        file.set_len(CHUNK as u64 + 2).unwrap();
        assert!(!holds(&file, size, &right).unwrap());
    }
}
