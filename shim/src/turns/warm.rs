// SPDX-License-Identifier: Apache-2.0
//! A rollback under processes that go on, where they are the checkpoint's own.

use std::time::Duration;

use anyhow::{Context, Error, Result, bail};
use crab_fault::Point;
use crab_store::{Manifest, SandboxStore};

use super::{Verified, task::Task};
use crate::capture::{Warm, same_processes};

/// What came of trying.
pub(super) enum Tried {
    Done {
        stood: Duration,
        verified: Result<Option<Verified>>,
    },
    /// The sandbox is as it was, and its processes have to be replaced, for this reason.
    Cold(String),
    /// Files are neither as they were nor as they should be.
    Torn(Error),
}

impl Task {
    /// Puts the files of `target` back where nothing else differs from `now`, the newest
    /// checkpoint.
    pub(super) async fn try_warm(
        &mut self,
        store: &SandboxStore,
        target: &Manifest,
        now: &Manifest,
        verify: bool,
    ) -> Result<Tried> {
        if let Err(why) = same_processes(target, now) {
            return Ok(Tried::Cold(why));
        }
        let execs = self.container.processes.execs();
        if let Some((pid, exec)) = execs.iter().next() {
            return Ok(Tried::Cold(format!(
                "exec {exec} (process {pid}) still runs"
            )));
        }
        let (reader, reader_of_now) = (store.reader(target)?, store.reader(now)?);
        let rootfs = self.container.bundle.rootfs().to_path_buf();
        let manifest = target.clone();
        let note = self.note_of_rollback(target, now)?;
        let writer = self.history()?.writer.clone();
        let note = move || {
            crab_fault::pass(Point::WarmNote)?;
            Ok(writer.begin_rollback(note)?)
        };
        let warm = self
            .with_capture(move |capture| {
                capture.go_warm(&manifest, &reader, &reader_of_now, &rootfs, verify, note)
            })
            .await;
        Ok(match warm {
            Ok(Warm::Done {
                stood,
                verification,
            }) => {
                let Ok(history) = &mut self.history else {
                    bail!("the sandbox is being deleted");
                };
                history.version = Some(target.clone());
                let verified = verification
                    .map(|verification| {
                        Some(Verified {
                            checkpoint: target.turn,
                            degraded: target.degraded.clone(),
                            verification: verification?,
                        })
                    })
                    .context("the sandbox is back, and could not be compared");
                Tried::Done { stood, verified }
            }
            Ok(Warm::Unsuitable(why)) => Tried::Cold(why),
            Ok(Warm::PutBack(error)) => {
                tracing::warn!(error = %format!("{error:#}"), "files could not be put back in place");
                Tried::Cold(format!("files could not be put back in place: {error:#}"))
            }
            Ok(Warm::Torn(error)) => Tried::Torn(error),
            // A worker that panicked may have been in the middle of it; it has not given the
            // capture back.
            Err(error) if matches!(&self.history, Ok(history) if history.capture.is_none()) => {
                Tried::Torn(error)
            }
            // Before anything was touched.
            Err(error) => {
                tracing::warn!(error = %format!("{error:#}"), "files cannot be put back in place");
                Tried::Cold(format!("{error:#}"))
            }
        })
    }
}
