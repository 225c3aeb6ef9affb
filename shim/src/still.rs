// SPDX-License-Identifier: Apache-2.0
//! While a sandbox stands still, nothing can be started in it: it is frozen, or its
//! processes are being exchanged. An exec that waits at the gate then waits on.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::time::sleep;

use crate::sandbox::Container;

/// The sandbox stands still for as long as this, or another one, is there.
pub(crate) struct Still(Arc<Container>);

impl Still {
    /// Whether it does now.
    pub(crate) fn stands(container: &Container) -> bool {
        container.standing_still.load(Ordering::SeqCst) > 0
    }

    /// From now on.
    pub(crate) fn stand(container: Arc<Container>) -> Self {
        container.standing_still.fetch_add(1, Ordering::SeqCst);
        Self(container)
    }

    /// The same, once those who are being started in it are there: a runtime that finds the
    /// sandbox frozen refuses. For a thread that may wait.
    pub(crate) fn stand_when_entered(container: Arc<Container>) -> Self {
        let still = Self::stand(container);
        let start = Instant::now();
        while still.0.entering.load(Ordering::SeqCst) > 0 && start.elapsed() < ENTER_LIMIT {
            thread::sleep(PAUSE);
        }
        still
    }
}

/// How long a start in a sandbox may hold back a freeze.
const ENTER_LIMIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);

/// Something is being started in a sandbox for as long as this is there.
pub(crate) struct Entering<'a>(&'a AtomicUsize);

impl<'a> Entering<'a> {
    /// Waits while the sandbox stands still.
    pub(crate) async fn begin(container: &'a Container) -> Self {
        loop {
            container.entering.fetch_add(1, Ordering::SeqCst);
            let entering = Self(&container.entering);
            if !Still::stands(container) {
                return entering;
            }
            drop(entering);
            sleep(PAUSE).await;
        }
    }
}

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        self.0.standing_still.fetch_sub(1, Ordering::SeqCst);
    }
}
