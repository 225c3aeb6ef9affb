// SPDX-License-Identifier: Apache-2.0
//! One capture of one sandbox, from the wish to the end.

use std::{fmt, sync::Arc, time::Duration};

use crate::{time::Time, waits::Waits};

/// What a turn needs. One that needs nothing is no job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Files, with no process dumped.
    Files,
    /// Processes.
    Processes,
    /// Both.
    Full,
}

impl Class {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Files, Self::Processes, Self::Full];

    /// Whether processes are dumped.
    pub fn dumps(self) -> bool {
        self != Self::Files
    }

    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Processes => "processes",
            Self::Full => "full",
        }
    }
}

/// Names a job for as long as the scheduler lives. Later ones are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// What somebody wants captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// `<namespace>/<id>`
    pub sandbox: Arc<str>,
    /// Its turn.
    pub turn: u64,
    /// What that needs, as far as it is known.
    pub class: Class,
    /// Up to how much memory it takes until it is published.
    pub bytes: u64,
    /// How much the sandbox counts, against [`crate::WHOLE`].
    pub weight: u32,
    /// How long its agent has waited for its model before.
    pub waits: Waits,
    /// For how long it waits already.
    pub waiting: Duration,
    /// For how long something of the sandbox's has been held back for it; nothing if
    /// nothing is.
    pub gated: Option<Duration>,
    /// For how long that may be while the capture has not begun.
    pub gate_limit: Duration,
}

/// How far a job is when the scheduler first hears of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// It asks to be captured.
    Asks,
    /// It is captured, and of so many bytes: without holding anybody back, or by whoever got no
    /// answer in time, or had one from a scheduler that is gone.
    Captured(u64),
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It waits for its turn.
    Queued,
    /// It is taken out of the sandbox's reach.
    Capturing,
    /// It is on its way into the store, or waits for that.
    Publishing,
    /// It is in the store.
    Durable,
    /// It was taken back, and the sandbox lost nothing by it.
    Void,
    /// It came to nothing.
    Failed,
}

impl State {
    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Capturing => "capturing",
            Self::Publishing => "publishing",
            Self::Durable => "durable",
            Self::Void => "void",
            Self::Failed => "failed",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// It is in the store.
    Durable,
    /// It was taken back, for this reason.
    Void(String),
    /// It came to nothing, for this reason.
    Failed(String),
    /// A gate was held for it as long as it may be.
    GivenUp,
}

impl End {
    /// The state that it ends in.
    pub fn state(&self) -> State {
        match self {
            Self::Durable => State::Durable,
            Self::Void(_) => State::Void,
            Self::Failed(_) | Self::GivenUp => State::Failed,
        }
    }

    /// Why, if there is anything to say.
    pub fn reason(&self) -> &str {
        match self {
            Self::Durable => "",
            Self::Void(reason) | Self::Failed(reason) => reason,
            Self::GivenUp => "given up: it would have held the sandbox back for too long",
        }
    }
}

/// One that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Which.
    pub id: JobId,
    /// Of which sandbox.
    pub sandbox: Arc<str>,
    /// Of which turn.
    pub turn: u64,
    /// What it needed.
    pub class: Class,
    /// When.
    pub at: Time,
    /// How.
    pub end: End,
}

/// One that has not, as it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobView {
    /// Which.
    pub id: JobId,
    /// Of which sandbox.
    pub sandbox: Arc<str>,
    /// Of which turn.
    pub turn: u64,
    /// What it needs.
    pub class: Class,
    /// How far it is.
    pub state: State,
    /// It may go on in that state: one that is publishing and may not yet waits for the
    /// disk.
    pub granted: bool,
    /// Since it is in that state.
    pub since: Time,
    /// Since when something is held back for it.
    pub gated: Option<Time>,
    /// What its capture is expected to take.
    pub cost: Duration,
    /// When its agent is expected to go on.
    pub deadline: Time,
    /// The memory that it takes, or may.
    pub bytes: u64,
    /// How much its sandbox counts.
    pub weight: u32,
}

/// Where a job is, and what that state alone knows.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Phase {
    Queued,
    Capturing,
    /// Captured: to be published, or being published.
    Publishing {
        bytes: u64,
        granted: bool,
    },
}

/// A job that has not ended.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) request: Request,
    pub(crate) phase: Phase,
    /// In this phase.
    pub(crate) since: Time,
    pub(crate) gated: Option<Time>,
    pub(crate) cost: Duration,
    /// When the wait for the model began.
    pub(crate) idle_since: Time,
    pub(crate) deadline: Time,
    /// When its sandbox has asked for so long that it comes before all others.
    pub(crate) patient_until: Time,
    /// What of the staging memory is counted for it.
    pub(crate) reserved: u64,
}

impl Job {
    /// When the agent is expected to go on, looked at now.
    pub(crate) fn foretell(&mut self, now: Time) {
        let lasted = now.since(self.idle_since);
        self.deadline = now + self.request.waits.left(lasted);
    }

    pub(crate) fn state(&self) -> State {
        match self.phase {
            Phase::Queued => State::Queued,
            Phase::Capturing => State::Capturing,
            Phase::Publishing { .. } => State::Publishing,
        }
    }
}
