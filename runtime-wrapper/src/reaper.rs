// SPDX-License-Identifier: Apache-2.0
//! The one place that collects exits.
//!
//! A shim is the subreaper of everything below it: the runtime's own short
//! processes, the containers' init processes and what was exec'd into them. One
//! thread waits for any child and hands the exit to whoever asked for that pid.
//! An exit that arrives before anyone asked (runc is gone, its pid file not yet
//! read) is parked, not dropped.
//!
//! Nothing else in the process may wait for children: an exit is told once.

use std::{
    collections::{HashMap, VecDeque},
    io,
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Instant, SystemTime},
};

use rustix::process::{Pid, WaitOptions, set_child_subreaper, wait};
use tokio::sync::oneshot;

pub use crate::deadline::Limit;
use crate::{deadline::Deadline, descriptors};

/// How many exits nobody asked for are kept. Orphans of a container are
/// reparented to the shim when its init is gone, and nobody ever asks for them.
const PARKED: usize = 512;

/// What the number of the signal that killed a process is told beyond.
const KILLED: u32 = 128;
/// The largest number of a signal.
const LAST_SIGNAL: u32 = 64;

/// How much of an answer is read.
const ANSWER_LIMIT: u64 = 1 << 20;

/// The end of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// Exit code, or 128 plus the number of the signal that killed it, as
    /// containerd counts.
    pub status: u32,
    /// When it was reaped.
    pub at: SystemTime,
}

/// The signal by which a process was killed that ended with this status. An exit code of its own
/// may say the same, as a shell's does of its child.
pub(crate) fn signal_of(status: u32) -> Option<u32> {
    let signal = status.checked_sub(KILLED)?;
    (1..=LAST_SIGNAL).contains(&signal).then_some(signal)
}

/// An exit that nobody has asked for yet.
struct Parked {
    pid: i32,
    exit: Exit,
    /// When it came, by a clock that nobody sets back, as one does the other.
    came: Instant,
}

#[derive(Default)]
struct State {
    waiters: HashMap<i32, Vec<oneshot::Sender<Exit>>>,
    parked: VecDeque<Parked>,
    children_made: u64,
}

/// Collects exits; see the module. Clones share one thread.
#[derive(Clone)]
pub struct Reaper {
    shared: Arc<(Mutex<State>, Condvar)>,
}

impl Reaper {
    /// Makes this process a subreaper and starts to collect; from the second call on it is the
    /// one that there is: two would take each other's exits.
    ///
    /// # Errors
    /// When the kernel refuses the subreaper flag or a thread.
    pub fn start() -> io::Result<Self> {
        static ONE: Mutex<Option<Reaper>> = Mutex::new(None);
        let mut one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reaper) = &*one {
            return Ok(reaper.clone());
        }
        set_child_subreaper(Pid::from_raw(1))?;
        let reaper = Self {
            shared: Arc::new((Mutex::default(), Condvar::new())),
        };
        let this = reaper.clone();
        thread::Builder::new()
            .name("reaper".into())
            .stack_size(128 * 1024)
            .spawn(move || this.collect())?;
        Ok(one.insert(reaper).clone())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while the lock is held leaves a map that is still whole.
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn collect(&self) {
        loop {
            let seen = self.state().children_made;
            match wait(WaitOptions::empty()) {
                Ok(Some((pid, status))) => {
                    let status = match (status.exit_status(), status.terminating_signal()) {
                        (Some(code), _) => code as u32,
                        (None, Some(signal)) => KILLED + signal as u32,
                        (None, None) => continue,
                    };
                    self.deliver(
                        pid.as_raw_nonzero().get(),
                        Exit {
                            status,
                            at: SystemTime::now(),
                        },
                    );
                }
                Err(rustix::io::Errno::CHILD) => {
                    // No child at all. One can only come from a spawn: an
                    // orphan is reparented to us by the exit of a child of ours
                    // that we have not reaped yet.
                    let mut state = self.state();
                    while state.children_made == seen {
                        state = self
                            .shared
                            .1
                            .wait(state)
                            .unwrap_or_else(PoisonError::into_inner);
                    }
                }
                Ok(None) | Err(_) => {}
            }
        }
    }

    fn deliver(&self, pid: i32, exit: Exit) {
        let mut state = self.state();
        match state.waiters.remove(&pid) {
            Some(waiters) => {
                for waiter in waiters {
                    // Whoever asked may be gone; then nobody cares.
                    let _ = waiter.send(exit);
                }
            }
            None => {
                if state.parked.len() == PARKED {
                    state.parked.pop_front();
                }
                let came = Instant::now();
                state.parked.push_back(Parked { pid, exit, came });
            }
        }
    }

