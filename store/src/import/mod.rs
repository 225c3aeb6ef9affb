// SPDX-License-Identifier: Apache-2.0

//! A checkpoint from an archive that an export made (export/), into a store.
//!
//! ```text
//! archive: where is which blob         (outer.rs)
//! index -> manifest -> config, record        read whole, within limits, each against its SHA-256
//!   layers: member by member           (members.rs)
//!     contents, in the pieces of the record  -> objects, each against its digest
//! publish
//! ```
//! An archive is from anywhere. Nothing in it becomes a path here: members are only ever compared
//! with the paths of the record, which are a tree's. Lengths are told before they are believed: a
//! layer is read no further than the record has contents, so that one that unpacks to no end costs
//! nothing, and holes are never filled. What is imported can be seen when all of it is there.
//!
//! What comes in begins a history of its own, as a copy does that `crab fork` makes (fork.rs): its shim
//! makes the process image that of the new container.
//!
//! Whoever restores a checkpoint runs what is in it. An archive of files alone is to be trusted as
//! much as an image is; one with processes as root on this host is, since CRIU takes credentials,
//! capabilities, filters of system calls and cgroups from its images.

mod members;
mod outer;

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use oci_spec::image::{Descriptor, ImageIndex, ImageManifest, OciLayout};
use serde::de::DeserializeOwned;
use thiserror::Error;

use self::{
    members::Members,
    outer::{Blob, Outer},
};
use crate::{
    archive::layer_prefix,
    budget,
    class::Class,
    error::{FileError, OpenError, WriteError},
    export::{
        ARTIFACT, CONFIG, CRIU, Exported, INDEX, LAYER, LAYOUT, MAX_SMALL, MOUNT, Progress, RECORD,
        Record, SPEC, room,
    },
    fork::{self, START},
    id::SandboxId,
    image::{FileImage, ImageFile, TmpfsTree},
    journal::Durability,
    machine::Machine,
    manifest::{Manifest, ProcessRef},
    pack_writer::PackWriter,
    record::{ForkRecord, JournalRecord},
    retention::Limits,
    sandbox::SandboxMeta,
    store::Store,
    text::{escape, unescape},
    tree::{EntryKind, Segment, Tree},
};

/// Why an archive was not imported.
#[derive(Debug, Error)]
pub enum ImportError {
    /// It could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// It is not what an export writes.
    #[error("{} is no archive of a checkpoint: {why}", path.display())]
    Refused {
        /// The archive.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The store has a sandbox of this name.
    #[error("there is a sandbox {0} in the store already")]
    Exists(SandboxId),
    /// The store could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// Whoever wants it does not want it any more.
    #[error("interrupted")]
    Stopped,
}

/// What is wrong with an archive, or with what it is written into.
#[derive(Debug)]
enum Fault {
    Refused(String),
    Write(WriteError),
    Stopped,
}

impl From<WriteError> for Fault {
    fn from(error: WriteError) -> Self {
        Self::Write(error)
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Refused(match error.kind() {
            io::ErrorKind::UnexpectedEof => "it ends too early".to_owned(),
            _ => error.to_string(),
        })
    }
}

fn refused(why: impl Into<String>) -> Fault {
    Fault::Refused(why.into())
}

/// What an import made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The sandbox's name here.
    pub sandbox: SandboxId,
    /// What the archive says of where it is from.
    pub exported: Exported,
    /// Its manifest here.
    pub manifest: Manifest,
}

/// An archive, as far as it is known before it is imported.
pub struct Archive {
    path: PathBuf,
    outer: Outer,
    manifest: ImageManifest,
    exported: Exported,
}

