// SPDX-License-Identifier: Apache-2.0

//! Writing an archive.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Write},
    path::Path,
};

use oci_spec::image::{
    ANNOTATION_REF_NAME, Descriptor, ImageIndexBuilder, ImageManifestBuilder, MediaType,
    OciLayoutBuilder,
};
use serde::Serialize;

use super::{
    ARTIFACT, CONFIG, CRIU, ExportError, Exported, INDEX, ImageName, LAYER, LAYOUT, MOUNT,
    Progress, RECORD, Record, SPEC,
    outer::Outer,
    processes::{Flat, flatten},
    room, view,
};
use crate::{
    archive::{ArchiveError, PREFIX, end, member, write_layer},
    digest::Digest,
    durable,
    error::FileError,
    id::TurnId,
    image::ProcessImage,
    manifest::Manifest,
    reader::ObjectReader,
    sandbox::{Client, SandboxStore},
    text::escape,
    tree::{EntryKind, Segment, Time, Tree, TreeEntry},
};

/// How hard layers are compressed: about as fast as disks are.
const ZSTD_LEVEL: i32 = 1;
/// What containerd calls an image by.
const IMAGE_NAME: &str = "io.containerd.image.name";
/// What CRI-O and containerd's CRI know a checkpoint by.
const CHECKPOINT_NAME: &str = "io.kubernetes.cri-o.annotations.checkpoint.name";

/// What is exported, beside what the store knows.
pub struct Exporting {
    /// The turn, or the newest state.
    pub turn: Option<TurnId>,
    /// The image that the sandbox runs on.
    pub image: Option<ImageName>,
    /// Milliseconds since the Unix epoch as RFC 3339 has them.
    pub time: fn(u64) -> String,
}

impl SandboxStore {
    /// Writes a checkpoint into a file for another host. The file is there whole or not at all.
    /// Gives what it holds, and its length.
    ///
    /// # Errors
    /// When that turn has no checkpoint, something could not be read or written, or `progress`
    /// told to stop.
    pub fn export(
        &self,
        exporting: Exporting,
        to: &Path,
        progress: &mut Progress<'_>,
    ) -> Result<(Exported, u64), ExportError> {
        if to.symlink_metadata().is_ok_and(|it| !it.is_file()) {
            return Err(ExportError::NoFile(to.to_owned()));
        }
        let manifest = match exporting.turn {
            Some(turn) => self.checkpoint_of(turn)?,
            None => self.head()?.ok_or_else(|| self.no_checkpoint())?,
        };
        let meta = self.meta()?;
        let exported = Exported {
            turn: exporting.turn.unwrap_or(manifest.turn),
            client: meta.as_ref().map_or(Client::Containerd, |meta| meta.client),
            name: meta.as_ref().and_then(|meta| meta.name.clone()),
            image: exporting.image,
            manifest,
        };
        // It may hold memory: whoever is killed meanwhile is to leave none of it behind.
        let file = durable::Nameless::beside(to)?;
        let len = self.write(&exported, exporting.time, (file.file()?, to), progress)?;
        file.publish(to)?;
        Ok((exported, len))
    }

