// SPDX-License-Identifier: Apache-2.0
//! What a comparison found, as it is told to `crab`.

use crab_api::sandbox::{PathDifference, ProcessDifference, Verification};
use crab_runtime::{
    files::{Difference, DifferenceKind, Sort},
    procs::{self, ProcessDifferenceKind},
};
use crab_store::{clip, escape};

use crate::{
    capture::{MountDifference, micros},
    turns::Verified,
};

/// How many paths are told, how many processes, and how many things of each: together no more
/// than a message holds, which is 4 MiB.
const MAX_PATHS: usize = 1000;
const MAX_PROCESSES: usize = 100;
const MAX_THINGS: usize = 64;
/// The longest path, and the longest text of a thing, in bytes.
const MAX_PATH: usize = 1024;
const MAX_THING: usize = 256;

pub(super) fn told(verified: Verified) -> Verification {
    let Verified {
        checkpoint,
        degraded,
        verification: it,
    } = verified;
    let mounts = it.mounts.iter().map(mount);
    let files = it
        .files
        .iter()
        .map(|(whole, difference)| path(whole, difference));
    Verification {
        checkpoint: checkpoint.0,
        same: it.is_same(),
        paths: it.paths as u64,
        paths_differing: (it.mounts.len() + it.files.len()) as u64,
        differences: mounts.chain(files).take(MAX_PATHS).collect(),
        processes: it.alive as u64,
        process_differences: it
            .processes
            .iter()
            .take(MAX_PROCESSES)
            .map(process)
            .collect(),
        memory: it.memory.to_string(),
        degraded: degraded.unwrap_or_default(),
        frozen_us: micros(it.frozen),
        took_us: micros(it.took),
        ..Default::default()
    }
}

fn mount(difference: &MountDifference) -> PathDifference {
    let (path, change, what) = match difference {
        MountDifference::Added(path) => (escape(path), "added", ""),
        MountDifference::Removed(path) => (escape(path), "removed", ""),
        MountDifference::Table => ("/".into(), "changed", "something was mounted or unmounted"),
    };
    PathDifference {
        path,
        change: change.into(),
        kind: "mount".into(),
        what: what.into(),
        ..Default::default()
    }
}

fn path(whole: &[u8], difference: &Difference) -> PathDifference {
    let (change, what) = match &difference.kind {
        DifferenceKind::Added => ("added", ""),
        DifferenceKind::Removed => ("removed", ""),
        DifferenceKind::Changed(what) => ("changed", what.as_str()),
    };
    PathDifference {
        path: clip(&escape(whole), MAX_PATH),
        change: change.into(),
        kind: match difference.sort {
            Sort::Dir => "dir",
            Sort::File => "file",
            Sort::Symlink => "symlink",
            Sort::Special => "special",
        }
        .into(),
        what: what.into(),
        ..Default::default()
    }
}

fn process(difference: &procs::ProcessDifference) -> ProcessDifference {
    let (change, what) = match &difference.kind {
        ProcessDifferenceKind::Added => ("started", &[][..]),
        ProcessDifferenceKind::Removed => ("ended", &[][..]),
        ProcessDifferenceKind::Changed(what) => ("changed", what.as_slice()),
    };
    ProcessDifference {
        pid: difference.pid,
        comm: difference.comm.clone(),
        change: change.into(),
        what: what
            .iter()
            .take(MAX_THINGS)
            .map(|thing| clip(thing, MAX_THING))
            .collect(),
        ..Default::default()
    }
}
