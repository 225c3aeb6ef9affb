// SPDX-License-Identifier: Apache-2.0
//! Where in memory the pages of an image belong.
//!
//! `pages-<id>.img` holds pages in a row, with nothing else; `pagemap-<pid>.img`, and
//! `pagemap-shmem-<inode>.img` for shared memory, tell that id and which pages they are, by address.

use std::path::Path;

use crab_store::{PAGE, WINDOW, Window};

use super::records::{Field, field, parse};

/// What page maps begin with.
const MAGIC: u32 = 0x5608_4025;
/// `pagemap_entry.flags`: the page is in the file, and not in that of the image below.
const PRESENT: u64 = 4;

/// A page map: which file it is of, and the windows in that.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PageMap {
    pub(super) file: String,
    pub(super) windows: Vec<Window>,
}

impl PageMap {
    /// Whether a file of an image may be one.
    pub(super) fn is_named(name: &str) -> bool {
        name.starts_with("pagemap-") && Path::new(name).extension().is_some_and(|e| e == "img")
    }

    /// Reads one; nothing if it is of another kind, holds pages more than once or in no
    /// order, or tells of other pages than the file of `size` bytes has room for. An image
    /// that was imported may claim anything.
    pub(super) fn of(image: &[u8], size: impl FnOnce(&str) -> Option<u64>) -> Option<Self> {
        let all = parse(image, MAGIC)?;
        let (head, entries) = all.split_first()?;
        let file = format!("pages-{}.img", field(head, 1)?.number()?);
        let size = size(&file)?;
        let mut windows: Vec<Window> = Vec::new();
        let (mut offset, mut end) = (0, 0);
        for entry in entries {
            let number = |number| field(entry, number).and_then(Field::number);
            let address = number(1)?;
            let pages = number(5).or_else(|| number(2))?;
            let bytes = pages.checked_mul(PAGE as u64)?;
            if address < end || address % PAGE as u64 != 0 {
                return None;
            }
            end = address.checked_add(bytes)?;
            if number(4).is_some_and(|flags| flags & PRESENT == 0) || number(3) == Some(1) {
                continue;
            }
            let mut at = address;
            while at < end {
                let begin = at - at % WINDOW;
                let len = (end.min(begin.checked_add(WINDOW)?) - at) as u32;
                match windows.last_mut() {
                    Some(last) if last.address == begin => last.len += len,
                    _ => windows.push(Window {
                        address: begin,
                        offset,
                        len,
                    }),
                }
                offset += u64::from(len);
                at += u64::from(len);
                if offset > size {
                    return None;
                }
            }
        }
        (offset == size).then_some(Self { file, windows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::criu::records::{image, put_number};

    fn image_of(entries: &[(u64, u64, u64)]) -> Vec<u8> {
        let mut head = Vec::new();
        put_number(&mut head, 1, 7);
        let mut all = vec![head];
        for (address, pages, flags) in entries {
            let mut entry = Vec::new();
            put_number(&mut entry, 1, *address);
            put_number(&mut entry, 2, *pages);
            put_number(&mut entry, 4, *flags);
            all.push(entry);
        }
        image(MAGIC, &all)
    }

    /// With as many pages in the file as it tells of.
    fn map(entries: &[(u64, u64, u64)]) -> Option<PageMap> {
        let there = entries.iter().filter(|(_, _, flags)| flags & PRESENT != 0);
        let pages = there.fold(0u64, |sum, (_, pages, _)| sum.saturating_add(*pages));
        PageMap::of(&image_of(entries), |file| {
            assert_eq!(file, "pages-7.img");
            Some(pages.saturating_mul(PAGE as u64))
        })
    }

    #[test]
    fn windows_are_cut_by_address_and_lie_in_a_row() {
        let page = PAGE as u64;
        let map = map(&[
            (WINDOW - page, 3, PRESENT),
            (WINDOW + 10 * page, 1, PRESENT),
            (3 * WINDOW, 32, PRESENT),
        ])
        .unwrap();
        assert_eq!(map.file, "pages-7.img");
        let window = |address, offset, pages: u64| Window {
            address,
            offset: offset * page,
            len: (pages * page) as u32,
        };
        let windows = [
            window(0, 0, 1),
            window(WINDOW, 1, 3),
            window(3 * WINDOW, 4, 32),
        ];
        assert_eq!(map.windows, windows);
    }

    #[test]
    fn pages_of_the_image_below_take_no_place() {
        let map = map(&[(0, 2, 1), (WINDOW, 1, PRESENT)]).unwrap();
        assert_eq!(map.windows.len(), 1);
        assert_eq!(map.windows[0].offset, 0);
    }

    #[test]
    fn what_tells_of_other_pages_than_there_are_is_no_map() {
        let page = PAGE as u64;
        let claims = image_of(&[(0, 1 << 50, PRESENT)]);
        assert!(PageMap::of(&claims, |_| Some(2 * page)).is_none());
        let one = image_of(&[(0, 1, PRESENT)]);
        assert!(PageMap::of(&one, |_| Some(page)).is_some());
        assert!(PageMap::of(&one, |_| Some(2 * page)).is_none());
        assert!(PageMap::of(&one, |_| None).is_none());
    }

    #[test]
    fn what_is_in_no_order_is_no_map() {
        let page = PAGE as u64;
        assert!(map(&[(page, 2, PRESENT), (2 * page, 1, PRESENT)]).is_none());
        assert!(map(&[(5, 1, PRESENT)]).is_none());
        assert!(map(&[(0, u64::MAX, PRESENT)]).is_none());
        assert!(PageMap::of(b"nonsense", |_| Some(0)).is_none());
        assert!(PageMap::is_named("pagemap-shmem-3.img") && !PageMap::is_named("pages-1.img"));
    }
}
