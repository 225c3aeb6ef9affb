// SPDX-License-Identifier: Apache-2.0
//! Which processes differ between two sets, one by one, for people to read.

use super::{Process, Set};

/// How a process differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessChange {
    /// It is new.
    Started,
    /// It is gone.
    Ended,
    /// It was there and has run since.
    Ran,
}

impl Set {
    /// The processes that differ from an earlier set, by pid.
    pub fn changes_since<'a>(&'a self, earlier: &'a Self) -> Vec<(ProcessChange, &'a Process)> {
        let mut changes: Vec<(ProcessChange, &Process)> = Vec::new();
        for (key, process) in &self.processes {
            match earlier.processes.get(key) {
                None => changes.push((ProcessChange::Started, process)),
                Some(before) if !process.rests_since(before) => {
                    changes.push((ProcessChange::Ran, process));
                }
                Some(_) => {}
            }
        }
        let ended = earlier
            .processes
            .iter()
            .filter(|(key, _)| !self.processes.contains_key(key));
        changes.extend(ended.map(|(_, process)| (ProcessChange::Ended, process)));
        changes.sort_by_key(|(_, process)| process.pid);
        changes
    }
}
