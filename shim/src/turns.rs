// SPDX-License-Identifier: Apache-2.0
//! One task owns a sandbox's turns, and with them its checkpoints.
//!
//! ```text
//! exec starts --Begin--> [ open turn ] <--Begin-- further execs
//! exec ends   --Ended--> last one? --boundary--> take --stage--> publish (behind)
//! ```
//! While a boundary is being looked at, or a rollback is under way, messages wait:
//! that is the gate. A begin that waits longer than the configured limit goes on
//! regardless; the capture then either was frozen over it, or notices by the
//! counters.
//!
//! A container without checkpoints (a root that is no overlay, a store that cannot
//! be written) has this task too: it lets every exec through, and gives the reason
//! to whoever asks.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context, Result, anyhow, bail};
use crab_runtime::{
    files::{Index, apply},
    oci::CheckpointOptions,
    procs::{KeepAlive, Places, Set},
};
use crab_store::{
    CaptureFailed, Class, Cost, Digest, Durability, JournalRecord, Manifest, ProcessRef,
    RestoreRequest, RollbackRecord, SandboxWriter, Trigger, TurnId, TurnRecord, command_line,
};
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::timeout,
};

use crate::{
    capture::{Capture, Taken, images_of, micros, open_roots},
    history::{Beginning, Ledger, Restored},
    publish::{PLACES, Publication, Published},
    sandbox::{Container, blocking, unix_ms},
    tracer::{Tracer, Watched},
};

/// How long a restored container's threads may take to be back where they were
/// when they were dumped.
const SETTLE: Duration = Duration::from_millis(200);

/// What CRIU is told of the surroundings, for dumps and restores of ours.
pub(crate) fn criu_options(terminal: bool) -> CheckpointOptions {
    CheckpointOptions {
        leave_running: false,
        tcp_established: true,
        ext_unix_sk: true,
        file_locks: true,
        shell_job: terminal,
    }
}

/// What a checkpoint on demand gave.
#[derive(Debug)]
pub(crate) struct Checkpointed {
    pub(crate) turn: TurnId,
    pub(crate) class: Class,
    pub(crate) degraded: Option<String>,
    pub(crate) cost: Cost,
}

/// What a rollback did.
#[derive(Debug)]
pub(crate) struct RolledBack {
    pub(crate) checkpoint: TurnId,
    pub(crate) processes: bool,
    pub(crate) pid: i32,
    pub(crate) took: Duration,
}

enum Message {
    Begin {
        exec: String,
        command: String,
        at: Instant,
        go: oneshot::Sender<()>,
    },
    Ended {
        exec: String,
        exit: Option<u32>,
    },
    BeforeStart {
        beginning: Box<Beginning>,
        done: oneshot::Sender<Result<()>>,
    },
    AfterStart {
        restored: bool,
        done: oneshot::Sender<()>,
    },
    Checkpoint(oneshot::Sender<Result<Checkpointed>>),
    Rollback(TurnId, oneshot::Sender<Result<RolledBack>>),
    Close(oneshot::Sender<()>),
}

/// What can be asked at any time, without waiting.
#[derive(Debug, Clone, Default)]
pub(crate) struct Status {
    pub(crate) turn: u64,
    pub(crate) open: bool,
    pub(crate) capturing: bool,
    pub(crate) checkpoint: Option<TurnId>,
    pub(crate) unobserved: Option<String>,
}

/// The front of the task.
pub(crate) struct Turns {
    messages: mpsc::UnboundedSender<Message>,
    status: Arc<Mutex<Status>>,
    max_gate: Duration,
}

/// Starts the task of a container that is created.
pub(crate) fn start(container: Arc<Container>) -> Turns {
    let (messages, rx) = mpsc::unbounded_channel();
    let status = Arc::new(Mutex::new(Status::default()));
    let max_gate = container.host.config.checkpoints.max_gate();
    let tracer = Arc::new(Tracer::new(
        container.host.clone(),
        container.id.to_string(),
    ));
    let task = Task {
        container,
        tracer,
        status: status.clone(),
        history: Err("the container is not started yet".into()),
        open: None,
    };
    tokio::spawn(task.run(rx));
    Turns {
        messages,
        status,
        max_gate,
    }
}

