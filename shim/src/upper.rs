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
//! that the client's mount names. The old one is removed by *keep* alone: whatever else
//! fails, it comes back, or stays where it is.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Error, Result};
use crab_runtime::{
    files::{Durability, Index, Scanner, build, remove_tree},
    mount::{unmount_all, unmount_strict},
    overlay::OverlayMount,
};
use crab_store::{ObjectReader, Tree};
use rustix::fs::{CWD, RenameFlags, renameat_with};

/// A new upper directory, beside the old one.
pub(crate) struct Replacement {
    overlay: OverlayMount,
    fresh: PathBuf,
    /// The directory at `fresh` is the old one, which may be wanted again.
    holds_old: bool,
}

/// Both exchanged; the old one is still there.
pub(crate) struct Exchanged {
    replacement: Replacement,
    rootfs: PathBuf,
}

/// What failed while files were exchanged.
pub(crate) struct Fell {
    pub(crate) error: Error,
    /// The files are those of before.
    pub(crate) is_whole: bool,
}

impl Fell {
    /// What came of putting the old files back is told with the error.
    pub(crate) fn after(error: Error, put_back: Result<()>) -> Self {
        match put_back {
            Ok(()) => error.into(),
            Err(again) => Self {
                error: error.context(format!("the old files are not in place: {again:#}")),
                is_whole: false,
            },
        }
    }
}

impl From<Error> for Fell {
    /// Before anything was touched.
    fn from(error: Error) -> Self {
        Self {
            error,
            is_whole: true,
        }
    }
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
            holds_old: false,
        };
        build(tree, reader, &replacement.fresh, Durability::WriteBack)?;
        Ok(replacement)
    }

    /// The index of the new directory, which is as good when it is in its place.
    pub(crate) fn index(&self, tree: &Tree) -> Result<Index> {
        let overlay = OverlayMount {
            upper: self.fresh.clone(),
            ..self.overlay.clone()
        };
        Ok(Scanner::overlay(&overlay)?.index_restored(tree)?)
    }

    /// Puts the new directory in the old one's place and mounts it at `rootfs`.
    /// If that fails, the old one is mounted again.
    pub(crate) fn exchange(self, rootfs: &Path) -> Result<Exchanged, Fell> {
        unmount_strict(rootfs).map_err(Error::from)?;
        let mut exchanged = Exchanged {
            replacement: self,
            rootfs: rootfs.to_path_buf(),
        };
        if let Err(error) = exchanged.swap() {
            return Err(Fell::after(error, exchanged.mount()));
        }
        if let Err(error) = exchanged.mount() {
            return Err(Fell::after(error, exchanged.undo()));
        }
        Ok(exchanged)
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if self.holds_old {
            tracing::error!(path = %self.fresh.display(), "the old files could not be put back, and are here");
            return;
        }
        if let Err(error) = remove_tree(&self.fresh) {
            tracing::warn!(path = %self.fresh.display(), %error, "cannot remove");
        }
    }
}

impl Exchanged {
    fn swap(&mut self) -> Result<()> {
        let (upper, fresh) = (&self.replacement.overlay.upper, &self.replacement.fresh);
        renameat_with(CWD, upper, CWD, fresh, RenameFlags::EXCHANGE)
            .with_context(|| format!("exchange {} and {}", upper.display(), fresh.display()))?;
        self.replacement.holds_old = !self.replacement.holds_old;
        Ok(())
    }

    fn mount(&self) -> Result<()> {
        self.replacement
            .overlay
            .mount_at(&self.rootfs)
            .with_context(|| format!("mount {}", self.rootfs.display()))
    }

    /// The new files stay.
    pub(crate) fn keep(mut self) {
        self.replacement.holds_old = false;
    }

    /// The old files come back. Nothing of the container may run.
    pub(crate) fn undo(mut self) -> Result<()> {
        self.put_back()
    }

    fn put_back(&mut self) -> Result<()> {
        unmount_all(&self.rootfs)?;
        self.swap()?;
        self.mount()
    }
}

impl Drop for Exchanged {
    /// Neither kept nor undone, or not with success: something else failed first.
    fn drop(&mut self) {
        if self.replacement.holds_old
            && let Err(error) = self.put_back()
        {
            tracing::error!(error = %format!("{error:#}"), "the old files are not in place");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use rustix::mount::MountFlags;

    use super::*;

    /// Two directories that were exchanged; that nothing can be mounted does not matter.
    fn exchanged(dir: &Path, rootfs: PathBuf) -> Exchanged {
        let (upper, fresh) = (dir.join("upper"), dir.join("upper.crab-new"));
        for (path, file) in [(&upper, "old"), (&fresh, "new")] {
            fs::create_dir(path).unwrap();
            fs::write(path.join(file), "").unwrap();
        }
        let overlay = OverlayMount {
            mount_point: rootfs.clone(),
            dev: 0,
            upper,
            work: dir.join("work"),
            lowers: Vec::new(),
            data_lowers: Vec::new(),
            user_xattr: false,
            source: OsString::new(),
            flags: MountFlags::empty(),
            options: Vec::new(),
            base: None,
        };
        let replacement = Replacement {
            overlay,
            fresh,
            holds_old: false,
        };
        let mut exchanged = Exchanged {
            replacement,
            rootfs,
        };
        exchanged.swap().unwrap();
        assert!(dir.join("upper/new").exists());
        exchanged
    }

    #[test]
    fn what_is_neither_kept_nor_undone_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        drop(exchanged(dir.path(), dir.path().join("root")));
        assert!(dir.path().join("upper/old").exists());
        assert!(!dir.path().join("upper.crab-new").exists());
    }

    #[test]
    fn old_files_that_cannot_be_put_back_are_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        // What is below a file cannot be unmounted.
        fs::write(dir.path().join("file"), "").unwrap();
        let undone = exchanged(dir.path(), dir.path().join("file/root")).undo();
        assert!(undone.is_err());
        assert!(dir.path().join("upper.crab-new/old").exists());
    }

    #[test]
    fn what_is_kept_leaves_nothing_of_the_old() {
        let dir = tempfile::tempdir().unwrap();
        exchanged(dir.path(), dir.path().join("root")).keep();
        assert!(dir.path().join("upper/new").exists());
        assert!(!dir.path().join("upper.crab-new").exists());
    }
}
