// SPDX-License-Identifier: Apache-2.0

//! Whether a sandbox ended, or was lost: its shim, or its whole host, died under it.
//!
//! ```text
//! began  turn 0 (start)  turn 1  turn 2  ended      it has ended: nobody wants it back
//! began  turn 0 (start)  turn 1  turn 2             it lives, or was lost at turn 2
//!   ...  began  turn 3 (start)                      ... and somebody started it anew since
//!   ...  restore (to 2)  began                      ... and it came back
//! ```
//! Whether it lives its shim says. A journal in which nothing began is of an earlier version,
//! which did not note ends: what has no end there need not be lost.

use std::collections::BTreeSet;

use crate::{
    id::TurnId,
    lineage,
    record::{BeganRecord, EndedRecord, JournalRecord, Trigger},
    steps::{Step, StepRecord},
};

/// What a journal says of the last time that its sandbox ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Life {
    /// Nothing: it never ran here, or not since ends are noted.
    Unknown,
    /// It ended, and not because its host went down.
    Ended(EndedRecord),
    /// It lives, or was lost.
    Open {
        /// Its beginning.
        began: BeganRecord,
        /// What was lost before, where somebody has started the sandbox anew since.
        lost: Option<Lost>,
    },
}

/// A life that was lost, and that nobody has brought back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The checkpoint that holds its last state; nothing if none does.
    pub checkpoint: Option<TurnId>,
    /// Nothing has been done with the sandbox since it was started anew.
    pub unused: bool,
}

/// Reads it from a journal's records, and from which checkpoints are published.
pub(crate) fn life(records: &[JournalRecord], published: &BTreeSet<TurnId>) -> Life {
    let mut life = Life::Unknown;
    for (at, record) in records.iter().enumerate() {
        match (record, &mut life) {
            (JournalRecord::Began(began), before) => {
                let lost = match before {
                    _ if !began.anew => None,
                    // Nobody has done anything with what was started meanwhile.
                    Life::Open {
                        lost: Some(lost @ Lost { unused: true, .. }),
                        ..
                    } => Some(*lost),
                    Life::Open { .. } => Some(Lost {
                        checkpoint: head_before(&records[..at], published, began.turn),
                        unused: true,
                    }),
                    Life::Ended(_) | Life::Unknown => None,
                };
                life = Life::Open {
                    began: began.clone(),
                    lost,
                };
            }
            (JournalRecord::Ended(end), Life::Open { .. }) if !end.with_host => {
                life = Life::Ended(*end);
            }
            (
                JournalRecord::Turn(turn),
                Life::Open {
                    began,
                    lost: Some(lost),
                },
            ) if turn.turn > began.turn && is_use(turn.trigger) => lost.unused = false,
            // One that is not over yet. That of the next start may come before its beginning.
            (
                JournalRecord::Step(StepRecord {
                    turn,
                    step: Step::Opened { trigger, .. },
                    ..
                }),
                Life::Open {
                    began,
                    lost: Some(lost),
                },
            ) if *turn > began.turn && is_use(*trigger) => lost.unused = false,
            // Whoever rolls back sees what there is.
            (JournalRecord::Rollback(_), Life::Open { lost, .. }) => *lost = None,
            _ => {}
        }
    }
    life
}

/// Whether somebody has done something with the sandbox, or asked something of it.
fn is_use(trigger: Trigger) -> bool {
    !matches!(trigger, Trigger::Start | Trigger::Retry)
}

