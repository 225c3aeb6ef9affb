// SPDX-License-Identifier: Apache-2.0
//! Comparing the live sandbox with a checkpoint: every file read anew, and what its processes
//! are and hold.
//!
//! ```text
//! counters --> files, read while it runs --> freeze: counters as before? --no--> files again
//!                                              processes, memory
//!                                            thaw
//! ```
//! So the freeze is short where nothing writes, and both halves are of one instant.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use crab_runtime::{
    files::{Difference, Verified},
    procs::{MemoryVerdict, Portraits, ProcessDifference},
};
use crab_store::{Manifest, ObjectReader, Tree};

use super::{
    Baseline, Capture, mount_table, roots::in_container, standing::Standing, take::same_epoch,
};
use crate::publish::PORTRAITS;

/// What came of a comparison.
#[derive(Debug)]
pub(crate) struct Verification {
    /// With the path in the container.
    pub(crate) files: Vec<(Vec<u8>, Difference)>,
    /// Mounts that are in memory and are there or not there, unlike in the checkpoint.
    pub(crate) mounts: Vec<MountDifference>,
    /// How many paths were compared.
    pub(crate) paths: usize,
    pub(crate) processes: Vec<ProcessDifference>,
    /// How many processes there are.
    pub(crate) alive: usize,
    pub(crate) memory: MemoryVerdict,
    pub(crate) frozen: Duration,
    pub(crate) took: Duration,
}

/// A mount that is in memory, and is there or not there, unlike in the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MountDifference {
    Added(Vec<u8>),
    Removed(Vec<u8>),
    /// Another one is mounted somewhere than at the newest look.
    Table,
}

impl Verification {
    pub(crate) fn is_same(&self) -> bool {
        self.files.is_empty()
            && self.mounts.is_empty()
            && self.processes.is_empty()
            && self.memory != MemoryVerdict::Differs
    }
}

/// What a checkpoint says of the roots of a sandbox, by their positions.
pub(super) struct Expected {
    pub(super) trees: Vec<Option<Tree>>,
    mounts: Vec<MountDifference>,
    portraits: Option<Portraits>,
    /// Why there are no processes in it to be compared with.
    without: Option<String>,
}

impl Capture {
    /// Compares the sandbox with a checkpoint.
    pub(crate) fn verify(
        &mut self,
        manifest: &Manifest,
        reader: &ObjectReader,
    ) -> Result<Verification> {
        let start = Instant::now();
        let expected = self.expected(manifest, reader)?;
        let before = self.effects().ok();
        let running = self.read_files(&expected)?;
        let standing = self.stand()?;
        let files = if same_epoch(before.as_ref(), standing.effects.as_ref())
            && !standing.now.writes_unseen()
            && running.iter().all(|(_, verified)| verified.torn.is_empty())
        {
            running
        } else {
            self.read_files(&expected)?
        };
        let mut verification = self.compare(&expected, files, &standing)?;
        verification.frozen = self.go_on(standing, false)?;
        verification.took = start.elapsed();
        Ok(verification)
    }

    pub(super) fn expected(&self, manifest: &Manifest, reader: &ObjectReader) -> Result<Expected> {
        let mut mounts = Vec::new();
        let mut trees = Vec::with_capacity(self.roots.len());
        for root in &self.roots {
            let digest = root.tree_in(&manifest.files);
            if let (None, Some(mount)) = (digest, root.mount_bytes()) {
                mounts.push(MountDifference::Added(mount.to_vec()));
            }
            trees.push(digest.map(|digest| reader.tree(digest)).transpose()?);
        }
        for tmpfs in &manifest.files.tmpfs {
            let mount = Some(tmpfs.mount.as_slice());
            if self.roots.iter().all(|root| root.mount_bytes() != mount) {
                mounts.push(MountDifference::Removed(tmpfs.mount.clone()));
            }
        }
        if mount_table(self.init) != self.mount_table {
            mounts.push(MountDifference::Table);
        }
        let (portraits, without) = match (manifest.processes, &manifest.degraded) {
            (Some(processes), _) => {
                let image = reader.process_image(processes.digest)?;
                match image.extra.get(PORTRAITS) {
                    Some(text) => (Some(serde_json::from_str(text)?), None),
                    None => (None, Some("not recorded in this checkpoint".into())),
                }
            }
            // Started again, the init is all.
            (None, None) => (Some(Portraits::default()), None),
            (None, Some(why)) => (None, Some(format!("not recorded: {why}"))),
        };
        Ok(Expected {
            trees,
            mounts,
            portraits,
            without,
        })
    }

    /// Reads all files, and compares them. By the positions of the roots.
    pub(super) fn read_files(&self, expected: &Expected) -> Result<Vec<(usize, Verified)>> {
        let roots = self.roots.iter().zip(&expected.trees).enumerate();
        roots
            .filter_map(|(at, (root, tree))| Some((at, root, tree.as_ref()?)))
            .map(|(at, root, tree)| Ok((at, root.scanner.verify(tree)?)))
            .collect()
    }

    /// Compares processes that stand still, and puts all together.
    pub(super) fn compare(
        &self,
        expected: &Expected,
        files: Vec<(usize, Verified)>,
        standing: &Standing,
    ) -> Result<Verification> {
        let now = &standing.now;
        let (processes, memory) = match &expected.portraits {
            None => {
                let why = expected.without.clone().unwrap_or_default();
                (Vec::new(), MemoryVerdict::Unknown(why))
            }
            Some(before) => {
                let mut portraits = Portraits::of(now).context("look at the processes")?;
                if !before.is_empty() && !now.is_empty() {
                    // Tells which calls were interrupted.
                    let earlier = self.known.baseline.as_ref().and_then(Baseline::content);
                    let content = self.content(&standing.frozen, now, now, earlier)?;
                    portraits.add_memory(content.as_ref().map_err(Clone::clone));
                }
                portraits.since(before)
            }
        };
        let paths = files.iter().map(|(_, verified)| verified.paths).sum();
        let in_container = |(at, verified): (usize, Verified)| {
            let mount = self.roots[at].mount.clone();
            let all = verified.differences.into_iter();
            all.map(move |it| (in_container(mount.as_deref(), &it.path), it))
        };
        Ok(Verification {
            files: files.into_iter().flat_map(in_container).collect(),
            mounts: expected.mounts.clone(),
            paths,
            processes,
            alive: now.iter().count(),
            memory,
            frozen: Duration::ZERO,
            took: Duration::ZERO,
        })
    }
}
