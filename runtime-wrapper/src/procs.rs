// SPDX-License-Identifier: Apache-2.0
//! Which processes a sandbox holds, and whether they ran.
//!
//! A process is identified by pid and start time. One that was there before is
//! unchanged if none of its threads has been on a CPU since: the kernel counts
//! run time and time slices per thread (`/proc/<pid>/task/<tid>/schedstat`).
//! Freezing and dumping wake every thread for a moment; [`Set::settle`] waits
//! until each is back in the very system call, with the same arguments, stack
//! and program counter (`/proc/<pid>/task/<tid>/syscall`), in which it was
//! before, and takes the counters from there.
//!
//! A *keep-alive* init only holds the container open: starting it again restores
//! it, so that it needs no image. Only the command of the container's own
//! specification counts for that, never what a process calls itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use crate::cgroup::{Cgroup, CgroupError};

/// One thread's evidence.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Thread {
    /// Run time in nanoseconds and time slices so far.
    ran: (u64, u64),
    /// Where it is blocked; "running" if it is not.
    place: String,
    /// It sleeps and can be interrupted: no system call of it is half done.
    rests: bool,
}

/// One process of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its pid on the host.
    pub pid: i32,
    /// Its parent's.
    pub parent: i32,
    /// When it started, in clock ticks after boot (`/proc/<pid>/stat`, 22).
    pub start: u64,
    /// Its name.
    pub comm: String,
    /// Its arguments.
    pub args: Vec<String>,
    threads: BTreeMap<i32, Thread>,
}

/// Where each thread was blocked. Sorted, without ids: those change over a
/// restore.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Places(Vec<String>);

/// The processes of a sandbox that matter: all but zombies and a keep-alive
/// init.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Set {
    processes: BTreeMap<(i32, u64), Process>,
}

/// How two sets differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Difference {
    /// Processes that are new.
    pub started: usize,
    /// Processes that are gone.
    pub ended: usize,
    /// Processes that were there and have run since.
    pub ran: usize,
}

impl Difference {
    /// Whether nothing differs.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts: Vec<String> = [
            (self.started, "started"),
            (self.ended, "ended"),
            (self.ran, "ran"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
        f.write_str(&parts.join(", "))
    }
}

/// `pid (comm) state ppid ...`; the name may hold anything, also brackets.
fn parse_stat(stat: &str) -> Option<Stat> {
    let (head, tail) = stat.rsplit_once(") ")?;
    let comm = head.split_once(" (")?.1.to_string();
    let mut fields = tail.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    // `state` is field 3, the start time field 22.
    let start = fields.nth(17)?.parse().ok()?;
    Some(Stat {
        comm,
        state,
        parent,
        start,
    })
}

/// What is read of `/proc/<pid>/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    comm: String,
    state: char,
    parent: i32,
    start: u64,
}

fn read_stat(path: &Path) -> Option<Stat> {
    parse_stat(&String::from_utf8_lossy(&fs::read(path).ok()?))
}

fn parse_schedstat(text: &str) -> Option<(u64, u64)> {
    let mut fields = text.split_ascii_whitespace();
    let run = fields.next()?.parse().ok()?;
    let slices = fields.nth(1)?.parse().ok()?;
    Some((run, slices))
}

fn read_args(pid: i32) -> Vec<String> {
    let mut raw = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    raw.truncate(16 * 1024);
    raw.split(|byte| *byte == 0)
        .map(|arg| String::from_utf8_lossy(arg).into_owned())
        .filter(|arg| !arg.is_empty())
        .collect()
}

fn read_process(pid: i32) -> Option<Process> {
    let Stat {
        comm,
        state,
        parent,
        start,
    } = read_stat(Path::new(&format!("/proc/{pid}/stat")))?;
    if matches!(state, 'Z' | 'X') {
        return None;
    }
    let mut threads = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        let dir = entry.path();
        let Some(tid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else {
            continue;
        };
        let ran = fs::read_to_string(dir.join("schedstat"))
            .ok()
            .and_then(|text| parse_schedstat(&text));
        // A thread that went while we looked makes a difference next time.
        let Some(ran) = ran else { continue };
        let place = fs::read_to_string(dir.join("syscall")).unwrap_or_default();
        threads.insert(
            tid,
            Thread {
                ran,
                place: place.trim().to_string(),
                rests: read_stat(&dir.join("stat")).is_some_and(|stat| stat.state == 'S'),
            },
        );
    }
    Some(Process {
        pid,
        parent,
        start,
        comm,
        args: read_args(pid),
        threads,
    })
}

