// SPDX-License-Identifier: Apache-2.0

//! Whether a sandbox's history is as it was when somebody looked.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use crate::sandbox::SandboxStore;

/// A time of change that is not older than that may be that of a later change, too: file
/// systems keep times by their clock's tick, and some by the second.
const SETTLED: Duration = Duration::from_secs(2);

/// Tells two states of a sandbox's history apart, without reading it: by what every change
/// of it changes. Journal and metadata are known by their length and time, the directories
/// of manifests, packs, tags and what was put aside by the time at which a name in them came or
/// went.
///
/// It tells nothing of damage: what a disk loses by itself changes no time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp(Vec<Option<Mark>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    ino: u64,
    len: u64,
    sec: i64,
    nsec: i64,
}

impl SandboxStore {
    /// How it is now; nothing if that will not do to tell it from what comes next, because it
    /// has changed just now.
    pub fn stamp(&self) -> Option<Stamp> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
        let settled = now.checked_sub(SETTLED)?.as_secs() as i64;
        let paths = [
            self.journal_path(),
            self.meta_path(),
            self.manifests_dir(),
            self.packs_dir(),
            self.tags_dir(),
            self.aside_dir(),
        ];
        let marks = paths.map(|path| {
            let metadata = fs::symlink_metadata(path).ok()?;
            Some(Mark {
                ino: metadata.ino(),
                len: metadata.len(),
                sec: metadata.mtime(),
                nsec: metadata.mtime_nsec(),
            })
        });
        let is_old = |mark: &Option<Mark>| mark.is_none_or(|mark| mark.sec < settled);
        marks.iter().all(is_old).then(|| Stamp(marks.to_vec()))
    }
}
