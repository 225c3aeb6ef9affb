// SPDX-License-Identifier: Apache-2.0

//! Crab's store: the truth about every sandbox's history, on disk.
//!
//! ```text
//! /var/lib/crab                 mode 0700: memory images hold secrets
//! ├── FORMAT                    "crab-store 1": the version of all this
//! └── sandboxes/<namespace>/<id>
//!     ├── lock                  held by the one writer
//!     ├── meta.json             client, image, bundle, snapshot
//!     ├── journal               one record per turn, rollback, ...  (journal.rs)
//!     ├── manifests/<turn>.json one per checkpoint        (envelope.rs, manifest.rs)
//!     ├── packs/<pack>.pack     the objects it added      (pack.rs, object.rs)
//!     └── restore               wish of `crab restore`, taken by the next start
//! ```
//!
//! A checkpoint is a [`Manifest`]: a pair of a file image and a process image,
//! each a set of objects named by the blake3 of their bytes. It is written by a
//! [`PackWriter`] (pack first, then, by one rename, the manifest) and read with
//! an [`ObjectReader`]. [`SandboxStore`] reads a sandbox's history,
//! [`SandboxWriter`] is its one writer.
//!
//! Invariants: what was published stays readable whatever happens to any
//! process, and to the disk's free space, at any instant; what was not is
//! invisible; nothing is handed out whose checksum does not match. Readers
//! never change anything, so that looking needs no daemon and no lock. Version
//! numbers belong to this crate; a newer one is refused.
//!
//! It does not know what files and processes are like: taking them and putting
//! them back is the runtime wrapper's part.
#![forbid(unsafe_code)]

mod chunk;
mod class;
mod digest;
mod durable;
mod effects;
mod envelope;
mod error;
mod id;
mod image;
mod journal;
mod layers;
mod lineage;
mod manifest;
mod object;
mod pack;
mod pack_writer;
mod pages;
mod reader;
mod record;
mod sandbox;
mod store;
mod text;
mod tree;
mod writer;

pub use chunk::{CHUNK, Content};
pub use class::Class;
pub use digest::{Digest, HexError};
pub use effects::{
    ChangedProcess, IgnoredBy, ListeningSocket, MAX_PROCESSES, MAX_RULES, ProcessChange,
    TurnEffects,
};
pub use error::{FileError, OpenError, ReadError, WriteError};
pub use id::{DEFAULT_NAMESPACE, IdError, MAX_NAME, PackId, SandboxId, TurnId};
pub use image::{FileImage, ImageFile, ProcessEntry, ProcessImage, TmpfsImage, TmpfsTree};
pub use journal::{Durability, Journal};
pub use layers::ImageLayers;
pub use manifest::{Manifest, ProcessRef};
pub use pack_writer::PackWriter;
pub use pages::{Earlier, PAGE, Pages, WINDOW, Window, earlier};
pub use reader::ObjectReader;
pub use record::{
    CaptureFailed, Change, ChangedPath, Cost, JournalRecord, MAX_CHANGED, MAX_CHANGED_PATH,
    MAX_COMMAND, MAX_META, MAX_META_NAME, MAX_META_VALUE, MAX_REASON, PathKind, RollbackRecord,
    Trigger, TurnRecord, command_line,
};
pub use sandbox::{Client, Manifests, RestoreRequest, SandboxMeta, SandboxStore};
pub use store::{DEFAULT_ROOT, Store};
pub use text::{clip, escape, unescape};
pub use tree::{EntryKind, Segment, Time, Tree, TreeEntry, TreeError};
pub use writer::SandboxWriter;

/// Largest object, in bytes.
pub const MAX_OBJECT: usize = 16 << 20;
