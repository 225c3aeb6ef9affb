// SPDX-License-Identifier: Apache-2.0
//! Which processes a sandbox holds, and whether they ran.
//!
//! A process is identified by pid and start time. One that was there before is
//! unchanged if none of its threads has been on a CPU since, or waits for one: the kernel
//! counts run time and time slices per thread (`/proc/<pid>/task/<tid>/schedstat`).
//! Freezing and dumping wake every thread for a moment; [`Set::settle`] waits
//! until each is back in its system call, with the same stack
//! and program counter (`/proc/<pid>/task/<tid>/syscall`), in which it was
//! before, and takes the counters from there. That none has answered a request on the
//! way is for the caller to know: no time that it ran tells, because a host takes its
//! own interrupts and waits for a CPU on the thread's account.
//!
//! One that ran may be as it was nevertheless: [`Content`] tells by what it holds.
//!
//! A *keep-alive* init only holds the container open: starting it again restores
//! it, so that it needs no image. Only the command of the container's own
//! specification counts for that, never what a process calls itself.

mod changes;
mod content;
mod holds;
mod keep_alive;
mod listening;
mod obstacles;
mod places;
mod portrait;
mod read;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

pub use self::{
    changes::ProcessChange,
    content::{Changed, Content, ContentError},
    holds::{References, descriptors},
    keep_alive::{Doubt, KeepAlive},
    listening::Listening,
    places::Places,
    portrait::{MemoryDigest, MemoryVerdict, Portraits, ProcessDifference, ProcessDifferenceKind},
};
use self::{places::NO_CALL, read::look_at};
use crate::cgroup::{Cgroup, CgroupError};

/// One thread's evidence.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Thread {
    /// Run time in nanoseconds and time slices so far.
    ran: (u64, u64),
    /// Where it is blocked; "running" if it is not.
    place: String,
    /// Its state, as in `/proc/<pid>/stat`.
    state: char,
}

impl Thread {
    /// It sleeps in a system call and can be interrupted, so that none is half done; or
    /// it has ended, as the first thread of a process that goes on. One that waits for a
    /// page is in no system call, and goes on without completing one.
    fn rests(&self) -> bool {
        self.state == 'Z' || (self.state == 'S' && !self.place.starts_with(NO_CALL))
    }

    /// Whether it has done nothing since, and nothing is under way. One that was woken
    /// (a signal, a message) and waits for a CPU has not run yet, but is not as it was.
    fn stood_still_since(&self, earlier: &Self) -> bool {
        self.ran == earlier.ran && self.state != 'R'
    }
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
    /// The rule by which its coming, its progress and its end alone do not matter, if one
    /// does: see [`Set::mark`].
    pub ignored: Option<usize>,
    threads: BTreeMap<i32, Thread>,
    /// The thread through which its memory and its descriptors are seen: the first one
    /// that lives.
    seat: i32,
}

/// The processes of a sandbox that an image has to hold: all but zombies and a
/// keep-alive init. Where they are compared, those that are marked as ignored are passed
/// over.
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

impl Set {
    /// The processes of a cgroup as they are now; `keep_alive` is the pid of an
    /// init that does not matter, with the arguments under which it does not.
    ///
    /// # Errors
    /// When the cgroup is gone, or one of them cannot be read.
    pub fn of(cgroup: &Cgroup, keep_alive: Option<&KeepAlive>) -> Result<Self, CgroupError> {
        let mut processes = BTreeMap::new();
        for pid in cgroup.processes()? {
            let process = look_at(pid).map_err(CgroupError::of_process(pid))?;
            processes.extend(process.map(|process| ((process.pid, process.start), process)));
        }
        Ok(Self { processes }.without(keep_alive))
    }

    /// All but those that do not matter by this rule.
    pub fn without(mut self, keep_alive: Option<&KeepAlive>) -> Self {
        self.processes
            .retain(|_, process| !keep_alive.is_some_and(|rule| rule.covers(process)));
        self
    }

    /// Marks the processes for which `rule` gives one.
    pub fn mark(&mut self, rule: impl Fn(&Process) -> Option<usize>) {
        for process in self.processes.values_mut() {
            process.ignored = rule(process);
        }
    }

    /// Whether all there are, if any, are ignored.
    pub fn all_ignored(&self) -> bool {
        self.iter().all(|process| process.ignored.is_some())
    }

    /// Whether there is no process.
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// Whether every thread sleeps, with no system call half done.
    pub fn at_rest(&self) -> bool {
        self.relevant()
            .all(|process| process.threads.values().all(|thread| thread.rests()))
    }

    /// Whether a process is stopped, by a signal or a tracer.
    pub fn holds_stopped(&self) -> bool {
        self.iter().any(Process::is_stopped)
    }

