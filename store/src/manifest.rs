// SPDX-License-Identifier: Apache-2.0

//! The small, self-contained record of one checkpoint.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{
    class::Class,
    digest::Digest,
    id::{PackId, SandboxId, TurnId},
    image::FileImage,
    machine::Machine,
};

/// One checkpoint: the pair (process image, file image) that is the sandbox's
/// state at the end of a turn, and where to find all of it.
///
/// [`crate::PackWriter::publish`] fills in `packs`, `bytes_stored` and
/// `bytes_raw`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Whose.
    pub sandbox: SandboxId,
    /// The turn at whose end it was taken.
    pub turn: TurnId,
    /// What this checkpoint renewed.
    pub class: Class,
    /// When, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// The checkpoint that was valid before.
    pub parent: Option<TurnId>,
    /// The files, of this turn or of an older one that still holds.
    pub files: FileImage,
    /// The processes, likewise. Nothing if starting the init process again
    /// restores them, or if `degraded` says why they are missing.
    pub processes: Option<ProcessRef>,
    /// Why it holds less than the class asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub degraded: Option<String>,
    /// The OCI `config.json`, byte for byte.
    pub spec: Digest,
    /// Every pack that holds something of this checkpoint.
    pub packs: Vec<PackId>,
    /// What it added to the store, in bytes.
    pub bytes_stored: u64,
    /// What was given to the store, before dedup and compression.
    pub bytes_raw: u64,
    /// Where it was taken, and by which Crab; nothing of earlier versions. That of the processes,
    /// which may be older, is in their image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
}

/// The packs that these name.
pub(crate) fn packs_of<'a>(manifests: impl IntoIterator<Item = &'a Manifest>) -> BTreeSet<PackId> {
    let packs = manifests.into_iter().flat_map(|manifest| &manifest.packs);
    packs.copied().collect()
}

/// Where a process image is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRef {
    /// The turn at whose end it was taken.
    pub turn: TurnId,
    /// The [`crate::ProcessImage`] object.
    pub digest: Digest,
}
