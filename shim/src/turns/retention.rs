// SPDX-License-Identifier: Apache-2.0
//! Removing checkpoints that are not to be kept, behind everything else.
//!
//! It runs on a thread of its own with a low priority, beside captures and publications: the
//! store sees to it that neither loses anything ([`crab_store::SandboxWriter::collect`]). It is
//! begun after a publication, and not after each: a removal reads every manifest, so one is
//! worth it when a part of what is kept has come anew.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Result, anyhow};
use crab_store::{Collected, Limits, Wanted};
use tokio::sync::oneshot;

use super::task::Task;
use crate::{background, sandbox::unix_ms};

/// One in so many parts of what is kept has to be new.
const SHARE: u64 = 8;
/// The least time between removals by age.
const LEAST: Duration = Duration::from_secs(60);

/// What has come since the last removal.
#[derive(Debug, Default)]
pub(super) struct Since {
    publications: u64,
    bytes: u64,
    /// When that removal was; nothing if there was none yet.
    removal: Option<Instant>,
}

impl Since {
    /// Whether a removal may find something, and enough to be worth it.
    fn is_due(&self, limits: &Limits, now: Instant) -> bool {
        if limits.is_none() {
            return false;
        }
        let Some(last) = self.removal else {
            return true;
        };
        let by_count = |count| self.publications.saturating_mul(SHARE) > count;
        let by_bytes = |bytes| self.bytes.saturating_mul(SHARE) > bytes;
        let by_age = |age_ms| {
            let pause = Duration::from_millis(age_ms / SHARE).max(LEAST);
            now.saturating_duration_since(last) > pause
        };
        limits.count.is_some_and(by_count)
            || limits.bytes.is_some_and(by_bytes)
            || limits.age_ms.is_some_and(by_age)
    }
}

/// Removals that are under way.
#[derive(Debug, Default)]
pub(super) struct Removals {
    since: Since,
    stop: Arc<AtomicBool>,
    running: Vec<oneshot::Receiver<()>>,
}

impl Task {
    /// A checkpoint was published, of so many bytes.
    pub(super) fn retain(&mut self, bytes: u64) {
        let since = &mut self.removals.since;
        since.publications += 1;
        since.bytes = since.bytes.saturating_add(bytes);
        let limits = self.container.retention();
        if since.is_due(&limits, Instant::now()) {
            self.remove(limits, None);
        }
    }

    /// Begins to remove what these limits do not keep.
    pub(super) fn remove(
        &mut self,
        limits: Limits,
        reply: Option<oneshot::Sender<Result<Collected>>>,
    ) {
        let history = match &self.history {
            Ok(history) => history,
            Err(reason) => {
                if let Some(reply) = reply {
                    let _ = reply.send(Err(anyhow!("{reason}")));
                }
                return;
            }
        };
        let writer = history.writer.clone();
        // What is there now may not be in the journal yet.
        let in_use: BTreeSet<_> = history.version.iter().map(|it| it.turn).collect();
        let stop = self.removals.stop.clone();
        let (done, running) = oneshot::channel();
        let work = move || {
            let wanted = Wanted {
                limits,
                now_ms: unix_ms(SystemTime::now()),
                in_use,
                stop: Some(&stop),
                yields: false,
            };
            let collected = writer.collect(&wanted);
            drop(writer);
            match &collected {
                Ok(collected) => tracing::info!(
                    removed = collected.removed.len(),
                    kept = collected.kept,
                    freed = collected.bytes_freed,
                    postponed = collected.postponed,
                    "checkpoints that are not kept were removed"
                ),
                Err(error) => tracing::warn!(%error, "checkpoints could not be removed"),
            }
            if let Some(reply) = reply {
                let _ = reply.send(collected.map_err(Into::into));
            }
            // Whoever waits for the end of this waits for the writer to be let go of.
            drop(done);
        };
        if let Err(error) = background::spawn("removal", work) {
            tracing::warn!(%error, "no thread to remove checkpoints");
            return;
        }
        let removals = &mut self.removals;
        let is_over = |it: &mut oneshot::Receiver<()>| {
            !matches!(it.try_recv(), Err(oneshot::error::TryRecvError::Empty))
        };
        removals.running.retain_mut(|it| !is_over(it));
        removals.running.push(running);
        removals.since = Since {
            removal: Some(Instant::now()),
            ..Since::default()
        };
    }

    /// Has removals end, and waits for it.
    pub(super) async fn end_removals(&mut self) {
        self.removals.stop.store(true, Ordering::Relaxed);
        for running in self.removals.running.drain(..) {
            let _ = running.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removal_is_due_when_an_eighth_is_new() {
        let now = Instant::now();
        let count = |count| Limits {
            count: Some(count),
            ..Limits::default()
        };
        let since = |publications| Since {
            publications,
            bytes: 0,
            removal: Some(now),
        };
        assert!(!since(1000).is_due(&Limits::default(), now));
        assert!(Since::default().is_due(&count(1000), now), "the first");
        assert!(since(1).is_due(&count(3), now));
        assert!(!since(12).is_due(&count(100), now));
        assert!(since(13).is_due(&count(100), now));
    }

    #[test]
    fn what_is_too_old_is_looked_for_now_and_then() {
        let now = Instant::now();
        let limits = Limits {
            age_ms: Some(3_600_000),
            ..Limits::default()
        };
        let since = Since {
            publications: 1,
            bytes: 0,
            removal: Some(now),
        };
        assert!(!since.is_due(&limits, now + Duration::from_secs(400)));
        assert!(since.is_due(&limits, now + Duration::from_secs(460)));
    }
}