impl Archive {
    /// Opens an archive.
    ///
    /// # Errors
    /// When it is none.
    pub fn open(path: &Path) -> Result<Self, ImportError> {
        let file = File::open(path).map_err(FileError::of("open", path))?;
        let opened = || -> Result<_, Fault> {
            if !file.metadata()?.is_file() {
                return Err(refused("it is no regular file"));
            }
            let outer = Outer::read(file)?;
            let layout: OciLayout = parse(LAYOUT, &outer.small(LAYOUT)?)?;
            if !layout.image_layout_version().starts_with("1.") {
                return Err(refused("its layout has a version that is not known"));
            }
            let index: ImageIndex = parse(INDEX, &outer.small(INDEX)?)?;
            let is_ours = |it: &&Descriptor| {
                let kind = it.artifact_type().as_ref();
                kind.is_some_and(|kind| kind.as_ref() == ARTIFACT)
            };
            let mut ours = index.manifests().iter().filter(is_ours);
            let (Some(descriptor), None) = (ours.next(), ours.next()) else {
                return Err(refused("its index does not name one checkpoint of Crab"));
            };
            let manifest: ImageManifest = parse("manifest", &outer.whole(descriptor, MAX_SMALL)?)?;
            if manifest.config().media_type().as_ref() != CONFIG {
                return Err(refused("it has a configuration of another kind"));
            }
            let config = outer.whole(manifest.config(), MAX_SMALL)?;
            let exported = parse("configuration", &config)?;
            Ok((outer, manifest, exported))
        };
        match opened() {
            Ok((outer, manifest, exported)) => Ok(Self {
                path: path.to_owned(),
                outer,
                manifest,
                exported,
            }),
            Err(fault) => Err(told(path, fault)),
        }
    }

    /// What it says of where it is from.
    pub fn exported(&self) -> &Exported {
        &self.exported
    }

    /// Its layers of this kind.
    fn layers(&self, kind: &'static str) -> impl Iterator<Item = &Descriptor> {
        let layers = self.manifest.layers().iter();
        layers.filter(move |layer| layer.media_type().as_ref() == kind)
    }

    /// The only one of this kind.
    fn layer(&self, kind: &'static str) -> Result<&Descriptor, Fault> {
        let mut layers = self.layers(kind);
        match (layers.next(), layers.next()) {
            (Some(layer), None) => Ok(layer),
            _ => Err(refused(format!(
                "it does not have one layer of the kind {kind}"
            ))),
        }
    }

    /// The layer of a tree.
    fn layer_of(&self, mount: Option<&[u8]>) -> Result<&Descriptor, Fault> {
        let mut found = self.layers(LAYER).filter(|layer| {
            let annotations = layer.annotations().as_ref();
            let at = annotations.and_then(|annotations| annotations.get(MOUNT));
            match (at, mount) {
                (Some(at), Some(mount)) => unescape(at).is_some_and(|at| at == mount),
                (None, None) => true,
                _ => false,
            }
        });
        let of = || mount.map_or_else(|| "the root".to_owned(), escape);
        match (found.next(), found.next()) {
            (Some(layer), None) => Ok(layer),
            _ => Err(refused(format!(
                "it does not have one layer with the files of {}",
                of()
            ))),
        }
    }
}

fn told(path: &Path, fault: Fault) -> ImportError {
    match fault {
        Fault::Refused(why) => ImportError::Refused {
            path: path.to_owned(),
            why,
        },
        Fault::Write(error) => ImportError::Write(error),
        Fault::Stopped => ImportError::Stopped,
    }
}

fn parse<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T, Fault> {
    serde_json::from_slice(bytes).map_err(|error| refused(format!("its {what}: {error}")))
}

impl Store {
    /// Brings a checkpoint into the store, as a sandbox of its own. All of it is there when this
    /// returns, or nothing.
    ///
    /// # Errors
    /// When the archive is not sound, there is such a sandbox, it could not be written, or
    /// `progress` told to stop.
    pub fn import(
        &self,
        archive: Archive,
        id: SandboxId,
        now_ms: u64,
        progress: &mut Progress<'_>,
    ) -> Result<Imported, ImportError> {
        // Nobody else begins one of that name from here on.
        let mut writer = self.writer(&id)?;
        if writer.store().is_begun() {
            return Err(ImportError::Exists(id));
        }
        if writer
            .store()
            .journal()
            .is_ok_and(|it| !it.records.is_empty())
        {
            // What an import that was killed has left.
            writer.remove()?;
            writer = self.writer(&id)?;
            if writer.store().is_begun() {
                return Err(ImportError::Exists(id));
            }
        }
        let brought = (|| -> Result<Manifest, Fault> {
            let mut pack = writer.begin()?;
            let manifest = bring(&archive, &id, now_ms, &mut pack, progress)?;
            let meta = SandboxMeta {
                client: archive.exported.client,
                name: archive.exported.name.clone(),
                image: archive
                    .exported
                    .image
                    .as_ref()
                    .map(|image| image.name.clone()),
                bundle: String::new(),
                created_ms: now_ms,
                snapshot: Default::default(),
                layers: None,
                config_faults: Vec::new(),
                limits: Limits::default(),
            };
            writer.set_meta(&meta)?;
            let (from, turn) = (&archive.exported.manifest.sandbox, archive.exported.turn);
            let origin = ForkRecord {
                at_ms: now_ms,
                from: from.clone(),
                turn,
                checkpoint: archive.exported.manifest.turn,
            };
            let start = fork::start(&manifest, from, turn, now_ms);
            // The turn comes last: the journal says nothing that is not there, and without it
            // what is there is what a killed import has left.
            writer.append(JournalRecord::Fork(origin), Durability::Lazy)?;
            let manifest = pack.publish(manifest)?;
            writer.append(JournalRecord::Turn(start), Durability::Synced)?;
            Ok(manifest)
        })();
        match brought {
            Ok(manifest) => Ok(Imported {
                sandbox: id,
                exported: archive.exported,
                manifest,
            }),
            Err(fault) => {
                // The first error is the one to report; there was nothing of it before.
                let _ = writer.remove();
                Err(told(&archive.path, fault))
            }
        }
    }
}

