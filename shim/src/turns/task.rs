// SPDX-License-Identifier: Apache-2.0
//! The task itself: one message after the other.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Result, anyhow};
use crab_api::tracer::Effects;
use crab_runtime::reaper::Exit;
use crab_store::{
    Cost, Durability, JournalRecord, Manifest, SandboxWriter, Step, StepRecord, Trigger, TurnId,
    TurnRecord,
};
use tokio::{
    sync::mpsc,
    task::{JoinError, JoinHandle},
    time::{sleep, sleep_until},
};

use super::{
    Message, Meta, Status,
    again::Again,
    closing::{Closing, Early},
    inside::Inside,
    late::Late,
    quiescence::{Before, Progress},
    retention::Removals,
    stdin::{Watching, ticks_since_boot},
};
use crate::{
    capture::{Capture, micros},
    idle,
    publish::Published,
    sandbox::{Container, unix_ms},
    schedule::Schedule,
    tracer::Tracer,
};

/// How many records are kept for a journal that cannot be written.
const MAX_UNWRITTEN: usize = 1024;

/// A turn that is not over.
pub(super) struct Open {
    pub(super) turn: TurnId,
    pub(super) trigger: Trigger,
    pub(super) command: String,
    /// What hints said of it.
    pub(super) meta: Meta,
    /// A hint has begun it, and only a hint ends it.
    pub(super) hinted: bool,
    pub(super) began: SystemTime,
    pub(super) gate: Duration,
    /// The programs that hold it open: execs in the foreground, and whoever was told
    /// something by its stdin.
    pub(super) holders: HashSet<String>,
    pub(super) exit: Option<i32>,
    /// When it was over; nothing while it goes on.
    ended: Option<SystemTime>,
    pub(super) over: Option<Instant>,
    /// How long after that it was looked at.
    boundary: Option<Duration>,
    /// That it is open is in the journal.
    noted: bool,
}

impl Open {
    pub(super) fn new(turn: TurnId, trigger: Trigger, command: String, gate: Duration) -> Self {
        Self {
            turn,
            trigger,
            command,
            meta: Meta::new(),
            hinted: false,
            began: SystemTime::now(),
            gate,
            holders: HashSet::new(),
            exit: None,
            ended: None,
            over: None,
            boundary: None,
            noted: false,
        }
    }

    /// Nothing holds it open any more since this time.
    pub(super) fn ended_at(&mut self, at: SystemTime) {
        self.ended = Some(at);
        let now = Instant::now();
        let since = at.elapsed().unwrap_or_default();
        self.over = Some(now.checked_sub(since).unwrap_or(now));
    }

    /// The same by the other clock.
    pub(super) fn over_since(&mut self, since: Instant) {
        self.over = Some(since);
        self.ended = SystemTime::now().checked_sub(since.elapsed());
    }

    /// It goes on.
    pub(super) fn again(self) -> Self {
        Self {
            ended: None,
            over: None,
            boundary: None,
            ..self
        }
    }

    /// It is looked at; what counts is the first time.
    pub(super) fn look_begins(&mut self) {
        let since = self.over.map(|over| over.elapsed());
        self.boundary = self.boundary.or(since);
    }

