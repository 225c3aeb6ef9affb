// SPDX-License-Identifier: Apache-2.0

//! Where the contents of files are cut into objects.
//!
//! ```text
//! up to 1 MiB   | 128 KiB | 128 KiB | ...        at multiples of the length
//! above         | piece      |  zeros  | piece | between long runs of zeros, and
//!               | a  | b | c |         | d | e | within by content (FastCDC)
//! ```
//! Cuts by content move with it: an insertion into a large file changes the chunks around
//! it, and no other. They are a function of the bytes alone, never of where the holes are, which
//! the kernel moves: a run of zero blocks ends a piece from [`GAP`] on, be it a hole or
//! written; a shorter one is read as zeros. So holes, however large a sandbox makes them, cost
//! nothing, and the same bytes give the same objects.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use fastcdc::v2020::{Normalization, cut, select_masks};
use rustix::io::{Errno, pread};

use crate::{
    chunk::{BLOCK, CHUNK, is_zero},
    sparse,
};

/// Contents that are longer are cut by what is in them.
pub const LARGE: u64 = 1 << 20;

/// From this length on, a run of zero blocks is left out of what is cut by content.
pub const GAP: u64 = CHUNK as u64;

/// The shortest chunk but the last of a piece, and the longest.
const LEAST: usize = CHUNK / 2;
const MOST: usize = CHUNK * 4;

/// Read at once. What lies behind a long run of zeros is read again.
const READ: u64 = 256 << 10;

/// As much of a piece as was handed out is let go of at once.
const PASSED: usize = 1 << 20;

/// Hands out a file's chunks that hold anything but zeros.
#[derive(Debug)]
pub struct Cutter<'f> {
    file: BorrowedFd<'f>,
    size: u64,
    /// From where to read on. A multiple of [`BLOCK`], but at the end.
    at: u64,
    is_short: bool,
    /// Of the piece: what was handed out last, and what is to come.
    buffer: Vec<u8>,
    /// Where the buffer begins in the file.
    start: u64,
    /// How much of it was handed out.
    used: usize,
    /// What is behind this in it is zeros that may end the piece.
    solid: usize,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but zeros since the last piece.
    Between,
    Within,
    /// All of it is in the buffer.
    Complete,
}

impl<'f> Cutter<'f> {
    /// For the first `size` bytes of a file.
    pub fn new(file: &'f impl AsFd, size: u64) -> Self {
        Self {
            file: file.as_fd(),
            size,
            at: 0,
            is_short: false,
            buffer: Vec::new(),
            start: 0,
            used: 0,
            solid: 0,
            state: State::Between,
        }
    }

    /// The next chunk and where it begins.
    ///
    /// # Errors
    /// When the file cannot be read.
    #[allow(clippy::should_implement_trait)] // What it gives is its own.
    pub fn next(&mut self) -> io::Result<Option<(u64, &[u8])>> {
        let found = match self.size > LARGE {
            true => self.by_content()?,
            false => self.by_place()?,
        };
        Ok(found.map(|len| {
            let from = self.used - len;
            (self.start + from as u64, &self.buffer[from..self.used])
        }))
    }

    /// Whether the file ended in the middle of what was read. Where it ends before, the rest
    /// looks like a hole.
    pub fn is_short(&self) -> bool {
        self.is_short
    }

    fn by_place(&mut self) -> io::Result<Option<usize>> {
        loop {
            let Some(data) = self.next_data()? else {
                return Ok(None);
            };
            self.start = data - data % CHUNK as u64;
            self.buffer.clear();
            self.at = self.start;
            self.read(CHUNK as u64)?;
            if !is_zero(&self.buffer) {
                self.used = self.buffer.len();
                return Ok(Some(self.used));
            }
        }
    }

    fn by_content(&mut self) -> io::Result<Option<usize>> {
        loop {
            let left = self.solid - self.used;
            if left == 0 && self.state == State::Complete {
                if self.at >= self.size {
                    return Ok(None);
                }
                self.begin(self.at);
            }
            if left >= MOST || left > 0 && self.state == State::Complete {
                let len = cut_of(&self.buffer[self.used..self.solid]);
                let from = self.used;
                self.used += len;
                if !is_zero(&self.buffer[from..self.used]) {
                    return Ok(Some(len));
                }
            } else {
                self.fill()?;
            }
        }
    }

