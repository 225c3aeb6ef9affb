// SPDX-License-Identifier: Apache-2.0
//! The system call in which a thread is blocked, and what it reads there.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

/// As many descriptors are looked at in one call, and no more: what is polled is up to
/// the sandbox.
const MAX_POLLED: usize = 1024;

/// A system call.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Call {
    kind: Kind,
    args: [u64; 2],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// `read(fd, ...)`, `readv(fd, ...)`, `recvfrom(fd, ...)`, `recvmsg(fd, ...)`
    Read,
    /// `poll(fds, count, ...)`, `ppoll(...)`
    Poll,
    /// `select(count, to_read, ...)`, `pselect6(...)`
    Select,
    /// `epoll_wait(epoll, ...)` and its kin
    Epoll,
}

impl Kind {
    /// By the number of x86-64, or of a 32-bit program there. No number that means one of these in
    /// the one table means a call in the other in which a thread would be blocked.
    #[cfg(target_arch = "x86_64")]
    fn of(number: i64) -> Option<Self> {
        Some(match number {
            0 | 19 | 45 | 47 | 3 | 145 | 371 | 372 => Self::Read,
            7 | 271 | 168 | 309 | 414 => Self::Poll,
            23 | 270 | 142 | 308 | 413 => Self::Select,
            232 | 281 | 441 | 256 | 319 => Self::Epoll,
            _ => return None,
        })
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn of(number: i64) -> Option<Self> {
        Some(match number {
            libc::SYS_read | libc::SYS_readv | libc::SYS_recvfrom | libc::SYS_recvmsg => Self::Read,
            libc::SYS_ppoll => Self::Poll,
            libc::SYS_pselect6 => Self::Select,
            libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => Self::Epoll,
            _ => return None,
        })
    }
}

impl Call {
    /// That of a thread; nothing if it is in none of these.
    pub(super) fn of(thread: &Path) -> Option<Self> {
        Self::parse(&fs::read_to_string(thread.join("syscall")).ok()?)
    }

    /// `number 0xarg 0xarg ...`; "running" and "-1 ..." are no calls.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace();
        let kind = Kind::of(fields.next()?.parse().ok()?)?;
        let mut arg = || u64::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok();
        Some(Self {
            kind,
            args: [arg()?, arg()?],
        })
    }

    /// Whether it waits to read from a descriptor that `is_it`, by its link in `/proc`.
    pub(super) fn reads(&self, thread: &Path, is_it: impl Fn(&Path) -> bool) -> bool {
        self.descriptors(thread).iter().any(|fd| is_it(fd))
    }

    /// The sockets from which it waits to read, by their inodes.
    pub(super) fn sockets(&self, thread: &Path) -> Vec<u64> {
        let links = self.descriptors(thread).into_iter().map(fs::read_link);
        links
            .filter_map(|link| {
                let link = link.ok()?;
                let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
                inode.parse().ok()
            })
            .collect()
    }

    /// The descriptors from which it waits to read, by their links in `/proc`.
    fn descriptors(&self, thread: &Path) -> Vec<PathBuf> {
        let descriptor = |fd: i64| thread.join("fd").join(fd.to_string());
        let [first, second] = self.args;
        let fds = match self.kind {
            Kind::Read => vec![i64::from(first as i32)],
            Kind::Poll => polled(thread, first, second),
            Kind::Select => selected(thread, first, second),
            Kind::Epoll => watched(&thread.join("fdinfo").join((first as i32).to_string())),
        };
        fds.into_iter().map(descriptor).collect()
    }
}

fn memory(thread: &Path, address: u64, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    let memory = File::open(thread.join("mem")).ok()?;
    memory.read_exact_at(&mut bytes, address).ok()?;
    Some(bytes)
}

