// SPDX-License-Identifier: Apache-2.0
//! How turns begin: with a container that is created, or was restored.

use std::{
    collections::VecDeque,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result};
use crab_api::tracer::Effects;
use crab_runtime::{
    files::{Index, apply},
    procs::{KeepAlive, Places, Set},
    rootfs::RootFs,
};
use crab_store::{
    Digest, JournalRecord, Manifest, ProcessImage, RestoreRequest, RollbackRecord, SandboxWriter,
    Step, Trigger, TurnId, command_line,
};
use tokio::runtime::Handle;

use super::{
    late::Late,
    record::Way,
    task::{History, Open, Task, Watch, note},
};
use crate::{
    capture::{Baseline, Capture, Known, Lasting, images_of, mount_table, open_roots},
    history::{Beginning, Ledger, Restored, Without},
    publish::PLACES,
    relevance::Relevance,
    sandbox::{blocking, unix_ms},
    tracer::Watched,
};

impl Task {
    /// The container exists, its program does not run yet (or was restored).
    pub(super) async fn before_start(&mut self, beginning: Beginning, fresh: bool) -> Result<()> {
        let Beginning { ledger, mounts, .. } = beginning;
        let late = Late { mounts, fresh };
        let ledger = match ledger {
            Ok(ledger) => ledger,
            Err(without) => {
                self.without(without, late);
                return Ok(());
            }
        };
        let Ledger {
            writer,
            root,
            restored,
        } = ledger;
        let version = restored.as_ref().map(|r| r.manifest.clone());
        let (restored, upper) = match restored {
            Some(Restored {
                request,
                manifest,
                upper,
            }) => (Some((request, manifest)), Some(upper)),
            None => (None, None),
        };
        let begun = async {
            let capture = self
                .look_at(&writer, &root, version.as_ref(), upper, fresh)
                .await?;
            anyhow::Ok((capture, writer.store().next_turn()?))
        };
        let (capture, next) = match begun.await {
            Ok(begun) => begun,
            // A restore that was asked for fails; any other container runs without
            // checkpoints.
            Err(error) if restored.is_some() => return Err(error),
            Err(error) => {
                self.without(Without::because(&error), late);
                return Ok(());
            }
        };
        self.begin_history(writer, capture, version, next);
        let newest = TurnId(next.0.saturating_sub(1));
        self.beginning = Some(match restored {
            Some(_) => (newest, false),
            None => (next, fresh),
        });
        match restored {
            Some((request, manifest)) => self.note_restore(request, &manifest),
            // Restored from a client's images, it runs already.
            None if fresh => self.first_turn(next, Way::Initial).await,
            None => self.first_turn(next, Way::Turn).await,
        }
        Ok(())
    }

    /// The turn with which a container begins.
    pub(super) async fn first_turn(&mut self, turn: TurnId, way: Way) {
        let command = command_line(self.container.bundle.args());
        let open = Open::new(turn, Trigger::Start, command, Duration::ZERO);
        if let Ok(history) = &self.history {
            let (trigger, command) = (open.trigger, open.command.clone());
            history.note(turn, Step::Opened { trigger, command });
        }
        if let Err(error) = self.boundary(open, way).await {
            // The container starts nevertheless; it is tried again.
            tracing::error!(error = %format!("{error:#}"), "no checkpoint of the start");
        }
    }

    /// What happens is written down from now on.
    pub(super) fn begin_history(
        &mut self,
        writer: SandboxWriter,
        capture: Capture,
        version: Option<Manifest>,
        next: TurnId,
    ) {
        let writer = Arc::new(writer);
        self.schedule.tell_of_waits({
            // What waits does not keep the history of a sandbox that is gone.
            let writer = Arc::downgrade(&writer);
            move |turn| {
                if let Some(writer) = writer.upgrade() {
                    note(&writer, TurnId(turn), Step::Queued);
                }
            }
        });
        self.history = Ok(History {
            writer,
            capture: Some(capture),
            version,
            next,
            pending: None,
            unwritten: VecDeque::new(),
        });
        self.record_belated();
    }

