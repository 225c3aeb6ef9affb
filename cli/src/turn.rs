// SPDX-License-Identifier: Apache-2.0

//! `crab turn begin|end S`: what an agent framework knows of its turns.

use std::collections::HashMap;

use crab_api::{
    sandbox::{BeginTurnRequest, EndTurnRequest},
    ttrpc::context,
};
use crab_store::{SandboxId, TurnId};
use serde::Serialize;

use crate::{
    args::Hint,
    context::Context,
    error::CliError,
    live::{HINT_TIMEOUT, Live, refusal},
};

#[derive(Serialize)]
struct Hinted {
    sandbox: SandboxId,
    turn: TurnId,
    open: bool,
}

pub(crate) async fn run(context: &Context, hint: Hint) -> Result<String, CliError> {
    let (what, begins, about) = match hint {
        Hint::Begin(about) => ("begin a turn of", true, about),
        Hint::End(about) => ("end the turn of", false, about),
    };
    let id = context.sandbox_id(&about.sandbox)?;
    context.require_root(what, &id)?;
    let live = Live::require(&context.config, what, &id).await?;
    let meta: HashMap<String, String> = about.meta.into_iter().collect();
    let timeout = context::with_duration(HINT_TIMEOUT);
    let done = if begins {
        let request = BeginTurnRequest {
            id: id.id().into(),
            meta,
            ..Default::default()
        };
        live.client.begin_turn(timeout, &request).await
    } else {
        let request = EndTurnRequest {
            id: id.id().into(),
            meta,
            ..Default::default()
        };
        live.client.end_turn(timeout, &request).await
    };
    let done = done.map_err(|error| refusal(what, &id, &error))?;
    let hinted = Hinted {
        sandbox: id,
        turn: TurnId(done.turn),
        open: begins,
    };
    context.answer(&hinted, |hinted| {
        let verb = if hinted.open { "begun" } else { "over" };
        format!("{}: turn {} is {verb}\n", hinted.sandbox, hinted.turn)
    })
}
