// SPDX-License-Identifier: Apache-2.0

//! Crab's store: the truth about every sandbox's history, on disk.
//!
//! ```text
//! /var/lib/crab                 mode 0700: memory images hold secrets
//! ├── FORMAT                    "crab-store 1": the version of all this
//! ├── catalog.sqlite            what `crab` remembers of all this, and can do without
//! └── sandboxes/<namespace>/<id>
//!     ├── lock                  held by the one writer
//!     ├── meta.json             client, image, bundle, snapshot
//!     ├── journal               one record per turn, rollback, ...  (journal.rs)
//!     ├── manifests/<turn>.json one per checkpoint        (envelope.rs, manifest.rs)
//!     ├── packs/<pack>.pack     the objects it added      (pack.rs, object.rs)
//!     ├── tags/<name>.json      turns whose checkpoint is to stay     (tags.rs)
//!     ├── damaged/<n>/          what a repair put aside             (repair.rs)
//!     ├── restoring             held by whoever brings it back (locks.rs)
//!     ├── rollback              files are being put back (rollback.rs)
//!     ├── spare                 a copy that is nobody's yet (spare.rs)
//!     └── restore               wish of `crab restore`, taken by the next start
//! ```
//!
//! A checkpoint is a [`Manifest`]: a pair of a file image and a process image,
//! each a set of objects named by the blake3 of their bytes. It is written by a
//! [`PackWriter`] (pack first, then, by one rename, the manifest) and read with
//! an [`ObjectReader`]. [`SandboxStore`] reads a sandbox's history,
//! [`SandboxWriter`] is its one writer.
//!
//! What nobody wants to keep is removed beside writers and readers (collect.rs, retention.rs,
//! locks.rs); every byte can be checked (check.rs).
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

mod archive;
mod belated;
mod budget;
mod check;
mod chunk;
mod class;
mod collect;
mod cut;
mod digest;
mod durable;
mod effects;
mod envelope;
mod error;
mod export;
mod follow;
mod fork;
mod host;
mod id;
mod image;
mod import;
mod journal;
mod layers;
mod life;
mod lineage;
mod locks;
mod machine;
mod manifest;
mod mark;
mod object;
mod pack;
mod pack_file;
mod pack_writer;
mod pages;
mod reach;
mod reader;
mod record;
mod repair;
mod retention;
mod rollback;
mod sandbox;
mod spans;
mod spare;
mod sparse;
mod stamp;
mod steps;
mod store;
mod tags;
mod text;
mod tree;
mod usage;
mod version;
mod writer;

pub use archive::{ArchiveError, write_archive};
pub use check::{Checked, Damage, Part};
pub use chunk::{BLOCK, CHUNK, Content};
pub use class::Class;
pub use collect::{CollectError, Collected, Wanted};
pub use cut::{Cutter, GAP, LARGE};
pub use digest::{Digest, HexError};
pub use effects::{
    ChangedProcess, IgnoredBy, ListeningSocket, MAX_PROCESSES, MAX_RULES, ProcessChange,
    TurnEffects,
};
pub use error::{Around, FileError, OpenError, ReadError, WriteError};
pub use export::{ExportError, Exported, Exporting, ImageName, Progress};
pub use follow::{Follow, FollowFrom, Unreadable};
pub use fork::{Fork, ForkError, UPPER, layer_of};
pub use host::over;
pub use id::{DEFAULT_NAMESPACE, IdError, MAX_NAME, PackId, SandboxId, TurnId};
pub use image::{FileImage, ImageFile, ProcessEntry, ProcessImage, TmpfsImage, TmpfsTree};
pub use import::{Archive, ImportError, Imported};
pub use journal::{Durability, Journal};
pub use layers::ImageLayers;
pub use life::{Life, Lost};
pub use lineage::removed;
pub use locks::Restoring;
pub use machine::{Lacks, Machine};
pub use manifest::{Manifest, ProcessRef};
pub use pack_writer::PackWriter;
pub use pages::{Earlier, PAGE, Pages, WINDOW, Window, earlier};
pub use reader::ObjectReader;
pub use record::{
    BeganRecord, CaptureFailed, Change, ChangedPath, Cost, EndedRecord, ForkRecord, JournalRecord,
    MAX_CHANGED, MAX_CHANGED_PATH, MAX_COMMAND, MAX_META, MAX_META_NAME, MAX_META_VALUE,
    MAX_REASON, PathKind, RemovedRecord, RollbackRecord, Trigger, TurnRecord, command_line,
};
pub use repair::Repaired;
pub use retention::Limits;
pub use rollback::RollbackBegun;
pub use sandbox::{Client, Manifests, RestoreRequest, SandboxMeta, SandboxStore};
pub use spans::{Span, Spans};
pub use spare::Spare;
pub use sparse::{holds, next_data, read_full};
pub use stamp::Stamp;
pub use steps::{FailureKind, Step, StepRecord};
pub use store::{DEFAULT_ROOT, Store};
pub use tags::{Tag, TagError, TagName, TagNameError, Tags};
pub use text::{clip, escape, unescape};
pub use tree::{EntryKind, Segment, Time, Tree, TreeEntry, TreeError};
pub use usage::{CheckpointUsage, Usage};
pub use writer::{Hold, SandboxWriter};

/// Largest object, in bytes.
pub const MAX_OBJECT: usize = 16 << 20;