impl Set {
    /// The processes of a cgroup as they are now; `keep_alive` is the pid of an
    /// init that does not matter, with the arguments under which it does not.
    ///
    /// # Errors
    /// When the cgroup is gone.
    pub fn of(cgroup: &Cgroup, keep_alive: Option<&KeepAlive>) -> Result<Self, CgroupError> {
        let processes = cgroup
            .processes()?
            .into_iter()
            .filter_map(read_process)
            .filter(|process| !keep_alive.is_some_and(|rule| rule.covers(process)))
            .map(|process| ((process.pid, process.start), process))
            .collect();
        Ok(Self { processes })
    }

    /// Whether no process matters.
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// Whether every thread sleeps, with no system call half done.
    pub fn at_rest(&self) -> bool {
        self.iter()
            .all(|process| process.threads.values().all(|thread| thread.rests))
    }

    /// Whether a process maps a file shared and writable, or has an io_uring:
    /// then files may change with no further system call.
    pub fn writes_unseen(&self) -> bool {
        !self.shared_mappings().is_empty() || self.iter().any(|p| holds_io_uring(p.pid))
    }

    /// A process that is not the init's descendant, in a set that holds the init:
    /// what an exec runs. CRIU dumps the init's tree and leaves such ones out.
    pub fn beside_init(&self, init: i32) -> Option<&Process> {
        let pids: BTreeSet<i32> = self.iter().map(|process| process.pid).collect();
        self.iter()
            .find(|process| process.pid != init && !pids.contains(&process.parent))
    }

    /// The processes, by pid.
    pub fn iter(&self) -> impl Iterator<Item = &Process> {
        self.processes.values()
    }

    /// How this set differs from an earlier one.
    pub fn since(&self, earlier: &Self) -> Difference {
        let mut difference = Difference::default();
        for (key, process) in &self.processes {
            match earlier.processes.get(key) {
                None => difference.started += 1,
                Some(before) if !process.rests_since(before) => difference.ran += 1,
                Some(_) => {}
            }
        }
        difference.ended = earlier
            .processes
            .keys()
            .filter(|key| !self.processes.contains_key(key))
            .count();
        difference
    }

    /// Where the threads are blocked; compared by content, not by id.
    pub fn places(&self) -> Places {
        let mut places: Vec<String> = self
            .processes
            .values()
            .flat_map(|p| p.threads.values())
            .map(|t| t.place.clone())
            .collect();
        places.sort_unstable();
        Places(places)
    }

    /// After a freeze or a restore: the set as soon as every thread is blocked
    /// where `before` says, or none if they are not within `limit`; then the
    /// next comparison must take them for changed.
    ///
    /// # Errors
    /// When the cgroup is gone.
    pub fn settle(
        cgroup: &Cgroup,
        keep_alive: Option<&KeepAlive>,
        before: &Places,
        limit: Duration,
    ) -> Result<Option<Self>, CgroupError> {
        let start = Instant::now();
        let mut last: Option<Self> = None;
        loop {
            let now = Self::of(cgroup, keep_alive)?;
            // Twice the same: a thread on its way into the call has the call's
            // number already, but is not yet off the CPU.
            let at_rest = now.places() == *before;
            if at_rest && last.as_ref().is_some_and(|l| now.since(l).is_none()) {
                return Ok(Some(now));
            }
            if start.elapsed() > limit {
                return Ok(None);
            }
            last = at_rest.then_some(now);
            thread::sleep(Duration::from_micros(300));
        }
    }

    /// What the processes hold on to in the file system: programs, libraries,
    /// open files, working directories, as paths inside the mount in which they
    /// are (so that a path of a tmpfs may look like one of the root: a caller
    /// that asks "is this path in use?" errs on the safe side).
    pub fn references(&self) -> BTreeSet<Vec<u8>> {
        let mut paths = BTreeSet::new();
        for process in self.processes.values() {
            let proc = PathBuf::from(format!("/proc/{}", process.pid));
            for link in ["exe", "cwd", "root"] {
                add_reference(&mut paths, &proc.join(link));
            }
            for dir in ["fd", "map_files"] {
                for entry in fs::read_dir(proc.join(dir)).into_iter().flatten().flatten() {
                    add_reference(&mut paths, &entry.path());
                }
            }
        }
        paths
    }