    /// A process that is not the init's descendant, in a set that holds the init:
    /// what an exec runs. CRIU dumps the init's tree and leaves such ones out.
    pub fn beside_init(&self, init: i32) -> Option<&Process> {
        let pids: BTreeSet<i32> = self.iter().map(|process| process.pid).collect();
        self.iter()
            .find(|process| process.pid != init && !pids.contains(&process.parent))
    }

    fn relevant(&self) -> impl Iterator<Item = &Process> {
        self.iter().filter(|process| process.ignored.is_none())
    }

    /// The processes, by pid.
    pub fn iter(&self) -> impl Iterator<Item = &Process> {
        self.processes.values()
    }

    /// How this set differs from an earlier one.
    pub fn since(&self, earlier: &Self) -> Difference {
        let mut difference = Difference::default();
        for (change, process) in self.changes_since(earlier) {
            match change {
                _ if process.ignored.is_some() => {}
                ProcessChange::Started => difference.started += 1,
                ProcessChange::Ran => difference.ran += 1,
                ProcessChange::Ended => difference.ended += 1,
            }
        }
        difference
    }

    /// The same when nothing is known of what those did that are in both.
    pub fn since_unknown(&self, earlier: &Self) -> Difference {
        let difference = self.since(earlier);
        Difference {
            ran: self.relevant().count() - difference.started,
            ..difference
        }
    }

    /// Where the threads are blocked; compared by content, not by id.
    pub fn places(&self) -> Places {
        let threads = self.relevant().flat_map(|p| p.threads.values());
        let living = threads.filter(|thread| thread.state != 'Z');
        living.map(|thread| thread.place.clone()).collect()
    }

    /// After a freeze or a restore: the set, marked by `rule`, as soon as every thread that
    /// matters is blocked in
    /// the `places` of before; none if they are not within `limit`, or cannot be any more
    /// because something `went_on`. Then the next comparison must take them for changed.
    ///
    /// # Errors
    /// When the cgroup is gone.
    pub fn settle(
        cgroup: &Cgroup,
        keep_alive: Option<&KeepAlive>,
        rule: impl Fn(&Process) -> Option<usize>,
        places: &Places,
        limit: Duration,
        mut went_on: impl FnMut() -> bool,
    ) -> Result<Option<Self>, CgroupError> {
        // A CPU was its place, and will be again, but nobody knows with what in mind.
        if !places.are_calls() {
            return Ok(None);
        }
        let start = Instant::now();
        let mut asked = start;
        let mut last: Option<Self> = None;
        loop {
            let mut now = Self::of(cgroup, keep_alive)?;
            now.mark(&rule);
            // Twice the same: a thread on its way into the call has the call's
            // number already, but is not yet off the CPU.
            let back = now.places().are(places);
            if back && last.as_ref().is_some_and(|l| now.since(l).is_none()) {
                return Ok((!went_on()).then_some(now));
            }
            if start.elapsed() > limit {
                tracing::info!("processes have not gone back to where they were");
                return Ok(None);
            }
            if asked.elapsed() > ASK {
                if went_on() {
                    return Ok(None);
                }
                asked = Instant::now();
            }
            last = back.then_some(now);
            thread::sleep(Duration::from_micros(300));
        }
    }
}

/// How often it is asked whether processes that do not settle went on.
const ASK: Duration = Duration::from_millis(10);

impl Process {
    /// Where its memory and its descriptors are seen in `/proc`.
    pub fn dir(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}", self.seat))
    }

    /// Its id in the innermost pid namespace that it is in: the last one in `NSpid`
    /// (proc_pid_status(5)).
    pub fn inner_pid(&self) -> Option<u32> {
        read::last_number(&fs::read(self.dir().join("status")).ok()?, "NSpid:")
    }

    /// Whether it has a handler for any; what is not known counts as one.
    fn catches_signals(&self) -> bool {
        let status = fs::read(self.dir().join("status")).unwrap_or_default();
        let caught = read::field(&status, "SigCgt:");
        caught.is_none_or(|caught| caught.bytes().any(|digit| digit != b'0'))
    }

    /// By a signal or a tracer. While v1's freezer holds it, that is not to be seen.
    fn is_stopped(&self) -> bool {
        let stopped = |thread: &Thread| matches!(thread.state, 'T' | 't');
        self.threads.values().any(stopped)
    }

    fn first_thread_has_ended(&self) -> bool {
        self.seat != self.pid
    }

    fn rests_since(&self, before: &Self) -> bool {
        self.threads.len() == before.threads.len()
            && self.threads.iter().all(|(tid, thread)| {
                before
                    .threads
                    .get(tid)
                    .is_some_and(|earlier| thread.stood_still_since(earlier))
            })
    }
}
