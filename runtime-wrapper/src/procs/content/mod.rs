// SPDX-License-Identifier: Apache-2.0
//! What processes hold: whether one that ran is another than before.
//!
//! A record holds, for each process, digests of its memory, of its threads' registers, of
//! what it has open, and of what else the kernel tells of it. Two records are equal only if
//! a process that is restored from an image of the first instant cannot tell that it is
//! not at the second: what is not seen or cannot be understood is an error, and errors count as
//! changed. What is deliberately not looked at is in
//! `docs/decisions/0012-processes-by-content.md`.
//!
//! ```text
//!   frozen --seize, interrupt--> (v1: thaw) --> all stopped in the kernel --read--> let go
//! ```
//! Registers are told to tracers only. A thread that is asked to stop while it is frozen stops
//! before it is back in its program: at once under cgroup v2, when it is thawed under v1. So
//! none runs, and both freezers are as they were afterwards.

mod areas;
mod clock;
mod descriptors;
mod digests;
mod memory;
mod objects;
mod registers;
mod shape;
mod standing;
mod stop;

use std::{
    collections::BTreeMap,
    fmt, io,
    path::{Path, PathBuf},
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use crab_store::Digest;
use rustix::fs::{Statx, makedev};
use thiserror::Error;

pub(super) use self::shape::shape;
use self::{
    areas::areas,
    clock::Clock,
    descriptors::Unlike,
    digests::Hash,
    memory::{Memory, Spots},
    objects::Objects,
    registers::Registers,
    stop::Stopped,
};
use super::{Process, Set, portrait::MemoryDigest};
use crate::{
    cgroup::{Cgroup, CgroupError, Frozen},
    stat::{self, Stat},
};

/// Why processes cannot be compared by what they hold.
#[derive(Debug, Error)]
pub enum ContentError {
    /// The cgroup could not be read, thawed or frozen.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// There is no room for a thread to look from.
    #[error("begin a thread to look at them: {0}")]
    Thread(io::Error),
    /// A thread could not be stopped by a tracer.
    #[error("stop thread {tid}: {source}")]
    Stop {
        /// Its id.
        tid: i32,
        /// What the kernel said.
        source: io::Error,
    },
    /// Something of a process could not be read.
    #[error("read {path} of process {pid} ({comm}): {source}")]
    Read {
        /// Its pid.
        pid: i32,
        /// Its name.
        comm: String,
        /// What was read.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A process is stopped, as by SIGSTOP: no tracer can be told of it under v1's freezer.
    #[error("process {pid} ({comm}) is stopped")]
    Stopped {
        /// Its pid.
        pid: i32,
        /// Its name.
        comm: String,
    },
    /// The tracer did not come back; the sandbox was thawed for it, and has run.
    #[error("a tracer of its threads hung while it was frozen")]
    Hung,
    /// There is more than may be read.
    #[error("they hold more than {limit} bytes")]
    TooLarge {
        /// The limit.
        limit: u64,
    },
    /// Something waits in a pipe, a socket or a terminal.
    #[error("something waits in descriptor {fd} ({target}) of process {pid} ({comm})")]
    Waiting {
        /// Its pid.
        pid: i32,
        /// Its name.
        comm: String,
        /// The descriptor.
        fd: i32,
        /// What it is.
        target: String,
    },
    /// A process has a file of a kind of which the kernel does not tell all.
    #[error("descriptor {fd} ({target}) of process {pid} ({comm}) cannot be compared")]
    Opaque {
        /// Its pid.
        pid: i32,
        /// Its name.
        comm: String,
        /// The descriptor.
        fd: i32,
        /// What it is.
        target: String,
    },
}

/// What the processes of a sandbox hold at an instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    processes: BTreeMap<(i32, u64), Held>,
    /// What several may share, by device and inode.
    shared: BTreeMap<(u64, u64), Digest>,
}

/// What one holds.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    comm: String,
    threads: BTreeMap<i32, Registers>,
    layout: Digest,
    memory: Memory,
    open: Digest,
    standing: Digest,
}

/// How two records differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed(String);

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Held {
    /// What of it is another than before; without `stacks`, registers and what is near a stack
    /// pointer are left out.
    fn since(&self, before: &Self, stacks: bool) -> Option<String> {
        let same_threads = self.threads.keys().eq(before.threads.keys());
        let threads = self.threads.values().zip(before.threads.values());
        let same_registers = || threads.into_iter().all(|(now, before)| now.are(before));
        let memory = match stacks {
            true => self.memory.is(&before.memory),
            false => self.memory.has_pages_of(&before.memory),
        };
        let parts = [
            (self.standing == before.standing, "state"),
            (self.open == before.open, "open files"),
            (self.layout == before.layout, "mappings"),
            (memory, "memory"),
            (same_threads && (!stacks || same_registers()), "threads"),
        ];
        let changed: Vec<&str> = parts
            .into_iter()
            .filter_map(|(is_same, what)| (!is_same).then_some(what))
            .collect();
        (!changed.is_empty()).then(|| changed.join(", "))
    }
}

