// SPDX-License-Identifier: Apache-2.0

//! The note of a rollback that changes a sandbox's files.
//!
//! ```text
//! note, durable -> files are changed -> the journal says so -> note goes
//! ```
//! Whoever is killed in between leaves files that are neither those of before nor those that
//! were wanted, and a note that says so. The next start of the sandbox puts back those of before,
//! from their checkpoint: the journal has them as the newest state, and nobody was told of
//! another.

use serde::{Deserialize, Serialize};

use crate::{
    durable,
    envelope::Envelope,
    error::{ReadError, WriteError},
    id::TurnId,
    locks,
    record::JournalRecord,
    sandbox::SandboxStore,
};

pub(crate) const ROLLBACK: Envelope = Envelope {
    magic: "crab-rollback",
    version: 1,
};
pub(crate) const ROLLBACK_FILE: &str = "rollback";

/// A rollback that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollbackBegun {
    /// The checkpoint with the files of before.
    pub before: TurnId,
    /// The checkpoint that the sandbox goes back to.
    pub target: TurnId,
    /// The number that the next turn will have.
    pub next: TurnId,
    /// When, in milliseconds since the Unix epoch.
    pub begun_ms: u64,
}

impl RollbackBegun {
    /// Whether the journal tells of something that came after it.
    fn is_over(&self, records: &[JournalRecord]) -> bool {
        // Newer ones come last.
        records.iter().rev().any(|record| match record {
            JournalRecord::Turn(record) => record.turn >= self.next,
            JournalRecord::Rollback(record) | JournalRecord::Restore(record) => {
                record.at_ms >= self.begun_ms
            }
            JournalRecord::CaptureFailed(_)
            | JournalRecord::Removed(_)
            | JournalRecord::Fork(_)
            | JournalRecord::Unknown => false,
        })
    }
}

impl SandboxStore {
    /// Notes that files are about to be changed. It is on the disk when this returns.
    ///
    /// # Errors
    /// When it could not be written: then nothing may be changed.
    pub fn begin_rollback(&self, rollback: RollbackBegun) -> Result<(), WriteError> {
        let _none_goes = locks::checkpoints(self)?;
        self.write_small(ROLLBACK_FILE, &ROLLBACK, &rollback)
    }

    /// The rollback that has begun and is not over, if any.
    ///
    /// # Errors
    /// When that is not known.
    pub fn rollback_begun(&self) -> Result<Option<RollbackBegun>, ReadError> {
        let begun: Option<RollbackBegun> = ROLLBACK.load(&self.dir().join(ROLLBACK_FILE))?;
        let Some(begun) = begun else {
            return Ok(None);
        };
        // Its writer died before it could take the note away.
        let is_over = begun.is_over(&self.journal()?.records);
        Ok((!is_over).then_some(begun))
    }

    /// The files are whole again.
    ///
    /// # Errors
    /// When the note could not be removed.
    pub fn end_rollback(&self) -> Result<(), WriteError> {
        Ok(durable::remove(&self.dir().join(ROLLBACK_FILE))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Durability, RollbackRecord, SandboxId, Store};

    #[test]
    fn a_rollback_is_begun_until_it_is_ended_or_the_journal_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::create(dir.path().join("store")).unwrap();
        let writer = store
            .writer(&SandboxId::new("test", "box").unwrap())
            .unwrap();
        let sandbox = writer.store();
        assert_eq!(sandbox.rollback_begun().unwrap(), None);
        let begun = RollbackBegun {
            before: TurnId(3),
            target: TurnId(1),
            next: TurnId(4),
            begun_ms: 1000,
        };
        let append = |at_ms| {
            let record = RollbackRecord {
                at_ms,
                from: TurnId(3),
                asked: TurnId(1),
                checkpoint: TurnId(1),
                processes: false,
                took_us: 0,
                warm: true,
            };
            let record = JournalRecord::Rollback(record);
            writer.append(record, Durability::Lazy).unwrap();
        };
        append(999);
        sandbox.begin_rollback(begun).unwrap();
        assert_eq!(sandbox.rollback_begun().unwrap(), Some(begun));
        sandbox.end_rollback().unwrap();
        assert_eq!(sandbox.rollback_begun().unwrap(), None);
        sandbox.begin_rollback(begun).unwrap();
        append(1000);
        assert_eq!(sandbox.rollback_begun().unwrap(), None);
    }
}
