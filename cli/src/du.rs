// SPDX-License-Identifier: Apache-2.0

//! `crab du [S]`: what checkpoints take of the disk.

use std::collections::BTreeMap;

use crab_store::{SandboxId, SandboxStore, TurnId, Usage};
use serde::Serialize;

use crate::{
    catalog::Catalog,
    context::Context,
    error::CliError,
    gc,
    output::{NOTHING, cell, size, table},
};

#[derive(Serialize)]
struct Du {
    sandboxes: Vec<Row>,
    /// Of all sandboxes.
    total: u64,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Row {
    Known {
        #[serde(flatten)]
        usage: Usage,
        /// The names of turns, by the checkpoint that holds them.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        tags: BTreeMap<TurnId, Vec<String>>,
    },
    /// Its history cannot be read.
    Failed { sandbox: SandboxId, failed: String },
}

pub(crate) fn run(context: &Context, text_of_id: Option<&str>) -> Result<String, CliError> {
    let of = |catalog: &mut Catalog, sandbox: &SandboxStore| {
        catalog
            .usage(sandbox, SandboxStore::usage)
            .map_err(|error| {
                let what = format!("cannot tell what {} takes", sandbox.id());
                CliError::store(what, error.into())
            })
    };
    if let Some(text) = text_of_id {
        let sandbox = context.sandbox(text)?;
        // What one takes is worth reading.
        let row = Row::Known {
            usage: of(&mut Catalog::none(), &sandbox)?,
            tags: tags(&sandbox),
        };
        return context.answer(&row, |row| {
            format!(
                "{}\n{}",
                summary(std::slice::from_ref(row)),
                checkpoints(row)
            )
        });
    }
    let mut du = Du {
        sandboxes: Vec::new(),
        total: 0,
    };
    if let Some(store) = context.store_if_any()? {
        let mut catalog = Catalog::of(&store);
        let sandboxes = gc::all(&store)?;
        for sandbox in &sandboxes {
            du.sandboxes.push(match of(&mut catalog, sandbox) {
                Ok(usage) => {
                    du.total += usage.total;
                    Row::Known {
                        usage,
                        tags: tags(sandbox),
                    }
                }
                // One that cannot be read must not hide the others.
                Err(error) => Row::Failed {
                    sandbox: sandbox.id().clone(),
                    failed: error.to_string(),
                },
            });
        }
        let ids: Vec<SandboxId> = sandboxes.iter().map(|it| it.id().clone()).collect();
        catalog.keep(&ids);
    }
    context.answer(&du, |du| {
        format!("{}{} in all\n", summary(&du.sandboxes), size(du.total))
    })
}

fn tags(sandbox: &SandboxStore) -> BTreeMap<TurnId, Vec<String>> {
    let mut by_checkpoint: BTreeMap<TurnId, Vec<String>> = BTreeMap::new();
    // One that is damaged is told of by `crab tag`.
    for (name, tag) in sandbox.tags().unwrap_or_default() {
        if let Ok(tag) = tag {
            let names = by_checkpoint.entry(tag.checkpoint).or_default();
            names.push(name.to_string());
        }
    }
    by_checkpoint
}

fn summary(rows: &[Row]) -> String {
    let rows = rows.iter().map(|row| match row {
        Row::Known { usage, .. } => [
            usage.sandbox.to_string(),
            size(usage.total),
            size(usage.files),
            size(usage.processes),
            size(usage.dead),
            usage.checkpoints.len().to_string(),
            ratio(usage.raw, usage.packs),
            match usage.damaged {
                0 => NOTHING.to_owned(),
                bytes => format!("{} put aside by crab fsck", size(bytes)),
            },
        ],
        Row::Failed { sandbox, failed } => {
            let mut row = [const { String::new() }; 8].map(|_| NOTHING.to_owned());
            row[0] = sandbox.to_string();
            row[7] = cell(failed, MAX_NOTE);
            row
        }
    });
    let header = [
        "SANDBOX",
        "TOTAL",
        "FILES",
        "PROCESSES",
        "DEAD",
        "CHECKPOINTS",
        "RATIO",
        "NOTE",
    ];
    table(header, &[1, 2, 3, 4, 5, 6], rows)
}

const MAX_NOTE: usize = 120;

/// How much more was given to the store than it takes.
fn ratio(raw: u64, stored: u64) -> String {
    match stored {
        0 => NOTHING.to_owned(),
        _ => format!("{:.1}", raw as f64 / stored as f64),
    }
}

fn checkpoints(row: &Row) -> String {
    let Row::Known { usage, tags } = row else {
        return String::new();
    };
    let rows = usage.checkpoints.iter().map(|(turn, of_it)| {
        [
            turn.to_string(),
            size(of_it.added),
            size(of_it.unique),
            tags.get(turn)
                .map_or_else(|| NOTHING.to_owned(), |names| names.join(" ")),
        ]
    });
    table(["CHECKPOINT", "ADDED", "UNIQUE", "NAMES"], &[0, 1, 2], rows)
}