impl Content {
    /// What the processes of a set that matter hold, which are frozen, if it is no more than `limit` bytes
    /// that have to be read. An earlier record tells which calls were interrupted, for those
    /// that are in none but have to go on with one.
    ///
    /// # Errors
    /// Whenever something is not known: then they count as changed.
    pub fn of(
        cgroup: &Cgroup,
        frozen: &Frozen,
        set: &Set,
        earlier: Option<&Self>,
        limit: u64,
    ) -> Result<Self, ContentError> {
        none_is_stopped(set)?;
        let look = |asked: Asked| {
            let stopped = stop(cgroup, frozen, asked)?;
            let content = Self::read(&stopped, set.relevant(), earlier, limit);
            drop(stopped);
            frozen.again()?;
            content
        };
        on_its_own_thread(frozen, look)
    }

    /// What processes hold that do nothing but wait, and are not frozen: a tracer stops
    /// them for as long as that takes, for which it waits until then. What they do when it has let
    /// go of them is not in it.
    ///
    /// # Errors
    /// As of [`Self::of`].
    pub(super) fn of_waiting(
        set: &Set,
        earlier: Option<&Self>,
        limit: u64,
        until: Instant,
    ) -> Result<Self, ContentError> {
        none_is_stopped(set)?;
        let tids = threads_of(set.iter().map(|process| process.pid))?;
        let look = || {
            let stopped = Stopped::ask(&tids).map_err(refused)?;
            stopped.wait(until).map_err(refused)?;
            Self::read(&stopped, set.iter(), earlier, limit)
        };
        thread::scope(|scope| match beside(scope, look)?.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    }

    /// How it differs from an earlier record, if it does.
    pub fn since(&self, before: &Self) -> Option<Changed> {
        self.compare(before, true)
    }

    /// The same of what has no way to be told anything but by what it has open: it may be at
    /// another place of what it does all the time, so that registers and what is near a stack
    /// pointer are left out.
    pub(super) fn since_deaf(&self, before: &Self) -> Option<Changed> {
        self.compare(before, false)
    }

    fn compare(&self, before: &Self, stacks: bool) -> Option<Changed> {
        if !self.processes.keys().eq(before.processes.keys()) {
            return Some(Changed("there are other processes".into()));
        }
        let both = self.processes.iter().zip(before.processes.values());
        let mut changed = both.into_iter().filter_map(|(((pid, _), held), before)| {
            let what = held.since(before, stacks)?;
            Some(format!("{what} of process {pid} ({}) changed", held.comm))
        });
        // One is enough to say.
        let process = changed.next();
        let shared = (self.shared != before.shared)
            .then(|| "memory or files without a name changed".to_string());
        let all: Vec<String> = process.into_iter().chain(shared).collect();
        (!all.is_empty()).then(|| Changed(all.join("; ")))
    }

    /// What is in the memory of one of them.
    pub(super) fn memory_of(&self, key: (i32, u64)) -> Option<MemoryDigest> {
        self.processes.get(&key).map(|held| held.memory.digest())
    }

    /// What several may share.
    pub(super) fn shared(&self) -> impl Iterator<Item = Digest> {
        self.shared.values().copied()
    }

    fn read<'a>(
        stopped: &Stopped,
        processes: impl Iterator<Item = &'a Process>,
        earlier: Option<&Self>,
        limit: u64,
    ) -> Result<Self, ContentError> {
        let mut objects = Objects::new(limit);
        let clock = Clock::now();
        let mut held = BTreeMap::new();
        for process in processes {
            let reading = Reading {
                process,
                proc: process.dir(),
                limit,
            };
            let key = (process.pid, process.start);
            let earlier = earlier.and_then(|earlier| earlier.processes.get(&key));
            held.insert(key, reading.held(stopped, earlier, &clock, &mut objects)?);
        }
        Ok(Self {
            processes: held,
            shared: objects.finish(),
        })
    }
}

fn device(stat: &Statx) -> u64 {
    makedev(stat.stx_dev_major, stat.stx_dev_minor)
}

/// Dropped when all threads have been asked to stop.
type Asked = Sender<()>;

/// How long that may take: the kernel does not wait for anything when it is asked, but for a
/// stopped thread, which v1's freezer holds.
const ASK_LIMIT: Duration = Duration::from_millis(500);