    /// Its record, as far as it is known before it is looked at.
    pub(super) fn record(self) -> TurnRecord {
        TurnRecord {
            command: self.command,
            meta: self.meta,
            began_ms: unix_ms(self.began),
            ended_ms: unix_ms(self.ended.unwrap_or_else(SystemTime::now)),
            exit: self.exit,
            cost: Cost {
                gate_us: micros(self.gate),
                boundary_us: micros(self.boundary.unwrap_or_default()),
                ..Cost::default()
            },
            ..TurnRecord::new(self.turn, self.trigger)
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
    /// How much is to be stored.
    pub(super) bytes: u64,
}

/// A watch that is about to begin, and the counters then.
pub(super) type Watch = JoinHandle<Result<Effects, String>>;

/// The task's own state.
pub(super) struct Task {
    pub(super) container: Arc<Container>,
    pub(super) tracer: Arc<Tracer>,
    /// When it may be captured.
    pub(super) schedule: Arc<Schedule>,
    /// Begins when crabd is there.
    pub(super) watch: Option<Watch>,
    pub(super) status: Arc<Mutex<Status>>,
    pub(super) history: Result<History, String>,
    pub(super) open: Option<Open>,
    /// A turn whose last exec has ended just now.
    pub(super) closing: Option<Closing>,
    /// A look at the sandbox that goes on behind the messages; it has the capture.
    pub(super) early: Option<Early>,
    /// Whether programs of the open turn wait to be told more.
    pub(super) watching: Option<Watching>,
    /// How far every process had run when the last turn ended that way.
    pub(super) at_rest: Option<Progress>,
    /// An agent that runs inside, told by nobody.
    pub(super) inside: Option<Inside>,
    /// The newest state is no checkpoint, or lacks something: when that is tried again.
    pub(super) again: Option<Again>,
    /// What a history needs that could not be opened yet.
    pub(super) late: Option<Late>,
    /// The commands of the execs that live.
    pub(super) commands: HashMap<String, String>,
    /// A look that does not come back: no other is begun.
    pub(super) stuck: Option<JoinHandle<()>>,
    /// Processes that a rollback has brought back are not on record yet; whether they were
    /// restored by CRIU.
    pub(super) unrecorded: Option<bool>,
    /// How it begins, as long as that is not on record.
    pub(super) beginning: Option<(TurnId, bool)>,
    /// The journal is on its way to the disk.
    pub(super) syncing: Option<JoinHandle<()>>,
    /// The files of before a rollback are being removed.
    pub(super) removal: Option<JoinHandle<()>>,
    pub(super) removals: Removals,
}

impl Task {
    /// What is written down; or why nothing is.
    pub(super) fn history(&self) -> Result<&History> {
        self.history.as_ref().map_err(|reason| anyhow!("{reason}"))
    }

    pub(super) fn new(
        container: Arc<Container>,
        tracer: Arc<Tracer>,
        schedule: Arc<Schedule>,
        status: Arc<Mutex<Status>>,
    ) -> Self {
        Self {
            container,
            tracer,
            schedule,
            watch: None,
            status,
            history: Err("the container is not started yet".into()),
            open: None,
            closing: None,
            early: None,
            watching: None,
            at_rest: None,
            inside: None,
            again: None,
            late: None,
            commands: HashMap::new(),
            stuck: None,
            unrecorded: None,
            beginning: None,
            syncing: None,
            removal: None,
            removals: Removals::default(),
        }
    }

    pub(super) async fn run(mut self, mut messages: mpsc::UnboundedReceiver<Message>) {
        let mut rests = false;
        loop {
            let due = self.due();
            let pending = match &mut self.history {
                Ok(history) => history.pending.as_mut(),
                Err(_) => None,
            };
            // An agent inside is looked at with the few pages that are in use anyway.
            let is_busy = self.closing.is_some() || self.watching.is_some();
            let is_idle = pending.is_none() && !is_busy && !rests;
            // What was said before the time ran out is heard before.
            let message = tokio::select! {
                biased;
                message = messages.recv() => message,
                // A published checkpoint is told at once, not at the next turn.
                result = published(pending) => {
                    self.settle_pending(result);
                    continue;
                }
                () = at(due) => {
                    self.on_time().await;
                    continue;
                }
                () = sleep(idle::AFTER), if is_idle => {
                    idle::let_go();
                    rests = true;
                    continue;
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

    /// When something is to be done without a message.
    fn due(&self) -> Option<Instant> {
        let closing = self.closing.as_ref().map(|closing| closing.until);
        let watching = self.watching.as_ref().map(|watching| watching.next);
        let inside = self.inside.as_ref().map(|inside| inside.next);
        let all = [closing, watching, inside, self.owed_at()];
        all.into_iter().flatten().min()
    }

    async fn on_time(&mut self) {
        let now = Instant::now();
        if self.closing.as_ref().is_some_and(|it| it.until <= now) {
            self.conclude().await;
        }
        if self.watching.as_ref().is_some_and(|it| it.next <= now) {
            self.look_for_rest().await;
        }
        if self.inside.as_ref().is_some_and(|it| it.next <= now) {
            self.look_inside().await;
        }
        if self.owed_at().is_some_and(|at| at <= now) {
            self.try_again().await;
        }
    }

    async fn handle(&mut self, message: Message) {
        if !matches!(
            message,
            Message::Begin { .. }
                | Message::Input { .. }
                | Message::Ended { .. }
                | Message::Over { .. }
                | Message::Remove(..)
        ) {
            // Whatever it is, it is no part of a turn that is closing, and may need the
            // capture.
            self.settle_turn().await;
        }
        match message {
            Message::Begin {
                exec,
                command,
                at,
                go,
            } => {
                self.go_on(at).await;
                self.begin(exec, command, at.elapsed());
                let _ = go.send(());
                self.note_open();
            }
            Message::Input { process, at, go } => {
                self.go_on(at).await;
                self.told(process, at).await;
                let _ = go.send(());
                self.note_open();
            }
            Message::Ended { exec, exit } => self.ended(&exec, exit).await,
            Message::BeforeStart {
                beginning,
                fresh,
                done,
            } => {
                let _ = done.send(self.before_start(*beginning, fresh).await);
            }
            Message::Over { exit, host_ends } => self.note_end(exit, host_ends).await,
            Message::AfterStart { restored, done } => {
                self.note_beginning();
                if let Err(error) = self.after_start(restored).await {
                    tracing::warn!(error = %format!("{error:#}"), "the processes were not recorded");
                }
                // Whoever starts it need not wait for that.
                let _ = done.send(());
                self.settle_init().await;
            }
            Message::HintBegin { meta, at, reply } => {
                let _ = reply.send(self.hint_begin(meta, at).await);
                self.note_open();
            }
            Message::HintEnd { meta, reply } => match self.hint_end(meta) {
                Err(refused) => {
                    let _ = reply.send(Err(refused));
                }
                Ok((turn, open)) => {
                    let _ = reply.send(Ok(turn));
                    self.close_now(open).await;
                }
            },
            Message::CanCheckpoint(reply) => {
                let can = self.history.as_ref().map(drop);
                let _ = reply.send(can.map_err(|reason| anyhow::anyhow!("{reason}")));
            }
            Message::Checkpoint(reply) => {
                let _ = reply.send(self.checkpoint().await);
            }
            Message::Hold {
                granted,
                release,
                dumps,
            } => {
                if dumps {
                    // What it holds afterwards is taken for what it held before.
                    self.with_init(Capture::look_at_init).await;
                }
                // Whoever asked may be gone; then it holds nothing.
                if granted.send(()).is_ok() {
                    let _ = release.await;
                }
                if dumps {
                    self.settle_init().await;
                }
            }
            Message::Rollback(wish, reply) => {
                let _ = reply.send(self.roll_back(wish).await);
                self.note_processes().await;
            }
            Message::Verify(turn, reply) => {
                let _ = reply.send(self.verify(turn).await);
            }
            Message::Remove(limits, reply) => self.remove(limits, Some(reply)),
            Message::Close(_) => {}
        }
    }

    pub(super) fn tell(&self, f: impl FnOnce(&mut Status)) {
        f(&mut self.status.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn begin(&mut self, exec: String, command: String, gate: Duration) {
        if self.history.is_ok() {
            self.commands.insert(exec.clone(), command.clone());
        }
        let before = Before::Start(ticks_since_boot());
        self.open_for(exec, Trigger::Exec, command, gate, before);
    }

    /// Opens a turn, unless one is, for a program that holds it open from now on.
    pub(super) fn open_for(
        &mut self,
        process: String,
        trigger: Trigger,
        command: String,
        gate: Duration,
        before: Before,
    ) {
        let Ok(history) = &mut self.history else {
            return;
        };
        let open = self.open.get_or_insert_with(|| {
            self.schedule.turn_begins(gate);
            let turn = history.next;
            history.next = turn.next();
            Open::new(turn, trigger, String::new(), gate)
        });
        if open.command.is_empty() {
            open.command = command;
        }
        open.holders.insert(process);
        let turn = open.turn.0;
        self.tell(|status| {
            status.turn = turn;
            status.open = true;
        });
        self.watch_for_rest(before);
    }

    /// Takes the open turn, if there is one: whatever comes now belongs to another.
    pub(super) fn take_open(&mut self) -> Option<Open> {
        let open = self.open.take()?;
        self.watching = None;
        self.let_pass(&open, false);
        Some(open)
    }

    /// Says that a turn is open, when whoever began it has gone on.
    fn note_open(&mut self) {
        let (Some(open), Ok(history)) = (&mut self.open, &self.history) else {
            return;
        };
        if !std::mem::replace(&mut open.noted, true) {
            let (trigger, command) = (open.trigger, open.command.clone());
            history.note(open.turn, Step::Opened { trigger, command });
        }
    }

    async fn ended(&mut self, exec: &str, exit: Option<Exit>) {
        let command = self.commands.remove(exec);
        self.inside_ended(exec, command, exit).await;
        let Some(open) = &mut self.open else { return };
        if !open.holders.remove(exec) {
            return;
        }
        open.exit = exit.map(|exit| exit.status as i32).or(open.exit);
        if open.hinted {
            return;
        }
        if !open.holders.is_empty() {
            // The others may only have waited to be told more.
            self.watch_for_rest(Before::Start(ticks_since_boot()));
            return;
        }
        open.ended_at(exit.map_or_else(SystemTime::now, |exit| exit.at));
        if let Some(open) = self.take_open() {
            self.close_after_gap(open).await;
        }
    }

    /// Nothing is closing any more, and the capture is where it belongs.
    async fn settle_turn(&mut self) {
        self.conclude().await;
        self.collect(false).await;
    }

    async fn close(&mut self) {
        self.settle_turn().await;
        self.finish_pending_now().await;
        self.finish_removal().await;
        self.end_removals().await;
        if let Some(watch) = self.watch.take() {
            watch.abort();
        }
        self.tracer.unwatch().await;
        if let Some(syncing) = self.syncing.take() {
            let _ = syncing.await;
        }
        self.history = Err("the sandbox is being deleted".into());
    }
}

/// See [`History::note`].
pub(super) fn note(writer: &SandboxWriter, turn: TurnId, step: Step) {
    let at_ms = unix_ms(SystemTime::now());
    let step = JournalRecord::Step(StepRecord { at_ms, turn, step });
    if let Err(error) = writer.append(step, Durability::Lazy) {
        tracing::debug!(%error, "a step of a turn is not in the journal");
    }
}

/// When the checkpoint on its way is in the store, or failed; never if there is none.
async fn published(pending: Option<&mut Pending>) -> Result<Result<Published>, JoinError> {
    match pending {
        Some(pending) => (&mut pending.task).await,
        None => std::future::pending().await,
    }
}

/// At this time; never if there is none.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

impl History {
    /// Says how far a turn has come, to whoever follows. What cannot be written at once is not
    /// said.
    pub(super) fn note(&self, turn: TurnId, step: Step) {
        if self.unwritten.is_empty() {
            note(&self.writer, turn, step);
        }
    }

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
