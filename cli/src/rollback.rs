// SPDX-License-Identifier: Apache-2.0

//! `crab rollback S --turn N`: a live sandbox as it was, in place.

use crab_api::{sandbox::RollbackRequest, ttrpc::context};
use crab_store::{SandboxId, TurnId};
use serde::Serialize;

use crate::{
    context::Context,
    error::CliError,
    live::{Live, WORK_TIMEOUT, refusal},
    output::duration,
};

const WHAT: &str = "roll back";

/// What a rollback or a restore did.
#[derive(Serialize)]
pub(crate) struct Back {
    pub(crate) sandbox: SandboxId,
    pub(crate) turn: TurnId,
    /// The checkpoint that was brought back: that of the turn itself, or the
    /// one that held its state.
    pub(crate) checkpoint: TurnId,
    /// Whether processes were restored, or init started again.
    pub(crate) processes: bool,
    pub(crate) pid: u32,
    pub(crate) took_us: u64,
}

pub(crate) async fn run(
    context: &Context,
    text_of_id: &str,
    turn: TurnId,
) -> Result<String, CliError> {
    let id = context.sandbox_id(text_of_id)?;
    context.require_root(WHAT, &id)?;
    let live = Live::require(&context.config, WHAT, &id).await?;
    // The turn that ended last may not be published yet, and the shim knows
    // more than the store, so it decides; what surely cannot be is said here.
    if turn.0 > live.status.turn
        && let Ok(sandbox) = context.sandbox(&id.to_string())
    {
        let known = sandbox.checkpoint_of(turn);
        if let Err(error) = known {
            return Err(CliError::store(format!("cannot {WHAT} {id}"), error.into()));
        }
    }
    let request = RollbackRequest {
        turn: turn.0,
        id: id.id().into(),
        ..Default::default()
    };
    let timeout = context::with_duration(WORK_TIMEOUT);
    let done = live
        .client
        .rollback(timeout, &request)
        .await
        .map_err(|error| refusal(WHAT, &id, &error))?;
    let done = Back {
        sandbox: id,
        turn,
        checkpoint: TurnId(done.checkpoint),
        processes: done.processes,
        pid: done.pid,
        took_us: done.took_us,
    };
    context.answer(&done, |done| {
        format!(
            "{} is back at turn {} (checkpoint {}, {}) after {}\n",
            done.sandbox,
            done.turn,
            done.checkpoint,
            with(done.processes),
            duration(done.took_us)
        )
    })
}

/// What was brought back, in words.
pub(crate) fn with(processes: bool) -> &'static str {
    if processes {
        "files and processes"
    } else {
        "files, init started again"
    }
}