    fn write(
        &self,
        exported: &Exported,
        time: fn(u64) -> String,
        (file, at): (File, &Path),
        progress: &mut Progress<'_>,
    ) -> Result<u64, ExportError> {
        let manifest = &exported.manifest;
        let reader = self.reader(manifest)?;
        let spec = reader.get(manifest.spec)?;
        let mut record = record(manifest, &reader)?;
        let image = record.processes.take();
        let files = image.as_ref().map(flatten).unwrap_or_default();
        let trees = [&record.upper]
            .into_iter()
            .chain(record.tmpfs.iter().map(|(_, tree)| tree));
        let total = trees.flat_map(Tree::segments).map(length).sum::<u64>()
            + files
                .iter()
                .flat_map(|file| file.segments())
                .map(length)
                .sum::<u64>()
            + view::bytes(&files);
        let failed = |error| ExportError::from(ArchiveError::Write(error));
        let mut out = Outer::new(file, manifest.created_ms / 1000, total, progress);
        let layout = OciLayoutBuilder::default()
            .image_layout_version("1.0.0")
            .build();
        let layout = layout.map_err(invalid("the layout's version"))?;
        out.small(LAYOUT, &json("the layout's version", &layout)?)
            .map_err(failed)?;
        let when = time(manifest.created_ms);
        let runtime = image.as_ref().map_or("", |image| image.runtime.as_str());
        view::write(&mut out, exported, &spec, (runtime, &when), &files, &reader)?;

        let mut layers = vec![layer(&mut out, &reader, &record.upper, None)?];
        for (mount, tree) in &record.tmpfs {
            layers.push(layer(&mut out, &reader, tree, Some(mount))?);
        }
        if !files.is_empty() {
            let (descriptor, told) = processes(&mut out, &reader, &files, manifest)?;
            layers.push(descriptor);
            record.processes = image.as_ref().map(|image| ProcessImage {
                files: told,
                ..image.clone()
            });
        }
        let bytes = packed(&record)?;
        layers.insert(0, out.blob(RECORD, &bytes)?);
        layers.insert(1, out.blob(SPEC, &spec)?);
        index(&mut out, exported, layers)?;
        Ok(out.end().map_err(FileError::of("write", at))?)
    }
}

fn length(segment: &Segment) -> u64 {
    segment.len.into()
}

fn record(manifest: &Manifest, reader: &ObjectReader) -> Result<Record, ExportError> {
    let tmpfs = manifest.files.tmpfs.iter();
    Ok(Record {
        upper: reader.tree(manifest.files.upper)?,
        tmpfs: tmpfs
            .map(|tmpfs| Ok((tmpfs.mount.clone(), reader.tree(tmpfs.tree)?)))
            .collect::<Result<_, ExportError>>()?,
        processes: match manifest.processes {
            Some(processes) => Some(reader.process_image(processes.digest)?),
            None => None,
        },
    })
}

fn packed(record: &Record) -> Result<Vec<u8>, ExportError> {
    let what = "the list of what the checkpoint holds";
    let bytes = postcard::to_allocvec(record).map_err(invalid(what))?;
    let packed = zstd::bulk::compress(&bytes, ZSTD_LEVEL).map_err(invalid(what))?;
    let (needs, room) = (
        record.weight().max(bytes.len() as u64),
        room(packed.len() as u64),
    );
    if needs > room {
        let why = format!("it takes {needs} bytes of memory, and an import gives it {room}");
        return Err(ExportError::Value { what, why });
    }
    Ok(packed)
}

/// The layer of a tree.
fn layer(
    out: &mut Outer<'_>,
    reader: &ObjectReader,
    tree: &Tree,
    mount: Option<&[u8]>,
) -> Result<Descriptor, ExportError> {
    let mut descriptor = out.stream(LAYER, |out, blob| {
        let mut packer = zstd::Encoder::new(blob, ZSTD_LEVEL)?;
        counted(
            out,
            &mut packer,
            |packer, get| write_layer(tree, mount, packer, get),
            |segment| reader.get(segment.digest),
        )?;
        packer.finish()?;
        Ok(())
    })?;
    if let Some(mount) = mount {
        let mount = (MOUNT.to_owned(), escape(mount));
        descriptor.set_annotations(Some(HashMap::from([mount])));
    }
    Ok(descriptor)
}