    /// The exit of `pid`, a child of this process or about to become one,
    /// whether it is still to come or has come already; but not before `since`:
    /// that was another process, whose pid this one has now.
    pub fn exit_of(&self, pid: i32, since: Instant) -> oneshot::Receiver<Exit> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.state();
        state
            .parked
            .retain(|parked| parked.pid != pid || parked.came >= since);
        if let Some(at) = state.parked.iter().position(|parked| parked.pid == pid) {
            if let Some(parked) = state.parked.remove(at) {
                let _ = sender.send(parked.exit);
            }
        } else {
            state.waiters.entry(pid).or_default().push(sender);
        }
        receiver
    }

    /// Starts a command whose exit is told through the receiver, with the limit of descriptors
    /// that this process was given.
    ///
    /// # Errors
    /// When the command cannot be started.
    pub fn spawn(&self, command: &mut Command) -> io::Result<(Child, oneshot::Receiver<Exit>)> {
        descriptors::give(command);
        let (sender, receiver) = oneshot::channel();
        // Held over the fork, so that the exit finds its waiter.
        let mut state = self.state();
        let child = command.spawn()?;
        let pid = child.id() as i32;
        // A parked exit of an earlier process with this pid is not this one's.
        state.parked.retain(|parked| parked.pid != pid);
        state.waiters.entry(pid).or_default().push(sender);
        state.children_made += 1;
        drop(state);
        self.shared.1.notify_all();
        Ok((child, receiver))
    }

    /// Runs a command to its end with what it prints, blocking this thread.
    /// Its exit code is 128 plus the signal's number if one killed it. With a
    /// limit, it and what it started are killed when the limit is over. When it fails,
    /// what it started may finish within the limit, and nothing of it is left.
    ///
    /// # Errors
    /// When the command cannot be started or its output not be read.
    pub fn output(
        &self,
        command: &mut Command,
        limit: Option<Limit>,
    ) -> io::Result<(u32, Vec<u8>)> {
        self.output_of(command, b"", limit)
    }

    /// The same with something to read for the command: less than a pipe holds.
    pub(crate) fn output_of(
        &self,
        command: &mut Command,
        input: &[u8],
        limit: Option<Limit>,
    ) -> io::Result<(u32, Vec<u8>)> {
        let stdin = match input {
            b"" => Stdio::null(),
            _ => Stdio::piped(),
        };
        command.stdin(stdin).stderr(Stdio::piped());
        if limit.is_some() {
            command.process_group(0);
        }
        let (mut child, exit) = self.spawn(command)?;
        let deadline = limit.map(|limit| Deadline::of(child.id(), limit));
        if let Some(mut stdin) = child.stdin.take() {
            // A command need not read it.
            let _ = io::Write::write_all(&mut stdin, input);
        }
        let mut text = Vec::new();
        if let Some(mut stderr) = child.stderr.take() {
            io::Read::read_to_end(&mut stderr, &mut text)?;
        }
        let exit = exit
            .blocking_recv()
            .map_err(|_| io::Error::other("the reaper is gone"))?;
        if let Some(deadline) = deadline
            && exit.status != 0
        {
            deadline.let_finish();
            deadline.end();
        }
        Ok((exit.status, text))
    }

    /// Runs a command to its end, within the limit, for its exit code and what it prints on
    /// its stdout.
    ///
    /// # Errors
    /// When the command cannot be started or its output not be read, or when it was killed, at
    /// the limit or by somebody else: what it had said by then is no answer.
    pub fn answer(&self, command: &mut Command, limit: Limit) -> io::Result<(u32, Vec<u8>)> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0);
        let (mut child, exit) = self.spawn(command)?;
        let start = Instant::now();
        let deadline = Deadline::of(child.id(), limit);
        let mut text = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            io::Read::read_to_end(&mut io::Read::take(stdout, ANSWER_LIMIT), &mut text)?;
        }
        let exit = exit
            .blocking_recv()
            .map_err(|_| io::Error::other("the reaper is gone"))?;
        drop(deadline);
        if let Some(signal) = signal_of(exit.status) {
            let took = start.elapsed().as_secs();
            let why = format!("it was killed by signal {signal} after {took} s");
            return Err(io::Error::new(io::ErrorKind::Interrupted, why));
        }
        Ok((exit.status, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_is_not_older_because_the_clock_was_set_back() {
        // Without its thread: the only exit is this one.
        let reaper = Reaper {
            shared: Arc::default(),
        };
        let since = Instant::now();
        let exit = Exit {
            status: 3,
            at: SystemTime::UNIX_EPOCH,
        };
        reaper.deliver(7, exit);
        assert_eq!(reaper.exit_of(7, since).try_recv(), Ok(exit));
        reaper.deliver(7, exit);
        let later = Instant::now() + std::time::Duration::from_secs(1);
        assert!(reaper.exit_of(7, later).try_recv().is_err(), "another's");
    }
}
