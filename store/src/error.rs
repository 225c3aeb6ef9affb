// SPDX-License-Identifier: Apache-2.0

//! What can go wrong: one enum for opening, one for reading, one for writing.
//!
//! Each text is complete in itself, cause included, so that it can go into a
//! journal record or a one-line message as it is. That is why causes are not
//! reported a second time through `source()`.

use std::{
    io,
    path::{Path, PathBuf},
};

use thiserror::Error;

use crate::{
    digest::Digest,
    id::{PackId, SandboxId, TurnId},
    tree::TreeError,
};

/// A file operation that failed.
#[derive(Debug, Error)]
#[error("cannot {verb} {}: {cause}", path.display())]
pub struct FileError {
    /// What was to be done.
    pub verb: &'static str,
    /// To which path.
    pub path: PathBuf,
    /// Why not.
    pub cause: io::Error,
}

impl FileError {
    pub(crate) fn of(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |cause| Self { verb, path, cause }
    }

    /// Whether the disk, or the quota, is full.
    pub fn is_no_space(&self) -> bool {
        matches!(
            self.cause.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        )
    }
}

/// Why a store, or a sandbox in it, could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// There is no store at this path.
    #[error("no store at {}", .0.display())]
    NoStore(PathBuf),
    /// The directory holds something else.
    #[error("{} is not empty and no crab store", .0.display())]
    NotAStore(PathBuf),
    /// A later version of Crab made it.
    #[error("{} has format {found}, this version of crab reads up to {known}", path.display())]
    NewerFormat {
        /// The file that says so.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest version known here.
        known: u32,
    },
    /// It can be told what the file that says its format means, and it is not as it was written.
    #[error("{} has changed; it is to hold the line {:?}", path.display(), written.trim_end())]
    FormatChanged {
        /// The file.
        path: PathBuf,
        /// What was written to it.
        written: String,
    },
    /// The store has never seen this sandbox.
    #[error("no sandbox {0} in the store")]
    NoSandbox(SandboxId),
    /// Another process writes to this sandbox.
    #[error("sandbox {0} is in use by another process")]
    Locked(SandboxId),
    /// The disk is full.
    #[error("no space left: {0}")]
    NoSpace(FileError),
    /// A file operation failed.
    #[error(transparent)]
    File(FileError),
    /// What is there could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl From<FileError> for OpenError {
    fn from(error: FileError) -> Self {
        if error.is_no_space() {
            Self::NoSpace(error)
        } else {
            Self::File(error)
        }
    }
}

/// The checkpoints nearest to a turn, in its line of history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Around {
    /// The newest one before it.
    pub before: Option<TurnId>,
    /// The oldest one after it.
    pub after: Option<TurnId>,
}

/// Why something could not be read back.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The journal has no such turn.
    #[error("{sandbox} has no turn {turn}{}", newest.map(|n| format!(", its newest is {n}")).unwrap_or_default())]
    NoTurn {
        /// Of this sandbox.
        sandbox: SandboxId,
        /// The turn.
        turn: TurnId,
        /// The newest that there is.
        newest: Option<TurnId>,
    },
    /// No checkpoint holds this turn's state.
    #[error("no checkpoint holds turn {turn} of {sandbox}: {why}")]
    NoCheckpoint {
        /// Of this sandbox.
        sandbox: SandboxId,
        /// The turn.
        turn: TurnId,
        /// Why, in one line.
        why: String,
        /// What there is around it. In a box, because errors are to be small.
        left: Box<Around>,
    },
    /// Who looked ended early, because somebody needs the writer.
    #[error("a container of {0} is about to begin")]
    Wanted(SandboxId),
    /// A file is not what was written.
    #[error("{} is damaged: {why}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A later version of Crab wrote it.
    #[error("{} has version {found}{}, this version of crab reads up to {known}", path.display(), writer(by.as_deref()))]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest version known here.
        known: u32,
        /// The version of Crab that wrote it, where it says so.
        by: Option<String>,
    },
    /// A pack that a manifest names is gone.
    #[error("pack {pack} is missing in {}", dir.display())]
    NoPack {
        /// The pack.
        pack: PackId,
        /// Where it should be.
        dir: PathBuf,
    },
    /// No pack of the manifest has this object.
    #[error("object {0} is missing")]
    NoObject(Digest),
    /// An object's bytes are sound, but not what is expected there.
    #[error("object {digest} is malformed: {why}")]
    Malformed {
        /// The object.
        digest: Digest,
        /// What is wrong.
        why: String,
    },
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file to put content into could not be written.
    #[error("cannot write the restored file: {0}")]
    Target(io::Error),
}

/// Why something could not be written.
#[derive(Debug, Error)]
pub enum WriteError {
    /// The disk is full. What was published before is untouched.
    #[error("no space left: {0}")]
    NoSpace(FileError),
    /// A file operation failed.
    #[error(transparent)]
    File(FileError),
    /// The content to store could not be read.
    #[error("cannot read the content to store: {0}")]
    Source(io::Error),
    /// An object is larger than [`crate::MAX_OBJECT`], or a record than its limit.
    #[error("{what} of {size} bytes is larger than the limit of {limit}")]
    TooLarge {
        /// What.
        what: &'static str,
        /// Its size.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// A tree breaks its invariant.
    #[error("cannot store the tree: {0}")]
    Tree(#[from] TreeError),
    /// A value cannot be stored.
    #[error("cannot store the {what}: {why}")]
    Value {
        /// Which kind.
        what: &'static str,
        /// What is wrong.
        why: String,
    },
    /// There is a checkpoint of this turn already.
    #[error("turn {0} has a checkpoint already")]
    TurnExists(TurnId),
    /// An earlier write of this checkpoint failed, so that it was given up.
    #[error("the checkpoint was given up after an earlier error")]
    GivenUp,
    /// The manifest refers to something that is not there or not sound.
    #[error("the checkpoint is incomplete: {0}")]
    Incomplete(ReadError),
}

impl From<FileError> for WriteError {
    fn from(error: FileError) -> Self {
        if error.is_no_space() {
            Self::NoSpace(error)
        } else {
            Self::File(error)
        }
    }
}

impl WriteError {
    /// Whether the disk is full.
    pub fn is_no_space(&self) -> bool {
        matches!(self, Self::NoSpace(_))
    }
}

fn writer(by: Option<&str>) -> String {
    by.map(|by| format!(", of crab {by}")).unwrap_or_default()
}
