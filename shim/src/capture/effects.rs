// SPDX-License-Identifier: Apache-2.0
//! What a turn did, for people to read: its processes, where they listen, and what went
//! out. Nothing is decided by it.

use std::{collections::BTreeMap, fs};

use crab_api::tracer::Effects;
use crab_runtime::procs::{Process, ProcessChange, Set};
use crab_store::{
    ChangedProcess, IgnoredBy, ListeningSocket, MAX_PROCESSES, TurnEffects, command_line, escape,
};

use super::Capture;
use crate::decide::ProcessHalf;

impl Capture {
    /// What is told of a turn, while what it is compared with is still that of before.
    /// `counted`: the counters that the next turn begins with.
    pub(super) fn effects_of_turn(
        &self,
        half: &ProcessHalf,
        now: &Set,
        ignored: Vec<IgnoredBy>,
        counted: Option<&Effects>,
    ) -> TurnEffects {
        let mut effects = TurnEffects {
            ignored,
            external: external(self.base.as_ref(), counted),
            ..TurnEffects::default()
        };
        if *half == ProcessHalf::Unchanged {
            return effects;
        }
        // Which they were is known also where it is not known what they have done since.
        if let Some(before) = self.baseline.as_ref().or(self.captured.as_ref()) {
            let changes = now.changes_since(before);
            effects.processes_changed = changes.len() as u64;
            effects.processes = changes
                .into_iter()
                .take(MAX_PROCESSES)
                .map(|(change, process)| told(change, process))
                .collect();
        }
        effects.listening = listening(now);
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
    let pid = inner_pid(process).filter(|_| change != ProcessChange::Ended);
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

/// The pid of a process in the innermost pid namespace that it is in.
pub(super) fn inner_pid(process: &Process) -> Option<u32> {
    let status = fs::read(process.dir().join("status")).ok()?;
    let line = status
        .split(|byte| *byte == b'\n')
        .find_map(|line| line.strip_prefix(b"NSpid:"))?;
    let last = line.rsplit(|byte| byte.is_ascii_whitespace()).next()?;
    std::str::from_utf8(last).ok()?.parse().ok()
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
