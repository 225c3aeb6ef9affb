// SPDX-License-Identifier: Apache-2.0
//! `/proc/<pid>/stat` (proc_pid_stat(5)), also of processes whose names are chosen to
//! confuse: a name may hold brackets, spaces and bytes that are no UTF-8. And the threads
//! of a process, with how far each has run.
//!
//! Only what the kernel says is gone is gone. That there is no descriptor or no memory to look
//! with is an error: who took it for an end would pass over a process that lives.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// `PF_EXITING` (`linux/sched.h`): it runs none of its program any more.
const EXITING: u64 = 0x4;

/// What is read of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) comm: String,
    pub(crate) state: char,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    /// The device number of its controlling terminal; 0 if it has none.
    pub(crate) terminal: u32,
    /// The process group that is in the foreground there.
    pub(crate) foreground: i32,
    /// The kernel's `PF_` flags.
    pub(crate) flags: u64,
    /// How many threads it has, its first one included even when that has ended.
    pub(crate) threads: u64,
    /// When it started, in clock ticks after boot.
    pub(crate) start: u64,
}

impl Stat {
    /// That of a process; nothing if it is gone.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(crate) fn of(pid: i32) -> io::Result<Option<Self>> {
        Self::read(Path::new(&format!("/proc/{pid}/stat")))
    }

    /// That of a process or a thread, by its file.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(crate) fn read(path: &Path) -> io::Result<Option<Self>> {
        let Some(stat) = unless_gone(fs::read(path))? else {
            return Ok(None);
        };
        let stat = Self::parse(&String::from_utf8_lossy(&stat));
        let unknown = || io::Error::new(io::ErrorKind::InvalidData, "no line of a process");
        stat.ok_or_else(unknown).map(Some)
    }

    /// `pid (comm) state ppid pgrp session tty tpgid flags ...`
    fn parse(stat: &str) -> Option<Self> {
        let (head, tail) = stat.rsplit_once(") ")?;
        let comm = head.split_once(" (")?.1.to_string();
        let mut fields = tail.split_ascii_whitespace();
        Some(Self {
            comm,
            state: fields.next()?.chars().next()?,
            parent: fields.next()?.parse().ok()?,
            group: fields.next()?.parse().ok()?,
            // Printed as a signed number, and means an unsigned one.
            terminal: fields.nth(1)?.parse::<i32>().ok()? as u32,
            foreground: fields.next()?.parse().ok()?,
            flags: fields.next()?.parse().ok()?,
            // Field 20, where the flags are field 9.
            threads: fields.nth(10)?.parse().ok()?,
            // Field 22.
            start: fields.nth(1)?.parse().ok()?,
        })
    }

    /// It only waits to be reaped. A process lives on without its first thread (its
    /// `main` called `pthread_exit`), and has that one's state.
    pub(crate) fn has_ended(&self) -> bool {
        self.first_has_ended() && self.threads <= 1
    }

    /// Its first thread has ended, or is about to and does nothing else; through
    /// `/proc/<pid>` nothing but its threads is to be seen then.
    pub(crate) fn first_has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X') || self.is_exiting()
    }

    /// It is on its way out.
    pub(crate) fn is_exiting(&self) -> bool {
        self.flags & EXITING != 0
    }
}

/// What was read of a process; nothing if the process is gone, before (`ENOENT`) or after
/// (`ESRCH`) it was opened.
///
/// # Errors
/// Any other.
pub(crate) fn unless_gone<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The threads of a process, by their ids, and each one's directory in `/proc`; none if it is
/// gone.
///
/// # Errors
/// When they cannot be listed.
pub(crate) fn threads(pid: i32) -> io::Result<Vec<(i32, PathBuf)>> {
    let mut threads = Vec::new();
    let entries = unless_gone(fs::read_dir(format!("/proc/{pid}/task")))?;
    for entry in entries.into_iter().flatten() {
        let Some(entry) = unless_gone(entry)? else {
            break;
        };
        let tid = entry.file_name().to_str().and_then(|tid| tid.parse().ok());
        threads.extend(tid.map(|tid| (tid, entry.path())));
    }
    Ok(threads)
}

/// Run time in nanoseconds and time slices of a thread so far (proc_pid_schedstat);
/// nothing if it is gone.
///
/// # Errors
/// When they cannot be read.
pub(crate) fn ran(thread: &Path) -> io::Result<Option<(u64, u64)>> {
    let text = unless_gone(fs::read_to_string(thread.join("schedstat")))?;
    Ok(text.and_then(|text| {
        let mut fields = text.split_ascii_whitespace();
        Some((fields.next()?.parse().ok()?, fields.nth(1)?.parse().ok()?))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_confuse_the_stat_line() {
        let stat = "42 (a) S (b) S 1 41 40 34817 43 4194560 0 0 0 0 1 2 0 0 20 0 1 0 777 0 0";
        let expected = Stat {
            comm: "a) S (b".into(),
            state: 'S',
            parent: 1,
            group: 41,
            terminal: 34_817,
            foreground: 43,
            flags: 4_194_560,
            threads: 1,
            start: 777,
        };
        assert_eq!(Stat::parse(stat), Some(expected));
    }

    #[test]
    fn a_process_without_its_first_thread_lives_on() {
        let stat = |threads| {
            let line = format!("42 (a) Z 1 41 40 0 -1 4 0 0 0 0 1 2 0 0 20 0 {threads} 0 777 0 0");
            Stat::parse(&line).unwrap()
        };
        assert!(stat(1).has_ended());
        assert!(stat(2).first_has_ended() && !stat(2).has_ended());
    }

    #[test]
    fn a_process_whose_name_is_no_utf8_is_there_like_any_other() {
        let read = std::thread::spawn(|| {
            rustix::thread::set_name(c"\xff\xfe").unwrap();
            Stat::read(Path::new("/proc/thread-self/stat")).unwrap()
        });
        let stat = read.join().unwrap().unwrap();
        assert!(!stat.has_ended());
        assert!(stat.comm.contains('\u{fffd}'));
    }
}
