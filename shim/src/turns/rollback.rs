// SPDX-License-Identifier: Apache-2.0
//! Bringing the live sandbox back to the end of an earlier turn, in place.
//!
//! ```text
//! 1 checkpoint what is there now      the way back, if anything below fails; a note of it in
//!                                     the store, if the shim is killed
//! warm: where the processes are the checkpoint's own, put back files alone ([`super::warm`])
//! cold:
//! 2 stage: image directory, new upper directory       the sandbox runs on
//! 3 kill, delete, exchange the upper directories      files first ([`crate::whole_root`])
//! 4 restore by CRIU, or create and start              then processes
//! 5 watch and record anew
//! ```
//! The container keeps its id, its network namespace, its mounts, its FIFOs;
//! containerd sees no exit. Running execs end with 137.

use std::{
    fmt::Write,
    sync::Arc,
    thread,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context, Error, Result, anyhow};
use crab_fault::Point;
use crab_runtime::{files::Index, rootfs::RootFs};
use crab_store::{
    Class, Hold, JournalRecord, Manifest, ObjectReader, RollbackBegun, RollbackRecord,
    SandboxStore, TurnId,
};

use super::{RollbackWish, RolledBack, record::Way, task::Task, warm::Tried};
use crate::{
    capture::micros,
    container::INIT,
    history::{Images, stage_processes},
    sandbox::{KILL_LIMIT, Launch, Launched, Restore, blocking, unix_ms},
    stdio::Client,
    still::Still,
    upper::Fell,
    whole_root::{Before, Files, NewRoot, check_is_live},
};

/// The checkpoint that a sandbox goes back to, ready to be put in place.
struct Target {
    manifest: Manifest,
    images: Option<Images>,
    root: NewRoot,
}

/// The state of now, ready to be gone back to. Its files are those in place.
struct WayBack {
    manifest: Manifest,
    images: Option<Images>,
}

/// The files are whole: those of before, or those that were wanted and that the journal tells of.
fn end_rollback(store: &SandboxStore) {
    if let Err(error) = store.end_rollback() {
        // The journal goes on, and tells that it is over.
        tracing::error!(%error, "the note of the rollback is left");
    }
}

impl Task {
    /// Rolls back to the end of a turn.
    pub(super) async fn roll_back(&mut self, wish: RollbackWish) -> Result<RolledBack> {
        let RollbackWish { turn, verify, cold } = wish;
        let start = Instant::now();
        self.finish_pending_now().await;
        let store = self.history()?.writer.store().clone();
        // Refused before anything is touched.
        let wanted = store.checkpoint_of(turn)?;
        // It is not removed until the journal says that it is the newest state.
        let _hold = self.hold(wanted.turn)?;
        self.container.restorable(&wanted).await?;
        let now = self.secure().await?;
        let secured = start.elapsed();
        let manifest = store.checkpoint_of(turn)?;
        let from = TurnId(self.history()?.next.0.saturating_sub(1));
        let (checkpoint, processes) = (manifest.turn, manifest.processes.is_some());
        let mut verified = Ok(None);
        let tried = match cold {
            true => Tried::Cold("it was asked for".into()),
            false => self.try_warm(&store, &manifest, &now, verify).await?,
        };
        let (stood, cold_because) = match tried {
            Tried::Done {
                stood,
                verified: compared,
            } => {
                verified = compared;
                (stood, None)
            }
            Tried::Cold(why) => match self.go_cold(&store, manifest.clone(), now).await {
                Ok(stood) => (stood, Some(why)),
                Err(Fell { error, is_whole }) => {
                    if is_whole {
                        end_rollback(&store);
                    }
                    return Err(error);
                }
            },
            Tried::Torn(error) => {
                tracing::error!(error = %format!("{error:#}"), "files are torn; going back");
                return Err(self.mend(&store, now, error).await);
            }
        };
        let took = start.elapsed();
        crab_fault::at(match cold_because {
            None => Point::WarmDone,
            Some(_) => Point::ColdDone,
        });
        if let Ok(history) = &mut self.history {
            history.append(JournalRecord::Rollback(RollbackRecord {
                at_ms: unix_ms(SystemTime::now()),
                from,
                asked: turn,
                checkpoint,
                processes,
                took_us: micros(took),
                warm: cold_because.is_none(),
            }));
        }
        end_rollback(&store);
        self.tell(|status| status.checkpoint = Some(checkpoint));
        self.again = None;
        if verify && cold_because.is_some() {
            self.note_processes().await;
            verified = self.compare_with(manifest).await.map(Some);
        }
        tracing::info!(
            turn = turn.0,
            warm = cold_because.is_none(),
            cold_because,
            secured_us = micros(secured),
            stood_us = micros(stood),
            took_us = micros(took),
            "rolled back"
        );
        Ok(RolledBack {
            checkpoint,
            processes,
            pid: self.container.processes.init()?.pid(),
            cold_because,
            secured,
            stood,
            took,
            verified: verified.context("the sandbox is back, and could not be compared")?,
        })
    }