/// Puts all objects into a pack; gives what is to be published.
fn bring(
    archive: &Archive,
    id: &SandboxId,
    now_ms: u64,
    pack: &mut PackWriter,
    progress: &mut Progress<'_>,
) -> Result<Manifest, Fault> {
    let record = record(archive)?;
    let trees = [&record.upper]
        .into_iter()
        .chain(record.tmpfs.iter().map(|(_, tree)| tree));
    let of_image = record.processes.iter().flat_map(|image| image.segments());
    let segments = trees.flat_map(Tree::segments).chain(of_image);
    let total = segments.map(|segment| u64::from(segment.len));
    let mut done = Done {
        bytes: 0,
        total: total.fold(0, u64::saturating_add),
        progress,
    };
    let said = &archive.exported.manifest;
    let spec = archive.outer.whole(archive.layer(SPEC)?, MAX_SMALL)?;
    let upper = tree(archive, &record.upper, None, pack, &mut done)?;
    let mut tmpfs = Vec::with_capacity(record.tmpfs.len());
    for (mount, files) in &record.tmpfs {
        tmpfs.push(TmpfsTree {
            mount: mount.clone(),
            tree: tree(archive, files, Some(mount), pack, &mut done)?,
        });
    }
    let processes = match &record.processes {
        Some(image) => {
            let blob = archive.outer.blob(archive.layer(CRIU)?)?;
            let mut wanted = Wanted::of_image(&image.files);
            wanted.take(blob, |blob| Ok(Box::new(blob)), pack, &mut done)?;
            Some(ProcessRef {
                turn: START,
                digest: pack.put_process_image(image)?,
            })
        }
        None => None,
    };
    Ok(Manifest {
        sandbox: id.clone(),
        turn: START,
        class: match processes {
            Some(_) => Class::Full,
            None => Class::Files,
        },
        created_ms: now_ms,
        parent: None,
        files: FileImage {
            turn: START,
            upper,
            whole: said.files.whole,
            tmpfs,
        },
        processes,
        degraded: said.degraded.clone(),
        spec: pack.put(&spec)?,
        packs: Vec::new(),
        bytes_stored: 0,
        bytes_raw: 0,
        machine: said.machine.clone().map(Machine::bounded),
    })
}

fn record(archive: &Archive) -> Result<Record, Fault> {
    let layer = archive.layer(RECORD)?;
    let mut blob = archive.outer.blob(layer)?;
    let room = room(layer.size());
    let mut bytes = Vec::new();
    let unpacked = zstd::Decoder::new(&mut blob)?;
    unpacked.take(room + 1).read_to_end(&mut bytes)?;
    let too_much =
        || refused("the list of what it holds is larger than any that is as long packed");
    if bytes.len() as u64 > room {
        return Err(too_much());
    }
    blob.finish()?;
    let wrong = |error: postcard::Error| refused(format!("the list of what it holds: {error}"));
    let read = budget::within(room, || postcard::from_bytes::<Record>(&bytes));
    let record = read.ok_or_else(too_much)?.map_err(wrong)?;
    drop(bytes);
    let trees = record.tmpfs.iter().map(|(_, tree)| tree);
    for tree in trees.chain([&record.upper]) {
        tree.check().map_err(|error| refused(error.to_string()))?;
    }
    if let Some(why) = record.processes.as_ref().and_then(|image| image.fault()) {
        return Err(refused(why));
    }
    Ok(record)
}

