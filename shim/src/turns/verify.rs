// SPDX-License-Identifier: Apache-2.0
//! Comparing the live sandbox with a checkpoint. Nothing becomes of it: no turn ends, and
//! nothing is captured.

use anyhow::{Context, Result, bail};
use crab_store::{Manifest, TurnId};

use super::{Verified, task::Task};
use crate::{capture::Capture, sandbox::blocking};

impl Task {
    /// With the end of a turn, or with the newest checkpoint.
    pub(super) async fn verify(&mut self, turn: Option<TurnId>) -> Result<Verified> {
        self.finish_pending_now().await;
        let history = self.history()?;
        let manifest = match (turn, &history.version) {
            (Some(turn), _) => history.writer.store().checkpoint_of(turn)?,
            (None, Some(version)) => version.clone(),
            (None, None) => bail!("there is no checkpoint of this sandbox yet"),
        };
        self.compare_with(manifest).await
    }

    pub(super) async fn compare_with(&mut self, manifest: Manifest) -> Result<Verified> {
        let reader = self.history()?.writer.store().reader(&manifest)?;
        let (checkpoint, degraded) = (manifest.turn, manifest.degraded.clone());
        let verification = self
            .with_capture(move |capture| capture.verify(&manifest, &reader))
            .await?;
        Ok(Verified {
            checkpoint,
            degraded,
            verification,
        })
    }

    /// Does something that blocks with the capture.
    pub(super) async fn with_capture<T: Send + 'static>(
        &mut self,
        f: impl FnOnce(&mut Capture) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.settle_watch().await;
        let Ok(history) = &mut self.history else {
            bail!("the sandbox is being deleted");
        };
        let mut capture = history
            .capture
            .take()
            .context("the sandbox has not begun")?;
        let (capture, done) = blocking(move || {
            let done = f(&mut capture);
            Ok((capture, done))
        })
        .await?;
        if let Ok(history) = &mut self.history {
            history.capture = Some(capture);
        }
        done
    }
}
