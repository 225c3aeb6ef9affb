// SPDX-License-Identifier: Apache-2.0

//! How the processes of two checkpoints differ.

use crab_store::{ProcessChange, ProcessEntry, ReadError};
use serde::Serialize;

use super::State;

/// A process that only one of two images has, or that both have and are not the same image.
#[derive(Serialize)]
pub(super) struct ProcessDifference {
    pub(super) change: ProcessChange,
    #[serde(flatten)]
    pub(super) process: ProcessEntry,
}

/// What differs; a note for each state whose processes are not known.
pub(super) fn compare(
    a: &State,
    b: &State,
    notes: &mut Vec<String>,
) -> Result<Vec<ProcessDifference>, ReadError> {
    for state in [a, b] {
        if let Some(why) = &state.manifest.degraded {
            notes.push(format!("processes of turn {}: {why}", state.turn));
        }
    }
    let (before, now) = (a.manifest.processes, b.manifest.processes);
    if before == now {
        return Ok(Vec::new());
    }
    let read = |state: &State| -> Result<Vec<ProcessEntry>, ReadError> {
        match state.manifest.processes {
            Some(image) => Ok(state.reader.process_image(image.digest)?.processes),
            None => Ok(Vec::new()),
        }
    };
    let (before, now) = (read(a)?, read(b)?);
    let mut found = Vec::new();
    let mut push = |change, process: &ProcessEntry| {
        let process = process.clone();
        found.push(ProcessDifference { change, process });
    };
    for process in &now {
        let change = match before.contains(process) {
            // Taken anew because something about the processes is another.
            true => ProcessChange::Changed,
            false => ProcessChange::Started,
        };
        push(change, process);
    }
    for process in before.iter().filter(|process| !now.contains(process)) {
        push(ProcessChange::Ended, process);
    }
    Ok(found)
}