    /// The shim before this one may have died when a turn was in the store and not yet in the
    /// journal.
    fn record_belated(&mut self) {
        let Ok(history) = &mut self.history else {
            return;
        };
        match history.writer.store().belated() {
            Ok(Some(record)) => history.append(JournalRecord::Turn(record)),
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "whether a turn is missing is not known"),
        }
    }

    fn note_restore(&mut self, request: RestoreRequest, manifest: &Manifest) {
        if let Ok(history) = &mut self.history
            // How a copy began is in its journal.
            && !request.fork
        {
            let from = TurnId(history.next.0.saturating_sub(1));
            let now = unix_ms(SystemTime::now());
            history.append(JournalRecord::Restore(RollbackRecord {
                at_ms: now,
                from,
                asked: request.turn,
                checkpoint: manifest.turn,
                processes: manifest.processes.is_some(),
                took_us: now.saturating_sub(request.requested_ms) * 1000,
                warm: false,
            }));
        }
        let checkpoint = manifest.turn;
        self.tell(|status| {
            status.checkpoint = Some(checkpoint);
            status.turn = checkpoint.0;
        });
    }

    /// Opens what captures look at, and begins to watch it. With a checkpoint,
    /// the files are that checkpoint's already, and `upper` is their index from
    /// before anything ran; where the container is `fresh` (not restored by CRIU)
    /// the memory-backed mounts are made so now.
    pub(super) async fn look_at(
        &mut self,
        writer: &SandboxWriter,
        rootfs: &RootFs,
        version: Option<&Manifest>,
        upper: Option<Index>,
        fresh: bool,
    ) -> Result<Capture> {
        let cgroup = self
            .container
            .cgroup()
            .context("the container has no cgroup")?;
        let init = self.container.init_pid()?;
        let reader = version
            .map(|manifest| writer.store().reader(manifest))
            .transpose()?;
        let version = version.cloned();
        let mut upper = upper;
        let rootfs = rootfs.clone();
        let root_device = rootfs.own_device();
        let (roots, mounts) = blocking(move || {
            let (mut roots, mounts) = open_roots(&rootfs, init)?;
            if let (Some(manifest), Some(reader)) = (&version, &reader) {
                for root in &mut roots {
                    let Some(digest) = tree_of(manifest, root.mount.as_deref()) else {
                        continue;
                    };
                    if root.mount.is_none()
                        && let Some(index) = upper.take()
                    {
                        root.index = index;
                        root.tree = Some(digest);
                        continue;
                    }
                    let tree = reader.tree(digest)?;
                    if fresh && root.mount.is_some() {
                        apply(&tree, reader, root.scanner.root(), &Index::default())?;
                    }
                    match root.scanner.index_restored(&tree) {
                        Ok(index) => {
                            root.index = index;
                            root.tree = Some(digest);
                        }
                        // Then the next look reads it all again.
                        Err(error) => tracing::warn!(%error, "a restored root differs"),
                    }
                }
            }
            Ok((roots, mounts))
        })
        .await?;
        let mut devices = Vec::from_iter(root_device);
        devices.extend(mounts.iter().map(|mount| mount.device));
        let tracer = self.tracer.clone();
        let watched = Watched {
            cgroup: cgroup.clone(),
            devices: devices.clone(),
            init,
        };
        let watch = tokio::spawn(async move { tracer.watch(watched).await });
        // A start does not wait for crabd's own. What happens until the watch begins is not
        // counted, so the first look compares everything.
        let late = fresh && self.tracer.is_coming();
        let base = if late {
            self.watch = Some(watch);
            None
        } else {
            watched_since(watch).await
        };
        let table = mount_table(init);
        let (lasting, objects) = Lasting::of(&self.container.bundle, init, &table, fresh);
        Ok(Capture {
            container: self.container.clone(),
            tracer: self.tracer.clone(),
            schedule: self.schedule.clone(),
            roots,
            tmpfs_images: images_of(&mounts),
            root_device,
            devices,
            cgroup,
            init,
            keep_alive: KeepAlive::for_command(init, self.container.bundle.args()),
            doubt: None,
            known: Known {
                base,
                // A restored one's are those of the image.
                objects,
                // Processes that were restored, or started meanwhile, have run before the
                // watch began.
                reread: !fresh || late,
                owed: !fresh || late,
                ..Known::default()
            },
            mount_table: table,
            lasting,
            relevance: Relevance::of(&self.container.config.ignore),
            async_runtime: Handle::current(),
        })
    }

    /// Waits for a watch that was to begin when crabd is there.
    pub(super) async fn settle_watch(&mut self) {
        let Some(watch) = self.watch.take() else {
            return;
        };
        let base = watched_since(watch).await;
        if let Ok(History {
            capture: Some(capture),
            ..
        }) = &mut self.history
        {
            capture.known.base = base;
        }
    }

    pub(super) async fn after_start(&mut self, restored: bool) -> Result<()> {
        let Ok(history) = &mut self.history else {
            return Ok(());
        };
        let Some(mut capture) = history.capture.take() else {
            return Ok(());
        };
        let holds_open = capture.keep_alive.is_some();
        let processes = history.version.as_ref().and_then(|v| v.processes);
        let store = history.writer.store().clone();
        let version = history.version.clone();
        let (capture, recorded) = blocking(move || {
            let recorded = (|| -> Result<()> {
                match (restored, processes, version) {
                    (true, Some(processes), Some(version)) => {
                        let reader = store.reader(&version)?;
                        let image = reader.process_image(processes.digest)?;
                        let places = places_of(&image)?;
                        capture.init_matters_if_in(&image.processes);
                        capture.known.some_processes = true;
                        capture.note_restored()?;
                        capture.settle_restored(&places)?;
                    }
                    // A keep-alive init leaves nothing to record; any other has just
                    // begun, and the first turn's end takes it as it is then.
                    _ if capture.keep_alive.is_some() => {
                        capture.known.baseline = Some(Baseline::untouched(Set::default()));
                    }
                    _ => {}
                }
                Ok(())
            })();
            Ok((capture, recorded))
        })
        .await?;
        if let Ok(history) = &mut self.history {
            history.capture = Some(capture);
        }
        self.begin_inside(holds_open);
        recorded
    }

    /// Has the init looked at as it is, before anything can be done to it.
    pub(super) async fn settle_init(&mut self) {
        self.with_init(Capture::settle_init).await;
    }

    pub(super) async fn with_init(&mut self, act: fn(&mut Capture)) {
        let Ok(history) = &mut self.history else {
            return;
        };
        let Some(mut capture) = history.capture.take() else {
            return;
        };
        let settled = blocking(move || {
            act(&mut capture);
            Ok(capture)
        });
        history.capture = settled.await.ok();
    }
}

/// The counters when the watch began.
async fn watched_since(watch: Watch) -> Option<Effects> {
    let base = watch.await.unwrap_or_else(|error| Err(error.to_string()));
    base.inspect_err(|reason| tracing::warn!(reason, "turns are unobserved"))
        .ok()
}

fn places_of(image: &ProcessImage) -> Result<Places> {
    let text = image.extra.get(PLACES).context("the image has no places")?;
    Ok(serde_json::from_str(text)?)
}

/// The tree of a root in a checkpoint.
fn tree_of(manifest: &Manifest, mount: Option<&Path>) -> Option<Digest> {
    match mount {
        None => Some(manifest.files.upper),
        Some(mount) => manifest
            .files
            .tmpfs
            .iter()
            .find(|tmpfs| tmpfs.mount == mount.as_os_str().as_encoded_bytes())
            .map(|tmpfs| tmpfs.tree),
    }
}