    /// Paths that some process maps shared and writable: their content may
    /// change without any system call and without a new time stamp.
    pub fn shared_mappings(&self) -> BTreeSet<Vec<u8>> {
        let mut paths = BTreeSet::new();
        for process in self.processes.values() {
            let maps = fs::read(format!("/proc/{}/maps", process.pid)).unwrap_or_default();
            for line in maps.split(|byte| *byte == b'\n') {
                if let Some(path) = shared_writable(line) {
                    paths.insert(path);
                }
            }
        }
        paths
    }

    /// Why no process image may be taken without harm or could not be restored,
    /// if so: known before anything is frozen.
    pub fn undumpable(&self, init: i32) -> Option<String> {
        let time_ns = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/time")).ok();
        let init_time = time_ns(init);
        for process in self.processes.values() {
            let exe = fs::read_link(format!("/proc/{}/exe", process.pid)).unwrap_or_default();
            if is_busybox_sleep(&exe, &process.args) {
                return Some(format!(
                    "process {} ({}) is busybox sleep, which a dump would end",
                    process.pid, process.comm
                ));
            }
            if time_ns(process.pid) != init_time {
                return Some(format!(
                    "process {} ({}) is in another time namespace than the init",
                    process.pid, process.comm
                ));
            }
            if holds_io_uring(process.pid) {
                return Some(format!(
                    "process {} ({}) holds an io_uring, which CRIU cannot dump",
                    process.pid, process.comm
                ));
            }
        }
        None
    }
}

fn add_reference(paths: &mut BTreeSet<Vec<u8>>, link: &Path) {
    let Ok(target) = fs::read_link(link) else {
        return;
    };
    let bytes = target.into_os_string().into_vec();
    if bytes.first() == Some(&b'/') {
        let end = bytes.len() - bytes.strip_suffix(b" (deleted)").map_or(0, |_| 10);
        paths.insert(bytes[1..end].to_vec());
    }
}

/// The path of a line of `/proc/<pid>/maps` if the mapping is shared and may be
/// written: `start-end perms offset dev inode path`.
fn shared_writable(line: &[u8]) -> Option<Vec<u8>> {
    let mut fields = line.splitn(6, |byte| *byte == b' ');
    let perms = fields.nth(1)?;
    if perms.get(1) != Some(&b'w') || perms.get(3) != Some(&b's') {
        return None;
    }
    let path = fields.nth(3)?.trim_ascii_start();
    path.strip_prefix(b"/").map(<[u8]>::to_vec)
}

fn holds_io_uring(pid: i32) -> bool {
    fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .any(|target| target.as_os_str().as_bytes() == b"anon_inode:[io_uring]")
}

/// A dump interrupts system calls, and busybox's sleep does not sleep on.
fn is_busybox_sleep(exe: &Path, args: &[String]) -> bool {
    let base = |path: &Path| {
        path.file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default()
    };
    base(exe).starts_with("busybox")
        && args
            .iter()
            .take(2)
            .any(|arg| base(Path::new(arg)) == "sleep")
}

impl Process {
    fn rests_since(&self, before: &Self) -> bool {
        self.threads.len() == before.threads.len()
            && self.threads.iter().all(|(tid, thread)| {
                before
                    .threads
                    .get(tid)
                    .is_some_and(|earlier| earlier.ran == thread.ran)
            })
    }
}

/// An init that only holds its container open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeepAlive {
    /// The init's pid.
    pub init: i32,
    args: Vec<String>,
}

impl KeepAlive {
    /// The rule for an init started with these arguments (of the container's
    /// specification); none if it does more than hold the container open.
    pub fn for_command(init: i32, args: &[String]) -> Option<Self> {
        only_holds_open(args).then(|| Self {
            init,
            args: args.to_vec(),
        })
    }

    /// Whether this process is the init, still running what it was started
    /// with, or the command that a `tini` runs for it.
    fn covers(&self, process: &Process) -> bool {
        let same = |args: &[String]| process.args == args;
        if process.pid == self.init {
            return same(&self.args);
        }
        process.parent == self.init && wrapped(&self.args).is_some_and(same)
    }
}

