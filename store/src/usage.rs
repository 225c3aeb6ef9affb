// SPDX-License-Identifier: Apache-2.0

//! What a sandbox's history takes of the disk, and what for.

use std::{collections::BTreeMap, fs};

use serde::{Deserialize, Serialize};

use crate::{
    collect::{CollectError, Wanted},
    error::ReadError,
    id::{SandboxId, TurnId},
    locks,
    mark::{self, Marks},
    sandbox::SandboxStore,
};

/// What a sandbox takes of the disk, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Whose.
    pub sandbox: SandboxId,
    /// All of it: packs, manifests, journal and the rest.
    pub total: u64,
    /// Packs alone.
    pub packs: u64,
    /// What of the packs holds files.
    pub files: u64,
    /// What of them holds processes and nothing of the files.
    pub processes: u64,
    /// What a removal would free now, no checkpoint being removed.
    pub dead: u64,
    /// What was given to the store, before equal content was found and the rest compressed.
    pub raw: u64,
    /// What was put aside by `crab fsck --repair`.
    pub damaged: u64,
    /// Each checkpoint, and what would be freed without it.
    pub checkpoints: BTreeMap<TurnId, CheckpointUsage>,
}

/// What one checkpoint takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointUsage {
    /// What it added when it was taken.
    pub added: u64,
    /// What no other checkpoint needs.
    pub unique: u64,
}

impl SandboxStore {
    /// What the sandbox takes of the disk.
    pub fn usage(&self) -> Result<Usage, CollectError> {
        // Or what is looked at might go meanwhile.
        let _reading = locks::reading(self)?;
        let manifests = self.manifests()?.into_iter();
        let manifests: Result<Vec<_>, ReadError> = manifests.map(|(_, m)| m).collect();
        let manifests = manifests.map_err(CollectError::Damaged)?;
        let mut usage = Usage {
            sandbox: self.id().clone(),
            total: bytes_below(self.dir()),
            packs: bytes_below(&self.packs_dir()),
            files: 0,
            processes: 0,
            dead: self.would_collect(&Wanted::default())?.bytes_freed,
            raw: manifests.iter().map(|manifest| manifest.bytes_raw).sum(),
            damaged: bytes_below(&self.aside_dir()),
            checkpoints: BTreeMap::new(),
        };
        let mut marks = Marks::new(self)?;
        for manifest in &manifests {
            let added = marks.mark(manifest).map_err(CollectError::Damaged)?;
            usage.files += added.files;
            usage.processes += added.processes;
        }
        drop(marks);
        let unique = mark::unique(self, &manifests).map_err(CollectError::Damaged)?;
        for (manifest, unique) in manifests.iter().zip(unique) {
            let added = manifest.bytes_stored;
            let of_it = CheckpointUsage { added, unique };
            usage.checkpoints.insert(manifest.turn, of_it);
        }
        Ok(usage)
    }
}

/// What all files below a directory take. What goes meanwhile takes nothing.
fn bytes_below(dir: &std::path::Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => bytes_below(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}
