// SPDX-License-Identifier: Apache-2.0

//! Runs of agents, recorded or written, and how they are played again.
//!
//! ```text
//! folder of *.json --load--> Trace ── turns, each a command and the wait before it
//!                              │
//!                    Pace ─────┤  how long each wait is: scaled, drawn where none is known
//!                              v
//!                           Player  one sandbox: an exec per turn, straight to its shim
//! ```
//! The format is in `docs/traces.md`. Those of the project are in `integration/traces`; a
//! folder of others is loaded by the same rules, and what is no trace is refused with the
//! file, the turn and the reason.

mod load;
mod pace;
mod player;
mod stdio;

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;

use crate::{
    client::{Client, RunOptions},
    replay::Driver,
    testbed::Testbed,
};

pub use self::{
    load::{folder, own},
    pace::Pace,
    player::{Played, Player},
};

/// One run of one agent.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    /// Its name: that of its file without `.json`.
    pub id: String,
    /// Which agent it was, or would be.
    #[serde(default)]
    pub agent: Option<String>,
    /// Where it comes from; for people.
    #[serde(default)]
    pub source: Value,
    /// Which model answered; for people.
    #[serde(default)]
    pub model: Option<String>,
    /// How it came about.
    pub kind: Kind,
    /// Where each command begins, an absolute path. `setup` makes it where the image lacks it.
    pub cwd: PathBuf,
    /// What each command is given to, by `-c`.
    pub shell: Shell,
    /// What makes the files that the agent found; run from `/`, in this order.
    #[serde(default)]
    pub setup: Vec<String>,
    /// What it did.
    pub turns: Vec<TraceTurn>,
    /// How its commands are given, where nobody says otherwise.
    #[serde(default)]
    pub driver: Driver,
    /// For how long the agent let a command run until it killed it, itself and no more, in
    /// milliseconds; nothing if it waited for ever.
    #[serde(default)]
    pub agent_timeout_ms: Option<u64>,
    /// Whether something in it grows until it is stopped.
    #[serde(default)]
    pub needs_memory_limit: bool,
    /// For people.
    #[serde(default)]
    pub notes: Option<String>,
    #[serde(skip)]
    file: PathBuf,
}

/// How a trace came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// An agent's run was recorded.
    Recorded,
    /// A task's reference solution, as turns.
    Oracle,
    /// Somebody wrote it, as an agent might have worked.
    Written,
}

/// A shell of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shell {
    /// The image's `sh`.
    Sh,
    /// bash.
    Bash,
}

impl Shell {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sh => "sh",
            Self::Bash => "bash",
        }
    }
}

/// One turn: the wait for the model, and then a command.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceTurn {
    /// The agent's word for what it used: `bash`, `tmux`, `edit`, ...; for people, as every
    /// one of them is a command here.
    pub tool: String,
    /// The command.
    pub command: String,
    /// What it reads; nothing if it has an empty stdin.
    #[serde(default)]
    pub stdin: Option<String>,
    /// For how long the model was waited for before it, in milliseconds; nothing if that is
    /// not known.
    #[serde(default)]
    pub llm_wait_ms: Option<u64>,
    /// For how long nothing at all happened before it, where that was longer.
    #[serde(default)]
    pub idle_before_ms: Option<u64>,
    /// How long it took where it was recorded.
    #[serde(default)]
    pub exec_ms: Option<u64>,
    /// Its exit status there; nothing if that is not known.
    #[serde(default)]
    pub exit: Option<i32>,
}

/// What a sandbox may use in which something grows, in bytes.
const MEMORY_LIMIT: &str = "536870912";

impl Trace {
    /// How its container is made: with a limit where something in it grows, if the host can limit.
    pub fn bounded(&self, options: RunOptions, client: Client, testbed: &Testbed) -> RunOptions {
        if !self.needs_memory_limit || !testbed.has_controller("memory") {
            return options;
        }
        let flag = match client {
            Client::Ctr { .. } => "--memory-limit",
            Client::Docker => "--memory",
        };
        options.flags([flag, MEMORY_LIMIT])
    }

    /// Its file.
    pub fn file(&self) -> &std::path::Path {
        &self.file
    }
}
