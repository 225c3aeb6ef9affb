// SPDX-License-Identifier: Apache-2.0
//! What passes between a client and a process, as the turns want to know it: when
//! something last did, and whether input may pass without asking.
//!
//! Who hands bytes on first says so and then looks whether it may; who ends a turn first
//! forbids it and then looks whether any came. So either the byte is held back, or the
//! turn is known to go on.

use std::{
    sync::{
        LazyLock, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use crab_runtime::waits::Stdin;

static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// A process's traffic. Times are microseconds since the first one, plus one; 0 is never.
#[derive(Default)]
pub(crate) struct Activity {
    input: AtomicU64,
    output: AtomicU64,
    passes: AtomicBool,
    stdin: Mutex<Option<Stdin>>,
}

fn now() -> u64 {
    EPOCH.elapsed().as_micros() as u64 + 1
}

fn instant(time: u64) -> Option<Instant> {
    time.checked_sub(1)
        .map(|micros| *EPOCH + Duration::from_micros(micros))
}

impl Activity {
    /// Input has come. Tells whether it may be handed on at once.
    pub(crate) fn input(&self) -> bool {
        self.input.store(now(), SeqCst);
        self.passes.load(SeqCst)
    }

    /// Output has come.
    pub(crate) fn output(&self) {
        self.output.store(now(), SeqCst);
    }

    /// Whether input passes from now on.
    pub(crate) fn let_pass(&self, passes: bool) {
        self.passes.store(passes, SeqCst);
    }

    /// When input last came.
    pub(crate) fn last_input(&self) -> Option<Instant> {
        instant(self.input.load(SeqCst))
    }

    /// When output last came.
    pub(crate) fn last_output(&self) -> Option<Instant> {
        instant(self.output.load(SeqCst))
    }

    /// The process's stdin from now on.
    pub(crate) fn set_stdin(&self, stdin: Option<Stdin>) {
        *self.stdin.lock().unwrap_or_else(PoisonError::into_inner) = stdin;
    }

    /// The process's stdin, if it has one by now.
    pub(crate) fn stdin(&self) -> Option<Stdin> {
        *self.stdin.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_passes_only_while_it_may_and_its_time_is_known() {
        let activity = Activity::default();
        assert_eq!(activity.last_input(), None);
        assert!(!activity.input());
        activity.let_pass(true);
        let before = Instant::now();
        assert!(activity.input());
        let last = activity.last_input().unwrap();
        assert!(last + Duration::from_millis(1) >= before && last <= Instant::now());
        assert_eq!(activity.last_output(), None);
    }
}
