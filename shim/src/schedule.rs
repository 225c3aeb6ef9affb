// SPDX-License-Identifier: Apache-2.0
//! The shim's side of crabd's schedule: when its sandbox may be captured and published.
//!
//! ```text
//! class none       asks nobody
//! files, no freeze captured at once; asked behind it, before it is published
//! with a freeze    asked before anything stands still --go--> capture, then as above
//!                     |
//!                     +-- what waits at the gate has waited for too long: given up
//! ```
//! A container's life never hangs on crabd. One that is not there, or does not answer within
//! [`SLACK`] of when it should, is not waited for: the capture goes on as if it had been granted, under
//! what limits a shim has by itself (one capture at a time, its share of memory, low
//! priority), which is logged, and crabd is told when it answers again. Each question has the
//! whole job in it, so that one which was started anew knows its queue again with the next.

use std::{
    path::PathBuf,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use crab_api::{
    connect, paths,
    schedule::{AskRequest, EndRequest},
    schedule_ttrpc::ScheduleClient,
};
use crab_config::{Config, Durability};
use crab_schedule::{Class, Waits};
use thiserror::Error;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use ttrpc::context::Context as Call;

/// How long crabd may take to say "wait". While something is held back, less: so much of that
/// may be in vain.
const PATIENCE: Duration = Duration::from_millis(500);
const PATIENCE_HELD: Duration = Duration::from_millis(100);
/// How much longer the answer may be on its way: on a crowded host, whose crabd and shim wait for
/// a processor each. One that is taken for dead there would have the budgets kept by nobody.
const SLACK: Duration = Duration::from_millis(400);
/// For how long a crabd that went away is expected to be there again.
const RECONNECT: Duration = Duration::from_millis(50);
/// For how long one that did not answer is not asked again.
const AVOID: Duration = Duration::from_secs(5);
/// How long the word that a job has ended may take.
const FAREWELL: Duration = Duration::from_millis(500);

/// Why a sandbox is not captured now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum NotNow {
    /// Nobody is to wait for it any longer.
    #[error(
        "given up, as other captures came first and the gate was held for as long as it may be"
    )]
    GivenUp,
    /// Nobody is to wait for it at all.
    #[error("its changes are in the next turn's, as its capture would have held the agent back")]
    Merged,
}

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Durable,
    Void,
    Failed,
    GivenUp,
}

impl End {
    fn as_str(self) -> &'static str {
        match self {
            Self::Durable => "durable",
            Self::Void => "void",
            Self::Failed => "failed",
            Self::GivenUp => "given-up",
        }
    }
}

/// What is told of the gate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Held {
    /// How many wait, and since when.
    waiting: usize,
    since: Option<Instant>,
    /// One has waited for so long that it goes on regardless.
    ran_out: bool,
    /// A command waits for the publication that is under way.
    hurry: bool,
    /// The end of the next turn does, and with it whatever waits at the gate.
    needed: bool,
    /// The sandbox is being deleted, which waits for nobody else's captures.
    closing: bool,
}

/// The turn whose end is looked at.
#[derive(Debug, Clone, Copy, Default)]
struct Now {
    turn: u64,
    /// It is captured however long that takes.
    regardless: bool,
    /// It is no turn if it is not captured.
    in_vain: bool,
}

#[derive(Default)]
struct State {
    now: Now,
    waits: Waits,
    /// Since when the agent waits for its model.
    waits_since: Option<Instant>,
    /// The turn of which crabd was asked, and the connection for as long as it has a job.
    asked: Option<u64>,
    client: Option<ScheduleClient>,
    /// When crabd last did not answer.
    silent: Option<Instant>,
}

/// See the module.
pub(crate) struct Schedule {
    socket: PathBuf,
    sandbox: String,
    weight: u32,
    durability: Durability,
    gate_limit: Duration,
    state: Mutex<State>,
    held: watch::Sender<Held>,
    /// Is told of the turn whose capture has to wait, once.
    queued: OnceLock<Box<dyn Fn(u64) + Send + Sync>>,
}

/// Something waits for the capture for as long as this is there.
pub(crate) struct Waiting<'a>(&'a Schedule);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.held.send_modify(|held| {
            held.waiting -= 1;
            if held.waiting == 0 {
                held.since = None;
            }
        });
    }
}

