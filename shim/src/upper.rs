// SPDX-License-Identifier: Apache-2.0
//! Exchanging a container's upper directory for another, whole or not at all.
//!
//! ```text
//! build:    upper.crab-new  <- tree          beside the old one, nothing disturbed
//! exchange: unmount, rename both, mount      nothing of the container may run
//! keep:     remove the old one
//! undo:     unmount, rename both back, mount
//! ```
//! A crash at any instant leaves two whole directories, one of them at the place
//! that the client's mount names.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use crab_runtime::{
    files::{Durability, build, remove_tree},
    mount::{unmount_all, unmount_strict},
    overlay::OverlayMount,
};
use crab_store::{ObjectReader, Tree};
use rustix::fs::{CWD, RenameFlags, renameat_with};

/// A new upper directory, beside the old one.
pub(crate) struct Replacement {
    overlay: OverlayMount,
    fresh: PathBuf,
}

/// Both exchanged; the old one is still there.
pub(crate) struct Exchanged {
    replacement: Replacement,
    rootfs: PathBuf,
}

impl Replacement {
    /// Builds the tree beside the overlay's upper directory.
    pub(crate) fn build(
        overlay: &OverlayMount,
        tree: &Tree,
        reader: &ObjectReader,
    ) -> Result<Self> {
        let mut name = overlay.upper.clone().into_os_string();
        name.push(".crab-new");
        let fresh = PathBuf::from(name);
        if fresh.exists() {
            // Left by a process that was killed in between.
            remove_tree(&fresh).with_context(|| format!("remove {}", fresh.display()))?;
        }
        fs::create_dir(&fresh).with_context(|| format!("make {}", fresh.display()))?;
        let replacement = Self {
            overlay: overlay.clone(),
            fresh,
        };
        build(tree, reader, &replacement.fresh, Durability::WriteBack)?;
        Ok(replacement)
    }

    /// Puts the new directory in the old one's place and mounts it at `rootfs`.
    /// If that fails, the old one is mounted again.
    pub(crate) fn exchange(self, rootfs: &Path) -> Result<Exchanged> {
        unmount_strict(rootfs)?;
        let exchanged = Exchanged {
            replacement: self,
            rootfs: rootfs.to_path_buf(),
        };
        if let Err(error) = exchanged.swap() {
            exchanged.mount().context("mount the old files again")?;
            return Err(error);
        }
        if let Err(error) = exchanged.mount() {
            exchanged.undo().context("put the old files back")?;
            return Err(error);
        }
        Ok(exchanged)
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        // The new one if it was never used, the old one if it was.
        if let Err(error) = remove_tree(&self.fresh) {
            tracing::warn!(path = %self.fresh.display(), %error, "cannot remove");
        }
    }
}

impl Exchanged {
    fn swap(&self) -> Result<()> {
        let (upper, fresh) = (&self.replacement.overlay.upper, &self.replacement.fresh);
        renameat_with(CWD, upper, CWD, fresh, RenameFlags::EXCHANGE)
            .with_context(|| format!("exchange {} and {}", upper.display(), fresh.display()))
    }

    fn mount(&self) -> Result<()> {
        self.replacement
            .overlay
            .mount_at(&self.rootfs)
            .with_context(|| format!("mount {}", self.rootfs.display()))
    }

    /// The new files stay.
    pub(crate) fn keep(self) {
        drop(self.replacement);
    }

    /// The old files come back. Nothing of the container may run.
    pub(crate) fn undo(self) -> Result<()> {
        unmount_all(&self.rootfs)?;
        self.swap()?;
        self.mount()
    }
}
