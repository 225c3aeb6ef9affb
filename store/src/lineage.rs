// SPDX-License-Identifier: Apache-2.0

//! Which checkpoint holds which turn.
//!
//! A rollback makes history branch, while turn numbers go on upwards: after
//! turn 10 and a rollback to 4, turn 11 continues 4. So the newest checkpoint
//! *by number* at or before a turn may lie on a branch that was left. The
//! journal tells which one holds; these functions read it. They are pure.

use std::collections::BTreeSet;

use crate::{
    id::TurnId,
    record::{JournalRecord, TurnRecord},
};

/// Follows history, and names the checkpoint that holds after each record.
struct Walk<'a> {
    published: &'a BTreeSet<TurnId>,
    /// The newest published checkpoint of the branch that is being walked.
    holds: Option<TurnId>,
}

impl Walk<'_> {
    fn step(&mut self, record: &JournalRecord) {
        let next = match record {
            JournalRecord::Turn(record) => record.checkpoint,
            JournalRecord::Rollback(record) | JournalRecord::Restore(record) => {
                Some(record.checkpoint)
            }
            JournalRecord::CaptureFailed(_) | JournalRecord::Unknown => None,
        };
        if let Some(next) = next.filter(|next| self.published.contains(next)) {
            self.holds = Some(next);
        }
    }
}

/// The checkpoint that holds the newest state that can be brought back: the
/// last one of the branch that history is on.
pub(crate) fn head(records: &[JournalRecord], published: &BTreeSet<TurnId>) -> Option<TurnId> {
    let mut walk = Walk {
        published,
        holds: None,
    };
    records.iter().for_each(|record| walk.step(record));
    // Published, but its writer died before it could say so in the journal.
    let said = records.iter().filter_map(JournalRecord::turn).max();
    let unsaid = published
        .last()
        .filter(|newest| said.is_none_or(|said| **newest > said));
    unsaid.copied().or(walk.holds)
}

/// How a turn can be brought back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// By this checkpoint.
    Checkpoint(TurnId),
    /// Not at all: why, and the newest checkpoint before it on its branch.
    Missing { why: String, before: Option<TurnId> },
    /// The journal knows no such turn.
    NoTurn,
}

/// Which checkpoint holds the state at the end of `turn`.
pub(crate) fn holder(
    records: &[JournalRecord],
    published: &BTreeSet<TurnId>,
    turn: TurnId,
) -> Holder {
    let mut walk = Walk {
        published,
        holds: None,
    };
    let mut found = Holder::NoTurn;
    for record in records {
        let before = walk.holds;
        walk.step(record);
        let named = match record {
            JournalRecord::Turn(TurnRecord { checkpoint, .. }) => checkpoint,
            JournalRecord::CaptureFailed(failed) if failed.turn == turn => {
                if let Holder::Missing { why, .. } = &mut found {
                    why.clone_from(&failed.reason);
                } else if found == Holder::NoTurn {
                    let why = failed.reason.clone();
                    found = Holder::Missing { why, before };
                }
                continue;
            }
            _ => continue,
        };
        if record.turn() != Some(turn) {
            continue;
        }
        found = match (named, found) {
            (Some(named), _) if published.contains(named) => Holder::Checkpoint(*named),
            (_, found @ Holder::Missing { .. }) => found,
            (Some(_), _) => Holder::Missing {
                why: "it was never published".to_owned(),
                before,
            },
            (None, _) => Holder::Missing {
                why: "none was taken".to_owned(),
                before,
            },
        };
    }
    if found == Holder::NoTurn && published.contains(&turn) {
        return Holder::Checkpoint(turn);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CaptureFailed, Class, Cost, RollbackRecord, Trigger};

    fn turn(turn: u64, checkpoint: Option<u64>) -> JournalRecord {
        JournalRecord::Turn(TurnRecord {
            turn: TurnId(turn),
            trigger: Trigger::Exec,
            command: String::new(),
            meta: Default::default(),
            began_ms: 0,
            ended_ms: 0,
            exit: Some(0),
            class: Class::Files,
            reason: String::new(),
            unobserved: None,
            checkpoint: checkpoint.map(TurnId),
            degraded: None,
            cost: Cost::default(),
            files_changed: 0,
            changed: Vec::new(),
            effects: Default::default(),
        })
    }

    fn rollback(from: u64, to: u64) -> JournalRecord {
        JournalRecord::Rollback(RollbackRecord {
            at_ms: 0,
            from: TurnId(from),
            asked: TurnId(to),
            checkpoint: TurnId(to),
            processes: false,
            took_us: 0,
            warm: false,
        })
    }

    fn failed(turn: u64) -> JournalRecord {
        JournalRecord::CaptureFailed(CaptureFailed {
            at_ms: 0,
            turn: TurnId(turn),
            reason: "disk full".to_owned(),
        })
    }

    fn published(turns: &[u64]) -> BTreeSet<TurnId> {
        turns.iter().copied().map(TurnId).collect()
    }

    #[test]
    fn a_turn_after_a_rollback_belongs_to_the_branch_it_continues() {
        let records = [
            turn(0, Some(0)),
            turn(1, Some(1)),
            turn(2, Some(2)),
            rollback(2, 1),
            turn(3, Some(1)),
        ];
        let published = published(&[0, 1, 2]);
        let hold = |turn| holder(&records, &published, TurnId(turn));
        assert_eq!(hold(3), Holder::Checkpoint(TurnId(1)));
        assert_eq!(hold(2), Holder::Checkpoint(TurnId(2)));
        assert_eq!(head(&records, &published), Some(TurnId(1)));
        assert_eq!(head(&records[..4], &published), Some(TurnId(1)));
        assert_eq!(head(&records[..3], &published), Some(TurnId(2)));
        assert_eq!(hold(4), Holder::NoTurn);
    }

    #[test]
    fn a_failed_capture_says_why_and_what_there_is_instead() {
        let published = published(&[0, 1]);
        let missing = Holder::Missing {
            why: "disk full".to_owned(),
            before: Some(TurnId(1)),
        };
        // In whichever order the two were written.
        for records in [
            [turn(1, Some(1)), turn(2, Some(2)), failed(2)],
            [turn(1, Some(1)), failed(2), turn(2, None)],
        ] {
            assert_eq!(holder(&records, &published, TurnId(2)), missing);
            assert_eq!(head(&records, &published), Some(TurnId(1)));
        }
    }

    #[test]
    fn a_checkpoint_that_the_journal_does_not_mention_yet_is_the_newest() {
        let records = [turn(0, Some(0))];
        let published = published(&[0, 1]);
        assert_eq!(head(&records, &published), Some(TurnId(1)));
        assert_eq!(
            holder(&records, &published, TurnId(1)),
            Holder::Checkpoint(TurnId(1))
        );
        assert_eq!(head(&[], &published), Some(TurnId(1)));
        assert_eq!(head(&[], &BTreeSet::new()), None);
    }
}
