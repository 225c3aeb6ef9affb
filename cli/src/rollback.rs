// SPDX-License-Identifier: Apache-2.0

//! `crab rollback S --turn N`: a live sandbox as it was, in place.

use crab_api::{sandbox::RollbackRequest, ttrpc::context};
use crab_store::{ReadError, SandboxId, TurnId};
use serde::Serialize;

use crate::{
    context::Context,
    error::CliError,
    live::{Live, WORK_TIMEOUT, refusal},
    named::TurnName,
    output::{duration, visible},
    progress::{Phase, waiting},
    verify::Compared,
};

const WHAT: &str = "roll back";

/// What is wanted.
pub(crate) struct Wish {
    pub(crate) turn: TurnName,
    /// Compare afterwards.
    pub(crate) verify: bool,
    /// Whether the processes are to be replaced in any case.
    pub(crate) cold: bool,
}

/// What a rollback or a restore did.
#[derive(Serialize)]
pub(crate) struct Back {
    pub(crate) sandbox: SandboxId,
    pub(crate) turn: TurnId,
    /// The checkpoint that was brought back: that of the turn itself, or the
    /// one that held its state.
    pub(crate) checkpoint: TurnId,
    /// Whether the checkpoint holds processes, or its init is all.
    pub(crate) processes: bool,
    pub(crate) pid: u32,
    pub(crate) took_us: u64,
}

/// What a rollback did, with how.
#[derive(Serialize)]
struct RolledBack {
    #[serde(flatten)]
    back: Back,
    /// Its processes went on, and only files were put back.
    warm: bool,
    /// Why not.
    cold_because: Option<String>,
    /// What of the time the checkpoint of the state before took.
    secured_us: u64,
    /// For how long the sandbox stood still.
    stood_us: u64,
    /// If it was compared with the checkpoint afterwards.
    verified: Option<Compared>,
}

/// The text, and whether the sandbox is as it should be, as far as that was asked.
pub(crate) async fn run(
    context: &Context,
    text_of_id: &str,
    wish: Wish,
) -> Result<(String, bool), CliError> {
    let Wish { turn, verify, cold } = wish;
    let id = context.sandbox_id(text_of_id)?;
    context.require_root(WHAT, &id)?;
    let turn = turn.within(context, &id.to_string())?;
    let live = Live::require(&context.config, WHAT, &id).await?;
    // The turn that ended last may not be published yet, and the shim knows
    // more than the store, so it decides; what surely cannot be is said here.
    if turn.0 > live.status.turn
        && let Err(error) = known(context, &id, turn)
    {
        return Err(CliError::store(format!("cannot {WHAT} {id}"), error.into()));
    }
    let request = RollbackRequest {
        turn: turn.0,
        id: id.id().into(),
        verify,
        cold,
        ..Default::default()
    };
    let timeout = context::with_duration(WORK_TIMEOUT);
    let phase = Phase::new(format!("rolling {id} back to turn {turn}"));
    let done = waiting(context, &phase, live.client.rollback(timeout, &request))
        .await
        .map_err(|error| match known(context, &id, turn) {
            // The store knows also what there is around it.
            Err(missing @ ReadError::NoCheckpoint { .. }) => {
                CliError::store(format!("cannot {WHAT} {id}"), missing.into())
            }
            _ => refusal(WHAT, &id, &error),
        })?;
    let done = RolledBack {
        back: Back {
            sandbox: id,
            turn,
            checkpoint: TurnId(done.checkpoint),
            processes: done.processes,
            pid: done.pid,
            took_us: done.took_us,
        },
        warm: done.warm,
        cold_because: Some(done.cold_because).filter(|why| !why.is_empty()),
        secured_us: done.secured_us,
        stood_us: done.stood_us,
        verified: done.verification.into_option().map(Compared::from),
    };
    let as_asked = done.verified.as_ref().is_none_or(|it| it.same);
    Ok((context.answer(&done, text)?, as_asked))
}

fn text(done: &RolledBack) -> String {
    let Back {
        sandbox,
        turn,
        checkpoint,
        processes,
        took_us,
        ..
    } = &done.back;
    let how = match done.warm {
        true => "warm: files alone".to_owned(),
        false => format!("cold: {}", with(*processes)),
    };
    let mut text = format!(
        "{sandbox} is back at turn {turn} (checkpoint {checkpoint}, {how}) after {}\n",
        duration(*took_us)
    );
    if let Some(why) = &done.cold_because {
        text.push_str(&format!("cold, as {}\n", visible(why)));
    }
    if let Some(compared) = &done.verified {
        text.push_str(&compared.text(sandbox));
    }
    text
}

/// Whether the store has what holds a turn, as far as it knows the sandbox.
fn known(context: &Context, id: &SandboxId, turn: TurnId) -> Result<(), ReadError> {
    match context.sandbox(&id.to_string()) {
        Ok(sandbox) => sandbox.checkpoint_of(turn).map(|_| ()),
        Err(_) => Ok(()),
    }
}

/// What was brought back, in words.
pub(crate) fn with(processes: bool) -> &'static str {
    if processes {
        "files and processes"
    } else {
        "files, init started again"
    }
}