    /// With other processes; tells for how long there were none.
    async fn go_cold(
        &mut self,
        store: &SandboxStore,
        manifest: Manifest,
        now: Manifest,
    ) -> Result<Duration, Fell> {
        let turn = manifest.turn;
        self.finish_removal().await;
        let (target, way_back) = self.prepare(store, manifest, now).await?;
        let note = self.note_of_rollback(&target.manifest, &way_back.manifest)?;
        let writer = self.history()?.writer.clone();
        blocking(move || Ok(writer.begin_rollback(note)?))
            .await
            .context("note the rollback, for the case that it is interrupted")?;
        let client = self
            .container
            .processes
            .with(INIT, |p| p.client.clone())
            .map_err(Error::from)?
            .context("the container has no stdio")?;
        self.container.processes.replacing().map_err(Error::from)?;
        let _still = Still::stand(self.container.clone());
        let start = Instant::now();
        let Err(Fell { error, is_whole }) = self.replace(target, &client).await else {
            return Ok(start.elapsed());
        };
        tracing::error!(turn = turn.0, error = %format!("{error:#}"), "rollback failed; going back");
        let back = match is_whole {
            true => self.go_back(way_back, &client).await,
            // Its processes would find the files of another turn.
            false => Err(anyhow!("the files are not those of before")),
        };
        match back {
            Ok(()) => Err(error.context("the sandbox is as it was").into()),
            Err(again) => {
                // Whatever came up of it is not the sandbox.
                if let Err(left) = self.clear().await {
                    tracing::error!(error = %format!("{left:#}"), "processes are left");
                }
                self.unrecorded = None;
                self.container.processes.replace_failed();
                let error = error.context(format!(
                    "the sandbox has ended, as it could not be put back either ({again:#}); \
                     crab restore brings it back"
                ));
                Err(Fell {
                    error,
                    is_whole: false,
                })
            }
        }
    }

    /// Makes the sandbox all what it was, whose files are neither as they were nor as they
    /// should be. Gives the error, with what came of that.
    async fn mend(&mut self, store: &SandboxStore, now: Manifest, error: Error) -> Error {
        let turn = now.turn;
        match self.go_cold(store, now.clone(), now).await {
            Ok(_) => {
                end_rollback(store);
                error.context("the sandbox is as it was")
            }
            Err(Fell { error: again, .. }) => error.context(format!(
                "its files are neither as they were nor as they should be, and it could not be \
                 put back ({again:#}); checkpoint {turn} is as it was"
            )),
        }
    }

    /// What the store is told before files are changed.
    pub(super) fn note_of_rollback(
        &self,
        target: &Manifest,
        now: &Manifest,
    ) -> Result<RollbackBegun> {
        Ok(RollbackBegun {
            before: now.turn,
            target: target.turn,
            next: self.history()?.next,
            begun_ms: unix_ms(SystemTime::now()),
        })
    }

    /// Keeps a checkpoint from being removed.
    fn hold(&self, checkpoint: TurnId) -> Result<Hold> {
        Ok(self.history()?.writer.hold(checkpoint)?)
    }

