// SPDX-License-Identifier: Apache-2.0

//! What the journal says: one record for the end of each turn, and one for
//! each thing that happened to the sandbox's history.
//!
//! Records are JSON with named fields. A field may be added if it has a
//! default; one is never given another meaning. A reader meets the kinds that
//! it does not know as [`JournalRecord::Unknown`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    class::Class,
    effects::{TurnEffects, clip_in},
    id::{SandboxId, TurnId},
    spans::Spans,
    steps::{FailureKind, Step, StepRecord},
    text::clip,
};

/// Longest command line kept, in bytes.
pub const MAX_COMMAND: usize = 4096;
/// Most changed paths kept in a turn's record.
pub const MAX_CHANGED: usize = 64;
/// Longest of these paths, in bytes.
pub const MAX_CHANGED_PATH: usize = 512;
/// Most entries of a turn's metadata.
pub const MAX_META: usize = 32;
/// Longest name of an entry, in bytes.
pub const MAX_META_NAME: usize = 64;
/// Longest value of an entry, in bytes.
pub const MAX_META_VALUE: usize = 1024;
/// Longest reason kept, in bytes.
pub const MAX_REASON: usize = 1024;
/// Longest name of a boot kept, in bytes: the kernel's have 36.
const MAX_BOOT: usize = 64;
/// Most checkpoints that one record says are removed.
const MAX_REMOVED: usize = 4096;

/// One record of a sandbox's journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
#[expect(clippy::large_enum_variant, reason = "nearly every record is a turn's")]
pub enum JournalRecord {
    /// A turn is over.
    Turn(TurnRecord),
    /// The live sandbox was brought back.
    Rollback(RollbackRecord),
    /// The sandbox was started again from a checkpoint, after its task had gone.
    Restore(RollbackRecord),
    /// The checkpoint of a turn could not be taken or published.
    CaptureFailed(CaptureFailed),
    /// Checkpoints were removed, because nobody wanted to keep them.
    Removed(RemovedRecord),
    /// The sandbox began as a copy of another.
    Fork(ForkRecord),
    /// The sandbox runs: it was started, or started again. Its shim notes how it ends.
    Began(BeganRecord),
    /// A turn has come so far, which is not over or not in the store.
    Step(StepRecord),
    /// Its init has ended, and its shim has seen it.
    Ended(EndedRecord),
    /// A kind that this version does not know.
    #[serde(other)]
    Unknown,
}

impl JournalRecord {
    /// The turn whose end it records, or during which it happened.
    pub fn turn(&self) -> Option<TurnId> {
        match self {
            Self::Turn(record) => Some(record.turn),
            Self::Rollback(record) | Self::Restore(record) => Some(record.from),
            Self::CaptureFailed(record) => Some(record.turn),
            Self::Fork(_) => Some(TurnId(0)),
            Self::Removed(_) | Self::Began(_) | Self::Step(_) | Self::Ended(_) | Self::Unknown => {
                None
            }
        }
    }

    /// When it happened, in milliseconds since the Unix epoch: of a turn, when it was over.
    pub fn at_ms(&self) -> Option<u64> {
        match self {
            Self::Turn(record) => Some(record.ended_ms),
            Self::Rollback(record) | Self::Restore(record) => Some(record.at_ms),
            Self::CaptureFailed(record) => Some(record.at_ms),
            Self::Removed(record) => Some(record.at_ms),
            Self::Fork(record) => Some(record.at_ms),
            Self::Step(record) => Some(record.at_ms),
            Self::Began(record) => Some(record.at_ms),
            Self::Ended(record) => Some(record.at_ms),
            Self::Unknown => None,
        }
    }

    /// The same record with every text within its limit: what comes from
    /// inside a container has any size.
    pub fn bounded(mut self) -> Self {
        let clip_reason = |reason: &mut Option<String>| {
            if let Some(text) = reason {
                clip_in(text, MAX_REASON);
            }
        };
        match &mut self {
            Self::Turn(record) => {
                clip_in(&mut record.command, MAX_COMMAND);
                let meta = std::mem::take(&mut record.meta).into_iter().take(MAX_META);
                let clipped = |(name, value): (String, String)| {
                    (clip(&name, MAX_META_NAME), clip(&value, MAX_META_VALUE))
                };
                record.meta = meta.map(clipped).collect();
                clip_in(&mut record.reason, MAX_REASON);
                clip_reason(&mut record.unobserved);
                clip_reason(&mut record.degraded);
                record.changed.truncate(MAX_CHANGED);
                for changed in &mut record.changed {
                    clip_in(&mut changed.path, MAX_CHANGED_PATH);
                }
                record.effects.bound();
            }
            Self::CaptureFailed(record) => clip_in(&mut record.reason, MAX_REASON),
            Self::Removed(record) => {
                record.turns.truncate(MAX_REMOVED);
                clip_in(&mut record.why, MAX_REASON);
            }
            Self::Began(record) => clip_in(&mut record.boot, MAX_BOOT),
            Self::Step(record) => {
                if let Step::Opened { command, .. } = &mut record.step {
                    clip_in(command, MAX_COMMAND);
                }
            }
            Self::Rollback(_)
            | Self::Restore(_)
            | Self::Fork(_)
            | Self::Ended(_)
            | Self::Unknown => {}
        }
        self
    }
}

