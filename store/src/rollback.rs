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
//!
//! The file stays, and is written in place: that is one block and one flush, where a new file takes four
//! times as long, and a rollback under living processes little longer than that. A note that is not
//! whole was being written: then nothing was changed yet, or all is whole again.

use std::{fs::File, io::ErrorKind, os::unix::fs::FileExt};

use serde::{Deserialize, Serialize};

use crate::{
    durable,
    envelope::Envelope,
    error::{FileError, ReadError, WriteError},
    id::TurnId,
    journal, locks,
    record::JournalRecord,
    sandbox::SandboxStore,
    writer::SandboxWriter,
};

pub(crate) const ROLLBACK: Envelope = Envelope {
    magic: "crab-rollback",
    version: 1,
};
pub(crate) const ROLLBACK_FILE: &str = "rollback";
/// How long the file is, whatever is in it: what a disk writes at once.
const ROOM: usize = 512;

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

/// What is noted of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    #[serde(flatten)]
    begun: RollbackBegun,
    /// Where the journal ended then. Earlier versions did not note it.
    #[serde(default)]
    journal: Option<u64>,
}

impl Note {
    /// Whether the journal tells of something that came after it. Not by the clock, which may be
    /// set back meanwhile.
    fn is_over(&self, sandbox: &SandboxStore) -> Result<bool, ReadError> {
        let since = match self.journal {
            Some(place) => journal::since(&sandbox.journal_path(), place)?,
            None => None,
        };
        Ok(match since {
            Some(since) => since.iter().any(|record| self.is_over_with(record, true)),
            // It was written anew by a repair, or its end never came to the disk: by what else
            // there is.
            None => {
                let records = sandbox.journal()?.records;
                records
                    .iter()
                    .any(|record| self.is_over_with(record, false))
            }
        })
    }

    fn is_over_with(&self, record: &JournalRecord, is_later: bool) -> bool {
        match record {
            JournalRecord::Turn(record) => record.turn >= self.begun.next,
            JournalRecord::Rollback(record) | JournalRecord::Restore(record) => {
                is_later || record.at_ms >= self.begun.begun_ms
            }
            JournalRecord::CaptureFailed(_)
            | JournalRecord::Removed(_)
            | JournalRecord::Fork(_)
            | JournalRecord::Began(_)
            | JournalRecord::Step(_)
            | JournalRecord::Ended(_)
            | JournalRecord::Unknown => false,
        }
    }
}

impl SandboxWriter {
    /// Notes that files are about to be changed. It is on the disk when this returns.
    ///
    /// # Errors
    /// When it could not be written: then nothing may be changed.
    pub fn begin_rollback(&self, begun: RollbackBegun) -> Result<(), WriteError> {
        let _none_goes = locks::checkpoints(self.store())?;
        self.store().note(Some(Note {
            begun,
            journal: Some(self.journal_end()),
        }))
    }
}

impl SandboxStore {
    fn note(&self, rollback: Option<Note>) -> Result<(), WriteError> {
        let sealed = ROLLBACK.seal(&rollback);
        let mut bytes = sealed.map_err(|error| WriteError::Value {
            what: "note of a rollback",
            why: error.to_string(),
        })?;
        bytes.resize(bytes.len().max(ROOM), b'\n');
        let path = self.dir().join(ROLLBACK_FILE);
        let file = match File::options().write(true).open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return match rollback {
                    Some(_) => Ok(durable::replace(&path, &bytes)?),
                    None => Ok(()),
                };
            }
            file => file.map_err(FileError::of("open", &path))?,
        };
        file.write_all_at(&bytes, 0)
            .map_err(FileError::of("write", &path))?;
        if rollback.is_some() {
            file.sync_data().map_err(FileError::of("sync", &path))?;
        }
        Ok(())
    }

    /// The rollback that has begun and is not over, if any.
    ///
    /// # Errors
    /// When that is not known.
    pub fn rollback_begun(&self) -> Result<Option<RollbackBegun>, ReadError> {
        let begun = match ROLLBACK.load(&self.dir().join(ROLLBACK_FILE)) {
            Ok(begun) => begun.flatten(),
            Err(ReadError::Damaged { .. }) => None,
            Err(error) => return Err(error),
        };
        let Some(note): Option<Note> = begun else {
            return Ok(None);
        };
        // Its writer died before it could take the note away.
        Ok((!note.is_over(self)?).then_some(note.begun))
    }

    /// The files are whole again. Not on the disk at once: the journal tells it, too.
    ///
    /// # Errors
    /// When the note could not be changed.
    pub fn end_rollback(&self) -> Result<(), WriteError> {
        self.note(None)
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
        writer.begin_rollback(begun).unwrap();
        assert_eq!(sandbox.rollback_begun().unwrap(), Some(begun));
        sandbox.end_rollback().unwrap();
        assert_eq!(sandbox.rollback_begun().unwrap(), None);
        writer.begin_rollback(begun).unwrap();
        assert_eq!(sandbox.rollback_begun().unwrap(), Some(begun));
        append(1000);
        assert_eq!(sandbox.rollback_begun().unwrap(), None);
        // The clock was set back: that of before is no later one, and the next one is.
        append(9000);
        writer.begin_rollback(begun).unwrap();
        assert_eq!(sandbox.rollback_begun().unwrap(), Some(begun));
        append(5);
        assert_eq!(sandbox.rollback_begun().unwrap(), None);
        // A note of an earlier version goes by it.
        let note = |begun_ms| Note {
            begun: RollbackBegun { begun_ms, ..begun },
            journal: None,
        };
        sandbox.note(Some(note(9001))).unwrap();
        assert!(sandbox.rollback_begun().unwrap().is_some());
        sandbox.note(Some(note(9000))).unwrap();
        assert_eq!(sandbox.rollback_begun().unwrap(), None);
        // Torn while it was written.
        let later = RollbackBegun {
            begun_ms: 2000,
            ..begun
        };
        writer.begin_rollback(later).unwrap();
        assert_eq!(sandbox.rollback_begun().unwrap(), Some(later));
        let path = sandbox.dir().join(ROLLBACK_FILE);
        assert_eq!(path.metadata().unwrap().len(), ROOM as u64);
        let checked = ROLLBACK.load_checked::<Option<RollbackBegun>>(&path);
        assert_eq!(checked.unwrap(), Some(Some(later)));
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(b"0", 40).unwrap();
        assert_eq!(sandbox.rollback_begun().unwrap(), None);
        sandbox.end_rollback().unwrap();
        let fresh = ROLLBACK.load::<Option<RollbackBegun>>(&path).unwrap();
        assert_eq!(fresh, Some(None));
    }
}
