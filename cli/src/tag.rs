// SPDX-License-Identifier: Apache-2.0

//! `crab tag S [TURN NAME]`: names for turns, whose checkpoints then stay.

use crab_store::{SandboxId, SandboxStore, TagName, TurnId};
use serde::Serialize;

use crate::{
    context::Context,
    error::CliError,
    named::{TurnName, unknown},
    output::{ago, now_ms, or_nothing, table},
};

#[derive(Serialize)]
struct Tags {
    sandbox: SandboxId,
    tags: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    name: TagName,
    turn: Option<TurnId>,
    /// The checkpoint that holds the turn's state.
    checkpoint: Option<TurnId>,
    tagged_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    damaged: Option<String>,
}

pub(crate) fn run(
    context: &Context,
    text_of_id: &str,
    named: Option<(TurnName, TagName)>,
    delete: Option<TagName>,
) -> Result<String, CliError> {
    let sandbox = context.sandbox(text_of_id)?;
    match (named, delete) {
        (Some((turn, name)), _) => give(context, &sandbox, &turn, name),
        (None, Some(name)) => take(context, &sandbox, name),
        (None, None) => list(context, &sandbox),
    }
}

fn give(
    context: &Context,
    sandbox: &SandboxStore,
    turn: &TurnName,
    name: TagName,
) -> Result<String, CliError> {
    let id = sandbox.id();
    let turn = turn.of(sandbox)?;
    let tag = sandbox.set_tag(&name, turn, now_ms()).map_err(|error| {
        CliError::store(format!("cannot tag turn {turn} of {id}"), error.into())
    })?;
    let row = Row {
        name,
        turn: Some(tag.turn),
        checkpoint: Some(tag.checkpoint),
        tagged_ms: Some(tag.tagged_ms),
        damaged: None,
    };
    context.answer(&row, |row| {
        format!(
            "turn {} of {id} is {}: checkpoint {} stays\n",
            tag.turn, row.name, tag.checkpoint
        )
    })
}

#[derive(Serialize)]
struct Deleted {
    sandbox: SandboxId,
    deleted: TagName,
}

fn take(context: &Context, sandbox: &SandboxStore, name: TagName) -> Result<String, CliError> {
    let id = sandbox.id();
    let what = format!("cannot delete the tag {name} of {id}");
    match sandbox.delete_tag(&name) {
        Ok(true) => {}
        Ok(false) => {
            return Err(unknown(what, id));
        }
        Err(error) => return Err(CliError::store(what, error.into())),
    }
    let deleted = Deleted {
        sandbox: id.clone(),
        deleted: name,
    };
    context.answer(&deleted, |it| {
        format!("{} is no name of {id} any more\n", it.deleted)
    })
}

fn list(context: &Context, sandbox: &SandboxStore) -> Result<String, CliError> {
    let tags = sandbox.tags().map_err(|error| {
        CliError::store(
            format!("cannot list the tags of {}", sandbox.id()),
            error.into(),
        )
    })?;
    let rows = tags.into_iter().map(|(name, tag)| match tag {
        Ok(tag) => Row {
            name,
            turn: Some(tag.turn),
            checkpoint: Some(tag.checkpoint),
            tagged_ms: Some(tag.tagged_ms),
            damaged: None,
        },
        Err(error) => Row {
            name,
            turn: None,
            checkpoint: None,
            tagged_ms: None,
            damaged: Some(error.to_string()),
        },
    });
    let tags = Tags {
        sandbox: sandbox.id().clone(),
        tags: rows.collect(),
    };
    context.answer(&tags, text)
}

fn text(tags: &Tags) -> String {
    let now = now_ms();
    let rows = tags.tags.iter().map(|row| {
        let given = row.tagged_ms.map(|ms| ago(ms, now));
        [
            row.name.to_string(),
            or_nothing(row.turn),
            or_nothing(row.checkpoint),
            row.damaged.clone().unwrap_or_else(|| or_nothing(given)),
        ]
    });
    table(["NAME", "TURN", "CHECKPOINT", "GIVEN"], &[1, 2], rows)
}