/// What opened a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trigger {
    /// The container's start: turn 0.
    Start,
    /// An exec.
    Exec,
    /// Bytes to an attached stdin.
    Stdin,
    /// A hint of whoever drives the agent.
    Hint,
    /// An agent inside went on by itself.
    Inside,
    /// Somebody asked for a checkpoint.
    Manual,
    /// The sandbox began as a copy of another: turn 0.
    Fork,
    /// Nobody: what an earlier turn's capture or publication failed to keep was tried for again.
    Retry,
    /// One that this version does not know.
    #[serde(other)]
    Other,
}

impl Trigger {
    /// The word that users see.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Exec => "exec",
            Self::Stdin => "stdin",
            Self::Hint => "hint",
            Self::Inside => "inside",
            Self::Manual => "manual",
            Self::Fork => "fork",
            Self::Retry => "retry",
            Self::Other => "other",
        }
    }
}

/// The end of one turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnRecord {
    /// Its number.
    pub turn: TurnId,
    /// What opened it.
    pub trigger: Trigger,
    /// The command of its first exec, or of the program that was told something, see
    /// [`command_line`].
    pub command: String,
    /// What hints said of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub meta: BTreeMap<String, String>,
    /// When it was opened, in milliseconds since the Unix epoch.
    pub began_ms: u64,
    /// When it was over.
    pub ended_ms: u64,
    /// The exit status of its last foreground exec.
    pub exit: Option<i32>,
    /// What it needs.
    pub class: Class,
    /// Why this class, in one line.
    pub reason: String,
    /// Why the kernel's counters could not be used; nothing if they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unobserved: Option<String>,
    /// The checkpoint that holds this turn's state: its own, or for class
    /// `none` the one that was valid before. Nothing if none does.
    pub checkpoint: Option<TurnId>,
    /// Why the checkpoint holds less than the class asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub degraded: Option<String>,
    /// What it cost.
    #[serde(default)]
    pub cost: Cost,
    /// And when.
    #[serde(default, skip_serializing_if = "Spans::is_empty")]
    pub spans: Spans,
    /// How many paths were added, changed or removed, those left out that are ignored.
    #[serde(default)]
    pub files_changed: u64,
    /// The first of these, at most [`MAX_CHANGED`].
    #[serde(default)]
    pub changed: Vec<ChangedPath>,
    /// What else it did, and what of it was ignored.
    #[serde(default, skip_serializing_if = "TurnEffects::is_empty")]
    pub effects: TurnEffects,
}

impl TurnRecord {
    /// Of a turn of which nothing else is known: of class `none`, without a checkpoint, and at
    /// the beginning of time. Whoever knows more fills it in over this, so that a new field
    /// concerns only those who know of it.
    pub fn new(turn: TurnId, trigger: Trigger) -> Self {
        Self {
            turn,
            trigger,
            command: String::new(),
            meta: BTreeMap::new(),
            began_ms: 0,
            ended_ms: 0,
            exit: None,
            class: Class::None,
            reason: String::new(),
            unobserved: None,
            checkpoint: None,
            degraded: None,
            cost: Cost::default(),
            spans: Spans::default(),
            files_changed: 0,
            changed: Vec::new(),
            effects: TurnEffects::default(),
        }
    }
}

/// What a turn's checkpoint cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cost {
    /// From the turn's end until the sandbox was looked at, in microseconds.
    #[serde(skip_serializing_if = "is_nothing")]
    pub boundary_us: u64,
    /// From that look to the turn's class.
    pub decide_us: u64,
    /// The capture, until it let go of the sandbox.
    pub capture_us: u64,
    /// How long the sandbox was frozen.
    pub frozen_us: u64,
    /// For how long the gate held this turn's first exec back.
    pub gate_us: u64,
    /// What the checkpoint added to the store, in bytes.
    pub bytes_stored: u64,
    /// What was given to the store, before dedup and compression.
    pub bytes_raw: u64,
}

fn is_nothing(number: &u64) -> bool {
    *number == 0
}

/// A path that a turn left different.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedPath {
    /// How.
    pub change: Change,
    /// The path in the container, escaped (see [`crate::escape`]).
    pub path: String,
    /// What it is, or was, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<PathKind>,
    /// Its length, for a regular file that is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The length that it had, for one that was there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
}

/// What a path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PathKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A device, FIFO or socket.
    Special,
    /// One that this version does not know.
    #[serde(other)]
    Other,
}

/// How a path became different.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// It was not there before.
    Added,
    /// Content or attributes are others.
    Changed,
    /// It is gone.
    Removed,
}

