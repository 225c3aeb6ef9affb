// SPDX-License-Identifier: Apache-2.0

//! What a journal's records mean to a reader: which turns are on the branch
//! that history is on, which were left by a rollback, which could not be saved.
//! Pure.

use std::collections::{BTreeMap, BTreeSet};

use crab_store::{JournalRecord, TurnId};

/// What is known of a sandbox's turns beyond each turn's own record.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// The turns on the branch that history is on.
    pub(crate) branch: BTreeSet<TurnId>,
    /// Why turns have no checkpoint of their own although they needed one.
    pub(crate) failed: BTreeMap<TurnId, String>,
    /// Why checkpoints were removed.
    pub(crate) removed: BTreeMap<TurnId, String>,
}

impl History {
    pub(crate) fn of(records: &[JournalRecord]) -> Self {
        let mut failed = BTreeMap::new();
        // Each turn and the one that it continues.
        let mut before: BTreeMap<TurnId, Option<TurnId>> = BTreeMap::new();
        let mut tip = None;
        let mut continues = |turn: TurnId, tip: &mut Option<TurnId>| {
            // A turn that is there already is recorded a second time, not
            // continued by itself.
            before.entry(turn).or_insert(*tip);
            *tip = Some(turn);
        };
        for record in records {
            match record {
                JournalRecord::Turn(record) => continues(record.turn, &mut tip),
                JournalRecord::Rollback(record) | JournalRecord::Restore(record) => {
                    tip = Some(record.asked);
                }
                JournalRecord::CaptureFailed(record) => {
                    failed.insert(record.turn, record.reason.clone());
                }
                JournalRecord::Removed(_)
                | JournalRecord::Fork(_)
                | JournalRecord::Began(_)
                | JournalRecord::Step(_)
                | JournalRecord::Ended(_)
                | JournalRecord::Unknown => {}
            }
        }
        let mut branch = BTreeSet::new();
        while let Some(turn) = tip {
            if !branch.insert(turn) {
                break;
            }
            tip = before.get(&turn).copied().flatten();
        }
        let removed = crab_store::removed(records).into_iter();
        Self {
            branch,
            failed,
            removed: removed.map(|(turn, why)| (turn, why.to_owned())).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crab_store::{RollbackRecord, Trigger, TurnRecord};

    fn turn(turn: u64) -> JournalRecord {
        JournalRecord::Turn(TurnRecord::new(TurnId(turn), Trigger::Exec))
    }

    fn rollback(from: u64, asked: u64) -> JournalRecord {
        JournalRecord::Rollback(RollbackRecord {
            at_ms: 0,
            from: TurnId(from),
            asked: TurnId(asked),
            checkpoint: TurnId(0),
            processes: false,
            took_us: 0,
            warm: false,
        })
    }

    fn branch(records: &[JournalRecord]) -> Vec<u64> {
        History::of(records)
            .branch
            .iter()
            .map(|turn| turn.0)
            .collect()
    }

    #[test]
    fn a_rollback_leaves_the_later_turns_and_another_can_take_them_up() {
        let mut records = vec![turn(0), turn(1), turn(2), turn(3)];
        assert_eq!(branch(&records), [0, 1, 2, 3]);
        records.extend([rollback(3, 1), turn(4)]);
        assert_eq!(branch(&records), [0, 1, 4]);
        records.extend([rollback(4, 3), turn(5)]);
        assert_eq!(branch(&records), [0, 1, 2, 3, 5]);
    }

    #[test]
    fn no_order_of_records_makes_it_loop() {
        let records = [
            turn(1),
            rollback(1, 2),
            turn(2),
            rollback(2, 1),
            turn(2),
            turn(1),
        ];
        assert!(branch(&records).contains(&1));
    }
}
