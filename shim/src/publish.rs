// SPDX-License-Identifier: Apache-2.0
//! From staged to published: hash, compress, write, one manifest.
//!
//! Runs while the sandbox runs on. If it fails, nothing of it is left in the
//! store, and the next capture takes nothing for granted.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Instant, SystemTime},
};

use anyhow::Result;
use crab_fault::Point;
use crab_runtime::{
    criu::{self, EarlierImage},
    files::Index,
    oci::Runtime,
};
use crab_store::{
    Class, Digest, FileImage, Machine, Manifest, ObjectReader, ProcessImage, ProcessRef, SandboxId,
    SandboxWriter, TmpfsImage, TmpfsTree, TurnId,
};

use crate::{
    capture::{Part, StagedCheckpoint, StagedImage, StagedProcesses},
    history::PIPES,
    sandbox::unix_ms,
};

/// What a checkpoint is made of beside what was captured.
pub(crate) struct Publication {
    pub(crate) writer: Arc<SandboxWriter>,
    pub(crate) sandbox: SandboxId,
    pub(crate) turn: TurnId,
    pub(crate) class: Class,
    pub(crate) degraded: Option<String>,
    /// The OCI specification, as the client gave it.
    pub(crate) spec: Vec<u8>,
    pub(crate) runtime: String,
    /// To be asked what it calls itself.
    pub(crate) oci: Runtime,
    /// The checkpoint that holds until now.
    pub(crate) parent: Option<Manifest>,
    /// The container's root is no overlay.
    pub(crate) whole_root: bool,
    /// By position: where each root is mounted, and its tree so far.
    pub(crate) roots: Vec<(Option<Vec<u8>>, Option<Digest>)>,
    pub(crate) tmpfs_images: Vec<TmpfsImage>,
    pub(crate) staged: StagedCheckpoint,
}

/// A checkpoint in the store.
pub(crate) struct Published {
    pub(crate) manifest: Manifest,
    /// By position: the roots' new indexes and trees.
    pub(crate) indexes: Vec<(usize, Index, Digest)>,
    /// When it was written.
    pub(crate) written: Part,
}

impl Publication {
    /// Writes it all.
    pub(crate) fn publish(mut self) -> Result<Published> {
        crab_fault::at(Point::PublishBegun);
        let begun = Instant::now();
        let mut pack = self.writer.begin()?;
        let mut indexes = Vec::new();
        for (at, staged) in std::mem::take(&mut self.staged.roots) {
            let captured = staged.persist(&mut pack)?;
            let digest = pack.put_tree(&captured.tree)?;
            self.roots[at].1 = Some(digest);
            indexes.push((at, captured.index, digest));
        }
        let mut files = self.files();
        if indexes.is_empty()
            && let Some(parent) = &self.parent
        {
            // The older one still holds, and says since when.
            files.turn = parent.files.turn;
        }
        let kept = matches!(self.staged.processes, StagedProcesses::Kept);
        let processes = match std::mem::replace(&mut self.staged.processes, StagedProcesses::None) {
            StagedProcesses::Kept => self.parent.as_ref().and_then(|parent| parent.processes),
            StagedProcesses::None => None,
            StagedProcesses::Image(image) => Some(self.image(&image, &mut pack)?),
        };
        if kept && self.degraded.is_none() {
            // What the older one lacks, this one lacks too.
            self.degraded = self
                .parent
                .as_ref()
                .and_then(|parent| parent.degraded.clone());
        }
        let spec = pack.put(&self.spec)?;
        let manifest = pack.publish(Manifest {
            sandbox: self.sandbox,
            turn: self.turn,
            class: self.class,
            created_ms: unix_ms(SystemTime::now()),
            parent: self.parent.map(|parent| parent.turn),
            files,
            processes,
            degraded: self.degraded,
            spec,
            packs: Vec::new(),
            bytes_stored: 0,
            bytes_raw: 0,
            machine: Some(Machine::here()),
        })?;
        Ok(Published {
            manifest,
            indexes,
            written: (begun, begun.elapsed()),
        })
    }

    fn files(&self) -> FileImage {
        let mut files = FileImage {
            turn: self.turn,
            upper: Digest::of(&[]),
            whole: self.whole_root,
            tmpfs: Vec::new(),
        };
        for (mount, tree) in &self.roots {
            // Every root has a tree from the first checkpoint on.
            let Some(tree) = *tree else { continue };
            match mount {
                None => files.upper = tree,
                Some(mount) => files.tmpfs.push(TmpfsTree {
                    mount: mount.clone(),
                    tree,
                }),
            }
        }
        files
    }

    /// The image of processes that holds until now, if there is one. What is wrong with it is not
    /// this one's concern.
    fn image_before(&self) -> Option<(ProcessImage, ObjectReader)> {
        let parent = self.parent.as_ref()?;
        let reader = self.writer.store().reader(parent).ok()?;
        let image = reader.process_image(parent.processes?.digest).ok()?;
        Some((image, reader))
    }

    fn image(&self, image: &StagedImage, pack: &mut crab_store::PackWriter) -> Result<ProcessRef> {
        let mut extra = BTreeMap::new();
        extra.insert(PLACES.into(), serde_json::to_string(&image.places)?);
        if let Some(portraits) = &image.portraits {
            extra.insert(PORTRAITS.into(), serde_json::to_string(portraits)?);
        }
        if !image.pipes.is_empty() {
            extra.insert(PIPES.into(), serde_json::to_string(&image.pipes)?);
        }
        image.remainder.complete(&image.dir)?;
        let before = self.image_before();
        let before = before
            .as_ref()
            .map(|(image, reader)| EarlierImage { image, reader });
        let mut stored = ProcessImage {
            turn: self.turn,
            files: criu::persist(&image.dir, pack, before)?,
            tmpfs_images: self.tmpfs_images.clone(),
            processes: image.processes.clone(),
            boot_id: criu::boot_id().unwrap_or_default(),
            criu_version: image.criu.clone(),
            runtime: self.runtime.clone(),
            extra,
        };
        stored.set_machine(&Machine {
            runtime: self.oci.driver().name.clone(),
            ..Machine::with_processor()
        });
        Ok(ProcessRef {
            turn: self.turn,
            digest: pack.put_process_image(&stored)?,
        })
    }
}

/// Where a process image notes what it holds, to be compared later.
pub(crate) const PORTRAITS: &str = "portraits";

/// Where a process image notes in which calls its threads were blocked.
pub(crate) const PLACES: &str = "places";
