// SPDX-License-Identifier: Apache-2.0
//! The gap after a turn's last exec, in which another exec still belongs to it.
//!
//! ```text
//! last exec ends --> look at once, without a freeze        (early, behind the messages)
//!    | exec within the gap: the look is taken back, the turn goes on
//!    v the gap is over
//! conclude: what was taken early is recorded; where a freeze is needed, it is taken now
//! ```
//! So most boundaries are looked at in the moment in which the exec ends, and yet nobody
//! who follows at once ever waits: a look without a freeze holds nobody back, and a
//! freeze comes only when nobody has followed.

use std::time::Instant;

use tokio::task::JoinHandle;

use super::{
    record::Way,
    task::{Open, Task},
};
use crate::capture::{Capture, Known, Taken};

/// A turn whose last exec has ended, while another may follow.
pub(super) struct Closing {
    open: Open,
    pub(super) until: Instant,
}

/// A look in the hands of a working thread.
pub(super) type Early = JoinHandle<(Capture, Known, anyhow::Result<Option<Taken>>)>;

impl Task {
    /// The last exec of a turn has ended: the turn is over, unless another follows.
    pub(super) async fn close_after_gap(&mut self, mut open: Open) {
        let gap = self.container.config.turns.merge_gap();
        if gap.is_zero() {
            self.close_now(open).await;
            return;
        }
        let until = open.over.unwrap_or_else(Instant::now) + gap;
        if self.early.as_ref().is_some_and(|early| early.is_finished()) {
            // Of before the turn went on.
            self.collect(false).await;
        }
        if self.watch.as_ref().is_some_and(|watch| watch.is_finished()) {
            self.settle_watch().await;
        }
        let watches = self.watch.is_none();
        if let Ok(history) = &mut self.history
            // The indexes to compare with come with what is being published.
            && history.pending.is_none()
            && watches
            && self.early.is_none()
            && let Some(mut capture) = history.capture.take()
        {
            open.look_begins();
            let span = tracing::Span::current();
            self.early = Some(tokio::task::spawn_blocking(move || {
                let _in = span.entered();
                let (before, taken) = capture.take_running_only();
                (capture, before, taken)
            }));
        }
        self.closing = Some(Closing { open, until });
    }

    /// A turn is over, and nothing that follows belongs to it.
    pub(super) async fn close_now(&mut self, open: Open) {
        self.tell(|status| status.open = false);
        if let Err(error) = self.boundary(open, Way::Turn).await {
            tracing::error!(error = %format!("{error:#}"), "no checkpoint of this turn");
        }
    }

    /// An exec begins that was asked for at this time: the turn that is closing goes on,
    /// or is over.
    pub(super) async fn go_on(&mut self, at: Instant) {
        match self.closing.take_if(|closing| at < closing.until) {
            // What is being looked at is of no use any more, and is not waited for.
            Some(Closing { open, .. }) => self.open = Some(open.again()),
            None => self.conclude().await,
        }
    }

    /// The gap is over, or nobody must follow any more.
    pub(super) async fn conclude(&mut self) {
        let Some(Closing { open, .. }) = self.closing.take() else {
            return;
        };
        let Some(taken) = self.collect(true).await else {
            self.close_now(open).await;
            return;
        };
        self.tell(|status| {
            status.open = false;
            status.unobserved = taken.unobserved.clone();
        });
        self.schedule.turn_is_over(open.turn.0, open.over, false);
        if let Err(error) = self.record(open.record(), taken, Way::Turn) {
            tracing::error!(error = %format!("{error:#}"), "no checkpoint of this turn");
        }
    }

    /// Waits for an early look and takes the capture back. Gives what it took if that is
    /// wanted, and else is as if it had never been.
    pub(super) async fn collect(&mut self, wanted: bool) -> Option<Taken> {
        let early = self.early.take()?;
        let (mut capture, before, taken) = match early.await {
            Ok(done) => done,
            Err(panic) => {
                tracing::error!(%panic, "a look panicked");
                return None;
            }
        };
        let taken = match taken {
            Ok(taken) => taken.filter(|_| wanted),
            Err(error) => {
                // Whatever it is, it is met and told again by the look that follows.
                tracing::debug!(error = %format!("{error:#}"), "no early look");
                None
            }
        };
        if taken.is_none() {
            capture.go_back(before);
        }
        if let Ok(history) = &mut self.history {
            history.capture = Some(capture);
        }
        taken
    }
}
