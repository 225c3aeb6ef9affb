// SPDX-License-Identifier: Apache-2.0
//! A limit for a child that may hang while a sandbox is frozen for it.
//!
//! CRIU runs below the OCI runtime, so the limit ends the whole process group, which
//! the command must lead.

use std::{
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

/// How long killed processes may take to be gone and reaped.
const END_LIMIT: Duration = Duration::from_secs(5);

/// Ends what a failed child has left of its process group, and waits until it is
/// gone. A CRIU that outlives its runtime would go on with the container, and at last
/// freeze it again, as it found it, when everybody else takes it for thawed.
pub(crate) fn end_group(leader: u32) {
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

/// Ends a process group unless it is dropped in time.
pub(crate) struct Deadline {
    done: Option<Sender<()>>,
    watcher: Option<JoinHandle<()>>,
}

impl Deadline {
    /// From now on. `leader` must not have been reaped.
    pub(crate) fn of(leader: u32, limit: Duration) -> Self {
        let (done, wait) = channel();
        let watcher = thread::spawn(move || {
            if wait.recv_timeout(limit) == Err(RecvTimeoutError::Timeout)
                && let Some(group) = Pid::from_raw(leader as i32)
            {
                tracing::error!(leader, limit_s = limit.as_secs(), "ended: it took too long");
                let _ = kill_process_group(group, Signal::KILL);
            }
        });
        Self {
            done: Some(done),
            watcher: Some(watcher),
        }
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
        let deadline = Deadline::of(child.id(), Duration::from_millis(100));
        let status = child.wait().unwrap();
        drop(deadline);
        assert_eq!(status.signal(), Some(9));
        assert!(start.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn what_is_done_in_time_is_left_alone() {
        let mut child = sleeper();
        drop(Deadline::of(child.id(), Duration::from_secs(60)));
        assert!(child.try_wait().unwrap().is_none(), "it lives");
        kill_process_group(Pid::from_child(&child), Signal::KILL).unwrap();
        child.wait().unwrap();
    }
}
