// SPDX-License-Identifier: Apache-2.0

//! `crab fsck [S]`: is everything in the store as it was written?

use std::{collections::BTreeSet, path::PathBuf};

use crab_store::{Checked, Damage, Part, SandboxId, SandboxStore, Store, TurnId};
use serde::Serialize;

use crate::{
    catalog,
    context::Context,
    error::{CliError, StoreError},
    gc,
    output::{count, now_ms, size, visible},
    progress::Bar,
};

#[derive(Serialize)]
struct Fsck {
    /// Nothing is damaged; with `repaired`, no checkpoint was lost.
    whole: bool,
    sandboxes: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    /// What was found.
    #[serde(flatten)]
    checked: Option<Checked>,
    #[serde(skip_serializing_if = "Option::is_none")]
    repaired: Option<Repair>,
    /// It could not be looked at, or not be repaired.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<Failed>,
}

#[derive(Serialize)]
struct Failed {
    #[serde(rename = "sandbox_id")]
    sandbox: SandboxId,
    why: String,
}

#[derive(Serialize)]
struct Repair {
    /// Where what was damaged is.
    aside: Option<PathBuf>,
    /// The checkpoints that were put aside.
    lost_checkpoints: BTreeSet<TurnId>,
    /// Whether what is left is whole.
    whole: bool,
}

/// How it ended.
pub(crate) enum End {
    Whole,
    Damaged,
    Failed,
}

pub(crate) fn run(
    context: &Context,
    text_of_id: Option<&str>,
    repair: bool,
) -> Result<(String, End), CliError> {
    let store = context.store()?;
    let sandboxes = match text_of_id {
        Some(text) => vec![context.sandbox(text)?],
        None => gc::all(&store)?,
    };
    if repair {
        // What it remembers may be of what is damaged.
        catalog::forget(&store);
    }
    store
        .check()
        .map_err(|error| CliError::store("cannot check the store", error.into()))?;
    let one = text_of_id.is_some();
    let mut rows = Vec::new();
    let mut bar = Bar::new(context, store.root().display());
    for sandbox in &sandboxes {
        if repair {
            context.require_root("repair", sandbox.id())?;
        }
        bar.now(sandbox.id());
        match look(&store, sandbox, repair, &mut bar) {
            Ok(row) => rows.push(row),
            Err(error) => {
                let verb = if repair { "repair" } else { "check" };
                let error = CliError::store(format!("cannot {verb} {}", sandbox.id()), error);
                if one {
                    return Err(error);
                }
                rows.push(Row {
                    checked: None,
                    repaired: None,
                    failed: Some(Failed {
                        sandbox: sandbox.id().clone(),
                        why: error.to_string(),
                    }),
                });
            }
        }
    }
    // What is damaged is not to be hidden by what could not be looked at.
    let is_damaged = |row: &Row| row.checked.is_some() && !row.is_well();
    let end = match () {
        () if rows.iter().any(is_damaged) => End::Damaged,
        () if rows.iter().any(|row| row.failed.is_some()) => End::Failed,
        () => End::Whole,
    };
    let fsck = Fsck {
        whole: matches!(end, End::Whole),
        sandboxes: rows,
    };
    drop(bar);
    Ok((context.answer(&fsck, text)?, end))
}

fn look(
    store: &Store,
    sandbox: &SandboxStore,
    repair: bool,
    bar: &mut Bar,
) -> Result<Row, StoreError> {
    let mut progress = |done, total| bar.at(done, total);
    let row = if repair {
        let done = store.repair(sandbox, now_ms(), &mut progress)?;
        Row {
            repaired: Some(Repair {
                aside: done.aside,
                lost_checkpoints: done.lost,
                whole: done.now.is_whole(),
            }),
            checked: Some(done.found),
            failed: None,
        }
    } else {
        Row {
            checked: Some(sandbox.check(&mut progress)?),
            repaired: None,
            failed: None,
        }
    };
    Ok(row)
}

impl Row {
    fn is_well(&self) -> bool {
        match &self.repaired {
            Some(repaired) => repaired.whole && repaired.lost_checkpoints.is_empty(),
            None => self.checked.as_ref().is_some_and(Checked::is_whole),
        }
    }
}

fn text(fsck: &Fsck) -> String {
    fsck.sandboxes.iter().map(sandbox_text).collect()
}

fn sandbox_text(row: &Row) -> String {
    let checked = match (&row.checked, &row.failed) {
        (Some(checked), _) => checked,
        (None, Some(failed)) => return format!("{}\n", visible(&failed.why)),
        (None, None) => return String::new(),
    };
    let mut text = format!(
        "{}: {}, {}, {}, {}, {}: {}\n",
        checked.sandbox,
        count(checked.checkpoints, "checkpoint", "checkpoints"),
        count(checked.records, "record", "records"),
        count(checked.packs, "pack", "packs"),
        count(checked.objects, "object", "objects"),
        size(checked.bytes),
        match checked.damage.iter().filter(|it| !it.is_note()).count() as u64 {
            0 => "whole".to_owned(),
            faults => count(faults, "thing is damaged", "things are damaged"),
        }
    );
    for damage in &checked.damage {
        text.push_str(&damage_text(damage));
    }
    if !checked.turns.is_empty() {
        let turns = list(&checked.turns);
        text.push_str(&format!(
            "  cannot be brought back: the ends of turns {turns}\n"
        ));
    }
    if let Some(repaired) = &row.repaired
        && !checked.damage.is_empty()
    {
        text.push_str(&match repaired.lost_checkpoints.len() as u64 {
            0 => "  repaired: no checkpoint was lost\n".to_owned(),
            lost => format!(
                "  repaired: {} put aside ({})\n",
                count(lost, "checkpoint was", "checkpoints were"),
                list(&repaired.lost_checkpoints)
            ),
        });
        if let Some(aside) = &repaired.aside {
            text.push_str(&format!("  what was damaged is in {}\n", aside.display()));
        }
        if !repaired.whole {
            text.push_str("  what is left is still damaged: see it with crab fsck\n");
        }
    }
    text
}

fn list(turns: &BTreeSet<TurnId>) -> String {
    let turns: Vec<String> = turns.iter().map(TurnId::to_string).collect();
    turns.join(", ")
}

fn damage_text(damage: &Damage) -> String {
    let part = match damage.part {
        Part::Journal => "journal",
        Part::JournalTail => "end of the journal",
        Part::Manifest => "manifest",
        Part::Pack => "pack",
        Part::Object => "object",
        Part::Tag => "tag",
        Part::Meta => "record of the sandbox",
        Part::RestoreRequest => "wish to be restored",
        Part::Rollback => "note of a rollback",
        Part::Spare => "note of a spare copy",
    };
    let path = damage.path.display().to_string();
    let mut text = format!("  {part}: {}: {}", visible(&path), visible(&damage.why));
    if damage.is_note() {
        text.push_str(" (not on the disk when it stopped; nothing else is hit by that)");
    }
    if !damage.checkpoints.is_empty() {
        let hit = count(damage.checkpoints.len() as u64, "checkpoint", "checkpoints");
        text.push_str(&format!(" (hits {hit}: {})", list(&damage.checkpoints)));
    }
    text.push('\n');
    text
}
