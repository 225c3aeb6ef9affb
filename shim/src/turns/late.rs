// SPDX-License-Identifier: Apache-2.0
//! A sandbox without a history: for good, or until one can be opened.
//!
//! A container runs whatever is wrong with the store. Where that may pass it is tried again, as
//! long as it takes ([`super::again`]), and at once when somebody asks for a checkpoint.

use anyhow::Result;
use crab_runtime::mount::MountRequest;

use super::{record::Way, task::Task};
use crate::{
    history::{self, Ledger, Without},
    sandbox::blocking,
};

/// What it takes to open a history late.
pub(super) struct Late {
    pub(super) mounts: Vec<MountRequest>,
    /// The container was not restored by CRIU.
    pub(super) fresh: bool,
}

impl Task {
    /// There is no history; where that may pass, it is tried again.
    pub(super) fn without(&mut self, without: Without, late: Late) {
        let Without { reason, may_pass } = without;
        if !self.container.bundle.is_pause() {
            tracing::warn!(reason, may_pass, "this sandbox has no checkpoints");
        }
        self.tell(|status| status.unobserved = Some(reason.clone()));
        self.history = Err(reason);
        self.again = None;
        self.late = may_pass.then_some(late);
        if may_pass {
            self.owe();
        }
    }

    /// Opens the history that could not be when the container began. Its first turn is what is
    /// there now.
    pub(super) async fn open_again(&mut self) -> Result<()> {
        let Some(late) = &self.late else {
            self.again = None;
            return Ok(());
        };
        let (container, mounts) = (self.container.clone(), late.mounts.clone());
        let fresh = late.fresh;
        let opened = blocking(move || history::reopen(&container, &mounts)).await;
        let begun = async {
            let Ledger { writer, root, .. } = opened?;
            let capture = self.look_at(&writer, &root, None, None, false).await?;
            let next = writer.store().next_turn()?;
            anyhow::Ok((writer, capture, next))
        };
        let (writer, capture, next) = match begun.await {
            Ok(begun) => begun,
            Err(error) => {
                let Without { reason, may_pass } = Without::because(&error);
                self.tell(|status| status.unobserved = Some(reason.clone()));
                self.history = Err(reason);
                if may_pass {
                    self.owe();
                } else {
                    (self.late, self.again) = (None, None);
                }
                return Err(error);
            }
        };
        tracing::info!("this sandbox has checkpoints from now on");
        (self.late, self.again) = (None, None);
        self.begin_history(writer, capture, None, next);
        self.beginning = Some((next, fresh));
        self.note_beginning();
        if let Err(error) = self.after_start(false).await {
            tracing::warn!(error = %format!("{error:#}"), "the processes were not recorded");
        }
        self.settle_init().await;
        self.first_turn(next, Way::Turn).await;
        Ok(())
    }
}
