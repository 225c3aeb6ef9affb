// SPDX-License-Identifier: Apache-2.0

//! Which files are mapped so that they can be written to without a call.

use std::{collections::HashSet, fs};

/// Those of a sandbox's processes. The kernel tells a file's times when a page of it becomes
/// writable, and not at each store: as long as one is mapped, its times say nothing.
#[derive(Debug, Default)]
pub(super) struct Mapped {
    inodes: HashSet<u64>,
    paths: HashSet<Vec<u8>>,
}

/// What processes have mapped shared and writable. One that has ended has nothing mapped.
pub(super) fn written(pids: impl Iterator<Item = u32>) -> Mapped {
    let mut mapped = Mapped::default();
    for pid in pids {
        let table = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
        for line in table.split(|byte| *byte == b'\n') {
            if let Some(mapping) = Mapping::parse(line)
                && mapping.may.get(1) == Some(&b'w')
                && mapping.may.get(3) == Some(&b's')
            {
                mapped.inodes.insert(mapping.inode);
                mapped.paths.insert(mapping.path.to_vec());
            }
        }
    }
    mapped
}

impl Mapped {
    /// Whether a file may be among them. The inode's number is the overlay's or that of the file
    /// below it, by the kernel's version, and the path begins at the mount's root or at the
    /// container's: either is enough.
    pub(super) fn has(&self, inode: u64, path: &[u8]) -> bool {
        self.inodes.contains(&inode) || self.paths.iter().any(|mapped| path.ends_with(mapped))
    }
}

/// A line of `/proc/<pid>/maps`.
pub(super) struct Mapping<'a> {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) may: &'a [u8],
    pub(super) inode: u64,
    pub(super) path: &'a [u8],
}

impl<'a> Mapping<'a> {
    pub(super) fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.splitn(6, |byte| *byte == b' ');
        let range = std::str::from_utf8(fields.next()?).ok()?;
        let (start, end) = range.split_once('-')?;
        let may = fields.next()?;
        let inode = std::str::from_utf8(fields.nth(2)?).ok()?.parse().ok()?;
        Some(Self {
            start: u64::from_str_radix(start, 16).ok()?,
            end: u64::from_str_radix(end, 16).ok()?,
            may,
            inode,
            path: fields.next().unwrap_or_default().trim_ascii(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_line_is_a_mapping() {
        let line = b"7f00-8f00 rw-s 00001000 00:2a 4711                       /var/lib/a b";
        let mapping = Mapping::parse(line).unwrap();
        assert_eq!((mapping.start, mapping.end), (0x7f00, 0x8f00));
        assert_eq!((mapping.may, mapping.inode), (&b"rw-s"[..], 4711));
        assert_eq!(mapping.path, b"/var/lib/a b");
        let line = b"7f00-8f00 rw-p 00000000 00:00 0 ";
        assert_eq!(Mapping::parse(line).unwrap().path, b"");
        assert!(Mapping::parse(b"").is_none());
    }

    #[test]
    fn what_is_mapped_is_known_by_either() {
        let mapped = Mapped {
            inodes: [7].into(),
            paths: [b"/a/b".to_vec()].into(),
        };
        assert!(mapped.has(7, b"/other") && mapped.has(8, b"/root/a/b"));
        assert!(!mapped.has(8, b"/a/bc"));
        let _open = File::open("/proc/self/maps").unwrap();
        assert!(!written([std::process::id()].into_iter()).has(1, b"/none"));
    }
}