    /// Sees to it that the state of now is a checkpoint, and tells which. A turn
    /// that is open ends here.
    async fn secure(&mut self) -> Result<Manifest> {
        let (open, way) = match self.take_open() {
            Some(open) => (Some(open), Way::Last),
            None => (self.manual_open(), Way::OnDemand),
        };
        self.tell(|status| status.open = false);
        let open = open.context("the sandbox has not begun")?;
        let taken = self
            .boundary(open, way)
            .await
            .context("checkpoint the state of now")?;
        let failed = self.finish_pending_now().await;
        let version = self.history()?.version.clone();
        version
            .filter(|version| taken.class == Class::None || version.turn == taken.turn)
            .with_context(|| {
                let why = failed.unwrap_or_default();
                format!("there would be no way back, as the state of now has no checkpoint: {why}")
            })
    }

    /// Everything that can be done while the sandbox runs on.
    async fn prepare(
        &self,
        store: &SandboxStore,
        manifest: Manifest,
        now: Manifest,
    ) -> Result<(Target, WayBack)> {
        let store = store.clone();
        let container = self.container.clone();
        let capture = self.history()?.capture.as_ref();
        let live = capture.map(|capture| {
            let root = &capture.roots[0];
            (
                root.index.clone(),
                capture.root_device,
                root.scanner.clone(),
            )
        });
        let (known, device, live) = live.context("the sandbox has not begun")?;
        blocking(move || {
            let rootfs = container.bundle.rootfs();
            let staged = |manifest: &Manifest, reader: &ObjectReader, dir: &str| {
                stage_processes(&container, manifest, reader, &container.run_dir.join(dir))
            };
            crab_fault::pass(Point::ColdStage)?;
            let (target, way_back) = thread::scope(|scope| {
                // Both take as long as their processes hold memory.
                let way_back = thread::Builder::new().spawn_scoped(scope, || {
                    let reader = store.reader(&now)?;
                    staged(&now, &reader, "way-back-images")
                });
                let target = || {
                    let reader = store.reader(&manifest)?;
                    let images = staged(&manifest, &reader, "rollback-images")?;
                    let root = RootFs::find(rootfs)?;
                    check_is_live(&root, device, &live)?;
                    let before = Before {
                        files: Some(Files::of(&now, store.reader(&now)?)?),
                        // It runs on, and a store to a mapping of a file in memory moves no time.
                        known: match root.is_in_memory() {
                            true => Index::default(),
                            false => known,
                        },
                    };
                    let files = Files::of(&manifest, reader)?;
                    let root = NewRoot::prepare(&root, files, before)?;
                    anyhow::Ok((images, root))
                };
                let target = target();
                let way_back = match way_back {
                    Ok(way_back) => way_back.join(),
                    Err(error) => Ok(Err(anyhow!("no thread for the way back: {error}"))),
                };
                (target, way_back)
            });
            let way_back = way_back.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            let (images, root) = target?;
            root.check(rootfs)?;
            let target = Target {
                manifest,
                images,
                root,
            };
            let way_back = WayBack {
                manifest: now,
                images: way_back,
            };
            Ok((target, way_back))
        })
        .await
    }

    /// Steps 3 to 5. If one fails, it tells whether the files of before are in place again.
    async fn replace(&mut self, target: Target, client: &Arc<Client>) -> Result<(), Fell> {
        let Target {
            manifest,
            images,
            root,
        } = target;
        let mut laps = Laps::begin();
        let container = self.container.clone();
        self.kill().await?;
        laps.lap("kill");
        self.forget().await?;
        laps.lap("forget");
        let put = blocking(move || {
            crab_fault::pass(Point::ColdExchange)?;
            Ok(root.put(container.bundle.rootfs()))
        });
        let (old, index) = put.await??;
        laps.lap("exchange");
        let revived = self
            .revive(&manifest, images, Some(index), client, &mut laps)
            .await;
        let Err(error) = revived else {
            self.removal = Some(tokio::task::spawn_blocking(move || old.keep()));
            laps.tell();
            return Ok(());
        };
        let undone = match self.clear().await {
            Ok(()) => {
                blocking(move || {
                    crab_fault::pass(Point::ColdUndo)?;
                    old.undo()
                })
                .await
            }
            Err(left) => Err(left),
        };
        Err(Fell::after(error, undone))
    }

