// SPDX-License-Identifier: Apache-2.0

//! `crab import FILE`: a checkpoint of another host, as a sandbox that can be restored here.

use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use crab_store::{Archive, ImageName, ImportError, Imported, Lacks, Manifest, SandboxId, TurnId};
use serde::Serialize;

use crate::{
    context::Context,
    docker,
    error::{CliError, Code},
    image::{self, Here},
    output::{now_ms, visible},
    progress::Bar,
    rollback::with,
    stoppable::stoppable,
};

#[derive(Serialize)]
struct Import {
    #[serde(rename = "sandbox_id")]
    sandbox: SandboxId,
    /// What it was called where it is from.
    from: SandboxId,
    /// At the end of which turn this was its state.
    turn: TurnId,
    processes: bool,
    image: Option<ImageName>,
    image_here: Option<Here>,
    /// What this machine lacks for its processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    lacks: Option<String>,
}

pub(crate) async fn run(
    context: &Context,
    file: &Path,
    name: Option<&str>,
) -> Result<String, CliError> {
    let what = format!("cannot import {}", file.display());
    let failed = |error| failed(&what, error);
    let archive = Archive::open(file).map_err(failed)?;
    let from = archive.exported().manifest.sandbox.clone();
    let id = match name {
        None => from.clone(),
        Some(name) if name.contains('/') => name
            .parse()
            .map_err(|error| CliError::new(Code::Usage, &what, error, "see crab import --help"))?,
        Some(name) => SandboxId::new(from.namespace(), name)
            .map_err(|error| CliError::new(Code::Usage, &what, error, "see crab import --help"))?,
    };
    context.require_root("import", &id)?;
    let store = context.create_store()?;
    let mut bar = Bar::new(context, &id);
    let meant = id.clone();
    let done = stoppable(move |stop: &AtomicBool| {
        store.import(archive, meant, now_ms(), &mut |done, total| {
            bar.at(done, total);
            !stop.load(Ordering::Relaxed)
        })
    })
    .await;
    let Imported {
        exported, manifest, ..
    } = done.map_err(failed)?;
    let image_here = match &exported.image {
        Some(image) => Some(image::here(&id, image).await),
        None => None,
    };
    let lacks = lacking(context, &id, &manifest).map(|lacks| lacks.to_string());
    let import = Import {
        sandbox: id,
        from,
        turn: exported.turn,
        processes: manifest.processes.is_some(),
        image: exported.image,
        image_here,
        lacks,
    };
    context.answer(&import, text)
}

/// What this machine lacks for what was imported.
fn lacking(context: &Context, id: &SandboxId, manifest: &Manifest) -> Option<Lacks> {
    let sandbox = context.store().ok()?.sandbox(id).ok()?;
    let image = sandbox.reader(manifest).ok()?;
    image
        .process_image(manifest.processes?.digest)
        .ok()?
        .lacking()
}

fn text(import: &Import) -> String {
    let id = &import.sandbox;
    let mut text = format!(
        "{id} is as {} was at turn {} ({})\n",
        import.from,
        import.turn,
        with(import.processes)
    );
    if let Some(lacks) = &import.lacks {
        text += &format!(
            "it cannot be restored here with its processes: {}\n",
            visible(lacks)
        );
    }
    let name = import.image.as_ref().map(|image| visible(&image.name));
    if let (Some(image), Some(name)) = (&import.image, &name) {
        let digest = image.digest.as_deref().unwrap_or("of no known digest");
        let digest = visible(digest);
        text += &match &import.image_here {
            Some(Here::Present) => format!("its image {name} ({digest}) is here\n"),
            Some(Here::Missing) => {
                format!("its image {name} ({digest}) is not here: pull it before the next step\n")
            }
            Some(Here::Other { digest: found }) => format!(
                "its image {name} ({digest}) is not here: another one has that name ({found}), \
                 and the files would not fit it\n"
            ),
            Some(Here::Unknown { why }) => {
                format!(
                    "whether its image {name} ({digest}) is here is not known: {}\n",
                    visible(why)
                )
            }
            None => String::new(),
        };
    } else {
        text += "the name of its image is not known; it has to be the same one\n";
    }
    let name = name.as_deref().unwrap_or("IMAGE");
    let runtime = "--runtime io.containerd.crab.v1";
    text += &if id.namespace() == docker::NAMESPACE {
        format!(
            "make a container of that id for it, from the same image and with the same options, then \
             `crab restore {id}`; Docker gives ids itself: `docker create {runtime} {name} COMMAND`, and \
             import it under that one with --id moby/ID\n"
        )
    } else {
        format!(
            "make a container for it with the options of the first, then restore it:\n  ctr -n {} \
             containers create {runtime} {name} {} COMMAND\n  crab restore {id}\n",
            id.namespace(),
            id.id()
        )
    };
    text
}

fn failed(what: &str, error: ImportError) -> CliError {
    match error {
        ImportError::Open(error) => CliError::store(what, error.into()),
        ImportError::Write(error) => CliError::store(what, error.into()),
        ImportError::Exists(_) => {
            CliError::new(Code::Refused, what, error, "give it another name with --id")
        }
        ImportError::Refused { .. } => CliError::failed(what, error, "export it again"),
        ImportError::Stopped => {
            CliError::failed(what, error, "nothing of it is here; run it again")
        }
        ImportError::File(_) => CliError::failed(what, error, "see the file"),
    }
}
