// SPDX-License-Identifier: Apache-2.0
//! A process's own memory: what is in its pages that are no file's.
//!
//! ```text
//!   [stack]            another thread's mapping
//!   +---------+        +---------+
//!   |  live   |        |  live   |  near the stack pointer without the time
//!   +---------+ sp     +---------+ sp
//!   | red zone|        |  live   |
//!   +---------+        |         |
//!   |  dead   |        |         |
//! ```
//! What a function that has returned left below the stack pointer of the first thread is
//! dead, but for the 128 bytes that a function may use without moving it. Other threads'
//! stacks are in mappings that may hold anything else beside them, as far as the kernel can
//! tell, so that all of those counts.

use std::{fs::File, io, ops::Range, os::unix::fs::FileExt, path::Path};

use super::{
    super::portrait::MemoryDigest,
    areas::Area,
    clock::Clock,
    digests::{Hash, Making, Pair},
};

const PAGE: usize = 4096;
/// How much is read at once.
const PIECE: usize = 256 << 10;
/// The x86-64 ABI's.
const RED_ZONE: u64 = 128;
/// How far from a stack pointer the time is looked for.
const NEAR_ABOVE: u64 = 64 << 10;
const NEAR_BELOW: u64 = 16 << 10;

/// `/proc/<pid>/pagemap`, per page (admin-guide/mm/pagemap.rst).
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_A_FILE: u64 = 1 << 61;
const GUARD: u64 = 1 << 58;

/// What it compares by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    /// But those that the kernel may drop.
    pages: crab_store::Digest,
    all_pages: crab_store::Digest,
    near_stacks: Pair,
}

impl Memory {
    pub(super) fn is(&self, before: &Self) -> bool {
        self.has_pages_of(before) && self.near_stacks.is(&before.near_stacks)
    }

    /// The same, what is near a stack pointer left out.
    pub(super) fn has_pages_of(&self, before: &Self) -> bool {
        self.pages == before.pages
    }

    pub(super) fn digest(&self) -> MemoryDigest {
        let (near_stacks, timeless) = self.near_stacks.digests();
        MemoryDigest {
            pages: self.pages,
            all_pages: Some(self.all_pages),
            near_stacks,
            timeless,
        }
    }
}

/// What of it is looked at in another way, or not at all.
pub(super) struct Spots {
    /// The stack pointers, the first thread's first.
    pub(super) stacks: Vec<u64>,
    /// What the kernel writes to.
    pub(super) written_by_the_kernel: Vec<Range<u64>>,
}

impl Spots {
    /// Of an area: what is dead, and what is near a stack pointer.
    fn of(&self, area: &Area) -> (Option<Range<u64>>, Vec<Range<u64>>) {
        let mut dead = None;
        let mut near = Vec::new();
        for stack in self.stacks.iter().filter(|stack| area.holds(**stack)) {
            let below = if area.is_stack() {
                let begin = stack.saturating_sub(RED_ZONE) & !7;
                dead = Some(area.start..begin);
                begin
            } else {
                stack.saturating_sub(NEAR_BELOW) & !7
            };
            near.push(below.max(area.start)..(stack + NEAR_ABOVE).min(area.end) & !7);
        }
        (dead, joined(near))
    }
}

/// The same bytes in ranges that do not overlap.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut apart: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match apart.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => apart.push(range),
        }
    }
    apart
}

/// Reads all of it, but no more bytes than `left`, which it counts down.
pub(super) fn read(
    proc: &Path,
    areas: &[Area],
    spots: &Spots,
    clock: &Clock,
    left: &mut u64,
) -> io::Result<Memory> {
    let pagemap = File::open(proc.join("pagemap"))?;
    let mut reading = Reading {
        memory: File::open(proc.join("mem"))?,
        kernel: joined(spots.written_by_the_kernel.clone()),
        pages: Pages::new(),
        kept: None,
        spared: false,
        near: Making::new(clock),
        buffer: vec![0; PIECE],
    };
    for area in areas {
        if !area.is_private() || area.is_of_the_kernel() {
            continue;
        }
        reading.spare(area.is_droppable());
        let (dead, near) = spots.of(area);
        for run in own_pages(&pagemap, area)? {
            let bytes = run.end - run.start;
            *left = left.checked_sub(bytes).ok_or(io::ErrorKind::FileTooLarge)?;
            reading.run(run, area.is_anonymous(), dead.as_ref(), &near)?;
        }
    }
    let kept = reading.kept.map(Pages::finish);
    let all_pages = reading.pages.finish();
    Ok(Memory {
        pages: kept.unwrap_or(all_pages),
        all_pages,
        near_stacks: reading.near.finish(),
    })
}

/// The runs of pages that are the process's own.
fn own_pages(pagemap: &File, area: &Area) -> io::Result<Vec<Range<u64>>> {
    const AT_ONCE: u64 = 32 << 10;
    let mut runs: Vec<Range<u64>> = Vec::new();
    let mut entries = vec![0; (AT_ONCE * 8) as usize];
    let page = PAGE as u64;
    let (mut first, last) = (area.start / page, area.end / page);
    while first < last {
        let count = (last - first).min(AT_ONCE);
        let entries = &mut entries[..(count * 8) as usize];
        pagemap.read_exact_at(entries, first * 8)?;
        for (at, entry) in entries.chunks_exact(8).enumerate() {
            let entry = u64::from_ne_bytes(entry.try_into().unwrap_or_default());
            let is_own = entry & (PRESENT | SWAPPED) != 0 && entry & (OF_A_FILE | GUARD) == 0;
            if !is_own {
                continue;
            }
            let start = (first + at as u64) * page;
            match runs.last_mut() {
                Some(run) if run.end == start => run.end += page,
                _ => runs.push(start..start + page),
            }
        }
        first += count;
    }
    Ok(runs)
}

