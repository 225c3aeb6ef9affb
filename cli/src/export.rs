// SPDX-License-Identifier: Apache-2.0

//! `crab export S -o FILE`: a checkpoint as a file, for another host or another tool.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use crab_store::{ExportError, Exporting, ImageName, SandboxId, TurnId};
use serde::Serialize;

use crate::{
    context::Context,
    error::{CliError, Code, StoreError},
    image,
    named::TurnName,
    output::{size, utc},
    progress::Bar,
    rollback::with,
    stoppable::stoppable,
};

#[derive(Serialize)]
struct Export {
    #[serde(rename = "sandbox_id")]
    sandbox: SandboxId,
    turn: TurnId,
    checkpoint: TurnId,
    /// Whether it holds processes.
    processes: bool,
    file: PathBuf,
    bytes: u64,
    /// The image that it needs where it is imported.
    image: Option<ImageName>,
}

pub(crate) async fn run(
    context: &Context,
    text_of_id: &str,
    turn: Option<&TurnName>,
    file: &Path,
) -> Result<String, CliError> {
    let sandbox = context.sandbox(text_of_id)?;
    let turn = turn.map(|turn| turn.of(&sandbox)).transpose()?;
    let id = sandbox.id().clone();
    let exporting = Exporting {
        turn,
        image: image::of(&id).await,
        time: |ms| utc(ms).replacen(' ', "T", 1),
    };
    let to = file.to_owned();
    let mut bar = Bar::new(context, &id);
    let done = stoppable(move |stop: &AtomicBool| {
        sandbox.export(exporting, &to, &mut |done, total| {
            bar.at(done, total);
            !stop.load(Ordering::Relaxed)
        })
    })
    .await;
    let (exported, bytes) = done.map_err(|error| failed(&id, error))?;
    let export = Export {
        turn: exported.turn,
        checkpoint: exported.manifest.turn,
        processes: exported.manifest.processes.is_some(),
        sandbox: id,
        file: file.to_owned(),
        bytes,
        image: exported.image,
    };
    context.answer(&export, |export| {
        let image = match &export.image {
            Some(ImageName { name, digest }) => {
                let digest = digest.as_deref().unwrap_or("its digest is not known");
                format!("{name} ({digest})")
            }
            None => "its image, whose name is not known".to_owned(),
        };
        format!(
            "{}: turn {} of {} (checkpoint {}, {}), {}\nwhere it is imported, it needs {image}\n",
            export.file.display(),
            export.turn,
            export.sandbox,
            export.checkpoint,
            with(export.processes),
            size(export.bytes),
        )
    })
}

fn failed(id: &SandboxId, error: ExportError) -> CliError {
    let what = format!("cannot export {id}");
    match error {
        ExportError::Read(error) => CliError::store(what, StoreError::Read(error)),
        ExportError::NoFile(_) => CliError::new(
            Code::Refused,
            what,
            error,
            "name a file that is not there yet, or may be replaced",
        ),
        ExportError::Stopped => CliError::failed(what, error, "there is no file; run it again"),
        error => CliError::failed(
            what,
            error,
            "see where the file is to be, and its free space",
        ),
    }
}
