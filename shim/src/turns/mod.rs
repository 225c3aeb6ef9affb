// SPDX-License-Identifier: Apache-2.0
//! One task owns a sandbox's turns, and with them its checkpoints.
//!
//! ```text
//! exec starts --Begin--> [ open turn ] <--Begin-- further execs
//! exec ends   --Ended--> last one? --gap--> boundary: take --stage--> publish (behind)
//! ```
//! What happens in the gap is said in [`closing`]. A turn that was opened by bytes to a
//! stdin, or by a program that lives on, ends when that one waits to be told more: see
//! [`stdin`]. Whoever drives the agent may say both ([`hint`]), which goes before all else. An
//! agent that runs inside is told by nobody: see [`inside`].
//!
//! While a boundary is being looked at, or a rollback is under way, messages wait:
//! that is the gate. A begin that waits longer than the configured limit goes on
//! regardless; a capture that has not begun by then is given up, and one that has was
//! frozen over it, or notices by the counters.
//!
//! A capture or a publication that fails is tried again by itself: see [`again`].
//!
//! A container without checkpoints (a root on a file system that tells too little, a store that cannot
//! be written) has this task too: it lets every exec through, and gives the reason
//! to whoever asks. See [`late`].

mod again;
mod begin;
mod closing;
mod hint;
mod inside;
mod late;
mod life;
mod quiescence;
mod record;
mod retention;
mod rollback;
mod stdin;
mod task;
mod verify;
mod warm;

use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};
use crab_runtime::{oci::CheckpointOptions, reaper::Exit};
use crab_store::{Class, Collected, Cost, Limits, TurnId, command_line};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::timeout,
};
use tracing::Instrument;

pub(crate) use self::hint::Meta;
use self::task::Task;
use crate::{
    capture::Verification, history::Beginning, sandbox::Container, schedule::Schedule,
    still::Still, tracer::Tracer,
};