struct Reading<'a> {
    memory: File,
    kernel: Vec<Range<u64>>,
    pages: Pages,
    /// But those that the kernel may drop, from the first of these on.
    kept: Option<Pages>,
    /// What comes is of these.
    spared: bool,
    near: Making<'a>,
    buffer: Vec<u8>,
}

impl Reading<'_> {
    /// Whether what comes may be dropped by the kernel.
    fn spare(&mut self, spared: bool) {
        self.spared = spared;
        if spared && self.kept.is_none() {
            self.kept = Some(self.pages.clone());
        }
    }

    fn run(
        &mut self,
        run: Range<u64>,
        zeroes_are_nothing: bool,
        dead: Option<&Range<u64>>,
        near: &[Range<u64>],
    ) -> io::Result<()> {
        let mut at = run.start;
        while at < run.end {
            let length = (run.end - at).min(PIECE as u64) as usize;
            let piece = &mut self.buffer[..length];
            self.memory.read_exact_at(piece, at)?;
            for range in self.kernel.iter().chain(dead) {
                if let Some(range) = within(range, at, length) {
                    piece[range].fill(0);
                }
            }
            for range in near.iter().filter_map(|range| within(range, at, length)) {
                let mut start = range.start;
                while start < range.end {
                    let end = (start / PAGE * PAGE + PAGE).min(range.end);
                    let part = &mut piece[start..end];
                    // A page that is not there is as good as one of zeroes.
                    if !is_zero(part) {
                        self.near.place(at + start as u64);
                        self.near.update(part);
                    }
                    part.fill(0);
                    start = end;
                }
            }
            self.pages.add(at, piece, zeroes_are_nothing);
            if let Some(kept) = self.kept.as_mut().filter(|_| !self.spared) {
                kept.add(at, piece, zeroes_are_nothing);
            }
            at += length as u64;
        }
        Ok(())
    }
}

/// Where a range of addresses is in a piece of so many bytes from `at`.
fn within(range: &Range<u64>, at: u64, length: usize) -> Option<Range<usize>> {
    let start = range.start.max(at);
    let end = range.end.min(at + length as u64);
    (start < end).then(|| (start - at) as usize..(end - at) as usize)
}

/// A digest of pages: where they are, and what is in them.
#[derive(Clone)]
pub(super) struct Pages {
    places: Hash,
    contents: Hash,
}

impl Pages {
    pub(super) fn new() -> Self {
        Self {
            places: Hash::new(),
            contents: Hash::new(),
        }
    }

    /// Pages from `at` on. Where nothing is zeroes, pages of zeroes are nothing.
    pub(super) fn add(&mut self, at: u64, bytes: &[u8], zeroes_are_nothing: bool) {
        let mut since = 0;
        for (number, page) in bytes.chunks(PAGE).enumerate() {
            let start = number * PAGE;
            if zeroes_are_nothing && is_zero(page) {
                // As much at once as there is: the hash is fast for long texts only.
                self.contents.update(&bytes[since..start]);
                since = start + page.len();
            } else {
                self.places.word(at + start as u64);
            }
        }
        self.contents.update(&bytes[since..]);
    }

    pub(super) fn finish(mut self) -> crab_store::Digest {
        self.places.update(&self.contents.finish().0);
        self.places.finish()
    }
}

fn is_zero(page: &[u8]) -> bool {
    page == &[0; PAGE][..page.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(pages: &[(u64, u8)], zeroes_are_nothing: bool) -> crab_store::Digest {
        let mut all = Pages::new();
        for (at, byte) in pages {
            all.add(*at, &[*byte; PAGE], zeroes_are_nothing);
        }
        all.finish()
    }

    #[test]
    fn a_page_of_zeroes_is_as_good_as_none_where_no_file_is_behind_it() {
        let page = PAGE as u64;
        let one = [(0, 7)];
        assert_eq!(digest(&[(0, 7), (page, 0)], true), digest(&one, true));
        assert_ne!(digest(&[(0, 7), (page, 0)], false), digest(&one, false));
        assert_ne!(digest(&[(page, 7)], true), digest(&one, true));
        assert_ne!(digest(&[(0, 8)], true), digest(&one, true));
        let mut at_once = Pages::new();
        at_once.add(0, &[[7; PAGE], [0; PAGE], [9; PAGE]].concat(), true);
        assert_eq!(at_once.finish(), digest(&[(0, 7), (2 * page, 9)], true));
    }

    #[test]
    fn below_the_first_stack_is_dead_and_another_is_not() {
        let area = |start: u64, path: &str| {
            let mut area = Area::default();
            (area.start, area.end) = (start, start + 0x10_0000);
            area.path = path.into();
            area
        };
        let spots = Spots {
            stacks: vec![0x1_8000, 0x20_8000],
            written_by_the_kernel: Vec::new(),
        };
        let (dead, near) = spots.of(&area(0x1_0000, "[stack]"));
        assert_eq!(dead, Some(0x1_0000..0x1_8000 - RED_ZONE));
        assert_eq!(near, vec![0x1_8000 - RED_ZONE..0x1_8000 + NEAR_ABOVE]);
        let (dead, near) = spots.of(&area(0x20_0000, ""));
        assert_eq!(dead, None);
        assert_eq!(near, vec![0x20_8000 - NEAR_BELOW..0x20_8000 + NEAR_ABOVE]);
    }

    #[test]
    fn ranges_that_overlap_are_one() {
        assert_eq!(joined(vec![8..16, 0..9, 20..24]), [0..16, 20..24]);
    }
}
