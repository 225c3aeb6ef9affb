// SPDX-License-Identifier: Apache-2.0

//! The record of a turn whose shim died between its checkpoint, which is whole, and the journal.
//!
//! ```text
//! Opened -> Captured -> the manifest is there -> the turn's record
//!                                            ^ dies here
//! ```
//! The sandbox comes back as it was at the end of that turn, so its history has to have it.

use crate::{JournalRecord, Manifest, ReadError, SandboxStore, Step, TurnRecord, lineage};

/// What the record says of why.
const REASON: &str = "its shim died when it was in the store and not yet in the journal";

impl SandboxStore {
    /// The record that is missing for the newest state, if it is.
    ///
    /// # Errors
    /// When the journal or that checkpoint cannot be read.
    pub fn belated(&self) -> Result<Option<TurnRecord>, ReadError> {
        let records = self.journal()?.records;
        let Some(head) = lineage::head(&records, &self.checkpoints()?) else {
            return Ok(None);
        };
        let manifest = self.manifest(head)?;
        Ok(manifest.and_then(|manifest| belated(&records, &manifest)))
    }
}

/// The record that is missing for a checkpoint, from what the journal says of the turn's steps;
/// nothing if there is one, or the turn was not this sandbox's own.
fn belated(records: &[JournalRecord], manifest: &Manifest) -> Option<TurnRecord> {
    let turn = manifest.turn;
    let mut opened = None;
    let mut captured = None;
    for record in records {
        match record {
            JournalRecord::Turn(record) if record.turn == turn => return None,
            JournalRecord::Step(step) if step.turn == turn => match &step.step {
                // The number of one that came to nothing is used again.
                Step::Opened { trigger, command } => {
                    opened = Some((step.at_ms, trigger, command));
                    captured = None;
                }
                Step::Captured { exit, .. } => captured = Some((step.at_ms, *exit)),
                Step::Queued | Step::Other => {}
            },
            JournalRecord::Restore(_) | JournalRecord::Rollback(_) | JournalRecord::Began(_) => {
                (opened, captured) = (None, None);
            }
            _ => {}
        }
    }
    let (began_ms, trigger, command) = opened?;
    let (ended_ms, exit) = captured?;
    let mut record = TurnRecord {
        command: command.clone(),
        began_ms,
        ended_ms,
        exit,
        class: manifest.class,
        reason: REASON.into(),
        checkpoint: Some(turn),
        degraded: manifest.degraded.clone(),
        ..TurnRecord::new(turn, *trigger)
    };
    record.cost.bytes_stored = manifest.bytes_stored;
    record.cost.bytes_raw = manifest.bytes_raw;
    Some(record)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Class, StepRecord, Trigger, TurnId};

    fn manifest() -> Manifest {
        let digest = "0".repeat(64);
        serde_json::from_value(json!({
            "sandbox": "default/a", "turn": 2, "class": "files",
            "created_ms": 30, "parent": 1, "spec": digest, "packs": [], "bytes_stored": 7, "bytes_raw": 9,
            "files": {"turn": 2, "upper": digest}, "processes": null, "degraded": null,
        }))
        .unwrap()
    }

    fn step(at_ms: u64, step: Step) -> JournalRecord {
        let turn = TurnId(2);
        JournalRecord::Step(StepRecord { at_ms, turn, step })
    }

    fn steps() -> Vec<JournalRecord> {
        let command = "make".to_owned();
        let (class, exit) = (Class::Files, Some(3));
        vec![
            step(
                10,
                Step::Opened {
                    trigger: Trigger::Exec,
                    command,
                },
            ),
            step(20, Step::Captured { class, exit }),
        ]
    }

    #[test]
    fn a_turn_that_was_captured_and_stored_and_not_recorded_is() {
        let record = belated(&steps(), &manifest()).unwrap();
        assert_eq!((record.turn, record.class), (TurnId(2), Class::Files));
        assert_eq!(
            (record.began_ms, record.ended_ms, record.exit),
            (10, 20, Some(3))
        );
        assert_eq!(
            (record.command.as_str(), record.checkpoint),
            ("make", Some(TurnId(2)))
        );
        assert_eq!(record.cost.bytes_stored, 7);
    }

    #[test]
    fn what_is_recorded_or_of_another_is_not() {
        let mut recorded = steps();
        recorded.push(JournalRecord::Turn(TurnRecord::new(
            TurnId(2),
            Trigger::Exec,
        )));
        assert_eq!(belated(&recorded, &manifest()), None);
        // That of a copy, whose journal begins later.
        assert_eq!(belated(&[], &manifest()), None);
        assert_eq!(belated(&steps()[..1], &manifest()), None);
        // The number was used before, by a turn that came to nothing.
        let mut again = steps();
        again.push(again[0].clone());
        assert_eq!(belated(&again, &manifest()), None);
    }
}
