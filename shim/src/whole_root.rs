// SPDX-License-Identifier: Apache-2.0
//! Making a container's whole root that of a checkpoint, while nothing of the container runs.
//!
//! ```text
//!            overlay                                   directory
//! prepare    build an upper directory beside the old   nothing
//! put        exchange both ([`crate::upper`])          change what differs, where it is
//! undo       exchange them again                       change it back, by the checkpoint of before
//! ```
//! A directory cannot be exchanged: it may be a subvolume, a mount point or somebody's working
//! directory, and a second one would be as large as the whole image. So it is neither the one nor
//! the other for as long as files are put in it. Whoever is killed meanwhile has left a note in the
//! store (of a rollback, or a wish to be restored), and whoever starts next puts all of it in place.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use crab_runtime::{
    files::{Index, Scanner, apply},
    mount::check_unused,
    rootfs::{DirectoryRoot, RootFs},
};
use crab_store::{Manifest, ObjectReader, Tree};
use rustix::fs::fstat;

use crate::upper::{Exchanged, Fell, Replacement};

/// The files of a checkpoint.
pub(crate) struct Files {
    tree: Tree,
    reader: ObjectReader,
    /// See [`crab_store::FileImage::whole`].
    whole: bool,
}

impl Files {
    /// Reads which there are.
    pub(crate) fn of(manifest: &Manifest, reader: ObjectReader) -> Result<Self> {
        Ok(Self {
            tree: reader.tree(manifest.files.upper)?,
            whole: manifest.files.whole,
            reader,
        })
    }
}

/// What is there now, and how to get back to it.
#[derive(Default)]
pub(crate) struct Before {
    /// The files of the checkpoint of now; nothing if there is no way back.
    pub(crate) files: Option<Files>,
    /// What is known of the files that are there.
    pub(crate) known: Index,
}

/// A root that is ready to be put in place.
pub(crate) enum NewRoot {
    /// A new upper directory, and its index.
    Upper(Box<Replacement>, Index),
    Directory(Box<InPlace>),
}

/// Changes of a directory.
pub(crate) struct InPlace {
    root: DirectoryRoot,
    files: Files,
    before: Before,
}

/// A root that was put in place, until it is kept.
pub(crate) enum OldRoot {
    Upper(Box<Exchanged>),
    Directory(Box<InPlace>),
}

/// Refuses where what is mounted at the root now is not what the sandbox runs on, by the device of
/// its own overlay, if it has one, and what is captured of it: clients may unmount it, or mount
/// another there.
pub(crate) fn check_is_live(root: &RootFs, device: Option<u64>, live: &Scanner) -> Result<()> {
    let identity = |scanner: &Scanner| -> Result<_> {
        let stat = fstat(scanner.root())?;
        Ok((stat.st_dev, stat.st_ino))
    };
    let is_live = match root {
        RootFs::Overlay(overlay) => device == Some(overlay.dev),
        RootFs::Directory(_) => device.is_none() && identity(&root.scanner()?)? == identity(live)?,
    };
    ensure!(
        is_live,
        "the container's root is not what is mounted there now, so that it could not be replaced"
    );
    Ok(())
}

impl NewRoot {
    /// Does all that can be done while the container runs on.
    pub(crate) fn prepare(root: &RootFs, files: Files, before: Before) -> Result<Self> {
        let kind = |whole| match whole {
            true => "a root that is no overlay",
            false => "an overlay",
        };
        let whole = matches!(root, RootFs::Directory(_));
        // Of an upper directory, a whole root would keep nothing but the changes.
        ensure!(
            files.whole == whole,
            "the checkpoint is one of {}, and the container's root is {}: start it with the \
             snapshotter that it had",
            kind(files.whole),
            kind(whole)
        );
        match root {
            RootFs::Overlay(overlay) => {
                let Files { tree, reader, .. } = files;
                let replacement = Replacement::build(overlay, &tree, &reader)?;
                let index = replacement.index(&tree)?;
                Ok(Self::Upper(Box::new(replacement), index))
            }
            RootFs::Directory(root) => Ok(Self::Directory(Box::new(InPlace {
                root: root.clone(),
                files,
                before,
            }))),
        }
    }

    /// Whether nothing on the host is in the way of putting it at `rootfs`.
    pub(crate) fn check(&self, rootfs: &Path) -> Result<()> {
        match self {
            // The container has mounts of its own: this one is in use only by somebody on the host.
            Self::Upper(..) => {
                check_unused(rootfs).context("something on the host uses the container's root")
            }
            Self::Directory(_) => Ok(()),
        }
    }

    /// Puts it in place, and gives its index. If that fails, it tells whether what was there is
    /// there again.
    pub(crate) fn put(self, rootfs: &Path) -> Result<(OldRoot, Index), Fell> {
        match self {
            Self::Upper(replacement, index) => {
                let exchanged = replacement.exchange(rootfs)?;
                Ok((OldRoot::Upper(Box::new(exchanged)), index))
            }
            Self::Directory(changes) => match changes.make() {
                Ok(index) => Ok((OldRoot::Directory(changes), index)),
                Err(error) => Err(Fell::after(error, changes.undo())),
            },
        }
    }
}

impl OldRoot {
    /// The new files stay.
    pub(crate) fn keep(self) {
        match self {
            Self::Upper(exchanged) => exchanged.keep(),
            Self::Directory(_) => {}
        }
    }

    /// The old files come back. Nothing of the container may run.
    pub(crate) fn undo(self) -> Result<()> {
        match self {
            Self::Upper(exchanged) => exchanged.undo(),
            Self::Directory(changes) => changes.undo(),
        }
    }
}

impl InPlace {
    fn make(&self) -> Result<Index> {
        let Files { tree, reader, .. } = &self.files;
        let scanner = self.scanner()?;
        apply(tree, reader, scanner.root(), &self.before.known)?;
        Ok(scanner.index_restored(tree)?)
    }

    fn undo(&self) -> Result<()> {
        let Some(Files { tree, reader, .. }) = &self.before.files else {
            // The wish that has brought us here is still open: the next start tries again.
            return Ok(());
        };
        let scanner = self.scanner()?;
        Ok(apply(tree, reader, scanner.root(), &self.before.known)?)
    }

    fn scanner(&self) -> Result<Scanner> {
        Ok(RootFs::Directory(self.root.clone()).scanner()?)
    }
}
