// SPDX-License-Identifier: Apache-2.0
//! Whether the processes of a sandbox wait to be told more: who is blocked reading an
//! attached stdin or terminal, and who runs.
//!
//! A thread that waits is seen in the system call in which it is blocked
//! (`/proc/<pid>/task/<tid>/syscall`): a read, or a `poll`, `select` or `epoll_wait` on the
//! descriptor, as REPLs with line editing, tmux and node do it. That it is the one that is
//! meant is told by the file behind the descriptor: the pipe's inode, the terminal's device.
//!
//! Nothing that is read here is trusted with more than where a turn ends: a process can
//! have itself seen as it likes. Reading what it polls may even block for as long as it
//! wishes (a page that it serves itself), so this runs where nobody waits for it for ever.

mod call;

use std::{
    collections::BTreeMap,
    fs, io,
    os::{fd::AsFd, unix::fs::MetadataExt},
    path::Path,
};

use rustix::fs::{fstat, fstatfs, major, makedev, minor};

use self::call::Call;
use crate::{
    cgroup::{Cgroup, CgroupError},
    stat::{self, Stat},
};

/// The magic number of devpts (statfs(2)).
const DEVPTS: i64 = 0x1cd1;
/// The device of `/dev/tty`, whichever terminal that is for a process.
const OWN_TERMINAL: (u32, u32) = (5, 0);
/// The first major number of the terminals of devpts, which have eight.
const TERMINALS: u32 = 136;

/// An attached stdin, as the processes of a sandbox hold it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stdin {
    /// A pipe.
    Pipe {
        /// The device and the inode of both of its ends.
        file: (u64, u64),
    },
    /// A terminal of devpts.
    Terminal {
        /// Its device number.
        number: u64,
        /// The file system that it is in, if that is known.
        filesystem: Option<u64>,
    },
}

impl Stdin {
    /// That of a pipe, by either end.
    ///
    /// # Errors
    /// When the descriptor cannot be looked at.
    pub fn of_pipe(end: impl AsFd) -> io::Result<Self> {
        let stat = fstat(end)?;
        Ok(Self::Pipe {
            file: (stat.st_dev, stat.st_ino),
        })
    }

    /// That of a terminal, by its master.
    ///
    /// # Errors
    /// When it is no master of a terminal.
    pub fn of_terminal(master: impl AsFd) -> io::Result<Self> {
        let name = rustix::pty::ptsname(&master, Vec::new())?;
        let number = name.to_str().ok().and_then(|name| {
            let number: u32 = name.strip_prefix("/dev/pts/")?.parse().ok()?;
            Some(makedev(TERMINALS + (number >> 20), number & 0xf_ffff))
        });
        let number = number.ok_or_else(|| io::Error::other("a terminal without a number"))?;
        // Opened by another name than that in devpts, it tells nothing of that.
        let is_in_devpts = fstatfs(&master)?.f_type as i64 == DEVPTS;
        let filesystem = is_in_devpts.then_some(fstat(&master)?.st_dev);
        Ok(Self::Terminal { number, filesystem })
    }

    /// A process's controlling terminal, by the number in its stat line.
    fn controlling(terminal: u32) -> Self {
        // `new_encode_dev` of the kernel.
        let (major, minor) = (
            (terminal >> 8) & 0xfff,
            (terminal & 0xff) | ((terminal >> 12) & 0xf_ff00),
        );
        Self::Terminal {
            number: makedev(major, minor),
            filesystem: None,
        }
    }

    /// Whether a descriptor in `/proc` is this one; `own` is the controlling terminal of
    /// the process that has it.
    fn is(&self, descriptor: &Path, own: Option<Self>) -> bool {
        let Ok(file) = fs::metadata(descriptor) else {
            return false;
        };
        let device = file.rdev();
        match *self {
            Self::Pipe { file: pipe } => (file.dev(), file.ino()) == pipe,
            Self::Terminal { number, .. } if (major(device), minor(device)) == OWN_TERMINAL => {
                matches!(own, Some(Self::Terminal { number: own, .. }) if own == number)
            }
            Self::Terminal { number, filesystem } => {
                device == number && filesystem.is_none_or(|fs| fs == file.dev())
            }
        }
    }
}

