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
    /// The processes that differ from an earlier set, by pid. One that became another
    /// program, by which it is now ignored or no longer is, ended and started.
    pub fn changes_since<'a>(&'a self, earlier: &'a Self) -> Vec<(ProcessChange, &'a Process)> {
        let mut changes: Vec<(ProcessChange, &Process)> = Vec::new();
        for (key, process) in &self.processes {
            match earlier.processes.get(key) {
                None => changes.push((ProcessChange::Started, process)),
                Some(before) if before.ignored.is_some() != process.ignored.is_some() => {
                    changes.push((ProcessChange::Ended, before));
                    changes.push((ProcessChange::Started, process));
                }
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn set(processes: &[(i32, Option<usize>)]) -> Set {
        let process = |(pid, ignored): &(i32, Option<usize>)| Process {
            pid: *pid,
            parent: 1,
            start: 7,
            comm: String::new(),
            args: Vec::new(),
            ignored: *ignored,
            threads: BTreeMap::new(),
            seat: *pid,
        };
        let processes = processes.iter().map(process);
        Set {
            processes: processes.map(|p| ((p.pid, p.start), p)).collect(),
        }
    }

    #[test]
    fn ignored_processes_make_no_difference_and_are_told() {
        let before = set(&[(1, None), (2, Some(0)), (3, None), (4, Some(0))]);
        let now = set(&[(1, None), (2, Some(0)), (5, Some(0))]);
        let difference = now.since(&before);
        assert_eq!((difference.started, difference.ended), (0, 1));
        assert_eq!(now.changes_since(&before).len(), 3);
        // The same pid, and another program.
        let exec = set(&[(1, Some(0)), (2, Some(0)), (3, None), (4, Some(0))]);
        assert_eq!(exec.since(&before).ended, 1);
        assert_eq!(before.since(&exec).started, 1);
        assert!(set(&[]).all_ignored() && set(&[(1, Some(0))]).all_ignored());
        assert!(!before.all_ignored());
    }
}