/// A rollback or a restore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollbackRecord {
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The newest turn at that time: history branches after it.
    pub from: TurnId,
    /// The turn that was asked for.
    pub asked: TurnId,
    /// The checkpoint that was brought back.
    pub checkpoint: TurnId,
    /// Whether the checkpoint holds processes, or its init is all.
    pub processes: bool,
    /// How long it took, in microseconds.
    pub took_us: u64,
    /// The processes went on, and only files were put back.
    #[serde(default, skip_serializing_if = "is_false")]
    pub warm: bool,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// A checkpoint that could not be taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureFailed {
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The turn that has no checkpoint.
    pub turn: TurnId,
    /// Why, in one line.
    pub reason: String,
    /// And of what kind that is.
    #[serde(default, skip_serializing_if = "FailureKind::is_other")]
    pub kind: FailureKind,
}

/// Of which sandbox a sandbox began as a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkRecord {
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// That sandbox. Its history may have another name by now, or be gone.
    pub from: SandboxId,
    /// The turn of it at whose end both were the same.
    pub turn: TurnId,
    /// Its checkpoint that held this state.
    pub checkpoint: TurnId,
}

/// That a sandbox runs from now on. See [`crate::Life`] for what it is good for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BeganRecord {
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The boot of the kernel under which it runs: `/proc/sys/kernel/random/boot_id`. Empty
    /// where that cannot be read.
    pub boot: String,
    /// The newest turn then: that of the start, if it was started anew.
    pub turn: TurnId,
    /// It was neither restored nor is it a copy: its program began from the beginning.
    pub anew: bool,
}

/// How a sandbox ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedRecord {
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The exit status of its init: 128 and the signal, if one ended it.
    pub exit: u32,
    /// The host was going down, and took it along.
    #[serde(default, skip_serializing_if = "is_false")]
    pub with_host: bool,
}

/// Checkpoints that were removed. Their turns stay in the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedRecord {
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The turns whose checkpoints they were.
    pub turns: Vec<TurnId>,
    /// What asked for it, in one line.
    pub why: String,
}

impl RemovedRecord {
    /// As many records as it takes to say that all these were removed.
    pub(crate) fn all<'a>(
        turns: &'a [TurnId],
        why: &'a str,
        at_ms: u64,
    ) -> impl Iterator<Item = JournalRecord> + 'a {
        turns.chunks(MAX_REMOVED).map(move |turns| {
            JournalRecord::Removed(Self {
                at_ms,
                turns: turns.to_vec(),
                why: why.to_owned(),
            })
        })
    }
}

/// The words of a command as one line that a shell would take, at most
/// [`MAX_COMMAND`] bytes of it.
pub fn command_line<S: AsRef<str>>(args: &[S]) -> String {
    let mut line = String::new();
    for arg in args {
        let arg = arg.as_ref();
        if !line.is_empty() {
            line.push(' ');
        }
        let plain = |c: char| c.is_alphanumeric() || "%+,-./:=@_".contains(c);
        if !arg.is_empty() && arg.chars().all(plain) {
            line.push_str(arg);
        } else {
            line.push('\'');
            line.push_str(&arg.replace('\'', "'\\''"));
            line.push('\'');
        }
        if line.len() > MAX_COMMAND {
            break;
        }
    }
    clip(&line, MAX_COMMAND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_can_be_pasted_into_a_shell() {
        assert_eq!(
            command_line(&["sh", "-c", "echo 'a' > b", ""]),
            r"sh -c 'echo '\''a'\'' > b' ''"
        );
        assert_eq!(command_line(&["x".repeat(10_000)]).len(), MAX_COMMAND);
    }

    #[test]
    fn metadata_is_kept_within_bounds_and_a_record_without_any_is_as_ever() {
        let text = r#"{"record":"turn","turn":1,"trigger":"hint","command":"","began_ms":0,
            "ended_ms":0,"exit":null,"class":"none","reason":"","checkpoint":null}"#;
        let JournalRecord::Turn(mut record) = serde_json::from_str(text).unwrap() else {
            panic!("it is a turn");
        };
        assert_eq!((record.trigger, record.meta.len()), (Trigger::Hint, 0));
        assert!(!serde_json::to_string(&record).unwrap().contains("meta"));
        let entry = |n| (format!("{n}{}", "k".repeat(99)), "v".repeat(9999));
        record.meta = (100..200).map(entry).collect();
        let JournalRecord::Turn(record) = JournalRecord::Turn(record).bounded() else {
            panic!("it is a turn");
        };
        assert_eq!(record.meta.len(), MAX_META);
        let within = |(name, value): (&String, &String)| {
            name.len() <= MAX_META_NAME && value.len() <= MAX_META_VALUE
        };
        assert!(record.meta.iter().all(within));
    }

    #[test]
    fn a_record_of_a_later_version_is_unknown_and_not_an_error() {
        let record: JournalRecord =
            serde_json::from_str(r#"{"record":"teleport","turn":3}"#).unwrap();
        assert_eq!(record, JournalRecord::Unknown);
        let record: JournalRecord = serde_json::from_str(
            r#"{"record":"capture-failed","turn":3,"at_ms":1,"reason":"x","more":{"a":1}}"#,
        )
        .unwrap();
        assert_eq!(record.turn(), Some(TurnId(3)));
    }
}
