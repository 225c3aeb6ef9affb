// SPDX-License-Identifier: Apache-2.0

//! Pages of memory: stored so that an image of which little has changed since an earlier
//! one takes little more than that.
//!
//! ```text
//! memory     |  window  |  window  |      |  window  |       by address, of 32 pages
//! file       |··········|······|··········|                  the pages that are there, in a row
//! segments   |  object  |object|  object  |                  as of any file
//! changes          |p|           |p||p|                      single pages, over the segments
//! ```
//! What lies in a window depends on that window alone: pages that come or go elsewhere move
//! it within the file, and it is still the same object. Where only some pages of a window
//! have changed since the earlier image, the window is that image's object again, and the changed
//! pages lie over it. So 1 % of pages, scattered, cost 1 %, and not every window that one
//! of them is in.

use std::{collections::HashMap, fs::File, io, os::unix::fs::FileExt};

use crate::{
    chunk::is_zero,
    digest::Digest,
    error::{ReadError, WriteError},
    image::ImageFile,
    pack_writer::PackWriter,
    reader::ObjectReader,
    tree::Segment,
};

/// The size of a page.
pub const PAGE: usize = 4096;
/// The span of addresses that a window covers.
pub const WINDOW: u64 = 128 << 10;

/// The pages of a window that are there, in a row in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The address at which the window begins: a multiple of [`WINDOW`].
    pub address: u64,
    /// Where its first page is in the file.
    pub offset: u64,
    /// The length of its pages together, at most [`WINDOW`].
    pub len: u32,
}

/// The objects of an earlier image, by the address of the window.
pub type Earlier = HashMap<u64, Digest>;

/// Which object each window of an image is; `file` is the first one of its name.
pub fn earlier(file: &ImageFile, windows: &[Window]) -> Earlier {
    let by_offset: HashMap<u64, &Segment> = file.content.iter().map(|s| (s.offset, s)).collect();
    let found = windows.iter().filter_map(|window| {
        let segment = by_offset.get(&window.offset)?;
        (segment.len == window.len).then_some((window.address, segment.digest))
    });
    found.collect()
}

/// What was stored of the pages in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// The windows; what none covers is zero.
    pub windows: Vec<Segment>,
    /// Pages that lie over them.
    pub changes: Vec<Segment>,
}

impl PackWriter {
    /// Stores the pages in a file, whose windows are in the order of their offsets.
    pub fn put_pages(
        &mut self,
        file: &File,
        windows: &[Window],
        earlier: &Earlier,
    ) -> Result<Pages, WriteError> {
        let mut pages = Pages::default();
        let mut buffer = vec![0; WINDOW as usize];
        for window in windows {
            let bytes = buffer
                .get_mut(..window.len as usize)
                .ok_or_else(|| WriteError::Source(io::Error::other("a window is too long")))?;
            file.read_exact_at(bytes, window.offset)
                .map_err(WriteError::Source)?;
            if is_zero(bytes) {
                continue;
            }
            let digest = Digest::of(bytes);
            let before = earlier.get(&window.address).copied();
            let over = match before.filter(|before| *before != digest) {
                Some(before) => self.over(before, bytes, window.offset, &mut pages.changes)?,
                None => None,
            };
            let digest = match over {
                Some(before) => before,
                None => self.put_as(digest, bytes)?,
            };
            pages.windows.push(Segment {
                offset: window.offset,
                len: window.len,
                digest,
            });
        }
        Ok(pages)
    }

    /// Stores only the pages by which `bytes` differ from an earlier object, which is another, if
    /// they are not too many: then that object serves for the rest.
    fn over(
        &mut self,
        before: Digest,
        bytes: &[u8],
        offset: u64,
        changes: &mut Vec<Segment>,
    ) -> Result<Option<Digest>, WriteError> {
        // One that cannot be read is of no use here.
        let Ok(old) = self.get(before) else {
            return Ok(None);
        };
        if old.len() != bytes.len() {
            return Ok(None);
        }
        let differs = |at: &usize| bytes[*at..*at + PAGE] != old[*at..*at + PAGE];
        let starts = (0..bytes.len() / PAGE).map(|page| page * PAGE);
        let changed: Vec<usize> = starts.filter(differs).collect();
        if !bytes.len().is_multiple_of(PAGE) || 2 * changed.len() * PAGE > bytes.len() {
            return Ok(None);
        }
        self.count(bytes.len() - changed.len() * PAGE);
        for at in changed {
            changes.push(Segment {
                offset: offset + at as u64,
                len: PAGE as u32,
                digest: self.put(&bytes[at..at + PAGE])?,
            });
        }
        Ok(Some(before))
    }
}

impl ObjectReader {
    /// Writes content over what a file has; zeros, too.
    pub fn write_over(
        &self,
        segments: &[Segment],
        size: u64,
        file: &File,
    ) -> Result<(), ReadError> {
        for content in self.contents(segments, size)? {
            let (segment, bytes) = content?;
            file.write_all_at(&bytes, segment.offset)
                .map_err(ReadError::Target)?;
        }
        Ok(())
    }
}
