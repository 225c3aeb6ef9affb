// SPDX-License-Identifier: Apache-2.0
//! A limit for a child that may hang while a sandbox is frozen for it.
//!
//! CRIU runs below the OCI runtime, so the limit ends the whole process group, which
//! the command must lead.
//!
//! A container that is killed in the middle of a dump is such a hang: CRIU has its
//! processes seized and waits for the init to stop, the init waits for the others to be
//! reaped (`zap_pid_ns_processes`), and those are CRIU's until it lets them go. So a dump
//! also ends with the init.

use std::{
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

use crate::stat::Stat;

/// How long killed processes may take to be gone and reaped.
const END_LIMIT: Duration = Duration::from_secs(5);

/// How long what a killed runtime has left may take to finish.
const FINISH_LIMIT: Duration = Duration::from_secs(10);

/// Ends what a failed child has left of its process group, and waits until it is
/// gone. A CRIU that outlives its runtime would go on with the container, and at last
/// freeze it again, as it found it, when everybody else takes it for thawed.
fn end_group(leader: u32) {
    let Some(group) = Pid::from_raw(leader as i32) else {
        return;
    };
    if kill_process_group(group, Signal::KILL).is_err() {
        // Nobody is left in it.
        return;
    }
    let start = Instant::now();
    while test_kill_process_group(group).is_ok() {
        if start.elapsed() > END_LIMIT {
            tracing::error!(leader, "processes of a failed command do not end");
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// How often an init is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// Until when a child may run.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    after: Duration,
    init: Option<i32>,
}

impl Limit {
    /// For so long.
    pub fn after(after: Duration) -> Self {
        Self { after, init: None }
    }

    /// And not for longer than the init that it works on.
    pub fn or_end_of(self, init: i32) -> Self {
        Self {
            init: Some(init),
            ..self
        }
    }
}

/// Whether a process is on its way out, or gone. One that is waits for others then,
/// and is neither a zombie nor to be seen by its signals. One that cannot be looked at now is
/// looked at again.
fn is_ending(pid: i32) -> bool {
    Stat::of(pid).is_ok_and(|stat| stat.is_none_or(|stat| stat.is_exiting()))
}

/// Ends a process group unless it is dropped in time.
pub(crate) struct Deadline {
    leader: u32,
    done: Option<Sender<()>>,
    watcher: Option<JoinHandle<()>>,
}

impl Deadline {
    /// From now on. `leader` must not have been reaped, or have left others in its group:
    /// they keep its number from being anybody else's.
    pub(crate) fn of(leader: u32, limit: Limit) -> Self {
        let (done, wait) = channel();
        let watcher = thread::Builder::new().spawn(move || {
            let start = Instant::now();
            let why = loop {
                let left = limit.after.saturating_sub(start.elapsed());
                let pause = limit.init.map_or(left, |_| left.min(LOOK));
                if wait.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
                if start.elapsed() >= limit.after {
                    break "it took too long";
                }
                if limit.init.is_some_and(is_ending) {
                    break "the container has ended";
                }
            };
            if let Some(group) = Pid::from_raw(leader as i32) {
                tracing::error!(leader, took_s = start.elapsed().as_secs(), why, "ended");
                let _ = kill_process_group(group, Signal::KILL);
            }
        });
        if let Err(error) = &watcher {
            tracing::error!(leader, %error, "no thread to end it if it takes too long");
        }
        Self {
            leader,
            done: Some(done),
            watcher: watcher.ok(),
        }
    }

    /// Lets what a failed leader has left in its group finish, for a while and within the
    /// limit. A CRIU whose runtime was killed has its code in a process of the container:
    /// killed then, it may take that one with it.
    pub(crate) fn let_finish(&self) {
        let Some(group) = Pid::from_raw(self.leader as i32) else {
            return;
        };
        let start = Instant::now();
        let in_time = || start.elapsed() < FINISH_LIMIT;
        let over = || self.watcher.as_ref().is_none_or(JoinHandle::is_finished);
        while test_kill_process_group(group).is_ok() && in_time() && !over() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends what a failed leader has left in its group; see [`end_group`].
    pub(crate) fn end(self) {
        let leader = self.leader;
        drop(self);
        end_group(leader);
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        self.done.take();
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        os::unix::process::{CommandExt, ExitStatusExt},
        process::Command,
        time::Instant,
    };

    fn sleeper() -> std::process::Child {
        Command::new("sh")
            .args(["-c", "sleep 30 & wait"])
            .process_group(0)
            .spawn()
            .unwrap()
    }

    #[test]
    fn what_takes_too_long_is_ended_with_its_children() {
        let mut child = sleeper();
        let start = Instant::now();
        let deadline = Deadline::of(child.id(), Limit::after(Duration::from_millis(100)));
        let status = child.wait().unwrap();
        drop(deadline);
        assert_eq!(status.signal(), Some(9));
        assert!(start.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn what_is_done_in_time_is_left_alone() {
        let mut child = sleeper();
        drop(Deadline::of(
            child.id(),
            Limit::after(Duration::from_secs(60)),
        ));
        assert!(child.try_wait().unwrap().is_none(), "it lives");
        kill_process_group(Pid::from_child(&child), Signal::KILL).unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn what_works_on_a_container_ends_with_its_init() {
        let mut init = sleeper();
        let mut child = sleeper();
        let limit = Limit::after(Duration::from_secs(60)).or_end_of(init.id() as i32);
        let deadline = Deadline::of(child.id(), limit);
        thread::sleep(3 * LOOK);
        assert!(child.try_wait().unwrap().is_none(), "it lives");
        // Not waited for: a zombie has ended, too.
        kill_process_group(Pid::from_child(&init), Signal::KILL).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        drop(deadline);
        init.wait().unwrap();
    }
}