    /// After a failed [`Self::replace`]: the files are those of before, so only
    /// processes are brought back.
    async fn go_back(&mut self, way_back: WayBack, client: &Arc<Client>) -> Result<()> {
        self.clear().await?;
        let WayBack { manifest, images } = way_back;
        let mut laps = Laps::begin();
        self.revive(&manifest, images, None, client, &mut laps)
            .await
    }

    /// Kills everything in the sandbox and has the runtime forget it.
    async fn clear(&self) -> Result<()> {
        self.kill().await?;
        self.forget().await
    }

    /// Has the runtime forget it.
    async fn forget(&self) -> Result<()> {
        let container = self.container.clone();
        blocking(move || {
            crab_fault::pass(Point::ColdForget)?;
            Ok(container.runtime.delete()?)
        })
        .await
    }

    async fn kill(&self) -> Result<()> {
        let container = self.container.clone();
        blocking(move || {
            crab_fault::pass(Point::ColdKill)?;
            match container.cgroup() {
                Some(cgroup) => Ok(cgroup.kill(KILL_LIMIT)?),
                None => Ok(()),
            }
        })
        .await
    }

    /// Starts the processes of a checkpoint whose files are in place.
    async fn revive(
        &mut self,
        manifest: &Manifest,
        images: Option<Images>,
        upper: Option<Index>,
        client: &Arc<Client>,
        laps: &mut Laps,
    ) -> Result<()> {
        let container = self.container.clone();
        crab_fault::pass(Point::ColdLaunch)?;
        container.write_config(true)?;
        let fresh = images.is_none();
        let launch = match images {
            None => Launch::Create,
            Some(images) => Launch::Restore(Restore::new(images, client.terminal())),
        };
        let Launched {
            pid,
            terminal,
            since,
        } = container.launch(client, launch).await?;
        laps.lap("launch");
        crab_fault::pass(Point::ColdLook)?;
        container.adopt(pid)?;
        let rootfs = container.bundle.rootfs().to_path_buf();
        let root = blocking(move || Ok(RootFs::find(&rootfs)?)).await?;
        let writer = self.history()?.writer.clone();
        let capture = self
            .look_at(&writer, &root, Some(manifest), upper, fresh)
            .await?;
        laps.lap("look");
        crab_fault::pass(Point::ColdLimit)?;
        container.limit_again().await?;
        crab_fault::pass(Point::ColdStart)?;
        if fresh {
            let runtime = container.runtime.clone();
            blocking(move || Ok(runtime.start()?)).await?;
        }
        laps.lap("start");
        container.processes.with(INIT, |p| p.terminal = terminal)?;
        container.processes.replaced(pid);
        container.watch_exit(INIT, pid, since);
        if let Ok(history) = &mut self.history {
            history.capture = Some(capture);
            history.version = Some(manifest.clone());
        }
        self.unrecorded = Some(!fresh);
        Ok(())
    }

    /// Takes note of processes that a rollback has brought back: nobody waits for that
    /// but who comes next.
    pub(super) async fn note_processes(&mut self) {
        let Some(restored) = self.unrecorded.take() else {
            return;
        };
        if let Err(error) = self.after_start(restored).await {
            tracing::warn!(error = %format!("{error:#}"), "the processes were not recorded");
        }
        self.settle_init().await;
    }

    /// Waits until the files of before the last rollback are removed.
    pub(super) async fn finish_removal(&mut self) {
        if let Some(removal) = self.removal.take() {
            let _ = removal.await;
        }
    }
}

/// How long each step took for which the sandbox stands still.
struct Laps {
    since: Instant,
    told: String,
}

impl Laps {
    fn begin() -> Self {
        Self {
            since: Instant::now(),
            told: String::new(),
        }
    }

    fn lap(&mut self, step: &str) {
        let took = self.since.elapsed().as_secs_f64() * 1e3;
        let _ = write!(self.told, " {step} {took:.1}");
        self.since = Instant::now();
    }

    fn tell(&self) {
        tracing::info!(ms = self.told.trim_start(), "processes replaced");
    }
}
