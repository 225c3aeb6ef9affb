// SPDX-License-Identifier: Apache-2.0
//! The file half: the roots that are captured, compared and copied.

use std::{
    collections::{BTreeSet, HashSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Result;
use crab_runtime::{
    files::{Change, ChangeKind, Index, Scan, Scanner, Staged, Staging},
    mount::{Tmpfs, tmpfs_of},
    overlay::OverlayMount,
    procs::Set,
};
use crab_store::{ChangedPath, Digest, TmpfsImage, escape};

use super::Capture;
use crate::tracer::Watched;

/// A root that is captured: the upper directory, or a tmpfs.
pub(crate) struct Root {
    /// Where in the container; nothing for the root itself.
    pub(crate) mount: Option<PathBuf>,
    pub(crate) scanner: Arc<Scanner>,
    pub(crate) index: Index,
    /// The tree in the store that the index describes.
    pub(crate) tree: Option<Digest>,
}

/// Opens the roots of a container whose mounts are in place.
pub(crate) fn open_roots(overlay: &OverlayMount, init: i32) -> Result<(Vec<Root>, Vec<Tmpfs>)> {
    let mut roots = vec![Root {
        mount: None,
        scanner: Arc::new(Scanner::overlay(overlay)?),
        index: Index::default(),
        tree: None,
    }];
    let mounts = tmpfs_of(init)?;
    for mount in &mounts {
        roots.push(Root::tmpfs(init, &mount.path)?);
    }
    Ok((roots, mounts))
}

/// Under which names CRIU keeps these mounts' contents.
pub(crate) fn images_of(mounts: &[Tmpfs]) -> Vec<TmpfsImage> {
    mounts
        .iter()
        .map(|mount| TmpfsImage {
            mount: mount.path.as_os_str().as_encoded_bytes().to_vec(),
            image: mount.criu_image(),
        })
        .collect()
}

impl Root {
    fn tmpfs(init: i32, at: &Path) -> Result<Self> {
        Ok(Self {
            scanner: Arc::new(Scanner::mounted(init as u32, at)?),
            mount: Some(at.to_path_buf()),
            index: Index::default(),
            tree: None,
        })
    }
}

/// The scans of all roots, and what they found together.
pub(super) struct Scans {
    scans: Vec<Scan>,
    pub(super) torn: bool,
}

impl Scans {
    fn changes(&self) -> impl Iterator<Item = (usize, &Change)> {
        self.scans
            .iter()
            .enumerate()
            .flat_map(|(root, scan)| scan.changes().iter().map(move |change| (root, change)))
    }

    pub(super) fn count(&self) -> usize {
        self.changes().count()
    }
}

impl Capture {
    /// Compares every root with its index.
    pub(super) fn scan(&self, set: &Set) -> Result<Scans> {
        // Stores to a shared mapping leave no trace in the times.
        let forced: HashSet<Vec<u8>> = set.shared_mappings().into_iter().collect();
        let mut scans = Vec::with_capacity(self.roots.len());
        let mut torn = false;
        for root in &self.roots {
            let scan = root.scanner.scan(&root.index, &forced)?;
            torn |= !scan.torn().is_empty();
            scans.push(scan);
        }
        Ok(Scans { scans, torn })
    }

    /// Copies what changed; roots without a change only get a fresher index.
    pub(super) fn stage(&mut self, scans: Scans) -> Result<Vec<(usize, Staged)>> {
        let config = &self.container.host.config;
        let directory = config.store.clone();
        let staging = Staging {
            memory: config.checkpoints.staging_bytes / 4,
            directory: &directory,
        };
        let mut staged = Vec::new();
        for (at, scan) in scans.scans.into_iter().enumerate() {
            let root = &mut self.roots[at];
            if scan.changes().is_empty() && root.tree.is_some() {
                if let Some(index) = scan.into_index() {
                    root.index = index;
                }
            } else {
                staged.push((at, root.scanner.stage(scan, &staging)?));
            }
        }
        Ok(staged)
    }

    /// A changed or removed file that a process holds on to: CRIU compares them
    /// on restore, so that the older image would not fit the newer files.
    pub(super) fn held_change(&self, scans: &Scans, set: &Set) -> Option<String> {
        if set.is_empty() || !self.some_processes {
            return None;
        }
        let held: BTreeSet<Vec<u8>> = set.references();
        scans
            .changes()
            .filter(|(_, change)| change.kind != ChangeKind::Added)
            .find(|(_, change)| held.contains(&change.path))
            .map(|(_, change)| escape(&change.path))
    }

    pub(super) fn changed_paths(&self, scans: &Scans) -> Vec<ChangedPath> {
        scans
            .changes()
            .take(crab_store::MAX_CHANGED)
            .map(|(root, change)| {
                let mut path = self.roots[root]
                    .mount
                    .as_deref()
                    .map(|mount| mount.as_os_str().as_encoded_bytes().to_vec())
                    .unwrap_or_default();
                path.push(b'/');
                path.extend_from_slice(&change.path);
                ChangedPath {
                    change: match change.kind {
                        ChangeKind::Added => crab_store::Change::Added,
                        ChangeKind::Changed => crab_store::Change::Changed,
                        ChangeKind::Removed => crab_store::Change::Removed,
                    },
                    path: escape(&path),
                }
            })
            .collect()
    }

    /// Where each root is mounted, and its tree in the store.
    pub(crate) fn root_trees(&self) -> Vec<(Option<Vec<u8>>, Option<Digest>)> {
        self.roots
            .iter()
            .map(|root| {
                let mount = root.mount.as_deref();
                (
                    mount.map(|m| m.as_os_str().as_encoded_bytes().to_vec()),
                    root.tree,
                )
            })
            .collect()
    }

    /// Something was mounted or unmounted inside: what is a memory-backed mount
    /// of the container now is captured and watched from here on.
    pub(super) fn follow_mounts(&mut self) -> Result<()> {
        let mounts = tmpfs_of(self.init)?;
        self.roots.retain(|root| {
            root.mount
                .as_ref()
                .is_none_or(|at| mounts.iter().any(|mount| mount.path == *at))
        });
        for mount in &mounts {
            let known = self
                .roots
                .iter()
                .any(|root| root.mount.as_ref() == Some(&mount.path));
            if !known {
                self.roots.push(Root::tmpfs(self.init, &mount.path)?);
            }
        }
        self.tmpfs_images = images_of(&mounts);
        self.devices.truncate(1);
        self.devices.extend(mounts.iter().map(|mount| mount.device));
        let watched = Watched {
            cgroup: self.cgroup.clone(),
            devices: self.devices.clone(),
        };
        if let Err(reason) = self.async_runtime.block_on(self.tracer.watch(watched)) {
            tracing::warn!(reason, "turns are unobserved");
        }
        Ok(())
    }
}
