// SPDX-License-Identifier: Apache-2.0
//! What an idle shim holds of the machine's memory.
//!
//! A shim does all its work in short bursts: at a start, at the end of a turn. Nearly all that
//! it holds afterwards is its own program and its libraries, mapped page by page, and
//! each time with the fifteen around, as it ran through them; and what the allocator keeps for
//! the next burst. Between bursts it needs a few pages to wait. So it lets go of the others.
//! They stay in the page cache, where all shims share them and the kernel may take
//! them back, and the next burst maps them again, which takes some microseconds for each
//! 64 KiB.
//!
//! Nothing that was ever written to is let go of: a mapping that holds one page of
//! its own is left alone.

use std::{fs, io, time::Duration};

/// How long nothing must have happened. Longer than threads live that have nothing to do,
/// whose stacks are gone then, too.
pub(crate) const AFTER: Duration = Duration::from_secs(3);

/// Lets go. What does not work out stays as it is.
pub(crate) fn let_go() {
    // SAFETY: malloc_trim only gives memory back that is free.
    unsafe { libc::malloc_trim(0) };
    match fs::read_to_string("/proc/self/smaps") {
        Ok(smaps) => read_only_files(&smaps).for_each(|range| {
            if let Err(error) = unmap(range) {
                tracing::debug!(%error, ?range, "stays mapped");
            }
        }),
        Err(error) => tracing::debug!(%error, "no look at the mappings"),
    }
}

fn unmap((from, to): (usize, usize)) -> io::Result<()> {
    // SAFETY: the range is a private mapping of a file that cannot be written to, and has no
    // page that was: each page comes back from the file, as it is, with the next access. Nobody
    // writes to the files of running programs (ETXTBSY) or libraries, which package
    // managers replace.
    match unsafe { libc::madvise(from as *mut libc::c_void, to - from, libc::MADV_DONTNEED) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The mappings of `/proc/<pid>/smaps` that are of files, not writable, and as in the file.
fn read_only_files(smaps: &str) -> impl Iterator<Item = (usize, usize)> {
    let mut mapping = None;
    smaps.lines().filter_map(move |line| {
        if let Some(next) = head(line) {
            mapping = next;
        } else if line.split_whitespace().eq(["Anonymous:", "0", "kB"]) {
            return mapping.take();
        }
        None
    })
}

/// The range of a mapping's first line, if it is of the kind; nothing for other lines.
/// `55d0-55e0 r-xp 00001000 fe:00 1234   /usr/bin/x`
fn head(line: &str) -> Option<Option<(usize, usize)>> {
    let (range, rest) = line.split_once(' ')?;
    let (from, to) = range.split_once('-')?;
    let hex = |text| usize::from_str_radix(text, 16).ok();
    let range = (hex(from)?, hex(to)?);
    let mut words = rest.split_whitespace();
    let is_private_text = matches!(words.next(), Some("r--p" | "r-xp"));
    let is_file = words.nth(3).is_some_and(|path| path.starts_with('/'));
    Some((is_private_text && is_file).then_some(range))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn only_files_that_nobody_wrote_to_are_let_go_of() {
        let smaps = "\
1000-2000 r-xp 00000000 fe:00 7    /usr/bin/shim
Size:                  4 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
2000-3000 r--p 00001000 fe:00 7    /usr/bin/shim
Anonymous:             4 kB
3000-4000 rw-p 00002000 fe:00 7    /usr/bin/shim
Anonymous:             0 kB
4000-5000 r--p 00000000 00:00 0
Anonymous:             0 kB
5000-6000 r-xp 00000000 00:00 0    [vdso]
Anonymous:             0 kB
6000-7000 r--s 00000000 fe:00 8    /x
Anonymous:             0 kB
7000-8000 r--p 00000000 fe:00 9    /usr/lib/a file (deleted)
Anonymous:             0 kB
";
        let found: Vec<_> = read_only_files(smaps).collect();
        assert_eq!(found, [(0x1000, 0x2000), (0x7000, 0x8000)]);
    }

    /// A page of each, in a mapping that no other test touches.
    fn mapped(file: &fs::File, writable: bool) -> *mut u8 {
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping, of a file that lives as long as the test.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                protection,
                libc::MAP_PRIVATE,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        at.cast()
    }

    fn is_resident(at: *mut u8) -> bool {
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
        let begin = format!("{:x}-", at as usize);
        let lines = smaps.lines().skip_while(|line| !line.starts_with(&begin));
        let rss = lines.skip(1).find(|line| line.starts_with("Rss:")).unwrap();
        !rss.split_whitespace().eq(["Rss:", "0", "kB"])
    }

    #[test]
    fn pages_of_files_go_and_come_back_and_what_was_written_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, [7; 4096]).unwrap();
        let file = fs::File::open(&path).unwrap();
        let read = mapped(&file, false);
        let written = mapped(&file, true);
        // SAFETY: both are mapped, one of them to be written to.
        unsafe {
            assert_eq!(read.read_volatile(), 7);
            written.write_volatile(8);
        }
        assert!(is_resident(read) && is_resident(written));
        let_go();
        assert!(!is_resident(read));
        assert!(is_resident(written));
        // SAFETY: they still are.
        unsafe {
            assert_eq!(read.read_volatile(), 7);
            assert_eq!(written.read_volatile(), 8);
        }
    }
}