impl Turns {
    fn send(&self, message: Message) {
        // The task lives as long as its senders.
        let _ = self.messages.send(message);
    }

    async fn ask<T>(
        &self,
        message: impl FnOnce(oneshot::Sender<Result<T>>) -> Message,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        self.send(message(reply));
        answer
            .await
            .map_err(|_| anyhow!("the sandbox is being deleted"))?
    }

    /// An exec is about to start: waits until no capture holds the sandbox.
    pub(crate) async fn begin(&self, exec: &str, process_spec: &[u8]) {
        let (go, wait) = oneshot::channel();
        self.send(Message::Begin {
            exec: exec.into(),
            command: command_of(process_spec),
            at: Instant::now(),
            go,
        });
        if timeout(self.max_gate, wait).await.is_err() {
            tracing::warn!(exec, "the gate was held for too long; the exec goes on");
        }
    }

    /// An exec has ended, or did not start (no exit status).
    pub(crate) fn ended(&self, exec: &str, exit: Option<u32>) {
        self.send(Message::Ended {
            exec: exec.into(),
            exit,
        });
    }

    /// Between the runtime's create and start (or after a restore).
    pub(crate) async fn before_start(&self, beginning: Beginning) -> Result<()> {
        self.ask(|done| Message::BeforeStart {
            beginning: Box::new(beginning),
            done,
        })
        .await
    }

    /// The init runs.
    pub(crate) async fn after_start(&self, restored: bool) {
        let (done, wait) = oneshot::channel();
        self.send(Message::AfterStart { restored, done });
        let _ = wait.await;
    }

    /// Takes a checkpoint now, if anything has changed.
    pub(crate) async fn checkpoint(&self) -> Result<Checkpointed> {
        self.ask(Message::Checkpoint).await
    }

    /// Brings the live sandbox back to the end of a turn.
    pub(crate) async fn roll_back(&self, turn: TurnId) -> Result<RolledBack> {
        self.ask(|reply| Message::Rollback(turn, reply)).await
    }

    /// Ends the watch, and waits until everything staged is published.
    pub(crate) async fn close(&self) {
        let (done, wait) = oneshot::channel();
        self.send(Message::Close(done));
        let _ = wait.await;
    }