/// What CRIU is told of the surroundings, for dumps and restores of ours.
pub(crate) fn criu_options(terminal: bool) -> CheckpointOptions {
    CheckpointOptions {
        leave_running: false,
        tcp_established: true,
        ext_unix_sk: true,
        file_locks: true,
        shell_job: terminal,
        ..CheckpointOptions::default()
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

/// What a rollback is to do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RollbackWish {
    /// To the end of this turn.
    pub(crate) turn: TurnId,
    /// Compare with its checkpoint afterwards.
    pub(crate) verify: bool,
    /// With other processes, also where those that are there could go on.
    pub(crate) cold: bool,
}

/// What a rollback did.
#[derive(Debug)]
pub(crate) struct RolledBack {
    pub(crate) checkpoint: TurnId,
    /// The checkpoint holds processes.
    pub(crate) processes: bool,
    pub(crate) pid: i32,
    /// Why the processes did not just go on; nothing if they did.
    pub(crate) cold_because: Option<String>,
    /// How long it took until there was a way back.
    pub(crate) secured: Duration,
    /// For how long the sandbox stood still.
    pub(crate) stood: Duration,
    pub(crate) took: Duration,
    pub(crate) verified: Option<Verified>,
}

/// A sandbox that was compared with a checkpoint.
#[derive(Debug)]
pub(crate) struct Verified {
    pub(crate) checkpoint: TurnId,
    /// What that lacks.
    pub(crate) degraded: Option<String>,
    pub(crate) verification: Verification,
}

enum Message {
    Begin {
        exec: String,
        command: String,
        at: Instant,
        go: oneshot::Sender<()>,
    },
    /// Bytes have come for the stdin of a process that takes part in no open turn.
    Input {
        process: String,
        at: Instant,
        go: oneshot::Sender<()>,
    },
    Ended {
        exec: String,
        exit: Option<Exit>,
    },
    BeforeStart {
        beginning: Box<Beginning>,
        /// Not restored by CRIU.
        fresh: bool,
        done: oneshot::Sender<Result<()>>,
    },
    AfterStart {
        restored: bool,
        done: oneshot::Sender<()>,
    },
    /// The init has ended, and nothing that it left lives on.
    Over {
        exit: Exit,
        host_ends: JoinHandle<Option<bool>>,
    },
    /// Nothing is captured from `granted` until `release` is sent or dropped.
    Hold {
        granted: oneshot::Sender<()>,
        release: oneshot::Receiver<()>,
        /// Processes are dumped meanwhile, which leaves traces in them.
        dumps: bool,
    },
    HintBegin {
        meta: Meta,
        at: Instant,
        reply: oneshot::Sender<Result<TurnId>>,
    },
    HintEnd {
        meta: Meta,
        reply: oneshot::Sender<Result<TurnId>>,
    },
    CanCheckpoint(oneshot::Sender<Result<()>>),
    Checkpoint(oneshot::Sender<Result<Checkpointed>>),
    Rollback(RollbackWish, oneshot::Sender<Result<RolledBack>>),
    /// With the end of this turn, or else with the newest checkpoint.
    Verify(Option<TurnId>, oneshot::Sender<Result<Verified>>),
    /// Removes what these limits do not keep, behind what comes after.
    Remove(Limits, oneshot::Sender<Result<Collected>>),
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
    schedule: Arc<Schedule>,
    /// Weak: the container owns this. The shim ends when its last container does.
    container: Weak<Container>,
}

/// Where what begins a turn waits while a capture holds the sandbox.
pub(crate) struct Gate {
    messages: mpsc::UnboundedSender<Message>,
    process: String,
    max: Duration,
    schedule: Arc<Schedule>,
    container: Weak<Container>,
}

impl Gate {
    /// Input has come: opens a turn, and waits until no capture holds the sandbox.
    pub(crate) async fn pass(&self) {
        let (go, wait) = oneshot::channel();
        let _ = self.messages.send(Message::Input {
            process: self.process.clone(),
            at: Instant::now(),
            go,
        });
        self.wait(wait).await;
    }

    async fn wait(&self, mut go: oneshot::Receiver<()>) {
        let _waiting = self.schedule.waits();
        let mut limit = self.max;
        while timeout(limit, &mut go).await.is_err() {
            // What is frozen or gone cannot be entered; that has limits of its own.
            let container = self.container.upgrade();
            if !container.is_some_and(|it| Still::stands(&it)) {
                let process = &self.process;
                tracing::warn!(
                    process,
                    "the gate was held for too long; what waited goes on"
                );
                self.schedule.gate_ran_out();
                return;
            }
            limit = Duration::from_millis(20);
        }
    }
}

/// Starts the task of a container that is created.
pub(crate) fn start(container: Arc<Container>, tracer: Arc<Tracer>) -> Turns {
    let (messages, rx) = mpsc::unbounded_channel();
    let status = Arc::new(Mutex::new(Status::default()));
    let max_gate = container.config.checkpoints.max_gate();
    let weak = Arc::downgrade(&container);
    let id = container.id.to_string();
    let schedule = Arc::new(Schedule::new(&container.config, id.clone()));
    let task = Task::new(container, tracer, schedule.clone(), status.clone());
    // What is logged of it names it; a shim may have several.
    let span = tracing::error_span!("sandbox", sandbox = %id);
    tokio::spawn(task.run(rx).instrument(span));
    Turns {
        messages,
        status,
        max_gate,
        schedule,
        container: weak,
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
        let _waiting = self.schedule.waits();
        self.answer(message).await
    }

    async fn answer<T>(
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
        self.gate(exec).wait(wait).await;
    }

    /// Where input of a process waits that opens a turn.
    pub(crate) fn gate(&self, process: &str) -> Gate {
        Gate {
            messages: self.messages.clone(),
            process: process.into(),
            max: self.max_gate,
            schedule: self.schedule.clone(),
            container: self.container.clone(),
        }
    }

    /// A process has ended, or did not start (no exit status).
    pub(crate) fn ended(&self, exec: &str, exit: Option<Exit>) {
        self.send(Message::Ended {
            exec: exec.into(),
            exit,
        });
    }

    /// The init has ended for good; whether with its host is being asked.
    pub(crate) fn over(&self, exit: Exit, host_ends: JoinHandle<Option<bool>>) {
        self.send(Message::Over { exit, host_ends });
    }

    /// Between the runtime's create and start (or after a restore).
    pub(crate) async fn before_start(&self, beginning: Beginning, fresh: bool) -> Result<()> {
        self.ask(|done| Message::BeforeStart {
            beginning: Box::new(beginning),
            fresh,
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

    /// Waits until no capture is under way, and keeps captures and turns back until
    /// what is returned is dropped.
    pub(crate) async fn hold(&self) -> oneshot::Sender<()> {
        self.hold_for(false).await
    }

    /// The same where processes are dumped meanwhile, by whoever asks.
    pub(crate) async fn hold_for_dump(&self) -> oneshot::Sender<()> {
        self.hold_for(true).await
    }

    async fn hold_for(&self, dumps: bool) -> oneshot::Sender<()> {
        let _waiting = self.schedule.waits();
        let (granted, wait) = oneshot::channel();
        let (held, release) = oneshot::channel();
        self.send(Message::Hold {
            granted,
            release,
            dumps,
        });
        let _ = wait.await;
        held
    }

    /// Whoever drives the agent says that a turn begins.
    pub(crate) async fn hint_begin(&self, meta: Meta) -> Result<TurnId> {
        let at = Instant::now();
        self.ask(|reply| Message::HintBegin { meta, at, reply })
            .await
    }

    /// And that it is over.
    pub(crate) async fn hint_end(&self, meta: Meta) -> Result<TurnId> {
        self.ask(|reply| Message::HintEnd { meta, reply }).await
    }

    /// Whether there can be checkpoints at all.
    pub(crate) async fn can_checkpoint(&self) -> Result<()> {
        self.ask(Message::CanCheckpoint).await
    }

    /// Takes a checkpoint now, if anything has changed.
    pub(crate) async fn checkpoint(&self) -> Result<Checkpointed> {
        self.ask(Message::Checkpoint).await
    }

    /// Brings the live sandbox back to the end of a turn.
    pub(crate) async fn roll_back(&self, wish: RollbackWish) -> Result<RolledBack> {
        self.ask(|reply| Message::Rollback(wish, reply)).await
    }

    /// Compares the live sandbox with the end of a turn, or with its newest checkpoint.
    pub(crate) async fn verify(&self, turn: Option<TurnId>) -> Result<Verified> {
        self.ask(|reply| Message::Verify(turn, reply)).await
    }

    /// Removes the checkpoints that these limits do not keep.
    pub(crate) async fn collect(&self, limits: Limits) -> Result<Collected> {
        // Beside captures: none holds it back.
        self.answer(|reply| Message::Remove(limits, reply)).await
    }

    /// Ends the watch, and waits until everything staged is published.
    pub(crate) async fn close(&self) {
        self.schedule.close();
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