/// What became of a question.
enum Answer {
    Go,
    Wait,
    GiveUp,
    /// Why there is none.
    None(String),
}

impl Schedule {
    /// `config` is the sandbox's own.
    pub(crate) fn new(config: &Config, sandbox: String) -> Self {
        Self {
            socket: paths::crabd_socket(&config.run_dir),
            sandbox,
            weight: u32::try_from(config.schedule.weight).unwrap_or(u32::MAX),
            durability: config.schedule.durability,
            gate_limit: config.checkpoints.max_gate(),
            state: Mutex::default(),
            held: watch::Sender::default(),
            queued: OnceLock::new(),
        }
    }

    /// Has this told of each turn whose capture crabd does not let go at once.
    pub(crate) fn tell_of_waits(&self, tell: impl Fn(u64) + Send + Sync + 'static) {
        let _ = self.queued.set(Box::new(tell));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An exec, or input, waits at the gate.
    pub(crate) fn waits(&self) -> Waiting<'_> {
        self.held.send_modify(|held| {
            held.waiting += 1;
            held.since = held.since.or_else(|| Some(Instant::now()));
        });
        Waiting(self)
    }

    /// What waited goes on regardless.
    pub(crate) fn gate_ran_out(&self) {
        self.held.send_modify(|held| held.ran_out = true);
    }

    /// Whether the publication that is under way is to go on at once.
    pub(crate) fn hurry(&self, hurry: bool) {
        self.held.send_modify(|held| held.hurry = hurry);
    }

    /// Whether the next turn cannot be looked at before that publication is done.
    pub(crate) fn needed(&self, needed: bool) {
        self.held.send_modify(|held| held.needed = needed);
    }

    /// The sandbox is being deleted: nothing waits for its turn any more.
    pub(crate) fn close(&self) {
        self.held.send_modify(|held| held.closing = true);
    }

    /// Whether something waits for what is under way, or has waited for as long as it may: what
    /// can be put off gives way to it.
    pub(crate) fn is_waited_for(&self) -> bool {
        let held = self.held.borrow();
        held.waiting > 0 || held.ran_out || held.closing
    }

    /// The agent goes on, after this wait at the gate.
    pub(crate) fn turn_begins(&self, gate: Duration) {
        let mut state = self.state();
        if let Some(since) = state.waits_since.take() {
            state.waits.note(since.elapsed().saturating_sub(gate));
        }
    }

    /// A turn is over, since `over`, and is looked at. With `regardless` its capture is waited for
    /// however long that takes.
    pub(crate) fn turn_is_over(&self, turn: u64, over: Option<Instant>, regardless: bool) {
        let mut state = self.state();
        state.waits_since = over.or(state.waits_since);
        state.now = Now {
            turn,
            regardless,
            in_vain: false,
        };
        drop(state);
        self.held.send_modify(|held| held.ran_out = false);
    }

    /// What is looked at is no turn if it is not captured: that it waits is not told.
    pub(crate) fn may_be_in_vain(&self) {
        self.state().now.in_vain = true;
    }

    /// Waits until the sandbox may be frozen for a capture.
    pub(crate) async fn capture(&self, class: Class, bytes: u64) -> Result<(), NotNow> {
        let mut watching = self.held.subscribe();
        let now = self.state().now;
        let mut waits = false;
        loop {
            let held = *watching.borrow_and_update();
            if held.closing {
                return Ok(());
            }
            if !now.regardless {
                if held.ran_out {
                    return Err(NotNow::GivenUp);
                }
                if held.waiting > 0 && self.durability == Durability::Latest {
                    return Err(NotNow::Merged);
                }
            }
            let question = self.question("capture", now.turn, class, bytes, held);
            tokio::select! {
                answer = self.ask(question) => match answer {
                    Answer::Go => return Ok(()),
                    Answer::Wait => {
                        if !std::mem::replace(&mut waits, true)
                            && !now.in_vain
                            && let Some(tell) = self.queued.get()
                        {
                            tell(now.turn);
                        }
                    }
                    Answer::GiveUp if now.regardless => {}
                    Answer::GiveUp => return Err(NotNow::GivenUp),
                    Answer::None(why) => {
                        tracing::info!(why, "a capture begins without being scheduled");
                        return Ok(());
                    }
                },
                _ = watching.changed() => {}
            }
        }
    }

