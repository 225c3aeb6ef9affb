// SPDX-License-Identifier: Apache-2.0

//! Copies that were made in advance, and are nobody's yet.
//!
//! The note of it is a file in the copy's directory. Whoever takes the file away has the copy:
//! of two who want it at once, one.

use std::{fs, io::ErrorKind};

use serde::{Deserialize, Serialize};

use crate::{
    envelope::Envelope,
    error::{FileError, ReadError, WriteError},
    id::{SandboxId, TurnId},
    manifest::Manifest,
    sandbox::SandboxStore,
};

pub(crate) const SPARE: Envelope = Envelope {
    magic: "crab-spare",
    version: 1,
};
pub(crate) const SPARE_FILE: &str = "spare";

/// Of which state a copy is that is nobody's yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spare {
    /// The original.
    pub of: SandboxId,
    /// The checkpoint.
    pub checkpoint: TurnId,
    /// When that was taken, in milliseconds since the Unix epoch: another sandbox may get the
    /// name of the original.
    pub created_ms: u64,
}

impl Spare {
    /// One of a checkpoint.
    pub fn of(manifest: &Manifest) -> Self {
        Self {
            of: manifest.sandbox.clone(),
            checkpoint: manifest.turn,
            created_ms: manifest.created_ms,
        }
    }
}

impl SandboxStore {
    /// Notes that this copy is nobody's yet.
    ///
    /// # Errors
    /// When it could not be written.
    pub fn set_aside(&self, spare: &Spare) -> Result<(), WriteError> {
        self.write_small(SPARE_FILE, &SPARE, spare)
    }

    /// Of which state it is a copy that is nobody's yet; nothing if it is somebody's.
    ///
    /// # Errors
    /// When that is not known.
    pub fn spare(&self) -> Result<Option<Spare>, ReadError> {
        SPARE.load(&self.dir().join(SPARE_FILE))
    }

    /// It is somebody's from now on. Whether it was nobody's: that is told to one alone. Not on the
    /// disk at once: after a loss of power nothing of it runs anyway.
    ///
    /// # Errors
    /// When the note could not be taken away.
    pub fn take_spare(&self) -> Result<bool, WriteError> {
        let path = self.dir().join(SPARE_FILE);
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(FileError::of("remove", &path)(error).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;

    #[test]
    fn a_spare_copy_is_taken_once() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::create(dir.path().join("store")).unwrap();
        let id = SandboxId::new("test", "copy").unwrap();
        let writer = store.writer(&id).unwrap();
        let copy = writer.store();
        assert_eq!(copy.spare().unwrap(), None);
        assert!(!copy.take_spare().unwrap());
        let spare = Spare {
            of: SandboxId::new("test", "box").unwrap(),
            checkpoint: TurnId(7),
            created_ms: 1000,
        };
        copy.set_aside(&spare).unwrap();
        assert_eq!(copy.spare().unwrap(), Some(spare));
        assert!(copy.take_spare().unwrap());
        assert!(!copy.take_spare().unwrap());
        assert_eq!(copy.spare().unwrap(), None);
    }
}