    /// Lets the piece be, and looks for one from here on.
    fn begin(&mut self, at: u64) {
        self.buffer.clear();
        (self.start, self.used, self.solid) = (at, 0, 0);
        self.state = State::Between;
    }

    /// Reads on, until the piece is longer, or complete.
    fn fill(&mut self) -> io::Result<()> {
        // Seldom, as what is left behind it is moved.
        if self.used >= PASSED {
            self.buffer.drain(..self.used);
            self.start += self.used as u64;
            self.solid -= self.used;
            self.used = 0;
        }
        let data = self.next_data()?.unwrap_or(self.size);
        let data = if data < self.size {
            (data - data % BLOCK as u64).max(self.at)
        } else {
            data
        };
        if data > self.at {
            self.zeros(data - self.at);
            self.at = data;
        }
        if self.at >= self.size {
            self.complete();
        }
        if self.state == State::Complete {
            return Ok(());
        }
        let before = self.buffer.len();
        if self.state == State::Between {
            self.start = self.at;
        }
        self.read(READ)?;
        self.sort(before);
        if self.at >= self.size {
            self.complete();
        }
        Ok(())
    }

    fn complete(&mut self) {
        self.buffer.truncate(self.solid);
        self.state = State::Complete;
    }

    /// So many zeros follow.
    fn zeros(&mut self, count: u64) {
        if self.state != State::Within {
            return;
        }
        let trailing = (self.buffer.len() - self.solid) as u64;
        if trailing + count >= GAP {
            self.complete();
        } else {
            self.buffer.resize(self.buffer.len() + count as usize, 0);
        }
    }

    /// Tells data from zeros in what was read from `at` of the buffer on.
    fn sort(&mut self, mut at: usize) {
        while at < self.buffer.len() {
            let end = self.buffer.len().min(at + BLOCK);
            if !is_zero(&self.buffer[at..end]) {
                if self.state == State::Between {
                    self.buffer.drain(..at);
                    self.start += at as u64;
                    self.state = State::Within;
                    self.solid = end - at;
                    at = self.solid;
                    continue;
                }
                self.solid = end;
            } else if self.state == State::Within && (end - self.solid) as u64 >= GAP {
                self.at = self.start + end as u64;
                self.complete();
                return;
            }
            at = end;
        }
        if self.state == State::Between {
            self.begin(self.at);
        }
    }

    /// Appends what comes next, at most so much.
    fn read(&mut self, most: u64) -> io::Result<()> {
        let len = (self.size - self.at).min(most) as usize;
        let before = self.buffer.len();
        self.buffer.resize(before + len, 0);
        let mut filled = 0;
        while filled < len {
            let rest = &mut self.buffer[before + filled..];
            match pread(self.file, rest, self.at + filled as u64) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        self.at += len as u64;
        if filled < len {
            self.is_short = true;
            self.buffer.truncate(before + filled);
            self.at = self.size;
        }
        Ok(())
    }

    /// Where the data from here on begins, if there is any.
    fn next_data(&self) -> io::Result<Option<u64>> {
        if self.at >= self.size {
            return Ok(None);
        }
        Ok(sparse::next_data(self.file, self.at)?.filter(|at| *at < self.size))
    }
}

/// The length of the first chunk of something that ends, or is long enough.
fn cut_of(bytes: &[u8]) -> usize {
    let bytes = &bytes[..bytes.len().min(MOST)];
    let (strict, loose) = select_masks(CHUNK, Normalization::Level1);
    let (_, len) = cut(
        bytes,
        LEAST,
        CHUNK,
        MOST,
        strict,
        loose,
        strict << 1,
        loose << 1,
    );
    len
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::unix::fs::FileExt};

    use super::*;

    fn noise(seed: u64, len: usize) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    fn file(bytes: &[u8]) -> File {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(bytes, 0).unwrap();
        file
    }