    /// Waits until what was captured of this turn may be published.
    pub(crate) async fn publish(&self, turn: u64, class: Class, bytes: u64) {
        let mut watching = self.held.subscribe();
        loop {
            let held = *watching.borrow_and_update();
            // An agent is not held up for other sandboxes' disks.
            let holds_up = held.needed && (held.waiting > 0 || held.ran_out);
            if held.hurry || held.closing || holds_up {
                return;
            }
            let question = self.question("publish", turn, class, bytes, held);
            tokio::select! {
                answer = self.ask(question) => match answer {
                    Answer::Wait => {}
                    Answer::Go | Answer::GiveUp => return,
                    Answer::None(why) => {
                        tracing::debug!(why, "a publication begins without being scheduled");
                        return;
                    }
                },
                _ = watching.changed() => {}
            }
        }
    }

    /// The job of this turn has ended, if there was one.
    pub(crate) fn end(&self, turn: u64, end: End, reason: &str) {
        let mut state = self.state();
        if state.asked.take_if(|asked| *asked == turn).is_none() {
            // Most turns have none.
            return;
        }
        // Not kept for the next job.
        let client = state.client.take();
        drop(state);
        let socket = self.socket.clone();
        let request = EndRequest {
            sandbox: self.sandbox.clone(),
            turn,
            end: end.as_str().into(),
            reason: reason.into(),
            ..Default::default()
        };
        tokio::spawn(timeout(FAREWELL, async move {
            let client = match client {
                Some(client) => Some(client),
                None => connect(&socket).await.ok().map(ScheduleClient::new),
            };
            if let Some(client) = client {
                // One that does not hear it ends the job by time.
                let _ = client.end(Call::default(), &request).await;
            }
        }));
    }

    fn question(&self, step: &str, turn: u64, class: Class, bytes: u64, held: Held) -> AskRequest {
        let ms = |duration: Duration| u32::try_from(duration.as_millis()).unwrap_or(u32::MAX);
        let state = self.state();
        let regardless = state.now.regardless && state.now.turn == turn;
        let patience = match held.waiting {
            0 => PATIENCE,
            _ => PATIENCE_HELD,
        };
        AskRequest {
            sandbox: self.sandbox.clone(),
            turn,
            class: class.as_str().into(),
            step: step.into(),
            bytes,
            weight: self.weight,
            waits_ms: state.waits.iter().map(ms).collect(),
            waiting_ms: state.waits_since.map_or(0, |since| ms(since.elapsed())),
            held: held.waiting > 0 || regardless,
            held_ms: held.since.map_or(0, |since| ms(since.elapsed())),
            hold_limit_ms: if regardless {
                u32::MAX
            } else {
                ms(self.gate_limit)
            },
            shim_pid: std::process::id(),
            patience_ms: ms(patience),
            ..Default::default()
        }
    }

    async fn ask(&self, question: AskRequest) -> Answer {
        let silent = self.state().silent;
        if silent.is_some_and(|since| since.elapsed() < AVOID) {
            return Answer::None("crabd did not answer in time".into());
        }
        let limit = Duration::from_millis(question.patience_ms.into()) + SLACK;
        let known = {
            let mut state = self.state();
            state.asked = Some(question.turn);
            state.client.clone()
        };
        let was_there = known.is_some();
        if let Some(client) = known
            && let Some(answer) = self.answer(&client, &question, limit).await
        {
            return answer;
        }
        // Not asked before, or gone meanwhile.
        let Some(client) = self.connect(was_there).await else {
            return Answer::None("no crabd listens".into());
        };
        self.state().client = Some(client.clone());
        match self.answer(&client, &question, limit).await {
            Some(answer) => answer,
            None => Answer::None("crabd went away".into()),
        }
    }

    /// Nothing if the connection does not hold.
    async fn answer(
        &self,
        client: &ScheduleClient,
        question: &AskRequest,
        limit: Duration,
    ) -> Option<Answer> {
        match timeout(limit, client.ask(Call::default(), question)).await {
            Ok(Ok(response)) => Some(match response.answer.as_str() {
                "go" => Answer::Go,
                "give-up" => Answer::GiveUp,
                _ => Answer::Wait,
            }),
            Ok(Err(ttrpc::Error::RpcStatus(status))) => Some(Answer::None(status.message)),
            Ok(Err(_)) => {
                self.state().client = None;
                None
            }
            Err(_) => {
                let mut state = self.state();
                state.client = None;
                state.silent = Some(Instant::now());
                Some(Answer::None("crabd did not answer in time".into()))
            }
        }
    }

