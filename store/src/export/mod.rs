// SPDX-License-Identifier: Apache-2.0

//! A checkpoint as a file of its own, for another host: an OCI image layout in a tar archive.
//!
//! ```text
//! oci-layout
//! config.dump spec.dump checkpoint/...     what checkpointctl looks at                   (view.rs)
//! blobs/sha256/<digest>                    the layers, as they come                   (outer.rs)
//!   record      trees and process image without their contents, exact: postcard, zstd
//!   spec        the OCI runtime configuration, byte for byte
//!   files       the upper directory as a layer of an image                      (archive/layer.rs)
//!   tmpfs       a mount in memory, the same way, each
//!   processes   CRIU's images, as containerd lays them out                        (processes.rs)
//!   config      whose checkpoint it is, and its turn: JSON
//!   manifest    all of these: an OCI artifact
//! index.json
//! ```
//! Contents are in the layers alone, in the order and the pieces that the record has, so that they are
//! never in memory as a whole, neither here nor where they are imported, and each piece is checked
//! against the digest that it has in a store. The record is what an import goes by: a tar archive
//! cannot tell all of a tree. The layers are whole without it, for every other tool.
//!
//! What is small enough of CRIU's images is there a second time, for checkpointctl, which knows no
//! image layouts.

mod outer;
mod processes;
mod view;
mod write;

use std::{io, path::PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use write::Exporting;

use crate::{
    archive::ArchiveError,
    budget::{self, price},
    error::{FileError, ReadError},
    id::TurnId,
    image::ProcessImage,
    manifest::Manifest,
    sandbox::Client,
    tree::{EntryKind, Tree, TreeEntry},
};

pub(crate) const LAYOUT: &str = "oci-layout";
pub(crate) const INDEX: &str = "index.json";
pub(crate) const BLOBS: &str = "blobs/sha256/";

pub(crate) const ARTIFACT: &str = "application/vnd.crab.checkpoint.v1";
pub(crate) const CONFIG: &str = "application/vnd.crab.checkpoint.config.v1+json";
pub(crate) const RECORD: &str = "application/vnd.crab.checkpoint.record.v1+zstd";
pub(crate) const SPEC: &str = "application/vnd.crab.checkpoint.spec.v1+json";
pub(crate) const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
/// As containerd calls what its own checkpoints hold.
pub(crate) const CRIU: &str = "application/vnd.containerd.container.criu.checkpoint.criu.tar";
/// Where a layer belongs; that of the upper directory has none.
pub(crate) const MOUNT: &str = "dev.crab.checkpoint.mount";

/// How much memory any record may take, as bytes and again in lists...
const MIN_ROOM: u64 = 64 << 20;
/// ... how much more than it takes in an archive: names, numbers and times that are alike pack well,
/// and still not to less than this...
const PACKED: u64 = 256;
/// ... and what none may: about five million paths.
const MAX_ROOM: u64 = 1 << 30;

/// How many bytes a record may have, and take in lists when it is read, that takes so many in an
/// archive.
pub(crate) fn room(packed: u64) -> u64 {
    let more = packed.saturating_mul(PACKED);
    MIN_ROOM.saturating_add(more).min(MAX_ROOM)
}
/// Largest of the other blobs that are read as a whole.
pub(crate) const MAX_SMALL: u64 = 16 << 20;

/// Whose checkpoint an archive holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exported {
    /// Its manifest in the store that it is from.
    pub manifest: Manifest,
    /// The turn at whose end this was its state.
    pub turn: TurnId,
    /// Who made the sandbox.
    pub client: Client,
    /// What its client calls it.
    pub name: Option<String>,
    /// The image that it runs on, which is not in the archive.
    pub image: Option<ImageName>,
}

/// An image, by what its client calls it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageName {
    /// Its name.
    pub name: String,
    /// Its digest, as the client gave it.
    pub digest: Option<String>,
}

/// Both halves, without any content.
#[derive(Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) upper: Tree,
    /// By where they are mounted.
    #[serde(deserialize_with = "budget::list")]
    pub(crate) tmpfs: Vec<(Vec<u8>, Tree)>,
    pub(crate) processes: Option<ProcessImage>,
}

impl Record {
    /// What its lists take in memory, as they are charged when it is read.
    pub(crate) fn weight(&self) -> u64 {
        fn of<T>(list: &[T]) -> u64 {
            list.len() as u64 * price::<T>()
        }
        let entry = |entry: &TreeEntry| {
            let content = match &entry.kind {
                EntryKind::File { content, .. } => of(content),
                _ => 0,
            };
            of(&entry.xattrs) + content
        };
        let tree = |tree: &Tree| of(&tree.entries) + tree.entries.iter().map(entry).sum::<u64>();
        let tmpfs = self.tmpfs.iter().map(|(_, it)| tree(it)).sum::<u64>();
        let image = |image: &ProcessImage| {
            let contents = image.files.iter().map(|file| of(&file.content));
            let extra = image.extra.len() as u64 * price::<(String, String)>();
            let lists = of(&image.tmpfs_images) + of(&image.processes) + extra;
            of(&image.files) + contents.sum::<u64>() + lists
        };
        let image = self.processes.as_ref().map_or(0, image);
        tree(&self.upper) + of(&self.tmpfs) + tmpfs + image
    }
}

/// Why a checkpoint was not exported.
#[derive(Debug, Error)]
pub enum ExportError {
    /// It could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The archive could not be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The same, of what is in it.
    #[error("{0}")]
    Content(ArchiveError),
    /// Something of it cannot be told in an archive.
    #[error("{what} cannot be written: {why}")]
    Value {
        /// What.
        what: &'static str,
        /// Why not.
        why: String,
    },
    /// There is something else in the archive's place.
    #[error("{} is no regular file", .0.display())]
    NoFile(PathBuf),
    /// Whoever wants it does not want it any more.
    #[error("interrupted")]
    Stopped,
}

/// How far it is: bytes that are done, and all. Tells whether to go on.
pub type Progress<'a> = dyn FnMut(u64, u64) -> bool + 'a;

/// What a stopped write fails with on its way out.
#[derive(Debug, Error)]
#[error("interrupted")]
pub(crate) struct Stopped;

impl Stopped {
    pub(crate) fn error() -> io::Error {
        io::Error::other(Self)
    }

    pub(crate) fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Self>())
    }
}

impl From<ArchiveError> for ExportError {
    fn from(error: ArchiveError) -> Self {
        match error {
            ArchiveError::Write(error) if Stopped::is(&error) => Self::Stopped,
            other => Self::Content(other),
        }
    }
}
