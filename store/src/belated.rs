// SPDX-License-Identifier: Apache-2.0

//! The record of a turn whose shim died between its checkpoint, which is whole, and the journal.
//!
//! ```text
//! Opened -> Captured -> the manifest is there -> the turn's record
//!                                            ^ dies here
//! ```
//! The sandbox comes back as it was at the end of that turn, so its history has to have it. What
//! makes up for a turn that failed writes down no steps, as it may fail, too: of that nothing is known
//! but what its checkpoint says.

use crate::{JournalRecord, Manifest, ReadError, SandboxStore, Step, Trigger, TurnRecord, lineage};

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
    let (mut has_run, mut has_steps) = (false, false);
    for record in records {
        has_run |= matches!(record, JournalRecord::Began(_));
        match record {
            // Of a later one: it is no longer what its sandbox was last.
            JournalRecord::Turn(record) if record.turn >= turn => return None,
            JournalRecord::Step(step) if step.turn == turn => match &step.step {
                // The number of one that came to nothing is used again.
                Step::Opened { trigger, command } => {
                    opened = Some((step.at_ms, *trigger, command.clone()));
                    captured = None;
                    has_steps = true;
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
    if has_run && !has_steps {
        let at_ms = manifest.created_ms;
        opened = Some((at_ms, Trigger::Retry, String::new()));
        captured = Some((at_ms, None));
    }
    let (began_ms, trigger, command) = opened?;
    let (ended_ms, exit) = captured?;
    let mut record = TurnRecord {
        command,
        began_ms,
        ended_ms,
        exit,
        class: manifest.class,
        reason: REASON.into(),
        checkpoint: Some(turn),
        degraded: manifest.degraded.clone(),
        ..TurnRecord::new(turn, trigger)
    };
    record.cost.bytes_stored = manifest.bytes_stored;
    record.cost.bytes_raw = manifest.bytes_raw;
    Some(record)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{BeganRecord, Class, StepRecord, TurnId};

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
    fn what_made_up_for_a_turn_that_failed_is_known_by_its_checkpoint_alone() {
        let began = JournalRecord::Began(BeganRecord {
            at_ms: 1,
            boot: String::new(),
            turn: TurnId(0),
            anew: true,
        });
        let ran = [
            began,
            JournalRecord::Turn(TurnRecord::new(TurnId(1), Trigger::Exec)),
        ];
        let record = belated(&ran, &manifest()).unwrap();
        assert_eq!((record.turn, record.trigger), (TurnId(2), Trigger::Retry));
        assert_eq!((record.began_ms, record.ended_ms), (30, 30));
        assert_eq!(belated(&ran[1..], &manifest()), None, "it never ran here");
        let later = JournalRecord::Turn(TurnRecord::new(TurnId(3), Trigger::Exec));
        let passed = [&ran[..], &[later]].concat();
        assert_eq!(belated(&passed, &manifest()), None);
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
