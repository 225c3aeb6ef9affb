// SPDX-License-Identifier: Apache-2.0

//! `crab checkpoint S`: a checkpoint of a live sandbox, now.

use crab_api::{
    sandbox::{CheckpointRequest, DryRunRequest},
    ttrpc::context,
};
use crab_store::{SandboxId, TurnId};
use serde::Serialize;

use crate::{
    context::Context,
    error::CliError,
    live::{Live, WORK_TIMEOUT, refusal},
    output::{duration, size, visible},
    progress::{Phase, waiting},
};

const WHAT: &str = "checkpoint";

#[derive(Serialize)]
struct Taken {
    sandbox: SandboxId,
    /// The turn whose number the checkpoint bears.
    turn: TurnId,
    class: String,
    /// What it lacks, and why.
    degraded: Option<String>,
    bytes_stored: u64,
    capture_us: u64,
}

pub(crate) async fn run(context: &Context, text_of_id: &str) -> Result<String, CliError> {
    let id = context.sandbox_id(text_of_id)?;
    context.require_root(WHAT, &id)?;
    let live = Live::require(&context.config, WHAT, &id).await?;
    let request = CheckpointRequest {
        id: id.id().into(),
        ..Default::default()
    };
    let timeout = context::with_duration(WORK_TIMEOUT);
    let phase = Phase::new(format!("taking a checkpoint of {id}"));
    let taken = waiting(context, &phase, live.client.checkpoint(timeout, &request))
        .await
        .map_err(|error| refusal(WHAT, &id, &error))?;
    let taken = Taken {
        sandbox: id,
        turn: TurnId(taken.turn),
        class: taken.class,
        degraded: Some(taken.degraded).filter(|why| !why.is_empty()),
        bytes_stored: taken.bytes,
        capture_us: taken.capture_us,
    };
    context.answer(&taken, text)
}

fn text(taken: &Taken) -> String {
    let Taken { sandbox, turn, .. } = taken;
    if taken.class == "none" {
        return format!("{sandbox}: nothing has changed since checkpoint {turn}\n");
    }
    let mut text = format!(
        "{sandbox}: checkpoint {turn} taken ({}, {} in {})\n",
        visible(&taken.class),
        size(taken.bytes_stored),
        duration(taken.capture_us)
    );
    if let Some(why) = &taken.degraded {
        text.push_str(&format!("{}\n", visible(why)));
    }
    text
}

#[derive(Serialize)]
struct Possible {
    sandbox: SandboxId,
    /// The largest class of checkpoint that is possible now.
    class: String,
    reason: String,
    /// What keeps the processes out.
    obstacles: Vec<String>,
    /// What an image of the processes would lack.
    left_out: Option<String>,
}

pub(crate) async fn dry_run(context: &Context, text_of_id: &str) -> Result<String, CliError> {
    let id = context.sandbox_id(text_of_id)?;
    context.require_root(WHAT, &id)?;
    let live = Live::require(&context.config, WHAT, &id).await?;
    let request = DryRunRequest {
        id: id.id().into(),
        ..Default::default()
    };
    let timeout = context::with_duration(WORK_TIMEOUT);
    let found = live
        .client
        .dry_run(timeout, &request)
        .await
        .map_err(|error| refusal(WHAT, &id, &error))?;
    let possible = Possible {
        sandbox: id,
        class: found.class,
        reason: found.reason,
        obstacles: found.obstacles,
        left_out: Some(found.left_out).filter(|what| !what.is_empty()),
    };
    context.answer(&possible, possible_text)
}

fn possible_text(possible: &Possible) -> String {
    let mut text = format!(
        "{}: a checkpoint could be {}: {}\n",
        possible.sandbox,
        visible(&possible.class),
        visible(&possible.reason)
    );
    for line in possible.obstacles.iter().chain(&possible.left_out) {
        text.push_str(&format!("  {}\n", visible(line)));
    }
    text
}