/// The descriptors of an array of `struct pollfd` that are polled for input.
fn polled(thread: &Path, address: u64, count: u64) -> Vec<i64> {
    let count = usize::try_from(count).unwrap_or(usize::MAX).min(MAX_POLLED);
    let bytes = memory(thread, address, count * 8).unwrap_or_default();
    bytes
        .chunks_exact(8)
        .filter(|entry| i16::from_ne_bytes([entry[4], entry[5]]) & libc::POLLIN != 0)
        .map(|entry| i64::from(i32::from_ne_bytes([entry[0], entry[1], entry[2], entry[3]])))
        .collect()
}

/// The descriptors in an `fd_set`.
fn selected(thread: &Path, count: u64, address: u64) -> Vec<i64> {
    let count = usize::try_from(count).unwrap_or(usize::MAX).min(MAX_POLLED);
    if address == 0 {
        return Vec::new();
    }
    let bytes = memory(thread, address, count.div_ceil(8)).unwrap_or_default();
    let is_in = |fd: &usize| {
        bytes
            .get(fd / 8)
            .is_some_and(|byte| byte & (1 << (fd % 8)) != 0)
    };
    (0..count).filter(is_in).map(|fd| fd as i64).collect()
}

/// The descriptors that an epoll watches for input, from its fdinfo (proc_pid_fdinfo(5)):
/// `tfd:        5 events:       19 data:                5  pos:0 ino:61 sdev:8`
fn watched(fdinfo: &Path) -> Vec<i64> {
    let text = fs::read_to_string(fdinfo).unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let mut fields = line.strip_prefix("tfd:")?.split_ascii_whitespace();
            let fd = fields.next()?.parse().ok()?;
            let events = fields.nth(1)?;
            let for_input = u32::from_str_radix(events, 16).ok()? & libc::EPOLLIN as u32 != 0;
            for_input.then_some(fd)
        })
        .take(MAX_POLLED)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::{
        os::fd::{AsFd, OwnedFd},
        os::unix::fs::MetadataExt,
        process::{Command, Stdio},
        thread::sleep,
        time::{Duration, Instant},
    };

    use super::*;

    #[test]
    fn a_line_is_a_call_or_none() {
        let call = Call::parse("0 0x3 0x7ffc 0x1000 0x0 0x0 0x0 0x7ffd 0x7f\n").unwrap();
        assert_eq!((call.kind, call.args[0]), (Kind::Read, 3));
        for none in ["running", "-1 0x7ffd 0x7f", "202 0x1 0x2", "", "0 x"] {
            assert_eq!(Call::parse(none), None, "{none}");
        }
    }

    /// Whether a program of this Python text comes to wait for the pipe that is its stdin.
    fn comes_to_read(text: &str, within: Duration) -> bool {
        let (read, write): (OwnedFd, OwnedFd) = rustix::pipe::pipe().unwrap();
        let inode = rustix::fs::fstat(write.as_fd()).unwrap().st_ino;
        let mut child = Command::new("python3")
            .args(["-c", text])
            .stdin(Stdio::from(read))
            .spawn()
            .unwrap();
        let thread = PathBuf::from(format!("/proc/{0}/task/{0}", child.id()));
        let is_it = |fd: &Path| fs::metadata(fd).is_ok_and(|file| file.ino() == inode);
        let start = Instant::now();
        let mut found = false;
        while !found && start.elapsed() < within {
            found = Call::of(&thread).is_some_and(|call| call.reads(&thread, is_it));
            sleep(Duration::from_millis(5));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        found
    }

    #[test]
    fn a_reader_is_seen_in_whichever_way_it_waits() {
        for text in [
            "import os; os.read(0, 1)",
            "import select; select.select([0], [], [])",
            "import select; p = select.poll(); p.register(0, select.POLLIN); p.poll()",
            "import select; e = select.epoll(); e.register(0, select.EPOLLIN); e.poll()",
        ] {
            assert!(comes_to_read(text, Duration::from_secs(20)), "{text}");
        }
    }

    #[test]
    fn a_wait_for_something_else_is_no_read() {
        let text = "import select, os; r, w = os.pipe(); select.select([r], [0], [], 0); select.select([r], [], [])";
        assert!(!comes_to_read(text, Duration::from_secs(1)));
    }
}
