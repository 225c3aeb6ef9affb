// SPDX-License-Identifier: Apache-2.0
//! How a container's init ended, kept in the bundle: `delete`, which runs when the shim has
//! died, tells the true status, not that of a kill that never was.

use std::{
    fs,
    path::Path,
    time::{Duration, SystemTime},
};

use crab_runtime::reaper::Exit;
use serde::{Deserialize, Serialize};

const FILE: &str = "exit.json";

#[derive(Serialize, Deserialize)]
struct Note {
    status: u32,
    /// Since the Unix epoch.
    at: Duration,
}

/// Keeps it. Failing is worth no more than a line in the log.
pub(crate) fn write(bundle: &Path, exit: Exit) {
    let at = exit.at.duration_since(SystemTime::UNIX_EPOCH);
    let note = Note {
        status: exit.status,
        at: at.unwrap_or_default(),
    };
    let written = serde_json::to_vec(&note)
        .map_err(Into::into)
        .and_then(|json| fs::write(bundle.join(FILE), json));
    if let Err(error) = written {
        tracing::warn!(%error, "the exit status is not kept in the bundle");
    }
}

/// What is kept.
pub(crate) fn read(bundle: &Path) -> Option<Exit> {
    let note: Note = serde_json::from_slice(&fs::read(bundle.join(FILE)).ok()?).ok()?;
    Some(Exit {
        status: note.status,
        at: SystemTime::UNIX_EPOCH.checked_add(note.at)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()), None);
        let exit = Exit {
            status: 3,
            at: SystemTime::now(),
        };
        write(dir.path(), exit);
        assert_eq!(read(dir.path()), Some(exit));
        fs::write(dir.path().join(FILE), "{").unwrap();
        assert_eq!(read(dir.path()), None);
    }
}
