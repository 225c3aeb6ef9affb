// SPDX-License-Identifier: Apache-2.0
//! Work that makes more work, done by several threads until there is none left.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

/// What is to be done.
#[derive(Debug)]
pub(crate) struct Crew<J> {
    queue: Mutex<Queue<J>>,
    /// Told when there is work, and when there will be none any more.
    wake: Condvar,
}

#[derive(Debug)]
struct Queue<J> {
    jobs: Vec<J>,
    /// Threads that may yet find more.
    busy: usize,
    /// Nothing more is to be done.
    over: bool,
}

impl<J> Crew<J> {
    pub(crate) fn new() -> Self {
        Self {
            queue: Mutex::new(Queue {
                jobs: Vec::new(),
                busy: 0,
                over: false,
            }),
            wake: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue<J>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A job, the newest first, and that somebody is at it; nothing if all is done.
    pub(crate) fn next(&self) -> Option<(J, Busy<'_, J>)> {
        let mut queue = self.lock();
        loop {
            if queue.over {
                return None;
            }
            if let Some(job) = queue.jobs.pop() {
                queue.busy += 1;
                return Some((job, Busy(self)));
            }
            queue = self
                .wake
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Hands these over.
    pub(crate) fn give(&self, jobs: &mut Vec<J>) {
        if !jobs.is_empty() {
            self.lock().jobs.append(jobs);
            self.wake.notify_all();
        }
    }

    /// How many jobs nobody is at.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().jobs.len()
    }

    /// Lets everything be that is not begun.
    pub(crate) fn stop(&self) {
        self.lock().over = true;
        self.wake.notify_all();
    }
}

/// Somebody works. What is found is handed over before this ends; with the last one all is
/// done, and so it is after a panic.
pub(crate) struct Busy<'c, J>(&'c Crew<J>);

impl<J> Drop for Busy<'_, J> {
    fn drop(&mut self) {
        let mut queue = self.0.lock();
        queue.busy -= 1;
        if queue.busy == 0 && queue.jobs.is_empty() || thread::panicking() {
            queue.over = true;
            self.0.wake.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn count(crew: &Crew<u32>, done: &AtomicU32) {
        while let Some((job, _busy)) = crew.next() {
            done.fetch_add(1, Ordering::Relaxed);
            crew.give(&mut (0..job).collect());
        }
    }

    #[test]
    fn all_work_is_done_once_and_everybody_goes_home() {
        for _ in 0..200 {
            let (crew, done) = (Crew::new(), AtomicU32::new(0));
            crew.give(&mut vec![8]);
            thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| count(&crew, &done));
                }
            });
            assert_eq!(done.into_inner(), 256);
        }
    }

    #[test]
    fn a_panic_leaves_nobody_waiting() {
        let crew = Crew::new();
        crew.give(&mut vec![()]);
        let ended = thread::scope(|scope| {
            let other = scope.spawn(|| {
                let _job = crew.next();
                panic!("on purpose");
            });
            other.join().is_err() && crew.next().is_none()
        });
        assert!(ended);
    }
}
