// SPDX-License-Identifier: Apache-2.0
//! Bringing the live sandbox back to the end of an earlier turn, in place.
//!
//! ```text
//! 1 checkpoint what is there now      the way back, if anything below fails
//! 2 stage: image directory, new upper directory       the sandbox runs on
//! 3 kill, delete, exchange the upper directories      files first
//! 4 restore by CRIU, or create and start              then processes
//! 5 watch and record anew
//! ```
//! The container keeps its id, its network namespace, its mounts, its FIFOs;
//! containerd sees no exit. Running execs end with 137.

use std::{
    sync::Arc,
    time::{Instant, SystemTime},
};

use anyhow::{Context, Result, bail};
use crab_runtime::{
    files::{Index, Scanner},
    overlay::OverlayMount,
};
use crab_store::{JournalRecord, Manifest, RollbackRecord, SandboxStore, Trigger, TurnId};

use super::{RolledBack, task::Task};
use crate::{
    container::INIT,
    history::{Images, stage_processes},
    sandbox::{KILL_LIMIT, Launch, Restore, blocking, unix_ms},
    stdio::Client,
    upper::Replacement,
};

/// Everything of a checkpoint that is ready to be put in place.
struct Prepared {
    manifest: Manifest,
    images: Option<Images>,
    replacement: Replacement,
    overlay: OverlayMount,
    tree: crab_store::Tree,
}

impl Task {
    /// Rolls back to the end of `turn`.
    pub(super) async fn roll_back(&mut self, turn: TurnId) -> Result<RolledBack> {
        let start = Instant::now();
        self.finish_pending().await;
        let store = match &self.history {
            Ok(history) => history.writer.store().clone(),
            Err(reason) => bail!("{reason}"),
        };
        // Refused before anything is touched.
        store.checkpoint_of(turn)?;
        let way_back = self.secure().await?;
        let manifest = store.checkpoint_of(turn)?;
        let from = match &self.history {
            Ok(history) => TurnId(history.next.0.saturating_sub(1)),
            Err(reason) => bail!("{reason}"),
        };
        let prepared = self.prepare(&store, manifest, "rollback-images").await?;
        let client = self
            .container
            .processes
            .with(INIT, |p| p.client.clone())?
            .context("the container has no stdio")?;
        self.container.processes.replacing()?;
        match self.replace(prepared, &client).await {
            Ok((manifest, pid, processes)) => {
                let took = start.elapsed();
                if let Ok(history) = &mut self.history {
                    history.append(JournalRecord::Rollback(RollbackRecord {
                        at_ms: unix_ms(SystemTime::now()),
                        from,
                        asked: turn,
                        checkpoint: manifest.turn,
                        processes,
                        took_us: took.as_micros() as u64,
                    }));
                }
                let checkpoint = manifest.turn;
                self.tell(|status| status.checkpoint = Some(checkpoint));
                Ok(RolledBack {
                    checkpoint,
                    processes,
                    pid,
                    took,
                })
            }
            Err(error) => {
                tracing::error!(turn = turn.0, error = %format!("{error:#}"), "rollback failed; going back");
                match self.go_back(&store, way_back, &client).await {
                    Ok(()) => Err(error.context("the sandbox is as it was")),
                    Err(again) => {
                        self.container.processes.replace_failed();
                        Err(error.context(format!(
                            "the sandbox has ended, as it could not be put back either ({again:#}); \
                             crab restore brings it back"
                        )))
                    }
                }
            }
        }
    }

    /// Sees to it that the state of now is a checkpoint, and tells which. A turn
    /// that is open ends here.
    async fn secure(&mut self) -> Result<Manifest> {
        let (open, trigger, always) = match self.open.take() {
            Some(open) => (Some(open), Trigger::Exec, true),
            None => (self.manual_open(), Trigger::Manual, false),
        };
        self.tell(|status| status.open = false);
        let open = open.context("the sandbox has not begun")?;
        self.boundary(open, trigger, always)
            .await
            .context("checkpoint the state of now")?;
        self.finish_pending().await;
        match &self.history {
            Ok(history) => history
                .version
                .clone()
                .context("the state of now could not be checkpointed; crab turns says why"),
            Err(reason) => bail!("{reason}"),
        }
    }

