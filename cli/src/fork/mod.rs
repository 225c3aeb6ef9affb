// SPDX-License-Identifier: Apache-2.0

//! `crab fork S[@N]`: running copies of a sandbox, as it is or as it was at the end of a turn.
//!
//! ```text
//! a checkpoint of now, or that of turn N
//!   -> for each copy: container (containerd, Docker) -> history and wish (the store) -> start
//!   -> containerd: a new shim, Create -> shim: grants the wish, as for `crab restore`
//! ```
//! With `--warm` they are made in advance, and stand still until somebody wants one.

mod containerd;
mod copy;
mod docker;
mod docker_config;
mod maker;
mod names;
mod spares;
mod spec;

use std::{str::FromStr, sync::Arc, time::Instant};

use crab_api::{sandbox::CheckpointRequest, ttrpc::context};
use crab_store::{Manifest, SandboxId, SandboxStore, TurnId};
use serde::Serialize;

use self::{
    copy::{Copied, Template, micros},
    maker::Maker,
};
pub(crate) use self::{names::Pattern, spares::warm};
use crate::{
    context::Context,
    error::{CliError, Code},
    live::{Live, NoAnswer, WORK_TIMEOUT, refusal},
    named::TurnName,
    output::{duration, visible},
    progress::{Phase, waiting},
    restore,
    rollback::with,
};

const WHAT: &str = "fork";

/// `S` or `S@N`.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    sandbox: String,
    turn: Option<TurnName>,
}

impl FromStr for Point {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.rsplit_once('@') {
            Some((sandbox, turn)) => Self {
                sandbox: sandbox.to_owned(),
                turn: Some(turn.parse()?),
            },
            None => Self {
                sandbox: text.to_owned(),
                turn: None,
            },
        })
    }
}

/// What was asked for.
pub(crate) struct Wish {
    pub(crate) point: Point,
    pub(crate) count: u32,
    pub(crate) name: Option<Pattern>,
}

#[derive(Serialize)]
struct Forked {
    sandbox: SandboxId,
    /// The turn of it that the copies are as.
    turn: TurnId,
    /// The checkpoint that holds that state.
    checkpoint: TurnId,
    /// Whether the copies have its processes, or their init is started anew.
    processes: bool,
    /// What the checkpoint lacks, and why.
    degraded: Option<String>,
    /// How long it took to have a checkpoint of now.
    secured_us: u64,
    took_us: u64,
    forks: Vec<Copied>,
}

/// The text, and whether all copies were made.
pub(crate) async fn run(context: &Context, wish: Wish) -> Result<(String, bool), CliError> {
    let began = Instant::now();
    let origin = Origin::find(context, &wish.point).await?;
    let id = origin.parent.id().clone();
    let wanted = wish.name.as_ref().map(|name| name.names(wish.count));
    let template = origin.template(context).await?;
    let secured = began.elapsed();
    let phase = Phase::new(format!("copies of {id}"));
    let work = async {
        let mut forks = spares::take(context, &template, wish.count, wanted.as_deref()).await;
        let names = match wanted {
            Some(mut names) => {
                names.retain(|name| forks.iter().all(|fork| fork.name != *name));
                names
            }
            None => {
                let taken = template.maker.taken().await?;
                let missing = wish.count - forks.len() as u32;
                names::free(template.maker.name(), &taken, missing)
            }
        };
        forks.extend(copy::all(&template, names, copy::Until::Runs, &phase).await);
        Ok(forks)
    };
    let forks = waiting(context, &phase, work).await;
    let forks = forks.map_err(|why: String| {
        let what = format!("cannot {WHAT} {id}");
        CliError::failed(what, why, "what was prepared in advance may run now")
    })?;
    let made = forks.iter().filter(|fork| fork.error.is_none()).count();
    if let (0, [fork]) = (made, forks.as_slice()) {
        let why = fork.error.clone().unwrap_or_default();
        let what = format!("cannot {WHAT} {id} as {}", fork.name);
        return Err(CliError::failed(what, why, "nothing is left of it"));
    }
    let whole = made == forks.len();
    let forked = Forked {
        sandbox: id,
        turn: template.turn,
        checkpoint: template.manifest.turn,
        processes: template.manifest.processes.is_some(),
        degraded: template.manifest.degraded.clone(),
        secured_us: micros(secured),
        took_us: micros(began.elapsed()),
        forks,
    };
    Ok((context.answer(&forked, text)?, whole))
}

/// A sandbox that is to be copied, and who makes its copies.
struct Origin {
    parent: SandboxStore,
    turn: Option<TurnId>,
    maker: Maker,
}

impl Origin {
    async fn find(context: &Context, point: &Point) -> Result<Self, CliError> {
        let parent = context.sandbox(&point.sandbox)?;
        let id = parent.id();
        context.require_root(WHAT, id)?;
        let what = format!("cannot {WHAT} {id}");
        let turn = point.turn.as_ref();
        let turn = turn.map(|turn| turn.of(&parent)).transpose()?;
        let client = restore::client(&parent).map_err(|error| CliError::store(&what, error))?;
        let maker = Maker::of(client, id).await;
        let maker =
            maker.map_err(|why| CliError::new(Code::Refused, &what, why, "nothing was changed"))?;
        Ok(Self {
            parent,
            turn,
            maker,
        })
    }

