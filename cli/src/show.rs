// SPDX-License-Identifier: Apache-2.0

//! `crab show S TURN`: one turn in detail.

use crab_store::{
    EntryKind, Journal, JournalRecord, Machine, Manifest, ProcessEntry, ProcessImage, ReadError,
    SandboxId, SandboxStore, Tree, TurnId,
};
use serde::Serialize;

use crate::{
    context::Context,
    effects,
    error::{CliError, StoreError},
    history::History,
    named::TurnName,
    output::{count, duration, size, utc, visible},
    turns::Turn,
    waterfall,
};

#[derive(Serialize)]
struct Show {
    sandbox: SandboxId,
    turn: TurnId,
    /// The turn's record in the journal; nothing if only its checkpoint is left.
    record: Option<Turn>,
    /// A checkpoint that somebody asked for bears a number like a turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    checkpoint: Option<Checkpoint>,
    /// Why no checkpoint holds the turn's state.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_checkpoint: Option<String>,
    /// What of the sandbox's configuration is not followed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    config_faults: Vec<String>,
}

#[derive(Serialize)]
struct Checkpoint {
    manifest: Manifest,
    /// What is in it, or why that cannot be read.
    #[serde(flatten)]
    contents: Contents,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Contents {
    Contents {
        /// Files that differ from the image, and their length.
        files: u64,
        file_bytes: u64,
        /// Paths of the image that are gone.
        removed: u64,
        tmpfs_files: u64,
        tmpfs_bytes: u64,
        processes: Vec<ProcessEntry>,
        process_bytes: u64,
        criu: Option<String>,
        /// Where the processes were taken, if that is known.
        #[serde(skip_serializing_if = "Option::is_none")]
        machine: Option<Box<Machine>>,
        /// What this machine lacks for them.
        #[serde(skip_serializing_if = "Option::is_none")]
        lacks: Option<String>,
    },
    Damaged(String),
}

pub(crate) fn run(
    context: &Context,
    text_of_id: &str,
    turn: &TurnName,
) -> Result<String, CliError> {
    let sandbox = context.sandbox(text_of_id)?;
    let turn = turn.of(&sandbox)?;
    let show = show(&sandbox, turn).map_err(|error| {
        CliError::store(
            format!("cannot show turn {turn} of {}", sandbox.id()),
            error,
        )
    })?;
    context.answer(&show, text)
}

fn show(sandbox: &SandboxStore, turn: TurnId) -> Result<Show, StoreError> {
    let journal = sandbox.journal()?;
    let mut show = Show {
        sandbox: sandbox.id().clone(),
        turn,
        record: record(sandbox, &journal, turn)?,
        checkpoint: None,
        no_checkpoint: None,
        config_faults: sandbox
            .meta()?
            .map(|meta| meta.config_faults)
            .unwrap_or_default(),
    };
    match sandbox.checkpoint_of(turn) {
        Ok(manifest) => {
            show.checkpoint = Some(Checkpoint {
                contents: contents(sandbox, &manifest)
                    .unwrap_or_else(|error| Contents::Damaged(error.to_string())),
                manifest,
            });
        }
        Err(error @ ReadError::NoTurn { .. }) => return Err(error.into()),
        Err(ReadError::NoCheckpoint { why, .. }) => show.no_checkpoint = Some(why),
        Err(error) => show.no_checkpoint = Some(error.to_string()),
    }
    Ok(show)
}

fn record(
    sandbox: &SandboxStore,
    journal: &Journal,
    turn: TurnId,
) -> Result<Option<Turn>, StoreError> {
    let history = History::of(&journal.records);
    let published = sandbox.checkpoints()?;
    // The last one, if a turn was recorded twice.
    Ok(journal
        .records
        .iter()
        .rev()
        .find_map(|record| match record {
            JournalRecord::Turn(record) if record.turn == turn => {
                Some(Turn::of(record, &history, &published))
            }
            _ => None,
        }))
}

fn contents(sandbox: &SandboxStore, manifest: &Manifest) -> Result<Contents, ReadError> {
    let reader = sandbox.reader(manifest)?;
    let upper = reader.tree(manifest.files.upper)?;
    let (files, file_bytes) = files(&upper);
    let whiteout = EntryKind::CharDevice { rdev: 0 };
    let removed = upper.entries.iter().filter(|entry| entry.kind == whiteout);
    let (mut tmpfs_files, mut tmpfs_bytes) = (0, 0);
    for tmpfs in &manifest.files.tmpfs {
        let (files, bytes) = self::files(&reader.tree(tmpfs.tree)?);
        tmpfs_files += files;
        tmpfs_bytes += bytes;
    }
    let image = match &manifest.processes {
        Some(processes) => Some(reader.process_image(processes.digest)?),
        None => None,
    };
    Ok(Contents::Contents {
        files,
        file_bytes,
        removed: removed.count() as u64,
        tmpfs_files,
        tmpfs_bytes,
        process_bytes: image
            .iter()
            .flat_map(|image| &image.files)
            .map(|file| file.size)
            .sum(),
        lacks: image
            .as_ref()
            .and_then(|image| Some(image.lacking()?.to_string())),
        machine: image.as_ref().and_then(ProcessImage::machine).map(Box::new),
        criu: image.as_ref().map(|image| image.criu_version.clone()),
        processes: image.map(|image| image.processes).unwrap_or_default(),
    })
}

/// How many regular files a tree has, and how long they are.
fn files(tree: &Tree) -> (u64, u64) {
    let sizes = tree.entries.iter().filter_map(|entry| match &entry.kind {
        EntryKind::File { size, .. } => Some(*size),
        _ => None,
    });
    sizes.fold((0, 0), |(count, bytes), size| {
        (count + 1, u64::saturating_add(bytes, size))
    })
}

/// Lines of `name  value`.
#[derive(Default)]
pub(crate) struct Sheet(String);

impl Sheet {
    pub(crate) fn line(&mut self, name: &str, value: impl AsRef<str>) {
        let value = visible(value.as_ref());
        self.0.push_str(&format!("{name:<12}{value}\n"));
    }
}

fn text(show: &Show) -> String {
    let mut sheet = Sheet::default();
    sheet.line("sandbox", show.sandbox.to_string());
    sheet.line("turn", show.turn.to_string());
    if let Some(turn) = &show.record {
        turn_lines(&mut sheet, turn);
    }
    if let Some(why) = &show.no_checkpoint {
        sheet.line("checkpoint", format!("none: {why}"));
    }
    if let Some(checkpoint) = &show.checkpoint {
        checkpoint_lines(&mut sheet, checkpoint);
    }
    for fault in &show.config_faults {
        sheet.line("note", fault);
    }
    if let Some(turn) = &show.record {
        effects::lines(&mut sheet, &turn.record);
    }
    sheet.0
}

/// Where processes were taken, as far as that is not this machine as it is.
fn of_another(taken: &Machine) -> Option<String> {
    let here = Machine::here();
    let same = [
        (&taken.kernel, &here.kernel),
        (&taken.arch, &here.arch),
        (&taken.crab, &here.crab),
    ];
    let is_another = |(taken, here): &(&String, &String)| !taken.is_empty() && taken != here;
    same.iter().any(is_another).then(|| {
        format!(
            "with Linux {} ({}), {}, crab {}",
            taken.kernel, taken.arch, taken.runtime, taken.crab
        )
    })
}

fn turn_lines(sheet: &mut Sheet, turn: &Turn) {
    let record = &turn.record;
    let cost = &record.cost;
    let took = record.ended_ms.saturating_sub(record.began_ms);
    sheet.line("trigger", record.trigger.as_str());
    sheet.line("command", &record.command);
    for (name, value) in &record.meta {
        sheet.line("meta", format!("{name}={value}"));
    }
    let began = utc(record.began_ms);
    sheet.line(
        "began",
        format!("{began}, took {}", duration(took.saturating_mul(1000))),
    );
    if let Some(exit) = record.exit {
        sheet.line("exit", exit.to_string());
    }
    sheet.line("class", format!("{}: {}", record.class, record.reason));
    if let Some(why) = &record.unobserved {
        sheet.line("unobserved", why);
    }
    if let Some(why) = &record.degraded {
        sheet.line("degraded", why.clone());
    }
    if let Some(why) = &turn.failed {
        sheet.line("failed", why);
    }
    if turn.left {
        sheet.line("history", "left by a rollback");
    }
    let times = format!(
        "{} to decide, {} to capture, {} frozen, next turn held for {}",
        duration(cost.decide_us),
        duration(cost.capture_us),
        duration(cost.frozen_us),
        duration(cost.gate_us),
    );
    sheet.line("cost", times);
    let bytes = format!("{} of {}", size(cost.bytes_stored), size(cost.bytes_raw));
    sheet.line("stored", bytes);
    for (number, row) in waterfall::rows(record).into_iter().enumerate() {
        sheet.line(if number == 0 { "spans" } else { "" }, row);
    }
}

fn checkpoint_lines(sheet: &mut Sheet, checkpoint: &Checkpoint) {
    let manifest = &checkpoint.manifest;
    let taken = utc(manifest.created_ms);
    sheet.line(
        "checkpoint",
        format!("that of turn {}, taken {taken}", manifest.turn),
    );
    if let Some(why) = &manifest.degraded {
        sheet.line("", why.clone());
    }
    match &checkpoint.contents {
        Contents::Damaged(why) => sheet.line("damaged", why),
        Contents::Contents {
            files,
            file_bytes,
            removed,
            tmpfs_files,
            tmpfs_bytes,
            processes,
            process_bytes,
            criu,
            machine,
            lacks,
        } => {
            let upper = format!(
                "turn {}: {} ({}), {} removed",
                manifest.files.turn,
                count(*files, "file", "files"),
                size(*file_bytes),
                count(*removed, "path", "paths"),
            );
            sheet.line("files", upper);
            if !manifest.files.tmpfs.is_empty() {
                let tmpfs = format!(
                    "{}: {} ({})",
                    count(manifest.files.tmpfs.len() as u64, "mount", "mounts"),
                    count(*tmpfs_files, "file", "files"),
                    size(*tmpfs_bytes)
                );
                sheet.line("tmpfs", tmpfs);
            }
            match (&manifest.processes, criu) {
                (Some(image), Some(criu)) => {
                    let images = format!(
                        "turn {}: {} ({}), by criu {criu}",
                        image.turn,
                        count(processes.len() as u64, "process", "processes"),
                        size(*process_bytes)
                    );
                    sheet.line("processes", images);
                    if let Some(machine) = machine
                        && let Some(text) = of_another(machine)
                    {
                        sheet.line("taken", text);
                    }
                    if let Some(lacks) = lacks {
                        sheet.line("lacks", lacks);
                    }
                    for process in processes {
                        let ProcessEntry { pid, comm, cmdline } = process;
                        sheet.line("", format!("{pid:>6} {comm}: {cmdline}"));
                    }
                }
                _ => sheet.line("processes", "none: init is started again"),
            }
        }
    }
    let packs = count(manifest.packs.len() as u64, "pack", "packs");
    sheet.line(
        "on disk",
        format!("{} added, {packs}", size(manifest.bytes_stored)),
    );
}
