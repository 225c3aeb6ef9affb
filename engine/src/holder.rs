// SPDX-License-Identifier: Apache-2.0
//! The process that holds a lock, and a signal to it and to no other.
//!
//! A pid in a file may be stale, and its number another process's by now. The
//! kernel's own table of locks names the holder; it is held by a pidfd, and
//! the table is asked again: what still holds the lock then is what the pidfd
//! stands for.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{major, minor};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

const LOCKS: &str = "/proc/locks";

/// A process that holds a lock.
#[derive(Debug)]
pub(crate) struct Holder {
    pidfd: OwnedFd,
}

impl Holder {
    /// The holder of the lock on `file`; none if nobody holds it, or not for long
    /// enough to be told.
    pub(crate) fn of(file: &File) -> io::Result<Option<Self>> {
        let meta = file.metadata()?;
        let inode = format!(
            "{:02x}:{:02x}:{}",
            major(meta.dev()),
            minor(meta.dev()),
            meta.ino()
        );
        let now = || fs::read_to_string(LOCKS).map(|table| holder(&table, &inode));
        let Some(pid) = now()? else {
            return Ok(None);
        };
        let Some(raw) = Pid::from_raw(pid) else {
            return Ok(None);
        };
        let pidfd = match pidfd_open(raw, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        Ok((now()? == Some(pid)).then_some(Self { pidfd }))
    }

    /// Sends it a signal; that it has ended already is fine.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.pidfd, signal) {
            Err(rustix::io::Errno::SRCH) | Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Lines such as `3: FLOCK  ADVISORY  WRITE 1234 00:1a:5678 0 EOF`; one that
/// waits for a lock has `->` after its number.
fn holder(table: &str, inode: &str) -> Option<i32> {
    table.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [_, "FLOCK", _, _, pid, at, ..] if at == inode => pid.parse().ok(),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_told_from_those_who_wait_and_from_other_locks() {
        let table = "1: POSIX  ADVISORY  WRITE 7 00:1a:5678 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 8 00:1a:567 0 EOF\n\
                     3: -> FLOCK  ADVISORY  WRITE 9 00:1a:5678 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE 10 00:1a:5678 0 EOF\n";
        assert_eq!(holder(table, "00:1a:5678"), Some(10));
        assert_eq!(holder(table, "00:1b:5678"), None);
        assert_eq!(holder("", "00:1a:5678"), None);
    }
}
