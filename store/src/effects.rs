// SPDX-License-Identifier: Apache-2.0

//! What a turn did, as far as a person cares: beside the changed paths, which are in the
//! turn's record itself.
//!
//! Lists are bounded, because a sandbox chooses how much there is to tell; each has the
//! whole number beside it. Fields are only ever added, with a default.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    record::{MAX_CHANGED_PATH, MAX_COMMAND},
    text::clip,
};

/// Most processes, and most sockets, kept in a turn's record.
pub const MAX_PROCESSES: usize = 64;
/// Most rules kept in a turn's record.
pub const MAX_RULES: usize = 128;
/// Longest command line of a process kept, in bytes.
const MAX_PROCESS: usize = MAX_COMMAND / 8;

/// The effects of a turn other than changed paths that matter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TurnEffects {
    /// Differences that a rule says do not matter, rule by rule. Paths are counted against
    /// the newest checkpoint: what was passed over is passed over again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignored: Vec<IgnoredBy>,
    /// How many processes started, ended or changed.
    #[serde(skip_serializing_if = "is_zero")]
    pub processes_changed: u64,
    /// The first of these, at most [`MAX_PROCESSES`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<ChangedProcess>,
    /// Where the processes listen since, at most [`MAX_PROCESSES`] sockets; known only
    /// where processes changed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub listening: Vec<ListeningSocket>,
    /// What no rollback undoes, by its name: connections made, bytes sent, ... Nothing of
    /// what was not counted.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub external: BTreeMap<String, u64>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What one rule passed over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IgnoredBy {
    /// The setting that it is in: `ignore.paths`.
    pub setting: String,
    /// The pattern.
    pub rule: String,
    /// How many paths, or processes.
    pub count: u64,
    /// The first of them, escaped (see [`crate::escape`]).
    pub first: String,
}

/// A process that a turn left different.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedProcess {
    /// How.
    pub change: ProcessChange,
    /// Its pid in the container's own pid namespace, where it still is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Its name.
    pub comm: String,
    /// Its command line (see [`crate::command_line`]).
    pub cmdline: String,
}

/// How a process became different.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessChange {
    /// It was not there before.
    Started,
    /// It is gone.
    Ended,
    /// It is not known to be as it was.
    Changed,
}

/// A socket that waits for others to come.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ListeningSocket {
    /// `tcp`, `udp`, `unix`.
    pub protocol: String,
    /// `127.0.0.1:80`, `[::]:80`, or an escaped path.
    pub address: String,
    /// The name of a process that holds it.
    pub comm: String,
}

impl TurnEffects {
    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Cuts every text and list to its limit.
    pub(crate) fn bound(&mut self) {
        self.ignored.truncate(MAX_RULES);
        for ignored in &mut self.ignored {
            clip_in(&mut ignored.setting, MAX_CHANGED_PATH);
            clip_in(&mut ignored.rule, MAX_CHANGED_PATH);
            clip_in(&mut ignored.first, MAX_CHANGED_PATH);
        }
        self.processes.truncate(MAX_PROCESSES);
        for process in &mut self.processes {
            clip_in(&mut process.comm, MAX_PROCESS);
            clip_in(&mut process.cmdline, MAX_PROCESS);
        }
        self.listening.truncate(MAX_PROCESSES);
        for socket in &mut self.listening {
            clip_in(&mut socket.protocol, MAX_PROCESS);
            clip_in(&mut socket.address, MAX_PROCESS);
            clip_in(&mut socket.comm, MAX_PROCESS);
        }
        while self.external.len() > MAX_RULES {
            self.external.pop_last();
        }
    }
}

/// Cuts a text where it is longer.
pub(crate) fn clip_in(text: &mut String, max: usize) {
    if text.len() > max {
        *text = clip(text, max);
    }
}
