// SPDX-License-Identifier: Apache-2.0
//! Work that nobody waits for: on threads that give way to everything else.

use std::{io, thread};

use anyhow::{Result, anyhow};
use tokio::sync::oneshot;

/// As `nice` has it.
const NICENESS: i32 = 10;

/// Runs `work` on a thread of its own and of low priority.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let span = tracing::Span::current();
    let work = move || {
        let _in = span.entered();
        // What it calls on inherits it. Without, it is as any other thread.
        if rustix::process::getpriority_process(None).is_ok_and(|nice| nice < NICENESS) {
            let _ = rustix::process::setpriority_process(None, NICENESS);
        }
        work();
    };
    thread::Builder::new().name(name.into()).spawn(work)?;
    Ok(())
}

/// The same, and waits for what comes out of it.
pub(crate) async fn run<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (done, result) = oneshot::channel();
    spawn(name, move || {
        let _ = done.send(work());
    })?;
    result.await.map_err(|_| anyhow!("the {name} panicked"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_runs_in_the_background_gives_way_and_what_started_it_does_not() {
        let niceness = || rustix::process::getpriority_process(None);
        let before = niceness().unwrap();
        let inside = run("test", move || Ok(niceness()?)).await.unwrap();
        assert_eq!(inside, NICENESS.max(before));
        assert_eq!(niceness().unwrap(), before);
    }

    #[tokio::test]
    async fn a_panic_is_an_error() {
        let result = run::<()>("test", || panic!("on purpose")).await;
        assert_eq!(result.unwrap_err().to_string(), "the test panicked");
    }
}
