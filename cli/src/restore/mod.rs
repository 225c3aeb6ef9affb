// SPDX-License-Identifier: Apache-2.0

//! `crab restore S`: a sandbox again whose container or shim has died; with `--all`, each that was
//! lost ([`all`]).
//!
//! ```text
//! crab: wish into the store -> crab: start the container (docker, ctr)
//!   -> containerd: a new shim, Create -> shim: takes the wish, restores
//!   -> crab: the shim says "running", and its journal says "restored"
//! ```
//!
//! A wish that was not granted is taken back, so that a later ordinary start of
//! the container is an ordinary start. Of several who bring the same sandbox back one does, and the
//! others wait for that.

mod all;
mod containers;
mod judge;
mod report;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use crab_config::Config;
use crab_store::{
    Class, Client, JournalRecord, Lacks, Manifest, RestoreRequest, Restoring, SandboxId,
    SandboxStore, TurnId,
};
use tokio::{task::spawn_blocking, time::sleep};

pub(crate) use self::all::run as all;
use crate::{
    context::Context,
    docker,
    error::{CliError, Code, StoreError},
    interrupt,
    live::{Live, NoAnswer},
    named::TurnName,
    output::{duration, now_ms},
    progress::{Phase, waiting},
    rollback::{Back, with},
    starter::Starter,
};

const WHAT: &str = "restore";
/// For how long the new shim may take after the container was started.
const RUNNING_TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

pub(crate) async fn run(
    context: &Context,
    text_of_id: &str,
    turn: Option<&TurnName>,
) -> Result<String, CliError> {
    let sandbox = context.sandbox(text_of_id)?;
    let turn = turn.map(|turn| turn.of(&sandbox)).transpose()?;
    context.require_root(WHAT, sandbox.id())?;
    let phase = Phase::new(format!("{}: another crab is at it", sandbox.id()));
    let work = async {
        let _alone = alone(&sandbox).await?;
        one(&context.config, &sandbox, turn, &phase).await
    };
    let (restored, _) = waiting(context, &phase, work).await?;
    context.answer(&restored, |restored| {
        format!(
            "{} runs again as at turn {} (checkpoint {}, {}) after {}\n",
            restored.sandbox,
            restored.turn,
            restored.checkpoint,
            with(restored.processes),
            duration(restored.took_us)
        )
    })
}

/// Waits until nobody else brings it back.
async fn alone(sandbox: &SandboxStore) -> Result<Restoring, CliError> {
    let taken = async {
        loop {
            match sandbox.restoring() {
                Ok(Some(restoring)) => return Ok(restoring),
                Ok(None) => sleep(POLL).await,
                Err(error) => return Err(error.to_string()),
            }
        }
    };
    let what = format!("cannot {WHAT} {}", sandbox.id());
    let taken = unless_interrupted(taken).await;
    taken.map_err(|why| CliError::failed(what, why, "nothing was changed"))
}

/// Brings it back, and tells what its checkpoint renewed. Whoever calls has it [`alone`].
async fn one(
    config: &Config,
    sandbox: &SandboxStore,
    turn: Option<TurnId>,
    phase: &Phase,
) -> Result<(Back, Class), CliError> {
    let id = sandbox.id().clone();
    require_gone(config, &id).await?;

    let what = format!("cannot {WHAT} {id}");
    let failed = |error| CliError::store(&what, error);
    let manifest = choose(sandbox, turn).map_err(failed)?;
    let Some(manifest) = manifest else {
        return Err(CliError::new(
            Code::NotFound,
            what,
            "it has no checkpoint",
            "start its container again to begin anew",
        ));
    };
    let turn = turn.unwrap_or(manifest.turn);
    let (of, held) = (sandbox.clone(), manifest.clone());
    let checked = spawn_blocking(move || check(&of, &held)).await;
    let lacks = checked
        .map_err(|panic| CliError::failed(&what, panic, "report this"))?
        .map_err(failed)?;
    if let Some(lacks) = lacks {
        return Err(lacking(what, &id, &lacks));
    }
    let starter = Starter::of(client(sandbox).map_err(failed)?);
    let Some(starter) = starter else {
        return Err(CliError::new(
            Code::Refused,
            what,
            "it is a container of a pod, which Kubernetes replaces by a new one when it has ended",
            format!("use `crab rollback {id} --turn TURN` while it lives"),
        ));
    };

    let began = Instant::now();
    let request = RestoreRequest {
        turn,
        checkpoint: manifest.turn,
        requested_ms: now_ms(),
        fork: false,
    };
    sandbox
        .request_restore(request)
        .map_err(|error| failed(error.into()))?;
    phase.now(format!("{id}: {} starts its container", starter.name()));
    let work = unless_interrupted(bring_back(config, sandbox, starter, phase));
    let pid = match work.await {
        Ok(pid) => pid,
        Err(why) => {
            let advice = match sandbox.cancel_restore() {
                Ok(_) if starter.has_lost(&id).await => match awaited(sandbox) {
                    Some(image) => format!(
                        "it never had one: make a container {} for it first, from {image}, with the \
                         options that it had",
                        id.id()
                    ),
                    None => format!(
                        "{} has no such container any more, and only one that it has can be started; the checkpoints are untouched",
                        starter.name()
                    ),
                },
                Ok(_) => "its checkpoints are untouched, the shim's log says more".to_owned(),
                Err(error) => format!("and its next start would restore it, because of: {error}"),
            };
            return Err(CliError::failed(what, why, advice));
        }
    };
    // Whoever asks for it by its name has it.
    let _ = sandbox.take_spare();
    let back = Back {
        sandbox: id,
        turn,
        checkpoint: manifest.turn,
        processes: manifest.processes.is_some(),
        pid,
        took_us: began.elapsed().as_micros() as u64,
    };
    Ok((back, manifest.class))
}

