// SPDX-License-Identifier: Apache-2.0
//! What a turn did, for people to read: its processes and where they listen. Nothing is
//! decided by it.

use std::fs;

use crab_runtime::procs::{Process, ProcessChange, Set};
use crab_store::{
    ChangedProcess, IgnoredBy, ListeningSocket, MAX_PROCESSES, TurnEffects, command_line, escape,
};

use super::Capture;
use crate::decide::ProcessHalf;

impl Capture {
    /// What is told of a turn, while what it is compared with is still that of before.
    pub(super) fn effects_of_turn(
        &self,
        half: &ProcessHalf,
        now: &Set,
        ignored: Vec<IgnoredBy>,
    ) -> TurnEffects {
        let mut effects = TurnEffects {
            ignored,
            ..TurnEffects::default()
        };
        if *half == ProcessHalf::Unchanged {
            return effects;
        }
        if let Some(before) = &self.baseline {
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
