// SPDX-License-Identifier: Apache-2.0

//! Which checkpoint holds which turn.
//!
//! A rollback makes history branch, while turn numbers go on upwards: after
//! turn 10 and a rollback to 4, turn 11 continues 4. So the newest checkpoint
//! *by number* at or before a turn may lie on a branch that was left. The
//! journal tells which one holds; these functions read it. They are pure.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    id::TurnId,
    record::{JournalRecord, TurnRecord},
};

/// Follows history, and names the checkpoint that holds after each record.
struct Walk<'a> {
    published: &'a BTreeSet<TurnId>,
    /// The newest published checkpoint of the branch that is being walked.
    holds: Option<TurnId>,
    /// What that was at the end of each turn.
    held: BTreeMap<TurnId, Option<TurnId>>,
}

impl<'a> Walk<'a> {
    fn new(published: &'a BTreeSet<TurnId>) -> Self {
        Self {
            published,
            holds: None,
            held: BTreeMap::new(),
        }
    }

    fn step(&mut self, record: &JournalRecord) {
        let is_there = |turn: &TurnId| self.published.contains(turn);
        match record {
            JournalRecord::Turn(record) => {
                self.holds = record.checkpoint.filter(is_there).or(self.holds);
                self.held.insert(record.turn, self.holds);
            }
            JournalRecord::Rollback(record) | JournalRecord::Restore(record) => {
                let before_it = || self.held.get(&record.checkpoint).copied();
                self.holds = Some(record.checkpoint)
                    .filter(is_there)
                    // Removed since: then what is left of that branch holds, not of the
                    // one that was left.
                    .or_else(|| before_it().unwrap_or(self.holds));
            }
            JournalRecord::CaptureFailed(_)
            | JournalRecord::Removed(_)
            | JournalRecord::Fork(_)
            | JournalRecord::Began(_)
            | JournalRecord::Step(_)
            | JournalRecord::Ended(_)
            | JournalRecord::Unknown => {}
        }
    }
}

/// The checkpoint that holds the newest state that can be brought back: the
/// last one of the branch that history is on.
pub(crate) fn head(records: &[JournalRecord], published: &BTreeSet<TurnId>) -> Option<TurnId> {
    let mut walk = Walk::new(published);
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
    /// Not at all.
    Missing {
        /// Why.
        why: String,
        /// The newest checkpoint before it on its branch.
        before: Option<TurnId>,
        /// The oldest one after it.
        after: Option<TurnId>,
    },
    /// The journal knows no such turn.
    NoTurn,
}

/// Which checkpoint holds the state at the end of `turn`.
pub(crate) fn holder(
    records: &[JournalRecord],
    published: &BTreeSet<TurnId>,
    turn: TurnId,
) -> Holder {
    let mut walk = Walk::new(published);
    let mut found = Holder::NoTurn;
    for (at, record) in records.iter().enumerate() {
        let before = walk.holds;
        walk.step(record);
        let after = || after(&records[at + 1..], published, turn);
        let named = match record {
            JournalRecord::Turn(TurnRecord { checkpoint, .. }) => checkpoint,
            JournalRecord::CaptureFailed(failed) if failed.turn == turn => {
                if let Holder::Missing { why, .. } = &mut found {
                    why.clone_from(&failed.reason);
                } else if found == Holder::NoTurn {
                    let (why, after) = (failed.reason.clone(), after());
                    found = Holder::Missing { why, before, after };
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
            (named, _) => Holder::Missing {
                why: match named {
                    Some(named) => gone(records, *named),
                    None => "none was taken".to_owned(),
                },
                before,
                after: after(),
            },
        };
    }
    if found == Holder::NoTurn && published.contains(&turn) {
        return Holder::Checkpoint(turn);
    }
    found
}

/// Why a checkpoint that the journal names is not there.
fn gone(records: &[JournalRecord], checkpoint: TurnId) -> String {
    match removed(records).get(&checkpoint) {
        Some(why) => format!("checkpoint {checkpoint} was removed ({why})"),
        None => "it was never published".to_owned(),
    }
}

/// The checkpoints that were removed, and why.
pub fn removed(records: &[JournalRecord]) -> BTreeMap<TurnId, &str> {
    let removals = records.iter().filter_map(|record| match record {
        JournalRecord::Removed(removal) => Some(removal),
        _ => None,
    });
    removals
        .flat_map(|removal| removal.turns.iter().map(|turn| (*turn, &*removal.why)))
        .collect()
}

/// The first checkpoint that the records after a turn's name, as long as they go on from it.
fn after(records: &[JournalRecord], published: &BTreeSet<TurnId>, turn: TurnId) -> Option<TurnId> {
    for record in records {
        match record {
            JournalRecord::Rollback(back) | JournalRecord::Restore(back) if back.asked < turn => {
                return None;
            }
            JournalRecord::Turn(TurnRecord {
                checkpoint: Some(checkpoint),
                ..
            }) if *checkpoint > turn && published.contains(checkpoint) => {
                return Some(*checkpoint);
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CaptureFailed, Class, RemovedRecord, RollbackRecord, Trigger};

    fn turn(turn: u64, checkpoint: Option<u64>) -> JournalRecord {
        JournalRecord::Turn(TurnRecord {
            exit: Some(0),
            class: Class::Files,
            checkpoint: checkpoint.map(TurnId),
            ..TurnRecord::new(TurnId(turn), Trigger::Exec)
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
            kind: Default::default(),
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
            after: None,
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
    #[test]
    fn what_was_removed_says_so_and_names_what_is_left_around_it() {
        let removal = JournalRecord::Removed(RemovedRecord {
            at_ms: 0,
            turns: vec![TurnId(1), TurnId(2)],
            why: "more than 2".to_owned(),
        });
        let records = [
            turn(0, Some(0)),
            turn(1, Some(1)),
            turn(2, Some(2)),
            turn(3, Some(2)),
            turn(4, Some(4)),
            removal,
        ];
        let published = published(&[0, 4]);
        for (asked, checkpoint) in [(1, 1), (2, 2), (3, 2)] {
            assert_eq!(
                holder(&records, &published, TurnId(asked)),
                Holder::Missing {
                    why: format!("checkpoint {checkpoint} was removed (more than 2)"),
                    before: Some(TurnId(0)),
                    after: Some(TurnId(4)),
                }
            );
        }
        assert_eq!(head(&records, &published), Some(TurnId(4)));
    }

    #[test]
    fn a_rollback_to_what_was_removed_since_does_not_lead_back_to_the_branch_that_was_left() {
        let records = [
            turn(0, Some(0)),
            turn(1, Some(1)),
            turn(2, Some(2)),
            rollback(2, 1),
            turn(3, Some(1)),
            turn(4, Some(4)),
        ];
        let hold = |published: &[u64], turn| {
            let published: BTreeSet<TurnId> = published.iter().copied().map(TurnId).collect();
            holder(&records, &published, TurnId(turn))
        };
        let missing = |after: Option<u64>, before| Holder::Missing {
            why: "it was never published".to_owned(),
            before,
            after: after.map(TurnId),
        };
        assert_eq!(hold(&[0, 2, 4], 3), missing(Some(4), Some(TurnId(0))));
        assert_eq!(hold(&[2, 4], 3), missing(Some(4), None));
        // Nor does what comes after the rollback come after turn 2.
        assert_eq!(hold(&[0, 4], 2), missing(None, Some(TurnId(0))));
    }
}