/// Nothing was tried: it would fail, or go wrong later.
pub(crate) fn lacking(what: String, id: &SandboxId, lacks: &Lacks) -> CliError {
    CliError::new(
        Code::Refused,
        what,
        lacks,
        format!("take a machine that is like it, or a turn without processes: `crab turns {id}`"),
    )
}

async fn require_gone(config: &Config, id: &SandboxId) -> Result<(), CliError> {
    let what = format!("cannot {WHAT} {id}");
    match Live::find(config, id).await {
        Err(NoAnswer::Gone) => Ok(()),
        Ok(live) if live.status.state == "stopped" => Ok(()),
        Ok(live) => Err(CliError::new(
            Code::Refused,
            what,
            format!("it is {}", live.status.state),
            format!("use `crab rollback {id} --turn TURN`, or stop it first"),
        )),
        Err(NoAnswer::Deaf(why)) => Err(CliError::new(
            Code::Refused,
            what,
            format!("its shim is there but does not answer: {why}"),
            "try again, or kill that shim first",
        )),
    }
}

fn choose(sandbox: &SandboxStore, turn: Option<TurnId>) -> Result<Option<Manifest>, StoreError> {
    Ok(match turn {
        Some(turn) => Some(sandbox.checkpoint_of(turn)?),
        None => sandbox.head()?,
    })
}

/// Reads what tells whether the checkpoint is whole: better now than when the
/// container has been started.
///
/// Tells what this machine lacks for its processes, if anything.
fn check(sandbox: &SandboxStore, manifest: &Manifest) -> Result<Option<Lacks>, StoreError> {
    let reader = sandbox.reader(manifest)?;
    reader.get(manifest.spec)?;
    reader.tree(manifest.files.upper)?;
    for tmpfs in &manifest.files.tmpfs {
        reader.tree(tmpfs.tree)?;
    }
    match &manifest.processes {
        Some(processes) => Ok(reader.process_image(processes.digest)?.lacking()),
        None => Ok(None),
    }
}

/// The image of a sandbox that no container has been made for yet.
fn awaited(sandbox: &SandboxStore) -> Option<String> {
    let meta = sandbox.meta().ok().flatten()?;
    let image = meta.image.unwrap_or_else(|| "the same image".to_owned());
    meta.bundle.is_empty().then_some(image)
}

/// Who made its container.
pub(crate) fn client(sandbox: &SandboxStore) -> Result<Client, StoreError> {
    let by_namespace = match sandbox.id().namespace() {
        docker::NAMESPACE => Client::Docker,
        _ => Client::Containerd,
    };
    Ok(sandbox.meta()?.map_or(by_namespace, |meta| meta.client))
}

/// Starts the container and waits until it runs; says in one line why not.
async fn bring_back(
    config: &Config,
    sandbox: &SandboxStore,
    starter: Starter,
    phase: &Phase,
) -> Result<u32, String> {
    let id = sandbox.id();
    let before = restores(sandbox)?;
    // Once a shim has taken the wish, another start would be an ordinary one.
    let wish_is_open = || matches!(sandbox.restore_request(), Ok(Some(_)));
    let meta = sandbox.meta().map_err(|error| error.to_string())?;
    let bundle = meta.map(|meta| PathBuf::from(meta.bundle));
    starter.start(id, bundle.as_deref(), wish_is_open).await?;
    let deadline = Instant::now() + RUNNING_TIMEOUT;
    phase.now(format!("{id}: its shim restores it"));
    loop {
        let mut last = "no shim has come up".to_owned();
        match Live::find(config, id).await {
            Ok(live) if live.status.state == "running" => {
                if restores(sandbox)? > before {
                    return Ok(live.status.pid);
                }
                if wish_is_open() {
                    return Err("it was started, but not restored".to_owned());
                }
                last = "it runs, but its journal does not say that it was restored".to_owned();
            }
            Ok(live) if live.status.state == "stopped" => {
                return Err("it was started, and stopped at once".to_owned());
            }
            Ok(live) => last = format!("it is still {}", live.status.state),
            Err(NoAnswer::Gone) => {}
            Err(NoAnswer::Deaf(why)) => last = why,
        }
        if Instant::now() > deadline {
            let seconds = RUNNING_TIMEOUT.as_secs();
            return Err(format!("it was not back within {seconds} s: {last}"));
        }
        sleep(POLL).await;
    }
}

/// How often the journal says that the sandbox was restored.
fn restores(sandbox: &SandboxStore) -> Result<usize, String> {
    let journal = sandbox.journal().map_err(|error| error.to_string())?;
    let restores = journal.records.iter();
    Ok(restores
        .filter(|record| matches!(record, JournalRecord::Restore(_)))
        .count())
}

/// So that the wish is taken back when the user loses patience.
async fn unless_interrupted<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let interrupted = async {
        if !interrupt::wait().await {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        done = work => done,
        () = interrupted => Err("interrupted".to_owned()),
    }
}