fn tree(
    archive: &Archive,
    tree: &Tree,
    mount: Option<&[u8]>,
    pack: &mut PackWriter,
    done: &mut Done<'_, '_>,
) -> Result<crate::digest::Digest, Fault> {
    let blob = archive.outer.blob(archive.layer_of(mount)?)?;
    let mut wanted = Wanted::of_tree(tree, mount);
    wanted.take(
        blob,
        |blob| Ok(Box::new(zstd::Decoder::new(blob)?)),
        pack,
        done,
    )?;
    Ok(pack.put_tree(tree)?)
}

/// What the map of a file with holes takes: 21 runs in 512 bytes.
fn room_of_runs(content: &[Segment]) -> u64 {
    (content.len() as u64 + 1) * 25
}

/// How far it is.
struct Done<'a, 'b> {
    bytes: u64,
    total: u64,
    progress: &'a mut Progress<'b>,
}

/// The files whose contents a layer has to have.
struct Wanted<'a> {
    files: HashMap<Vec<u8>, (u64, &'a [Segment])>,
    /// How many bytes there can be that are no content: headers, names, attributes.
    overhead: u64,
}

/// What a member, and one that tells that a name is not there, take at most beside names and
/// attributes.
const HEADERS: u64 = 16 << 10;

impl<'a> Wanted<'a> {
    fn of_tree(tree: &'a Tree, mount: Option<&[u8]>) -> Self {
        let prefix = layer_prefix(mount);
        let files = tree.entries.iter().filter_map(|entry| match &entry.kind {
            EntryKind::File { size, content } => {
                let path = [&*prefix, &entry.path].concat();
                Some((path, (*size, content.as_slice())))
            }
            _ => None,
        });
        let overhead = tree.entries.iter().map(|entry| {
            let link = match &entry.kind {
                EntryKind::Symlink { target } => target.len(),
                EntryKind::HardLink { to } => prefix.len() + to.len(),
                _ => 0,
            };
            let attributes = entry.xattrs.iter();
            let attributes = attributes.map(|(name, value)| 3 * name.len() + value.len() + 64);
            let names = 2 * (prefix.len() + entry.path.len()) + link;
            let runs = match &entry.kind {
                EntryKind::File { content, .. } => room_of_runs(content),
                _ => 0,
            };
            HEADERS + (names + attributes.sum::<usize>()) as u64 + runs
        });
        Self {
            overhead: overhead.sum::<u64>() + HEADERS,
            files: files.collect(),
        }
    }

    fn of_image(files: &'a [ImageFile]) -> Self {
        let prefix = layer_prefix(None);
        let named = files.iter().map(|file| {
            let path = [&*prefix, file.name.as_bytes()].concat();
            (path, (file.size, file.content.as_slice()))
        });
        let overhead = files
            .iter()
            .map(|file| HEADERS + room_of_runs(&file.content));
        Self {
            overhead: overhead.sum::<u64>() + HEADERS,
            files: named.collect(),
        }
    }

    /// Takes all of them out of a layer.
    fn take(
        &mut self,
        mut blob: Blob<'_>,
        unpack: impl for<'b> FnOnce(&'b mut Blob<'_>) -> io::Result<Box<dyn Read + 'b>>,
        pack: &mut PackWriter,
        done: &mut Done<'_, '_>,
    ) -> Result<(), Fault> {
        let mut members = Members::new(unpack(&mut blob)?, self.overhead);
        while let Some(member) = members.next()? {
            let name = || escape(&member.path);
            let file = match member.is_file {
                true => self.files.remove(&member.path),
                false => None,
            };
            let Some((size, content)) = file else {
                if member.stored > 0 {
                    return Err(refused(format!("{} should not be in its layer", name())));
                }
                continue;
            };
            let stored = content
                .iter()
                .map(|segment| u64::from(segment.len))
                .sum::<u64>();
            if member.stored != stored || member.size != size {
                return Err(refused(format!(
                    "{} has another length than it should",
                    name()
                )));
            }
            for segment in content {
                let bytes = members.bytes(segment.len as usize)?;
                if pack.put(&bytes)? != segment.digest {
                    return Err(refused(format!(
                        "{} has another content than it should",
                        name()
                    )));
                }
                done.bytes += u64::from(segment.len);
                if !(done.progress)(done.bytes, done.total) {
                    return Err(Fault::Stopped);
                }
            }
            members.skip_padding(stored)?;
        }
        drop(members);
        if let Some(path) = self.files.keys().next() {
            return Err(refused(format!(
                "the content of {} is missing",
                escape(path)
            )));
        }
        blob.finish()
    }
}