/// The command that a minimal init runs: `tini -- sleep infinity`.
fn wrapped(args: &[String]) -> Option<&[String]> {
    let name = Path::new(args.first()?).file_name()?.to_str()?;
    if !matches!(name, "tini" | "docker-init" | "dumb-init" | "catatonit") {
        return None;
    }
    let rest = &args[1..];
    let at = rest.iter().position(|arg| arg == "--").map_or_else(
        || rest.iter().position(|a| !a.starts_with('-')),
        |i| Some(i + 1),
    )?;
    rest.get(at..).filter(|command| !command.is_empty())
}

/// Whether a command does nothing but wait.
fn only_holds_open(args: &[String]) -> bool {
    if let Some(inner) = wrapped(args) {
        return only_holds_open(inner);
    }
    let Some((program, rest)) = args.split_first() else {
        return false;
    };
    let Some(name) = Path::new(program).file_name().and_then(|n| n.to_str()) else {
        return false;
    };
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    match name {
        // A sleep that ends would end the container; started again it only
        // ends later.
        "sleep" => !rest.is_empty(),
        "tail" => {
            rest.contains(&"/dev/null") && rest.iter().any(|a| a.starts_with("-f") || *a == "-F")
        }
        "cat" | "pause" => rest.is_empty(),
        "busybox" => {
            let inner: Vec<String> = args[1..].to_vec();
            only_holds_open(&inner)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_string).collect()
    }

    #[test]
    fn an_init_that_only_waits_is_keep_alive_and_a_shell_is_not() {
        for line in [
            "sleep infinity",
            "/bin/sleep 3600",
            "tail -f /dev/null",
            "cat",
            "/pause",
            "busybox sleep 100",
            "tini -- sleep infinity",
            "/sbin/docker-init -- tail -f /dev/null",
            "tini -g -- cat",
        ] {
            assert!(only_holds_open(&args(line)), "{line}");
        }
        for line in [
            "sh",
            "sleep",
            "bash -c sleep infinity",
            "tail -f /var/log/x",
            "cat /etc/passwd",
            "tini -- python3 server.py",
            "tini",
        ] {
            assert!(!only_holds_open(&args(line)), "{line}");
        }
    }

    #[test]
    fn a_name_with_brackets_does_not_confuse_the_stat_line() {
        let stat = "42 (a) S (b) S 1 42 42 0 -1 0 0 0 0 0 1 2 0 0 20 0 1 0 777 0 0";
        let expected = Stat {
            comm: "a) S (b".into(),
            state: 'S',
            parent: 1,
            start: 777,
        };
        assert_eq!(parse_stat(stat), Some(expected));
    }

    #[test]
    fn only_shared_and_writable_mappings_of_files_count() {
        let line = b"7f00-7f01 rw-s 00000000 00:2d 17                         /data/db file";
        assert_eq!(
            shared_writable(line).as_deref(),
            Some(b"data/db file".as_slice())
        );
        for line in [
            b"7f00-7f01 rw-p 00000000 00:2d 17   /data/db".as_slice(),
            b"7f00-7f01 r--s 00000000 00:2d 17   /data/db",
            b"7f00-7f01 rw-s 00000000 00:00 0 ",
            b"",
        ] {
            assert_eq!(shared_writable(line), None);
        }
    }

    #[test]
    fn busybox_sleep_is_known_by_either_name() {
        assert!(is_busybox_sleep(
            Path::new("/bin/busybox"),
            &args("sleep 5")
        ));
        assert!(is_busybox_sleep(
            Path::new("/bin/busybox"),
            &args("busybox sleep 5")
        ));
        assert!(!is_busybox_sleep(
            Path::new("/usr/bin/sleep"),
            &args("sleep 5")
        ));
        assert!(!is_busybox_sleep(Path::new("/bin/busybox"), &args("sh")));
    }

    #[test]
    fn a_process_that_ran_is_seen_and_one_that_slept_is_not() {
        let mut busy = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let pid = busy.id() as i32;
        let blocked = || {
            let process = read_process(pid).unwrap();
            process.threads.values().all(|t| t.place.starts_with("0 "))
        };
        while !blocked() {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(20));
        let before = read_process(pid).unwrap();
        let again = read_process(pid).unwrap();
        assert!(again.rests_since(&before));
        use std::io::Write;
        busy.stdin.as_mut().unwrap().write_all(b"x\n").unwrap();
        thread::sleep(Duration::from_millis(20));
        assert!(!read_process(pid).unwrap().rests_since(&before));
        busy.kill().unwrap();
        busy.wait().unwrap();
        assert!(read_process(pid).is_none());
    }
}