    async fn prepare(
        &self,
        store: &SandboxStore,
        manifest: Manifest,
        images: &'static str,
    ) -> Result<Prepared> {
        let store = store.clone();
        let dir = self.container.run_dir.join(images);
        let rootfs = self.container.bundle.rootfs().to_path_buf();
        blocking(move || {
            let reader = store.reader(&manifest)?;
            let images = stage_processes(&manifest, &reader, &dir)?;
            let overlay = OverlayMount::find(std::process::id(), &rootfs)?;
            let tree = reader.tree(manifest.files.upper)?;
            let replacement = Replacement::build(&overlay, &tree, &reader)?;
            Ok(Prepared {
                manifest,
                images,
                replacement,
                overlay,
                tree,
            })
        })
        .await
    }

    /// Steps 3 to 5. If one fails, the files of before are in place again, and no
    /// process is left.
    async fn replace(
        &mut self,
        prepared: Prepared,
        client: &Arc<Client>,
    ) -> Result<(Manifest, i32, bool)> {
        let Prepared {
            manifest,
            images,
            replacement,
            overlay,
            tree,
        } = prepared;
        self.clear().await?;
        let rootfs = self.container.bundle.rootfs().to_path_buf();
        let (exchanged, index) = blocking(move || {
            let exchanged = replacement.exchange(&rootfs)?;
            // Before anything runs in it.
            match Scanner::overlay(&overlay)
                .map_err(anyhow::Error::from)
                .and_then(|scanner| Ok(scanner.index_restored(&tree)?))
            {
                Ok(index) => Ok((exchanged, index)),
                Err(error) => {
                    exchanged.undo()?;
                    Err(error)
                }
            }
        })
        .await?;
        match self.revive(&manifest, images.as_ref(), index, client).await {
            Ok(pid) => {
                let _ = blocking(move || {
                    exchanged.keep();
                    Ok(())
                })
                .await;
                Ok((manifest, pid, images.is_some()))
            }
            Err(error) => {
                self.clear().await?;
                blocking(move || exchanged.undo()).await?;
                Err(error)
            }
        }
    }

    /// After a failed [`Self::replace`]: the files are the old ones, so only
    /// processes are brought back.
    async fn go_back(
        &mut self,
        store: &SandboxStore,
        manifest: Manifest,
        client: &Arc<Client>,
    ) -> Result<()> {
        self.clear().await?;
        let prepared = self.prepare(store, manifest, "way-back-images").await?;
        self.replace(prepared, client).await.map(|_| ())
    }

    /// Kills everything in the sandbox and has the runtime forget it.
    async fn clear(&self) -> Result<()> {
        let cgroup = self.container.cgroup();
        let runtime = self.container.runtime.clone();
        blocking(move || {
            if let Some(cgroup) = cgroup {
                // A cgroup that is gone holds nothing.
                if cgroup.processes().is_ok() {
                    cgroup.kill(KILL_LIMIT)?;
                }
            }
            runtime.delete()?;
            Ok(())
        })
        .await
    }

    /// Starts the processes of a checkpoint whose files are in place.
    async fn revive(
        &mut self,
        manifest: &Manifest,
        images: Option<&Images>,
        upper: Index,
        client: &Arc<Client>,
    ) -> Result<i32> {
        let container = self.container.clone();
        container.write_config(true)?;
        let launch = match images {
            None => Launch::Create,
            Some(images) => Launch::Restore(Restore::new(&container, images, client.terminal())),
        };
        let (pid, terminal) = container.launch(client, launch).await?;
        container.adopt(pid)?;
        let rootfs = container.bundle.rootfs().to_path_buf();
        let overlay =
            blocking(move || Ok(OverlayMount::find(std::process::id(), &rootfs)?)).await?;
        let writer = match &self.history {
            Ok(history) => history.writer.clone(),
            Err(reason) => bail!("{reason}"),
        };
        let fresh = images.is_none();
        let capture = self
            .look_at(&writer, &overlay, Some(manifest), Some(upper), fresh)
            .await?;
        if fresh {
            let runtime = container.runtime.clone();
            blocking(move || Ok(runtime.start()?)).await?;
        }
        container.processes.with(INIT, |p| p.terminal = terminal)?;
        container.processes.replaced(pid);
        container.watch_exit(INIT, pid);
        if let Ok(history) = &mut self.history {
            history.capture = Some(capture);
            history.version = Some(manifest.clone());
        }
        self.after_start(!fresh).await?;
        Ok(pid)
    }
}