    fn chunks(file: &File) -> Vec<(u64, Vec<u8>)> {
        let size = file.metadata().unwrap().len();
        let mut cutter = Cutter::new(file, size);
        let mut found = Vec::new();
        while let Some((offset, bytes)) = cutter.next().unwrap() {
            found.push((offset, bytes.to_vec()));
        }
        assert!(!cutter.is_short());
        found
    }

    /// Puts the chunks together again.
    fn whole(chunks: &[(u64, Vec<u8>)], len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let mut end = 0;
        for (offset, chunk) in chunks {
            let at = *offset as usize;
            assert!(at >= end && chunk.len() <= MOST);
            end = at + chunk.len();
            bytes[at..end].copy_from_slice(chunk);
        }
        bytes
    }

    #[test]
    fn an_insertion_into_a_large_file_changes_the_chunks_around_it_alone() {
        let mut bytes = noise(1, 8 << 20);
        let before = chunks(&file(&bytes));
        assert_eq!(whole(&before, bytes.len()), bytes);
        assert!((20..=90).contains(&before.len()), "{}", before.len());
        let at = 4 << 20;
        bytes.splice(at..at, *b"a few words");
        let after = chunks(&file(&bytes));
        assert_eq!(whole(&after, bytes.len()), bytes);
        let old: std::collections::HashSet<_> = before.iter().map(|(_, chunk)| chunk).collect();
        let new = after.iter().map(|(_, chunk)| chunk);
        let new: usize = new.filter(|chunk| !old.contains(chunk)).map(Vec::len).sum();
        assert!(new <= 2 * MOST, "{new}");
    }

    #[test]
    fn the_same_bytes_are_cut_the_same_wherever_the_holes_are() {
        let mut bytes = noise(2, 12 << 20);
        let mut zero = |from: usize, len: usize| bytes[from..from + len].fill(0);
        // Shorter than a gap, as long, longer; from the start and to the end; off the blocks.
        zero(0, 300_000);
        zero(1 << 20, CHUNK - BLOCK);
        zero(2 << 20, CHUNK);
        zero((3 << 20) + 5, CHUNK + BLOCK);
        zero(5 << 20, 2 << 20);
        zero((8 << 20) + BLOCK, BLOCK);
        zero(11 << 20, 1 << 20);
        for len in [bytes.len(), bytes.len() - 1, (11 << 20) + 1, 9 << 20] {
            let bytes = &bytes[..len];
            let dense = chunks(&file(bytes));
            assert_eq!(whole(&dense, len), bytes);
            let sparse = tempfile::tempfile().unwrap();
            sparse.set_len(len as u64).unwrap();
            for (at, block) in bytes.chunks(BLOCK).enumerate() {
                if !is_zero(block) {
                    sparse.write_all_at(block, (at * BLOCK) as u64).unwrap();
                }
            }
            assert!(chunks(&sparse) == dense, "{len}");
        }
    }

    #[test]
    fn a_small_file_is_cut_by_place() {
        let bytes = noise(3, LARGE as usize);
        let found = chunks(&file(&bytes));
        assert!(
            found
                .iter()
                .all(|(at, chunk)| at % CHUNK as u64 == 0 && chunk.len() == CHUNK)
        );
        assert_eq!(whole(&found, bytes.len()), bytes);
    }

    #[test]
    fn holes_cost_nothing_and_neither_does_an_end_that_is_missing() {
        let sparse = tempfile::tempfile().unwrap();
        sparse.set_len(1 << 43).unwrap();
        sparse.write_all_at(b"far", (1 << 42) + 7).unwrap();
        let found = chunks(&sparse);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].0, found[0].1.len()), (1 << 42, BLOCK));
        let bytes = noise(4, 3 << 20);
        let short = file(&bytes);
        let mut cutter = Cutter::new(&short, 5 << 20);
        let mut total = 0;
        while let Some((_, chunk)) = cutter.next().unwrap() {
            total += chunk.len();
        }
        assert_eq!(total, bytes.len());
    }
}
