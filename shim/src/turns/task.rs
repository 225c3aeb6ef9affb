// SPDX-License-Identifier: Apache-2.0
//! The task itself: one message after the other.

use std::{
    collections::{HashSet, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use anyhow::Result;
use crab_api::tracer::Effects;
use crab_store::{Durability, JournalRecord, Manifest, SandboxWriter, Trigger, TurnId, TurnRecord};
use tokio::{sync::mpsc, task::JoinHandle, time::timeout};

use super::{Message, Status, record::Way};
use crate::{capture::Capture, idle, publish::Published, sandbox::Container, tracer::Tracer};

/// How many records are kept for a journal that cannot be written.
const MAX_UNWRITTEN: usize = 1024;

/// A turn that is not over.
pub(super) struct Open {
    pub(super) turn: TurnId,
    pub(super) command: String,
    pub(super) began: SystemTime,
    pub(super) gate: Duration,
    /// Foreground execs that still run.
    pub(super) execs: HashSet<String>,
    pub(super) exit: Option<i32>,
}

impl Open {
    pub(super) fn new(turn: TurnId, command: String, gate: Duration) -> Self {
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
pub(super) struct History {
    pub(super) writer: Arc<SandboxWriter>,
    /// In the hands of a working thread while nothing.
    pub(super) capture: Option<Capture>,
    /// The newest published checkpoint of this branch.
    pub(super) version: Option<Manifest>,
    pub(super) next: TurnId,
    pub(super) pending: Option<Pending>,
    /// Records that could not be written; tried again before the next one.
    pub(super) unwritten: VecDeque<JournalRecord>,
}

/// A checkpoint on its way into the store, and the record to be written then.
pub(super) struct Pending {
    pub(super) record: TurnRecord,
    pub(super) task: JoinHandle<Result<Published>>,
    pub(super) started: Instant,
}

/// A watch that is about to begin, and the counters then.
pub(super) type Watch = JoinHandle<Result<Effects, String>>;

/// The task's own state.
pub(super) struct Task {
    pub(super) container: Arc<Container>,
    pub(super) tracer: Arc<Tracer>,
    /// Begins when crabd is there.
    pub(super) watch: Option<Watch>,
    pub(super) status: Arc<Mutex<Status>>,
    pub(super) history: Result<History, String>,
    pub(super) open: Option<Open>,
}

impl Task {
    pub(super) fn new(
        container: Arc<Container>,
        tracer: Arc<Tracer>,
        status: Arc<Mutex<Status>>,
    ) -> Self {
        Self {
            container,
            tracer,
            watch: None,
            status,
            history: Err("the container is not started yet".into()),
            open: None,
        }
    }

    pub(super) async fn run(mut self, mut messages: mpsc::UnboundedReceiver<Message>) {
        let mut rests = false;
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
                    None if rests => messages.recv().await,
                    None => match timeout(idle::AFTER, messages.recv()).await {
                        Ok(message) => message,
                        Err(_) => {
                            idle::let_go();
                            rests = true;
                            continue;
                        }
                    },
                }
            };
            rests = false;
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
            Message::BeforeStart {
                beginning,
                fresh,
                done,
            } => {
                let _ = done.send(self.before_start(*beginning, fresh).await);
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
            Message::Hold { granted, release } => {
                // Whoever asked may be gone; then it holds nothing.
                if granted.send(()).is_ok() {
                    let _ = release.await;
                }
            }
            Message::Rollback(turn, reply) => {
                let _ = reply.send(self.roll_back(turn).await);
            }
            Message::Close(_) => {}
        }
    }

    pub(super) fn tell(&self, f: impl FnOnce(&mut Status)) {
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
        if let Err(error) = self.boundary(open, Trigger::Exec, Way::Turn).await {
            tracing::error!(error = %format!("{error:#}"), "no checkpoint of this turn");
        }
    }

    async fn close(&mut self) {
        self.finish_pending().await;
        if let Some(watch) = self.watch.take() {
            watch.abort();
        }
        self.tracer.unwatch().await;
        self.history = Err("the sandbox is being deleted".into());
    }
}

impl History {
    /// Writes to the journal. What a full disk refuses is kept and written before
    /// the next record, as far as [`MAX_UNWRITTEN`] goes.
    pub(super) fn append(&mut self, record: JournalRecord) {
        self.unwritten.push_back(record);
        while let Some(record) = self.unwritten.front() {
            if let Err(error) = self.writer.append(record.clone(), Durability::Lazy) {
                tracing::error!(%error, "the journal could not be written");
                break;
            }
            self.unwritten.pop_front();
        }
        if self.unwritten.len() > MAX_UNWRITTEN {
            self.unwritten.pop_front();
        }
    }
}