/// The checkpoint that held before the turn with which a sandbox was started anew. That turn may be
/// on record already.
fn head_before(
    records: &[JournalRecord],
    published: &BTreeSet<TurnId>,
    start: TurnId,
) -> Option<TurnId> {
    let is_older = |record: &&JournalRecord| record.turn().is_none_or(|turn| turn < start);
    let records: Vec<JournalRecord> = records.iter().filter(is_older).cloned().collect();
    let published = published.range(..start).copied().collect();
    lineage::head(&records, &published)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::RollbackRecord;

    fn began(turn: u64, anew: bool) -> JournalRecord {
        JournalRecord::Began(BeganRecord {
            at_ms: turn,
            boot: "b".to_owned(),
            turn: TurnId(turn),
            anew,
        })
    }

    fn turn(number: u64) -> JournalRecord {
        let text = format!(
            r#"{{"record":"turn","turn":{number},"trigger":"exec","command":"","began_ms":0,
               "ended_ms":0,"exit":0,"class":"files","reason":"","checkpoint":{number}}}"#
        );
        let mut record = serde_json::from_str(&text).unwrap();
        if let (JournalRecord::Turn(record), 0) = (&mut record, number) {
            record.trigger = Trigger::Start;
        }
        record
    }

    fn ended(with_host: bool) -> JournalRecord {
        JournalRecord::Ended(EndedRecord {
            at_ms: 9,
            exit: 137,
            with_host,
        })
    }

    fn back(from: u64, to: u64) -> RollbackRecord {
        RollbackRecord {
            at_ms: 1,
            from: TurnId(from),
            asked: TurnId(to),
            checkpoint: TurnId(to),
            processes: false,
            took_us: 1,
            warm: false,
        }
    }

    fn of(records: &[JournalRecord]) -> Life {
        let published = records.iter().filter_map(|record| match record {
            JournalRecord::Turn(turn) => turn.checkpoint,
            _ => None,
        });
        life(records, &published.collect())
    }

    fn lost(life: &Life) -> Option<(Option<u64>, bool)> {
        match life {
            Life::Open { lost, .. } => lost.map(|it| (it.checkpoint.map(|it| it.0), it.unused)),
            life => panic!("{life:?}"),
        }
    }

    #[test]
    fn what_has_an_end_is_not_lost_unless_its_host_took_it_along() {
        let mut records = vec![began(0, true), turn(0), turn(1)];
        assert_eq!(lost(&of(&records)), None);
        records.push(ended(false));
        assert!(matches!(of(&records), Life::Ended(end) if end.exit == 137));
        records.pop();
        records.push(ended(true));
        assert_eq!(lost(&of(&records)), None);
        // Started again after its end: nothing was lost.
        records.pop();
        records.extend([ended(false), turn(2), began(2, true)]);
        assert_eq!(lost(&of(&records)), None);
    }

    #[test]
    fn without_a_beginning_nothing_is_known() {
        assert_eq!(of(&[]), Life::Unknown);
        assert_eq!(of(&[turn(0), turn(1)]), Life::Unknown);
        assert_eq!(of(&[turn(0), ended(false)]), Life::Unknown);
        // Of the earlier version nobody knows whether it was lost.
        assert_eq!(
            lost(&of(&[turn(0), turn(1), turn(2), began(2, true)])),
            None
        );
    }

    #[test]
    fn a_sandbox_that_was_lost_and_started_anew_is_told_from_one_that_came_back() {
        let first = [began(0, true), turn(0), turn(1), turn(2)];
        // The turn of the start comes on record before or after the beginning.
        for anew in [[turn(3), began(3, true)], [began(3, true), turn(3)]] {
            let mut records = [&first[..], &anew].concat();
            assert_eq!(lost(&of(&records)), Some((Some(2), true)));
            records.push(turn(4));
            assert_eq!(lost(&of(&records)), Some((Some(2), false)));
            records.push(JournalRecord::Rollback(back(4, 2)));
            assert_eq!(lost(&of(&records)), None);
        }
        let restored = [JournalRecord::Restore(back(2, 2)), began(2, false)];
        assert_eq!(lost(&of(&[&first[..], &restored].concat())), None);
    }

    #[test]
    fn what_was_lost_stays_so_through_starts_that_nobody_used() {
        let opened = |number, trigger| {
            JournalRecord::Step(StepRecord {
                at_ms: 1,
                turn: TurnId(number),
                step: Step::Opened {
                    trigger,
                    command: String::new(),
                },
            })
        };
        let start = |number| {
            let mut record = turn(number);
            if let JournalRecord::Turn(record) = &mut record {
                record.trigger = Trigger::Start;
            }
            [opened(number, Trigger::Start), record, began(number, true)]
        };
        let mut records = vec![began(0, true), turn(0), turn(1), turn(2)];
        records.extend([start(3), start(4)].concat());
        assert_eq!(lost(&of(&records)), Some((Some(2), true)));
        // Its state is kept by nobody's wish.
        let mut again = turn(5);
        if let JournalRecord::Turn(record) = &mut again {
            record.trigger = Trigger::Retry;
        }
        records.push(again);
        assert_eq!(lost(&of(&records)), Some((Some(2), true)));
        // An agent is at work, in a turn that is not over.
        records.push(opened(6, Trigger::Exec));
        assert_eq!(lost(&of(&records)), Some((Some(2), false)));
        // Then that is what is lost next.
        records.push(turn(6));
        records.extend(start(7));
        assert_eq!(lost(&of(&records)), Some((Some(6), true)));
    }

    #[test]
    fn what_was_lost_is_the_branch_that_it_was_on() {
        let records = [
            began(0, true),
            turn(0),
            turn(1),
            turn(2),
            JournalRecord::Rollback(back(2, 1)),
            turn(3),
            began(3, true),
        ];
        assert_eq!(lost(&of(&records)), Some((Some(1), true)));
    }
}