/// A process, as it was when it was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Its pid on the host.
    pub pid: i32,
    /// Its parent's.
    pub parent: i32,
    /// When it started, in clock ticks after boot.
    pub start: u64,
    /// A thread of it has a CPU, or waits for one or for a disk.
    pub runs: bool,
    /// Run time and time slices of its threads so far; the same, and nothing of it has run.
    pub progress: (u64, u64),
    /// A thread of it is blocked reading one of the stdins.
    pub reads: bool,
    /// A thread of it is blocked reading, whatever that is.
    pub listens: bool,
    /// A thread of it waits for what comes over an established TCP connection; looked at
    /// only if it was asked for.
    pub awaits_network: bool,
    /// It is in the foreground of a terminal inside the sandbox (tmux, screen, script), and
    /// nobody there waits for what is typed: a command is under way.
    pub is_job: bool,
}

/// The processes of a cgroup, looked at with these stdins in mind, and with who waits for the
/// network if that matters.
///
/// # Errors
/// When the cgroup is gone, or one of them cannot be read.
pub fn look(cgroup: &Cgroup, stdins: &[Stdin], network: bool) -> Result<Vec<Seen>, CgroupError> {
    let mut seen = Vec::new();
    // By terminal inside: whether somebody in its foreground reads it.
    let mut foregrounds: BTreeMap<u32, bool> = BTreeMap::new();
    let mut jobs: Vec<(usize, u32)> = Vec::new();
    for pid in cgroup.processes()? {
        let failed = || CgroupError::of_process(pid);
        let stat = Stat::of(pid).map_err(failed())?;
        let Some(stat) = stat.filter(|stat| !stat.has_ended()) else {
            continue;
        };
        let own = (stat.terminal != 0).then(|| Stdin::controlling(stat.terminal));
        let mut process = Seen {
            pid,
            parent: stat.parent,
            start: stat.start,
            runs: false,
            progress: (0, 0),
            reads: false,
            listens: false,
            awaits_network: false,
            is_job: false,
        };
        let mut sockets = Vec::new();
        let is_inside = own.is_some_and(|own| !stdins.iter().any(|stdin| same(stdin, &own)));
        let in_foreground = is_inside && stat.group == stat.foreground;
        let mut reads_own = false;
        for (_, thread) in stat::threads(pid).map_err(failed())? {
            let thread = thread.as_path();
            let stat = Stat::read(&thread.join("stat")).map_err(failed())?;
            let Some(stat) = stat else {
                continue;
            };
            process.runs |= matches!(stat.state, 'R' | 'D');
            if let Some((ran, slices)) = stat::ran(thread).map_err(failed())? {
                process.progress.0 += ran;
                process.progress.1 += slices;
            }
            if stat.state != 'S' {
                continue;
            }
            let Some(call) = Call::of(thread) else {
                continue;
            };
            process.listens = true;
            if network {
                sockets.extend(call.sockets(thread));
            }
            let reads = |stdin: &Stdin| call.reads(thread, |fd| stdin.is(fd, own));
            process.reads |= stdins.iter().any(reads);
            reads_own |= in_foreground && own.as_ref().is_some_and(reads);
        }
        process.awaits_network = !sockets.is_empty() && has_established(pid, &sockets);
        if in_foreground {
            *foregrounds.entry(stat.terminal).or_default() |= reads_own;
            jobs.push((seen.len(), stat.terminal));
        }
        seen.push(process);
    }
    for (at, terminal) in jobs {
        seen[at].is_job = !foregrounds[&terminal];
    }
    Ok(seen)
}

/// Whether one of these sockets is an established TCP connection (proc_pid_net(5)).
fn has_established(pid: i32, sockets: &[u64]) -> bool {
    ["tcp", "tcp6"].iter().any(|table| {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        text.lines().any(|line| {
            let mut fields = line.split_ascii_whitespace().skip(3);
            let is_established = fields.next() == Some("01");
            let inode = fields.nth(5).and_then(|inode| inode.parse().ok());
            is_established && inode.is_some_and(|inode: u64| sockets.contains(&inode))
        })
    })
}

/// Whether both are the same terminal; which file system one is in may not be known.
fn same(stdin: &Stdin, terminal: &Stdin) -> bool {
    match (stdin, terminal) {
        (Stdin::Terminal { number, .. }, Stdin::Terminal { number: other, .. }) => number == other,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controlling_terminal_is_known_by_the_number_in_the_stat_line() {
        // pts/1, and pts/300, whose minor number takes two parts.
        for (line, minor) in [(34_817, 1), (0x10_882c, 300)] {
            let Stdin::Terminal { number, .. } = Stdin::controlling(line) else {
                panic!("it is a terminal");
            };
            assert_eq!((major(number), minor_of(number)), (136, minor));
        }
    }

    fn minor_of(number: u64) -> u32 {
        minor(number)
    }
}
