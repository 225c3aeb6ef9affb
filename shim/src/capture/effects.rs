// SPDX-License-Identifier: Apache-2.0
//! What a turn did, for people to read: its processes, where they listen, and what went
//! out. Nothing is decided by it.

use std::collections::BTreeMap;

use crab_api::tracer::Effects;
use crab_runtime::procs::{Process, ProcessChange, Set};
use crab_store::{
    ChangedProcess, IgnoredBy, ListeningSocket, MAX_PROCESSES, TurnEffects, command_line, escape,
};

use super::{Baseline, Capture};
use crate::decide::ProcessHalf;

impl Capture {
    /// What is told of a turn, while what it is compared with is still that of before.
    /// `counted`: the counters that the next turn begins with.
    pub(super) fn effects_of_turn(
        &self,
        half: &ProcessHalf,
        now: &Set,
        mut ignored: Vec<IgnoredBy>,
        counted: Option<&Effects>,
    ) -> TurnEffects {
        let mut effects = TurnEffects {
            external: external(self.known.base.as_ref(), counted),
            ..TurnEffects::default()
        };
        // Which they were is known also where it is not known what they have done since.
        if let Some(before) = self
            .known
            .baseline
            .as_ref()
            .and_then(Baseline::rested)
            .or(self.known.captured.as_ref())
        {
            let (passed_over, changes): (Vec<_>, Vec<_>) = now
                .changes_since(before)
                .into_iter()
                .partition(|(_, process)| process.ignored.is_some());
            let passed_over = passed_over.into_iter().map(|(_, process)| process);
            ignored.extend(self.relevance.processes_passed_over(passed_over));
            if *half != ProcessHalf::Unchanged {
                effects.processes_changed = changes.len() as u64;
                effects.processes = changes
                    .into_iter()
                    .take(MAX_PROCESSES)
                    .map(|(change, process)| told(change, process))
                    .collect();
            }
        }
        if *half != ProcessHalf::Unchanged {
            effects.listening = listening(now);
        }
        effects.ignored = ignored;
        effects
    }
}

/// What went out between two readings of the counters.
fn external(before: Option<&Effects>, now: Option<&Effects>) -> BTreeMap<String, u64> {
    let (Some(before), Some(now)) = (before, now) else {
        return BTreeMap::new();
    };
    if before.instance != now.instance {
        return BTreeMap::new();
    }
    [
        ("connected", before.connected, now.connected),
        ("listened", before.listened, now.listened),
        ("sent_bytes", before.sent, now.sent),
    ]
    .into_iter()
    .map(|(what, before, now)| (what.to_owned(), now.wrapping_sub(before)))
    .filter(|(_, number)| *number > 0)
    .collect()
}

fn told(change: ProcessChange, process: &Process) -> ChangedProcess {
    let pid = process
        .inner_pid()
        .filter(|_| change != ProcessChange::Ended);
    ChangedProcess {
        change: match change {
            ProcessChange::Started => crab_store::ProcessChange::Started,
            ProcessChange::Ended => crab_store::ProcessChange::Ended,
            ProcessChange::Ran => crab_store::ProcessChange::Changed,
        },
        pid,
        comm: process.comm.clone(),
        cmdline: command_line(&process.args),
    }
}

fn listening(set: &Set) -> Vec<ListeningSocket> {
    let mut found: Vec<ListeningSocket> = set
        .listening()
        .into_iter()
        .map(|socket| ListeningSocket {
            protocol: socket.protocol.into(),
            address: escape(&socket.address),
            comm: socket.comm,
        })
        .collect();
    found.sort();
    found.dedup();
    found.truncate(MAX_PROCESSES);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_went_out_is_told_only_of_one_count() {
        let counted = |instance: &str, connected, sent| Effects {
            instance: instance.into(),
            connected,
            sent,
            ..Effects::default()
        };
        let before = counted("a", 3, 100);
        let told = |now: &Effects| {
            let told = external(Some(&before), Some(now));
            let told = told
                .into_iter()
                .map(|(what, number)| format!("{what} {number}"));
            told.collect::<Vec<_>>()
        };
        assert_eq!(told(&before), [""; 0]);
        assert_eq!(told(&counted("a", 4, 107)), ["connected 1", "sent_bytes 7"]);
        assert_eq!(told(&counted("b", 9, 900)), [""; 0]);
        assert!(external(None, Some(&before)).is_empty());
        assert!(external(Some(&before), None).is_empty());
    }
}
