// SPDX-License-Identifier: Apache-2.0
//! The System V IPC objects of a container: segments of shared memory, semaphores and
//! message queues.
//!
//! They outlive whoever made them, and what is done to them leaves no trace in files or in
//! the processes that live on. The kernel lists them in `/proc/sysvipc`, with the times of
//! what was done last, in seconds (sysvipc(7)). The lists are those of the namespace in
//! which they were opened.

use std::{
    fs::File,
    io,
    os::{fd::AsFd, unix::fs::FileExt},
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// One for each kind, that of shared memory first.
const LISTS: [&str; 3] = [
    "/proc/sysvipc/shm",
    "/proc/sysvipc/sem",
    "/proc/sysvipc/msg",
];
/// A list is read in pieces of this size, in bytes.
const PIECE: usize = 16 * 1024;

/// The lists of an IPC namespace, which lives as long as this.
#[derive(Debug)]
pub struct SystemV {
    lists: Vec<File>,
}

/// The objects at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Objects {
    lists: Vec<String>,
    /// In seconds after the epoch, when they were listed.
    at: u64,
}

impl SystemV {
    /// Those of the IPC namespace that a process is in.
    ///
    /// # Errors
    /// When it is gone, or the kernel has no System V IPC.
    pub fn of(pid: i32) -> io::Result<Self> {
        let namespace = File::open(format!("/proc/{pid}/ns/ipc"))?;
        // A namespace is a thread's: this one enters it and ends.
        let opens = thread::Builder::new().spawn(move || -> io::Result<Vec<File>> {
            let kind = Some(LinkNameSpaceType::InterProcessCommunication);
            move_into_link_name_space(namespace.as_fd(), kind)?;
            LISTS.iter().map(File::open).collect()
        })?;
        let lists = opens.join().map_err(|_| io::Error::other("panicked"))??;
        Ok(Self { lists })
    }

    /// What there is now.
    ///
    /// # Errors
    /// When a list cannot be read.
    pub fn objects(&self) -> io::Result<Objects> {
        let at = SystemTime::now().duration_since(UNIX_EPOCH);
        Ok(Objects {
            at: at.unwrap_or_default().as_secs(),
            lists: self.lists.iter().map(read).collect::<io::Result<_>>()?,
        })
    }
}

fn read(list: &File) -> io::Result<String> {
    let mut text = Vec::new();
    loop {
        let mut piece = [0; PIECE];
        match list.read_at(&mut piece, text.len() as u64)? {
            0 => return Ok(String::from_utf8_lossy(&text).into_owned()),
            read => text.extend_from_slice(&piece[..read]),
        }
    }
}

impl Objects {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        // The first line says what is in the others.
        self.lists.iter().all(|list| list.lines().count() <= 1)
    }

    /// Whether something may have been done to them since an earlier listing.
    pub fn may_differ_from(&self, before: &Self) -> bool {
        // Within a second, what was done last may have been done again.
        self.lists != before.lists || self.newest() >= before.at
    }

    /// When the last thing was done, in seconds after the epoch, to objects of which the list
    /// tells no more: to shared memory it tells who did it, and CRIU does so in each dump.
    fn newest(&self) -> u64 {
        let lists = self.lists.iter().skip(1);
        lists.filter_map(|list| newest(list)).max().unwrap_or(0)
    }
}

/// The latest time in a list.
fn newest(list: &str) -> Option<u64> {
    let mut lines = list.lines();
    let names: Vec<&str> = lines.next()?.split_ascii_whitespace().collect();
    let times = lines.flat_map(|line| {
        let fields = names.iter().zip(line.split_ascii_whitespace());
        fields.filter_map(|(name, field)| {
            let is_time = name.ends_with("time");
            is_time.then(|| field.parse().ok()).flatten()
        })
    });
    times.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: &str =
        "       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime\n";

    fn listed(at: u64, line: &str) -> Objects {
        Objects {
            lists: vec![String::new(), format!("{NONE}{line}")],
            at,
        }
    }

    #[test]
    fn an_operation_is_told_by_its_time_or_may_hide_in_its_second() {
        let once =
            "         0          0   600          1     0     0     0     0       1000       990\n";
        assert!(listed(2000, "").is_empty());
        assert!(!listed(2000, once).is_empty());
        assert!(!listed(2001, "").may_differ_from(&listed(2000, "")));
        assert!(listed(2001, once).may_differ_from(&listed(2000, "")));
        assert!(!listed(2001, once).may_differ_from(&listed(2000, once)));
        assert!(listed(1003, once).may_differ_from(&listed(1000, once)));
        assert!(!listed(1003, once).may_differ_from(&listed(1001, once)));
    }

    #[test]
    fn the_lists_of_a_namespace_are_read() {
        let lists = SystemV::of(std::process::id() as i32).unwrap();
        let own = std::fs::read_to_string("/proc/sysvipc/sem").unwrap();
        assert_eq!(lists.objects().unwrap().lists[1], own);
    }
}