/// What is traced by a thread goes on when it ends.
fn on_its_own_thread<T: Send>(
    frozen: &Frozen,
    look: impl FnOnce(Asked) -> Result<T, ContentError> + Send,
) -> Result<T, ContentError> {
    let (asked, is_asked) = channel();
    thread::scope(|scope| {
        let looking = beside(scope, || look(asked))?;
        let hung = is_asked.recv_timeout(ASK_LIMIT) == Err(RecvTimeoutError::Timeout);
        if hung {
            frozen.let_go()?;
        }
        match looking.join() {
            Ok(_) if hung => Err(ContentError::Hung),
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// A thread of its own for this.
fn beside<'scope, T: Send + 'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    look: impl FnOnce() -> T + Send + 'scope,
) -> Result<thread::ScopedJoinHandle<'scope, T>, ContentError> {
    let begun = thread::Builder::new().spawn_scoped(scope, look);
    begun.map_err(ContentError::Thread)
}

fn none_is_stopped(set: &Set) -> Result<(), ContentError> {
    match set.relevant().find(|process| process.is_stopped()) {
        None => Ok(()),
        Some(process) => Err(ContentError::Stopped {
            pid: process.pid,
            comm: process.comm.clone(),
        }),
    }
}

fn refused((tid, source): (i32, io::Error)) -> ContentError {
    ContentError::Stop { tid, source }
}

/// Stops every thread in a frozen cgroup.
fn stop(cgroup: &Cgroup, frozen: &Frozen, asked: Asked) -> Result<Stopped, ContentError> {
    let tids = threads_of(cgroup.processes()?)?;
    let stopped = Stopped::ask(&tids).map_err(refused)?;
    drop(asked);
    let waited = frozen.while_stopping(|| stopped.wait(Instant::now() + stop::LIMIT))?;
    waited.map_err(refused)?;
    Ok(stopped)
}

/// The threads of these processes that have not ended.
fn threads_of(pids: impl IntoIterator<Item = i32>) -> Result<Vec<i32>, CgroupError> {
    let mut tids = Vec::new();
    for pid in pids {
        tids.extend(threads(pid).map_err(CgroupError::of_process(pid))?);
    }
    Ok(tids)
}

/// The threads of a process that have not ended.
fn threads(pid: i32) -> io::Result<Vec<i32>> {
    let mut tids = Vec::new();
    for (tid, dir) in stat::threads(pid)? {
        let stat = Stat::read(&dir.join("stat"))?;
        tids.extend(stat.filter(|stat| !stat.first_has_ended()).map(|_| tid));
    }
    tids.sort_unstable();
    Ok(tids)
}

/// One process on its way into a record.
struct Reading<'a> {
    process: &'a Process,
    proc: PathBuf,
    limit: u64,
}

impl Reading<'_> {
    fn failed(&self, path: &Path) -> impl Fn(io::Error) -> ContentError {
        let (pid, comm, limit) = (self.process.pid, self.process.comm.clone(), self.limit);
        let path = path.strip_prefix(&self.proc).unwrap_or(path).to_path_buf();
        move |source| match source.kind() {
            io::ErrorKind::FileTooLarge => ContentError::TooLarge { limit },
            _ => ContentError::Read {
                pid,
                comm: comm.clone(),
                path: path.clone(),
                source,
            },
        }
    }

    fn held(
        &self,
        stopped: &Stopped,
        earlier: Option<&Held>,
        clock: &Clock,
        objects: &mut Objects,
    ) -> Result<Held, ContentError> {
        let (pid, proc) = (self.process.pid, &self.proc);
        let mut threads = BTreeMap::new();
        let mut spots = Spots {
            stacks: Vec::new(),
            written_by_the_kernel: Vec::new(),
        };
        for tid in self::threads(pid).map_err(self.failed(Path::new("task")))? {
            let traced = stopped
                .look(tid)
                .map_err(|source| ContentError::Stop { tid, source })?;
            let earlier = earlier.and_then(|held| held.threads.get(&tid));
            let registers = Registers::of(&traced, earlier, clock);
            spots.stacks.push(registers.stack);
            let written = registers.written_by_the_kernel(&traced);
            spots.written_by_the_kernel.extend(written);
            threads.insert(tid, registers);
        }
        let mut hash = Hash::new();
        let tids: Vec<i32> = threads.keys().copied().collect();
        standing::read(proc, &tids, &mut hash).map_err(self.failed(Path::new("state")))?;
        let standing = hash.finish();

        let mut hash = Hash::new();
        descriptors::read(self.process.seat, proc, objects, &mut hash)
            .map_err(|unlike| self.unlike(unlike))?;
        let open = hash.finish();

        let areas = areas(proc).map_err(self.failed(Path::new("smaps")))?;
        let mut hash = Hash::new();
        for area in &areas {
            area.describe(&mut hash);
            if !area.is_private() && !area.is_of_the_kernel() {
                let name = format!("mapping {:x}", area.start);
                objects
                    .add_mapping(proc, area)
                    .map_err(self.failed(Path::new(&name)))?;
            }
        }
        let layout = hash.finish();
        let memory = memory::read(proc, &areas, &spots, clock, &mut objects.left)
            .map_err(self.failed(Path::new("memory")))?;
        Ok(Held {
            comm: self.process.comm.clone(),
            threads,
            layout,
            memory,
            open,
            standing,
        })
    }

    fn unlike(&self, unlike: Unlike) -> ContentError {
        let (pid, comm) = (self.process.pid, self.process.comm.clone());
        match unlike {
            Unlike::Waiting(fd, target) => ContentError::Waiting {
                pid,
                comm,
                fd,
                target,
            },
            Unlike::Opaque(fd, target) => ContentError::Opaque {
                pid,
                comm,
                fd,
                target,
            },
            Unlike::Io(path, source) => self.failed(&path)(source),
        }
    }
}