/// CRIU's images, and what they are in one layer each.
fn processes(
    out: &mut Outer<'_>,
    reader: &ObjectReader,
    files: &[Flat<'_>],
    manifest: &Manifest,
) -> Result<(Descriptor, Vec<crate::image::ImageFile>), ExportError> {
    let mut told = Vec::with_capacity(files.len());
    let mtime = Time {
        sec: (manifest.created_ms / 1000) as i64,
        nsec: 0,
    };
    let descriptor = out.stream(CRIU, |out, blob| {
        for file in files {
            let entry = TreeEntry {
                path: file.name().into(),
                kind: EntryKind::File {
                    size: file.size(),
                    content: file.segments().to_vec(),
                },
                mode: 0o600,
                uid: 0,
                gid: 0,
                mtime,
                xattrs: Vec::new(),
            };
            let name = [PREFIX, file.name().as_bytes()].concat();
            let mut digests = Vec::with_capacity(file.segments().len());
            let get = |segment: &Segment| {
                let bytes = file.get(reader, segment)?;
                digests.push(Digest::of(&bytes));
                Ok(bytes)
            };
            counted(
                out,
                blob,
                |blob, get| member(blob, name, &entry, None, get),
                get,
            )?;
            told.push(file.told(digests));
        }
        Ok(end(blob)?)
    })?;
    Ok((descriptor, told))
}

/// Writes with contents that are counted.
fn counted<W: Write>(
    out: &mut Outer<'_>,
    to: &mut W,
    write: impl FnOnce(&mut W, &mut crate::archive::Get<'_>) -> Result<(), ArchiveError>,
    mut get: impl FnMut(&Segment) -> Result<Vec<u8>, crate::error::ReadError>,
) -> Result<(), ArchiveError> {
    let mut stopped: Option<io::Error> = None;
    let written = write(to, &mut |segment| {
        let bytes = get(segment)?;
        if let Err(error) = out.advance(bytes.len() as u64) {
            stopped = Some(error);
            return Err(crate::error::ReadError::Target(super::Stopped::error()));
        }
        Ok(bytes)
    });
    match stopped {
        Some(error) => Err(error.into()),
        None => written,
    }
}

/// Config, manifest and index.
fn index(
    out: &mut Outer<'_>,
    exported: &Exported,
    layers: Vec<Descriptor>,
) -> Result<(), ExportError> {
    let id = &exported.manifest.sandbox;
    let config = out.blob(CONFIG, &json("the configuration", exported)?)?;
    let name = exported.name.as_deref().unwrap_or(id.id());
    let annotations = HashMap::from([(CHECKPOINT_NAME.to_owned(), name.to_owned())]);
    let manifest = ImageManifestBuilder::default()
        .schema_version(2u32)
        .media_type(MediaType::ImageManifest)
        .artifact_type(MediaType::Other(ARTIFACT.into()))
        .config(config)
        .layers(layers)
        .annotations(annotations.clone())
        .build()
        .map_err(invalid("the manifest"))?;
    let mut descriptor = out.blob(
        MediaType::ImageManifest.as_ref(),
        &json("the manifest", &manifest)?,
    )?;
    let tag = format!("turn-{}", exported.turn);
    let mut annotations = annotations;
    annotations.insert(ANNOTATION_REF_NAME.into(), tag.clone());
    annotations.insert(IMAGE_NAME.into(), format!("crab.local/{id}:{tag}"));
    descriptor.set_media_type(MediaType::ImageManifest);
    descriptor.set_artifact_type(Some(MediaType::Other(ARTIFACT.into())));
    descriptor.set_annotations(Some(annotations));
    let index = ImageIndexBuilder::default()
        .schema_version(2u32)
        .media_type(MediaType::ImageIndex)
        .manifests(vec![descriptor])
        .build()
        .map_err(invalid("the index"))?;
    out.small(INDEX, &json("the index", &index)?)
        .map_err(|error| ArchiveError::Write(error).into())
}

fn json(what: &'static str, value: &impl Serialize) -> Result<Vec<u8>, ExportError> {
    serde_json::to_vec(value).map_err(invalid(what))
}

fn invalid<E: std::fmt::Display>(what: &'static str) -> impl FnOnce(E) -> ExportError {
    move |error| ExportError::Value {
        what,
        why: error.to_string(),
    }
}