    pub(crate) fn status(&self) -> Status {
        self.status
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// The command of an OCI process specification, as one line.
fn command_of(spec: &[u8]) -> String {
    serde_json::from_slice::<serde_json::Value>(spec)
        .ok()
        .and_then(|spec| {
            let args = spec.get("args")?.as_array()?;
            let args: Vec<&str> = args.iter().filter_map(|arg| arg.as_str()).collect();
            Some(command_line(&args))
        })
        .unwrap_or_default()
}

/// A turn that is not over.
pub(crate) struct Open {
    turn: TurnId,
    command: String,
    began: SystemTime,
    gate: Duration,
    /// Foreground execs that still run.
    execs: HashSet<String>,
    exit: Option<i32>,
}

impl Open {
    fn new(turn: TurnId, command: String, gate: Duration) -> Self {
        Self {
            turn,
            command,
            began: SystemTime::now(),
            gate,
            execs: HashSet::new(),
            exit: None,
        }
    }
}

/// Everything of a sandbox that has checkpoints.
pub(crate) struct History {
    pub(crate) writer: Arc<SandboxWriter>,
    /// In the hands of a working thread while nothing.
    pub(crate) capture: Option<Capture>,
    /// The newest published checkpoint of this branch.
    pub(crate) version: Option<Manifest>,
    pub(crate) next: TurnId,
    pending: Option<Pending>,
}

/// A checkpoint on its way into the store, and the record to be written then.
struct Pending {
    record: TurnRecord,
    task: JoinHandle<Result<Published>>,
    started: Instant,
}

/// The task's own state.
pub(crate) struct Task {
    pub(crate) container: Arc<Container>,
    tracer: Arc<Tracer>,
    status: Arc<Mutex<Status>>,
    pub(crate) history: Result<History, String>,
    pub(crate) open: Option<Open>,
}

impl Task {
    async fn run(mut self, mut messages: mpsc::UnboundedReceiver<Message>) {
        loop {
            let message = {
                let pending = self
                    .history
                    .as_mut()
                    .ok()
                    .and_then(|history| history.pending.as_mut());
                match pending {
                    // A published checkpoint is told at once, not at the next turn.
                    Some(pending) => tokio::select! {
                        message = messages.recv() => message,
                        result = &mut pending.task => {
                            self.settle_pending(result);
                            continue;
                        }
                    },
                    None => messages.recv().await,
                }
            };
            match message {
                None => return,
                Some(Message::Close(done)) => {
                    self.close().await;
                    let _ = done.send(());
                    return;
                }
                Some(message) => self.handle(message).await,
            }
        }
    }

    async fn handle(&mut self, message: Message) {
        match message {
            Message::Begin {
                exec,
                command,
                at,
                go,
            } => {
                self.begin(exec, command, at.elapsed());
                let _ = go.send(());
            }
            Message::Ended { exec, exit } => self.ended(&exec, exit).await,
            Message::BeforeStart { beginning, done } => {
                let _ = done.send(self.before_start(*beginning).await);
            }
            Message::AfterStart { restored, done } => {
                if let Err(error) = self.after_start(restored).await {
                    tracing::warn!(error = %format!("{error:#}"), "the processes were not recorded");
                }
                let _ = done.send(());
            }
            Message::Checkpoint(reply) => {
                let _ = reply.send(self.checkpoint().await);
            }
            Message::Rollback(turn, reply) => {
                let _ = reply.send(self.roll_back(turn).await);
            }
            Message::Close(_) => {}
        }
    }

    pub(crate) fn tell(&self, f: impl FnOnce(&mut Status)) {
        f(&mut self.status.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn begin(&mut self, exec: String, command: String, gate: Duration) {
        let Ok(history) = &mut self.history else {
            return;
        };
        let open = self.open.get_or_insert_with(|| {
            let turn = history.next;
            history.next = turn.next();
            Open::new(turn, command, gate)
        });
        open.execs.insert(exec);
        let turn = open.turn.0;
        self.tell(|status| {
            status.turn = turn;
            status.open = true;
        });
    }

    async fn ended(&mut self, exec: &str, exit: Option<u32>) {
        let Some(open) = &mut self.open else { return };
        if !open.execs.remove(exec) {
            return;
        }
        open.exit = exit.map(|status| status as i32).or(open.exit);
        if !open.execs.is_empty() {
            return;
        }
        let Some(open) = self.open.take() else { return };
        self.tell(|status| status.open = false);
        if let Err(error) = self.boundary(open, Trigger::Exec, true).await {
            tracing::error!(error = %format!("{error:#}"), "no checkpoint of this turn");
        }
    }

    /// Looks at the sandbox, takes what is needed, and writes the turn down.
    /// With `always`, also a turn that needs nothing.
    pub(crate) async fn boundary(
        &mut self,
        open: Open,
        trigger: Trigger,
        always: bool,
    ) -> Result<Checkpointed> {
        self.finish_pending().await;
        let history = match &mut self.history {
            Ok(history) => history,
            Err(reason) => bail!("{reason}"),
        };
        let mut record = TurnRecord {
            turn: open.turn,
            trigger,
            command: open.command,
            began_ms: unix_ms(open.began),
            ended_ms: unix_ms(SystemTime::now()),
            exit: open.exit,
            class: Class::None,
            reason: String::new(),
            unobserved: None,
            checkpoint: None,
            degraded: None,
            cost: Cost::default(),
            files_changed: 0,
            changed: Vec::new(),
        };
        let capture = history.capture.take();
        self.tell(|status| status.capturing = true);
        let taken = match capture {
            None => Err(anyhow!("the sandbox has not begun")),
            Some(mut capture) => {
                let worked = tokio::task::spawn_blocking(move || {
                    let taken = match trigger {
                        Trigger::Start => capture.take_initial(),
                        _ => capture.take(),
                    };
                    (capture, taken)
                })
                .await;
                match worked {
                    Ok((capture, taken)) => {
                        if let Ok(history) = &mut self.history {
                            history.capture = Some(capture);
                        }
                        taken
                    }
                    Err(panic) => Err(anyhow!("the capture panicked: {panic}")),
                }
            }
        };
        self.tell(|status| status.capturing = false);
        let taken = match taken {
            Ok(taken) => taken,
            Err(error) => {
                self.give_up(record, &format!("{error:#}"));
                return Err(error);
            }
        };
        self.tell(|status| status.unobserved = taken.unobserved.clone());
        record.cost.gate_us = micros(open.gate);
        self.record(record, taken, always)
    }

    fn record(
        &mut self,
        mut record: TurnRecord,
        taken: Taken,
        always: bool,
    ) -> Result<Checkpointed> {
        let gate_us = record.cost.gate_us;
        record.class = taken.class;
        record.reason = taken.reason;
        record.unobserved = taken.unobserved;
        record.cost = Cost {
            gate_us,
            ..taken.cost
        };
        record.files_changed = taken.files_changed;
        record.changed = taken.changed;
        let history = match &mut self.history {
            Ok(history) => history,
            Err(reason) => bail!("{reason}"),
        };
        let mut answer = Checkpointed {
            turn: record.turn,
            class: record.class,
            degraded: taken.degraded.clone(),
            cost: record.cost,
        };
        if always || taken.staged.is_some() {
            history.next = history.next.max(record.turn.next());
        }
        let Some(staged) = taken.staged else {
            let version = history.version.as_ref();
            record.checkpoint = version.map(|v| v.turn);
            record.degraded = version.and_then(|v| v.degraded.clone());
            answer.degraded = record.degraded.clone();
            if always {
                history.append(JournalRecord::Turn(record));
            } else {
                // Not a turn: its number was not used.
                answer.turn = record.checkpoint.unwrap_or(record.turn);
            }
            return Ok(answer);
        };
        record.degraded = taken.degraded.clone();
        let Some(capture) = &history.capture else {
            bail!("the sandbox has not begun");
        };
        let publication = Publication {
            writer: history.writer.clone(),
            sandbox: self.container.id.clone(),
            turn: record.turn,
            class: record.class,
            degraded: taken.degraded,
            spec: self.container.bundle.original().to_vec(),
            runtime: self.container.runtime.program.display().to_string(),
            parent: history.version.clone(),
            roots: capture.root_trees(),
            tmpfs_images: capture.tmpfs_images.clone(),
            staged,
        };
        history.pending = Some(Pending {
            record,
            task: tokio::task::spawn_blocking(move || publication.publish()),
            started: Instant::now(),
        });
        Ok(answer)
    }

    /// Waits until the checkpoint that is on its way is in the store, or failed.
    pub(crate) async fn finish_pending(&mut self) {
        let task = match &mut self.history {
            Ok(History {
                pending: Some(pending),
                ..
            }) => &mut pending.task,
            _ => return,
        };
        let result = task.await;
        self.settle_pending(result);
    }

    fn settle_pending(&mut self, result: Result<Result<Published>, tokio::task::JoinError>) {
        let Ok(history) = &mut self.history else {
            return;
        };
        let Some(pending) = history.pending.take() else {
            return;
        };
        let result = result
            .map_err(|panic| anyhow!("the publication panicked: {panic}"))
            .and_then(|published| published);
        let mut record = pending.record;
        match result {
            Ok(published) => {
                tracing::info!(
                    turn = record.turn.0,
                    class = %record.class,
                    bytes = published.manifest.bytes_stored,
                    publish_ms = pending.started.elapsed().as_millis() as u64,
                    "checkpoint published"
                );
                if let Some(capture) = &mut history.capture {
                    for (at, index, tree) in published.indexes {
                        capture.roots[at].index = index;
                        capture.roots[at].tree = Some(tree);
                    }
                }
                record.checkpoint = Some(published.manifest.turn);
                record.degraded = published.manifest.degraded.clone();
                record.cost.bytes_stored = published.manifest.bytes_stored;
                record.cost.bytes_raw = published.manifest.bytes_raw;
                history.version = Some(published.manifest);
                let checkpoint = record.checkpoint;
                history.append(JournalRecord::Turn(record));
                self.tell(|status| status.checkpoint = checkpoint);
            }
            Err(error) => {
                tracing::error!(turn = record.turn.0, error = %format!("{error:#}"), "checkpoint not published");
                self.give_up(record, &format!("{error:#}"));
            }
        }
    }

    /// A turn without a checkpoint: says so in the journal, and takes nothing for
    /// granted next time.
    fn give_up(&mut self, mut record: TurnRecord, reason: &str) {
        let Ok(history) = &mut self.history else {
            return;
        };
        let holds_processes = history
            .version
            .as_ref()
            .is_some_and(|v| v.processes.is_some());
        if let Some(capture) = &mut history.capture {
            capture.forget(holds_processes);
        }
        let turn = record.turn;
        record.checkpoint = None;
        record.reason = format!("no checkpoint: {reason}");
        history.append(JournalRecord::Turn(record));
        history.append(JournalRecord::CaptureFailed(CaptureFailed {
            at_ms: unix_ms(SystemTime::now()),
            turn,
            reason: reason.into(),
        }));
    }

    async fn checkpoint(&mut self) -> Result<Checkpointed> {
        if let Err(reason) = &self.history {
            bail!("{reason}");
        }
        let open = self.manual_open().context("the sandbox has not begun")?;
        let mut answer = self.boundary(open, Trigger::Manual, false).await?;
        self.finish_pending().await;
        let history = match &self.history {
            Ok(history) => history,
            Err(reason) => bail!("{reason}"),
        };
        match &history.version {
            Some(version) if answer.class == Class::None || version.turn == answer.turn => {
                if version.turn == answer.turn && answer.class != Class::None {
                    answer.cost.bytes_stored = version.bytes_stored;
                }
                Ok(answer)
            }
            _ => bail!("the checkpoint was taken, but not published; crab turns says why"),
        }
    }

    /// The container exists, its program does not run yet (or was restored).
    async fn before_start(&mut self, beginning: Beginning) -> Result<()> {
        let Beginning { images, ledger } = beginning;
        let ledger = match ledger {
            Ok(ledger) => ledger,
            Err(reason) => {
                tracing::warn!(reason, "this sandbox has no checkpoints");
                self.tell(|status| status.unobserved = Some(reason.clone()));
                self.history = Err(reason);
                return Ok(());
            }
        };
        let Ledger {
            writer,
            overlay,
            restored,
        } = ledger;
        let fresh = images.is_none();
        let version = restored.as_ref().map(|r| r.manifest.clone());
        let (restored, upper) = match restored {
            Some(Restored {
                request,
                manifest,
                upper,
            }) => (Some((request, manifest)), Some(upper)),
            None => (None, None),
        };
        let capture = self
            .look_at(&writer, &overlay, version.as_ref(), upper, fresh)
            .await?;
        let next = writer.store().next_turn()?;
        self.history = Ok(History {
            writer: Arc::new(writer),
            capture: Some(capture),
            version: version.clone(),
            next,
            pending: None,
        });
        match restored {
            Some((request, manifest)) => self.note_restore(request, &manifest),
            None => {
                let command = command_line(self.container.bundle.args());
                let open = Open::new(next, command, Duration::ZERO);
                if let Err(error) = self.boundary(open, Trigger::Start, true).await {
                    // The container starts nevertheless; the next turn tries again.
                    tracing::error!(error = %format!("{error:#}"), "no checkpoint of the start");
                }
            }
        }
        Ok(())
    }

    /// A turn that has the next number, without taking it: see [`Self::record`].
    pub(crate) fn manual_open(&self) -> Option<Open> {
        let history = self.history.as_ref().ok()?;
        Some(Open::new(history.next, String::new(), Duration::ZERO))
    }

    fn note_restore(&mut self, request: RestoreRequest, manifest: &Manifest) {
        if let Ok(history) = &mut self.history {
            let from = TurnId(history.next.0.saturating_sub(1));
            let now = unix_ms(SystemTime::now());
            history.append(JournalRecord::Restore(RollbackRecord {
                at_ms: now,
                from,
                asked: request.turn,
                checkpoint: manifest.turn,
                processes: manifest.processes.is_some(),
                took_us: now.saturating_sub(request.requested_ms) * 1000,
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
    pub(crate) async fn look_at(
        &self,
        writer: &SandboxWriter,
        overlay: &crab_runtime::overlay::OverlayMount,
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
        let overlay = overlay.clone();
        let device = overlay.dev;
        let (roots, mounts) = blocking(move || {
            let (mut roots, mounts) = open_roots(&overlay, init)?;
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
                        apply(&tree, reader, root.scanner.root())?;
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
        let mut devices = vec![device];
        devices.extend(mounts.iter().map(|mount| mount.device));
        let base = self
            .tracer
            .watch(Watched {
                cgroup: cgroup.clone(),
                devices: devices.clone(),
            })
            .await;
        if let Err(reason) = &base {
            tracing::warn!(reason, "turns are unobserved");
        }
        Ok(Capture {
            container: self.container.clone(),
            tracer: self.tracer.clone(),
            roots,
            tmpfs_images: images_of(&mounts),
            devices,
            cgroup,
            init,
            keep_alive: KeepAlive::for_command(init, self.container.bundle.args()),
            base: base.ok(),
            baseline: None,
            some_processes: false,
            unseen: false,
            // Restored processes have run before the watch began.
            owed: !fresh,
            async_runtime: Handle::current(),
        })
    }

    pub(crate) async fn after_start(&mut self, restored: bool) -> Result<()> {
        let Ok(history) = &mut self.history else {
            return Ok(());
        };
        let Some(mut capture) = history.capture.take() else {
            return Ok(());
        };
        let processes = history.version.as_ref().and_then(|v| v.processes);
        let store = history.writer.store().clone();
        let version = history.version.clone();
        let (capture, recorded) = blocking(move || {
            let recorded = (|| -> Result<()> {
                match (restored, processes, version) {
                    (true, Some(processes), Some(version)) => {
                        let places = places_of(&store.reader(&version)?, processes)?;
                        capture.some_processes = true;
                        capture.baseline = Set::settle(
                            &capture.cgroup,
                            capture.keep_alive.as_ref(),
                            &places,
                            SETTLE,
                        )?;
                    }
                    // A keep-alive init leaves nothing to record; any other has just
                    // begun, and the first turn's end takes it as it is then.
                    _ if capture.keep_alive.is_some() => {
                        capture.baseline = Some(Set::default());
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
        recorded
    }

    async fn close(&mut self) {
        self.finish_pending().await;
        self.tracer.unwatch().await;
        self.history = Err("the sandbox is being deleted".into());
    }
}

fn places_of(reader: &crab_store::ObjectReader, processes: ProcessRef) -> Result<Places> {
    let image = reader.process_image(processes.digest)?;
    let text = image.extra.get(PLACES).context("the image has no places")?;
    Ok(serde_json::from_str(text)?)
}

/// The tree of a root in a checkpoint.
fn tree_of(manifest: &Manifest, mount: Option<&std::path::Path>) -> Option<Digest> {
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

impl History {
    pub(crate) fn append(&self, record: JournalRecord) {
        if let Err(error) = self.writer.append(record, Durability::Lazy) {
            tracing::error!(%error, "the journal could not be written");
        }
    }
}