    /// Refuses a checkpoint of processes that this machine cannot run.
    fn can_be_restored(&self, manifest: &Manifest) -> Result<(), CliError> {
        let Some(processes) = manifest.processes else {
            return Ok(());
        };
        let (id, what) = (
            self.parent.id(),
            format!("cannot {WHAT} {}", self.parent.id()),
        );
        let reader = self.parent.reader(manifest);
        let image = reader.and_then(|reader| reader.process_image(processes.digest));
        let image = image.map_err(|error| CliError::store(&what, error.into()))?;
        match image.lacking() {
            Some(lacks) => Err(restore::lacking(what, id, &lacks)),
            None => Ok(()),
        }
    }

    /// With a checkpoint of the state that is wanted.
    async fn template(self, context: &Context) -> Result<Arc<Template>, CliError> {
        let phase = Phase::new(format!("{}: a checkpoint of now", self.parent.id()));
        let state = state(context, &self.parent, self.turn);
        let (turn, manifest) = waiting(context, &phase, state).await?;
        self.can_be_restored(&manifest)?;
        Ok(Arc::new(Template {
            maker: self.maker,
            store: context.store()?,
            parent: self.parent,
            turn,
            manifest,
        }))
    }
}

fn text(forked: &Forked) -> String {
    let made = forked.forks.iter().filter(|fork| fork.error.is_none());
    let mut text = format!(
        "{} of {} copies of {} at turn {} (checkpoint {}, {}) after {}\n",
        made.count(),
        forked.forks.len(),
        forked.sandbox,
        forked.turn,
        forked.checkpoint,
        with(forked.processes),
        duration(forked.took_us)
    );
    if let Some(why) = &forked.degraded {
        text.push_str(&format!("{}\n", visible(why)));
    }
    for fork in &forked.forks {
        let line = match (&fork.error, &fork.sandbox) {
            (Some(why), _) => format!("  {} failed: {}\n", fork.name, visible(why)),
            (None, Some(id)) if id.id() != fork.name => {
                format!("  {} ({id}){}\n", fork.name, in_advance(fork))
            }
            (None, _) => format!("  {}{}\n", fork.name, in_advance(fork)),
        };
        text.push_str(&line);
    }
    text
}

fn in_advance(fork: &Copied) -> &'static str {
    match fork.warm {
        true => ", made in advance",
        false => "",
    }
}

/// The state to copy: that at the end of the turn, or else that of now, of which a live
/// sandbox takes a checkpoint.
async fn state(
    context: &Context,
    parent: &SandboxStore,
    turn: Option<TurnId>,
) -> Result<(TurnId, Manifest), CliError> {
    let id = parent.id();
    let what = format!("cannot {WHAT} {id}");
    let failed = |error: crab_store::ReadError| CliError::store(&what, error.into());
    if let Some(turn) = turn {
        return Ok((turn, parent.checkpoint_of(turn).map_err(failed)?));
    }
    let checkpoint = match Live::find(&context.config, id).await {
        Ok(live) if live.status.state != "stopped" => {
            let request = CheckpointRequest {
                id: id.id().into(),
                ..Default::default()
            };
            let timeout = context::with_duration(WORK_TIMEOUT);
            let taken = live.client.checkpoint(timeout, &request).await;
            let taken = taken.map_err(|error| refusal(WHAT, id, &error))?;
            parent.manifest(TurnId(taken.turn)).map_err(failed)?
        }
        Ok(_) | Err(NoAnswer::Gone) => parent.head().map_err(failed)?,
        Err(NoAnswer::Deaf(why)) => {
            return Err(CliError::new(
                Code::Refused,
                what,
                format!("its shim is there but does not answer: {why}"),
                format!("say which turn: `crab {WHAT} {id}@TURN`"),
            ));
        }
    };
    let manifest = checkpoint.ok_or_else(|| {
        CliError::new(
            Code::NotFound,
            &what,
            "it has no checkpoint",
            format!("`crab checkpoint {id}` says why"),
        )
    })?;
    Ok((manifest.turn, manifest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_a_sandbox_and_perhaps_a_turn() {
        let point = |text: &str| text.parse::<Point>().unwrap();
        assert_eq!(point("ns/demo").sandbox, "ns/demo");
        assert!(point("ns/demo").turn.is_none());
        let with_turn = point("ns/demo@7");
        assert_eq!(with_turn.sandbox, "ns/demo");
        assert!(matches!(with_turn.turn, Some(TurnName::Number(TurnId(7)))));
        assert!(matches!(point("demo@good").turn, Some(TurnName::Tag(_))));
        assert!("demo@".parse::<Point>().is_err());
    }
}
