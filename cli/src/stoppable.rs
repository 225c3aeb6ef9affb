// SPDX-License-Identifier: Apache-2.0

//! Long work that its user may lose patience with, and that has to clear up then.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::interrupt;

/// Does work on a thread of its own, which looks at what it is given: set, it is to end early.
pub(crate) async fn stoppable<T: Send + 'static>(
    work: impl FnOnce(&AtomicBool) -> T + Send + 'static,
) -> T {
    let stop = Arc::new(AtomicBool::new(false));
    let seen = stop.clone();
    let mut done = tokio::task::spawn_blocking(move || work(&seen));
    tokio::select! {
        done = &mut done => return joined(done),
        true = interrupt::wait() => stop.store(true, Ordering::Relaxed),
        else => {}
    }
    joined(done.await)
}

/// What the work came to; its panic is ours.
pub(crate) fn joined<T>(done: Result<T, tokio::task::JoinError>) -> T {
    match done {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
