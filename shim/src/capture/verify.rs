// SPDX-License-Identifier: Apache-2.0
//! Comparing the live sandbox with a checkpoint: every file read anew, and what its processes
//! are and hold.
//!
//! ```text
//! counters --> files, read while it runs --> freeze: counters as before? --no--> what changed again
//!                    ^         |                processes, memory
//!                    +-moved?--+              thaw --> compared
//! ```
//! So the freeze is short, and both halves are of one instant. Where more changes than may be read
//! in a freeze, nothing is told rather than something wrong.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use crab_api::tracer::Effects;
use crab_runtime::{
    files::{Difference, Look},
    procs::{MemoryVerdict, Portraits, ProcessDifference, Set},
};
use crab_store::{Manifest, ObjectReader, Tree};

use super::{
    Baseline, Capture, Root, mount_table, roots::in_container, standing::Standing, take::same_epoch,
};
use crate::publish::PORTRAITS;

/// How many bytes of files are read at most while the sandbox stands still.
const MAX_FROZEN: u64 = 128 << 20;
/// How often what changed meanwhile is read again before it is held still.
const ROUNDS: usize = 3;

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

/// The files as they were read, by the positions of the roots.
pub(super) struct Looks {
    of_roots: Vec<(usize, Look)>,
    /// The counters right before.
    since: Option<Effects>,
    /// They tell of everything that was read.
    all_watched: bool,
}

impl Looks {
    /// Whether nothing can have changed between two readings of the counters, and nothing did
    /// while it was read.
    fn hold_at(&self, now: Option<&Effects>) -> bool {
        let mut each = self.of_roots.iter();
        self.all_watched
            && same_epoch(self.since.as_ref(), now)
            && each.all(|(_, look)| !look.is_torn())
    }
}

/// What is known of the processes of a sandbox that stands still.
pub(super) struct Half {
    processes: Vec<ProcessDifference>,
    alive: usize,
    memory: MemoryVerdict,
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
        let looks = self.look(&expected)?;
        let standing = self.stand()?;
        let half = self.look_standing(&expected, looks, &standing);
        let frozen = self.go_on(standing, false)?;
        let (looks, half) = half?;
        let mut verification = self.compare(&expected, looks, half)?;
        verification.frozen = frozen;
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

    /// Reads all files while the sandbox runs, and what changed meanwhile again.
    pub(super) fn look(&self, expected: &Expected) -> Result<Looks> {
        let since = self.effects().ok();
        let mapped = self.mapped(&self.processes()?);
        let of_roots = self
            .expected_roots(expected)
            .map(|(at, tree)| Ok((at, self.roots[at].scanner.look(tree, &mapped[at])?)))
            .collect::<Result<_>>()?;
        let mut looks = Looks {
            of_roots,
            since,
            all_watched: self.watches_root(),
        };
        // Without anything to tell by, once is as good as often.
        let rounds = if looks.all_watched { ROUNDS } else { 1 };
        for _ in 0..rounds {
            let now = self.effects().ok();
            if looks.hold_at(now.as_ref()) {
                break;
            }
            let set = self.processes()?;
            if let Some(again) = self.look_again(expected, &looks, &set, now, u64::MAX)? {
                looks = again;
            }
        }
        Ok(looks)
    }

    /// Reads what may have changed since; nothing if that would be too much.
    fn look_again(
        &self,
        expected: &Expected,
        looks: &Looks,
        set: &Set,
        since: Option<Effects>,
        mut bytes: u64,
    ) -> Result<Option<Looks>> {
        let mapped = self.mapped(set);
        let mut of_roots = Vec::with_capacity(looks.of_roots.len());
        let trees = self.expected_roots(expected);
        for ((at, tree), (_, earlier)) in trees.zip(&looks.of_roots) {
            let root = &self.roots[at];
            // In memory a store to a mapping moves no time, and the mapping may be gone.
            let everything = root.in_memory;
            let again =
                root.scanner
                    .look_again(tree, earlier, &mapped[at], everything, &mut bytes)?;
            let Some(again) = again else {
                return Ok(None);
            };
            of_roots.push((at, again));
        }
        Ok(Some(Looks {
            of_roots,
            since,
            all_watched: looks.all_watched,
        }))
    }

    /// Looks at a sandbox that stands still: at what has changed since it ran, and at its processes.
    pub(super) fn look_standing(
        &self,
        expected: &Expected,
        looks: Looks,
        standing: &Standing,
    ) -> Result<(Looks, Half)> {
        let now = &standing.now;
        let effects = self.effects_now();
        let looks = if looks.hold_at(effects.as_ref()) && !now.writes_unseen() {
            looks
        } else {
            match self.look_again(expected, &looks, now, effects, MAX_FROZEN)? {
                Some(looks) => looks,
                None => bail!(
                    "more than {} MiB of files changed while they were read, which is too much to \
                     read while the sandbox stands still; try again when it writes less",
                    MAX_FROZEN >> 20
                ),
            }
        };
        let (processes, memory) = self.compare_processes(expected, standing)?;
        let half = Half {
            processes,
            alive: now.iter().count(),
            memory,
        };
        Ok((looks, half))
    }

    fn expected_roots<'a>(
        &self,
        expected: &'a Expected,
    ) -> impl Iterator<Item = (usize, &'a Tree)> + use<'a> {
        let trees = expected.trees.iter().enumerate();
        trees.filter_map(|(at, tree)| Some((at, tree.as_ref()?)))
    }

    /// What processes may write with no time to tell of it, by root.
    fn mapped(&self, set: &Set) -> Vec<HashSet<Vec<u8>>> {
        let (mapped, mounts) = (set.shared_mappings(), self.mounts());
        let within = |root: &Root| root.within(&mapped, &mounts).into_iter().collect();
        self.roots.iter().map(within).collect()
    }

    /// Compares processes that stand still.
    fn compare_processes(
        &self,
        expected: &Expected,
        standing: &Standing,
    ) -> Result<(Vec<ProcessDifference>, MemoryVerdict)> {
        let now = &standing.now;
        let Some(before) = &expected.portraits else {
            let why = expected.without.clone().unwrap_or_default();
            return Ok((Vec::new(), MemoryVerdict::Unknown(why)));
        };
        let mut portraits = Portraits::of(now).context("look at the processes")?;
        if !before.is_empty() && !now.is_empty() {
            // Tells which calls were interrupted.
            let earlier = self.known.baseline.as_ref().and_then(Baseline::content);
            let content = self.content(&standing.frozen, now, now, earlier)?;
            portraits.add_memory(content.as_ref().map_err(Clone::clone));
        }
        Ok(portraits.since(before))
    }

    /// Puts all together. The sandbox may run on already.
    pub(super) fn compare(
        &self,
        expected: &Expected,
        looks: Looks,
        half: Half,
    ) -> Result<Verification> {
        let mut files = Vec::new();
        let mut paths = 0;
        let trees = self.expected_roots(expected);
        for ((at, tree), (_, look)) in trees.zip(looks.of_roots) {
            let Root { scanner, mount, .. } = &self.roots[at];
            let verified = look.compare(scanner, tree)?;
            paths += verified.paths;
            let all = verified.differences.into_iter();
            files.extend(all.map(|it| (in_container(mount.as_deref(), &it.path), it)));
        }
        Ok(Verification {
            files,
            mounts: expected.mounts.clone(),
            paths,
            processes: half.processes,
            alive: half.alive,
            memory: half.memory,
            frozen: Duration::ZERO,
            took: Duration::ZERO,
        })
    }
}
