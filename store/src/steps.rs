// SPDX-License-Identifier: Apache-2.0

//! What the journal says of a sandbox between the ends of its turns, for whoever follows it: no
//! state of the sandbox depends on it. A step that could not be written is missing, and nothing
//! else is.

use serde::{Deserialize, Serialize};

use crate::{class::Class, id::TurnId, record::Trigger};

/// A turn has come so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepRecord {
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The turn. It may come to nothing, and its number to another one.
    pub turn: TurnId,
    /// How far.
    #[serde(flatten)]
    pub step: Step,
}

/// How far a turn has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum Step {
    /// It has begun.
    Opened {
        /// What opened it.
        trigger: Trigger,
        /// The command of its first exec, or of the program that was told something.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        command: String,
    },
    /// It is over, and its capture waits for those of other sandboxes.
    Queued,
    /// It is over, and captured; its checkpoint is on its way into the store.
    Captured {
        /// What it needs.
        class: Class,
        /// The exit status of its last foreground exec.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit: Option<i32>,
    },
    /// One that this version does not know.
    #[serde(other)]
    Other,
}

/// Why a turn has no checkpoint, as far as programs want to know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureKind {
    /// The gate was held for it for as long as it may be.
    GivenUp,
    /// It is in the next turn's, as its capture would have held the agent back.
    Merged,
    /// The disk, or what may be used of it, is full.
    NoSpace,
    /// Anything else: its reason tells.
    #[default]
    #[serde(other)]
    Other,
}

impl FailureKind {
    /// The word that users see.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::GivenUp => "given-up",
            Self::Merged => "merged",
            Self::NoSpace => "no-space",
            Self::Other => "other",
        }
    }

    pub(crate) fn is_other(&self) -> bool {
        *self == Self::Other
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::JournalRecord;

    #[test]
    fn steps_are_read_for_ever_and_those_of_later_versions_are_no_error() {
        let step = |step| {
            JournalRecord::Step(StepRecord {
                at_ms: 4,
                turn: TurnId(2),
                step,
            })
        };
        let opened = Step::Opened {
            trigger: Trigger::Exec,
            command: "ls".to_owned(),
        };
        let captured = Step::Captured {
            class: Class::Full,
            exit: None,
        };
        for (record, text) in [
            (
                step(opened),
                r#"{"record":"step","at_ms":4,"turn":2,"step":"opened","trigger":"exec","command":"ls"}"#,
            ),
            (
                step(Step::Queued),
                r#"{"record":"step","at_ms":4,"turn":2,"step":"queued"}"#,
            ),
            (
                step(captured),
                r#"{"record":"step","at_ms":4,"turn":2,"step":"captured","class":"full"}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&record).unwrap(), text);
            assert_eq!(serde_json::from_str::<JournalRecord>(text).unwrap(), record);
        }
        let later = r#"{"record":"step","at_ms":4,"turn":2,"step":"weighed","grams":3}"#;
        let read: JournalRecord = serde_json::from_str(later).unwrap();
        assert_eq!(read, step(Step::Other));
        // None of them takes a number: what they tell of may come to nothing.
        assert_eq!(read.turn(), None);
        assert_eq!(
            serde_json::from_str::<FailureKind>(r#""bored""#).unwrap(),
            FailureKind::Other
        );
    }
}
