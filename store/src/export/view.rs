// SPDX-License-Identifier: Apache-2.0

//! What checkpointctl looks at: the checkpoint as Podman, CRI-O and containerd's CRI write it, at the
//! top of the archive.
//!
//! `config.dump` and `spec.dump` tell whose it is, `checkpoint/` holds CRIU's images. One that is
//! larger than [`MAX_FILE`] (the memory of a large process) is in its layer alone.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{ExportError, Exported, outer::Outer, processes::Flat};
use crate::{archive::ArchiveError, id::SandboxId, reader::ObjectReader};

/// The largest file that is there for it.
const MAX_FILE: u64 = 64 << 20;
const DIRECTORY: &str = "checkpoint/";
/// Where checkpointctl finds a container's name.
const NAME: &str = "io.kubernetes.cri.container-name";

/// How many bytes of contents [`write`] writes.
pub(super) fn bytes(files: &[Flat<'_>]) -> u64 {
    let shown = files.iter().filter(|file| file.size() <= MAX_FILE);
    let segments = shown.flat_map(|file| file.segments());
    segments.map(|segment| u64::from(segment.len)).sum()
}

/// Writes it. `about`: which runtime made the images, and when, as RFC 3339 has it.
pub(super) fn write(
    out: &mut Outer<'_>,
    exported: &Exported,
    spec: &[u8],
    about: (&str, &str),
    files: &[Flat<'_>],
    reader: &ObjectReader,
) -> Result<(), ExportError> {
    let failed = |error| ExportError::from(ArchiveError::Write(error));
    let id = &exported.manifest.sandbox;
    let config = config(exported, id, about);
    out.small("config.dump", &pretty(&config)?)
        .map_err(failed)?;
    out.small("spec.dump", &pretty(&named(spec, exported, id))?)
        .map_err(failed)?;
    out.directory(DIRECTORY).map_err(failed)?;
    for file in files.iter().filter(|file| file.size() <= MAX_FILE) {
        copy(out, file, reader)?;
    }
    Ok(())
}

/// A file, its holes filled with zeros.
fn copy(out: &mut Outer<'_>, file: &Flat<'_>, reader: &ObjectReader) -> Result<(), ExportError> {
    static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
    let failed = |error| ExportError::from(ArchiveError::Write(error));
    let zeros = |out: &mut Outer<'_>, mut count: u64| {
        while count > 0 {
            let part = count.min(ZEROS.len() as u64);
            out.append(&ZEROS[..part as usize])?;
            count -= part;
        }
        Ok(())
    };
    out.begin(&format!("{DIRECTORY}{}", file.name()), file.size())
        .map_err(failed)?;
    let mut at = 0;
    for segment in file.segments() {
        let bytes = file.get(reader, segment)?;
        zeros(out, segment.offset - at).map_err(failed)?;
        out.append(&bytes).map_err(failed)?;
        at = segment.offset + bytes.len() as u64;
        out.advance(bytes.len() as u64).map_err(failed)?;
    }
    zeros(out, file.size() - at).map_err(failed)?;
    out.finish_file(file.size()).map_err(failed)
}

fn config(exported: &Exported, id: &SandboxId, (runtime, time): (&str, &str)) -> Value {
    let image = exported.image.as_ref();
    json!({
        "id": id.id(),
        "name": name(exported, id),
        "rootfsImage": image.and_then(|image| image.digest.clone()).unwrap_or_default(),
        "rootfsImageRef": image.and_then(|image| image.digest.clone()).unwrap_or_default(),
        "rootfsImageName": image.map(|image| image.name.clone()).unwrap_or_default(),
        "runtime": runtime,
        "createdTime": time,
        "checkpointedTime": time,
        "restoredTime": "0001-01-01T00:00:00Z",
        "restored": false,
    })
}

/// The container's configuration, with its name where that is looked for.
fn named(spec: &[u8], exported: &Exported, id: &SandboxId) -> Value {
    // What is no configuration is kept, in its own blob, and told of by its name alone.
    let mut spec: Map<String, Value> = serde_json::from_slice(spec).unwrap_or_default();
    let annotations = spec.entry("annotations").or_insert_with(|| json!({}));
    if let Value::Object(annotations) = annotations {
        annotations
            .entry(NAME)
            .or_insert_with(|| name(exported, id).into());
    }
    Value::Object(spec)
}

fn name(exported: &Exported, id: &SandboxId) -> String {
    exported.name.clone().unwrap_or_else(|| id.id().to_owned())
}

fn pretty(value: &impl Serialize) -> Result<Vec<u8>, ExportError> {
    serde_json::to_vec_pretty(value).map_err(|error| ExportError::Value {
        what: "the description for checkpointctl",
        why: error.to_string(),
    })
}
