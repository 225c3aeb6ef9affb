// SPDX-License-Identifier: Apache-2.0
//! How a process's addresses are laid out (`/proc/<pid>/smaps`, proc_pid_smaps(5)).

use std::{
    io::{self, BufRead, BufReader},
    path::Path,
};

use super::digests::Hash;

/// One mapping.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Area {
    pub(super) start: u64,
    pub(super) end: u64,
    /// `rwxp`.
    permissions: Vec<u8>,
    /// Offset, device and inode.
    what: Vec<u8>,
    /// With newlines escaped by the kernel; empty for anonymous memory.
    pub(super) path: Vec<u8>,
    /// `VmFlags`, what was advised and locked among them.
    flags: Vec<u8>,
}

impl Area {
    /// What is in it is its own process's alone.
    pub(super) fn is_private(&self) -> bool {
        self.permissions.get(3) == Some(&b'p')
    }

    /// A page that is not there is one of zeroes, and no file's.
    pub(super) fn is_anonymous(&self) -> bool {
        self.is_private() && !self.path.starts_with(b"/")
    }

    /// The first thread's stack, which grows by itself.
    pub(super) fn is_stack(&self) -> bool {
        self.path == b"[stack]"
    }

    /// The kernel's own pages, which every process has.
    pub(super) fn is_of_the_kernel(&self) -> bool {
        [&b"[vvar"[..], b"[vdso]", b"[vsyscall]"]
            .iter()
            .any(|name| self.path.starts_with(name))
    }

    /// What is in it may be gone at any time (`MAP_DROPPABLE`, mmap(2)), so nobody relies on
    /// it: CRIU from 4.2 on leaves it out. glibc keeps the state of its random numbers there.
    pub(super) fn is_droppable(&self) -> bool {
        self.flags
            .split(|byte| *byte == b' ')
            .any(|flag| flag == b"dp")
    }

    pub(super) fn holds(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// All of it but what is in it.
    pub(super) fn describe(&self, hash: &mut Hash) {
        hash.word(if self.is_stack() { 0 } else { self.start });
        hash.word(self.end);
        for text in [&self.permissions, &self.what, &self.path, &self.flags] {
            hash.text(text);
        }
    }
}

/// The mappings of the process whose directory in `/proc` this is.
pub(super) fn areas(proc: &Path) -> io::Result<Vec<Area>> {
    parse(BufReader::with_capacity(
        64 << 10,
        std::fs::File::open(proc.join("smaps"))?,
    ))
}

fn parse(smaps: impl BufRead) -> io::Result<Vec<Area>> {
    let mut areas: Vec<Area> = Vec::new();
    for line in smaps.split(b'\n') {
        let line = line?;
        if let Some(area) = heading(&line) {
            areas.push(area);
        } else if let (Some(flags), Some(area)) = (line.strip_prefix(b"VmFlags:"), areas.last_mut())
        {
            let words = flags.split(|byte| *byte == b' ');
            // Soft-dirty: a page of it was written to, which is looked at itself.
            let told: Vec<&[u8]> = words.filter(|word| *word != b"sd").collect();
            area.flags = told.join(&b' ');
        }
    }
    Ok(areas)
}

/// `start-end permissions offset device inode   path`; anything else begins with the name of
/// a field and a colon.
fn heading(line: &[u8]) -> Option<Area> {
    let mut words = line.splitn(6, |byte| *byte == b' ');
    let range = std::str::from_utf8(words.next()?).ok()?;
    let (start, end) = range.split_once('-')?;
    let permissions = words.next()?.to_vec();
    let what: Vec<&[u8]> = words.by_ref().take(3).collect();
    Some(Area {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        permissions,
        what: what.join(&b' '),
        path: words.next().unwrap_or_default().trim_ascii_start().to_vec(),
        flags: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
55d0a000-55d0b000 rw-p 00002000 08:01 1234                       /bin/a (b) c
Size:                  4 kB
VmFlags: rd wr mr mw me ac sd 
7ffc1000-7ffc3000 rw-p 00000000 00:00 0                          [stack]
Rss:                   8 kB
VmFlags: rd wr mr mw me gd ac 
7f000000-7f001000 rw-s 00000000 00:01 5                          /memfd:x (deleted)
";

    #[test]
    fn mappings_are_told_with_what_was_advised() {
        let areas = parse(SMAPS.as_bytes()).unwrap();
        assert_eq!(areas.len(), 3);
        assert_eq!(areas[0].path, b"/bin/a (b) c");
        assert_eq!(areas[0].what, b"00002000 08:01 1234");
        assert!(!areas[0].is_anonymous() && areas[0].is_private());
        assert!(areas[1].is_stack() && areas[1].is_anonymous());
        assert!(areas[1].holds(0x7ffc_2fff) && !areas[1].holds(0x7ffc_3000));
        assert!(!areas[2].is_private());
        let droppable = parse(SMAPS.replace("ac sd", "ac dp").as_bytes()).unwrap();
        assert!(droppable[0].is_droppable() && !areas[0].is_droppable());
        let digest = |smaps: &str| {
            let mut hash = Hash::new();
            let areas = parse(smaps.as_bytes()).unwrap();
            areas.iter().for_each(|area| area.describe(&mut hash));
            hash.finish()
        };
        let whole = digest(SMAPS);
        assert_eq!(digest(&SMAPS.replace(" sd ", " ")), whole);
        assert_eq!(digest(&SMAPS.replace("7ffc1000", "7ffc0000")), whole);
        assert_ne!(digest(&SMAPS.replace("gd ac", "gd dc ac")), whole);
        assert_ne!(digest(&SMAPS.replace("rw-s", "r--s")), whole);
    }
}