    async fn connect(&self, was_there: bool) -> Option<ScheduleClient> {
        let start = Instant::now();
        loop {
            if let Ok(client) = connect(&self.socket).await {
                return Some(ScheduleClient::new(client));
            }
            if !was_there || start.elapsed() >= RECONNECT {
                return None;
            }
            sleep(Duration::from_millis(10)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(durability: Durability) -> (tempfile::TempDir, Schedule) {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config {
            run_dir: dir.path().to_path_buf(),
            ..Config::default()
        };
        config.schedule.durability = durability;
        let schedule = Schedule::new(&config, "default/c1".into());
        (dir, schedule)
    }

    #[tokio::test]
    async fn without_a_crabd_a_capture_begins_at_once() {
        let (_dir, schedule) = schedule(Durability::EveryTurn);
        schedule.turn_is_over(3, None, false);
        let start = Instant::now();
        assert_eq!(schedule.capture(Class::Full, 1).await, Ok(()));
        schedule.publish(3, Class::Full, 1).await;
        assert!(start.elapsed() < Duration::from_secs(2));
    }

    #[tokio::test]
    async fn a_crabd_that_hangs_is_waited_for_once() {
        let (dir, schedule) = schedule(Durability::EveryTurn);
        let socket = paths::crabd_socket(dir.path());
        let _hangs = tokio::net::UnixListener::bind(socket).unwrap();
        schedule.turn_is_over(3, None, false);
        assert_eq!(schedule.capture(Class::Full, 1).await, Ok(()));
        assert!(schedule.state().silent.is_some());
        let again = timeout(SLACK, schedule.capture(Class::Full, 1)).await;
        assert_eq!(again, Ok(Ok(())));
    }

    #[tokio::test]
    async fn who_waits_at_the_gate_has_a_turn_merged_only_where_that_is_wanted() {
        let (_dir, schedule) = schedule(Durability::Latest);
        schedule.turn_is_over(3, None, false);
        let waiting = schedule.waits();
        let taken = schedule.capture(Class::Full, 1).await;
        assert_eq!(taken, Err(NotNow::Merged));
        drop(waiting);
        assert_eq!(schedule.capture(Class::Full, 1).await, Ok(()));
        let _waiting = schedule.waits();
        schedule.turn_is_over(4, None, true);
        assert_eq!(schedule.capture(Class::Full, 1).await, Ok(()), "asked for");
    }

    #[tokio::test]
    async fn a_sandbox_that_is_deleted_waits_for_nobody() {
        let (dir, schedule) = schedule(Durability::EveryTurn);
        let _hangs = tokio::net::UnixListener::bind(paths::crabd_socket(dir.path())).unwrap();
        schedule.turn_is_over(3, None, false);
        schedule.close();
        let both = async {
            schedule.capture(Class::Full, 1).await.unwrap();
            schedule.publish(3, Class::Full, 1).await;
        };
        timeout(SLACK, both).await.unwrap();
    }

    #[tokio::test]
    async fn no_agent_is_held_up_by_a_publication_of_an_earlier_turn() {
        let (dir, schedule) = schedule(Durability::EveryTurn);
        let _hangs = tokio::net::UnixListener::bind(paths::crabd_socket(dir.path())).unwrap();
        let _waiting = schedule.waits();
        // As long as the turn goes on, that nobody waits for.
        let waits = timeout(SLACK / 2, schedule.publish(3, Class::Files, 1)).await;
        assert!(waits.is_err(), "it did not ask");
        schedule.needed(true);
        let goes = timeout(SLACK, schedule.publish(3, Class::Files, 1)).await;
        assert!(goes.is_ok());
    }

    #[tokio::test]
    async fn a_gate_that_ran_out_gives_up_the_turn_that_it_was_held_for() {
        let (_dir, schedule) = schedule(Durability::EveryTurn);
        schedule.turn_is_over(3, None, false);
        schedule.gate_ran_out();
        let taken = schedule.capture(Class::Full, 1).await;
        assert_eq!(taken, Err(NotNow::GivenUp));
        schedule.turn_is_over(4, None, false);
        assert_eq!(schedule.capture(Class::Full, 1).await, Ok(()));
    }
}
