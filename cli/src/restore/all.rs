// SPDX-License-Identifier: Apache-2.0

//! `crab restore --all`: every sandbox that was lost, several at a time.
//!
//! Each is looked at, then looked at again when its turn has come and nobody else brings it back:
//! two of these at once, or one after the other, restore nothing twice.

use std::{fs, rc::Rc, sync::Arc, thread::available_parallelism, time::Instant};

use crab_api::{sandbox::RollbackRequest, ttrpc::context};
use crab_config::Config;
use crab_store::{SandboxMeta, SandboxStore, TurnId};
use tokio::{
    sync::{Semaphore, watch},
    task::{JoinSet, LocalSet, spawn_blocking},
};

use super::{
    alone, client,
    containers::Containers,
    judge::{Known, Verdict, with_container, without_container},
    one,
    report::{Done, Outcome, Report, Row},
};
use crate::{
    context::Context,
    docker,
    error::{CliError, Code, StoreError},
    interrupt,
    live::{Live, NoAnswer, WORK_TIMEOUT, refusal},
    progress::{Phase, waiting},
    rollback::Back,
};

/// How many are looked at at a time: each has its journal and a connection open.
const LOOKS: usize = 32;
/// How many are brought back at a time for each processor: half of each one's time is waiting.
const AT_ONCE: usize = 2;
/// Of the memory that is free, one part in so many is for those that are being brought back.
const SHARE: u64 = 2;
/// How often an image of processes is in memory while it is restored: laid out for CRIU, and as
/// the memory of the processes.
const TIMES: u64 = 2;
const MIB: u64 = 1 << 20;

/// What all of them share.
struct Shared {
    config: Config,
    containers: Containers,
    /// How many at a time.
    places: Arc<Semaphore>,
    /// How many MiB at a time, and in all.
    memory: Arc<Semaphore>,
    most: u64,
    interrupted: watch::Receiver<bool>,
}

/// Tells whether all that was lost is back.
pub(crate) async fn run(context: &Context, dry_run: bool) -> Result<(String, bool), CliError> {
    let began = Instant::now();
    if !rustix::process::geteuid().is_root() {
        return Err(CliError::new(
            Code::Refused,
            "cannot restore all",
            "only root may",
            "run crab as root",
        ));
    }
    let listed = context.store_if_any()?.map(|store| {
        let ids = store.sandboxes()?;
        Ok(ids.iter().flat_map(|id| store.sandbox(id)).collect())
    });
    let sandboxes: Vec<SandboxStore> = listed
        .transpose()
        .map_err(|error: crab_store::OpenError| {
            CliError::store("cannot list the sandboxes", error.into())
        })?
        .unwrap_or_default();
    let ids: Vec<_> = sandboxes.iter().map(|it| it.id().clone()).collect();
    let mut names = docker::names(&ids);

    let cores = available_parallelism().map_or(1, usize::from);
    let most = (available_memory() / SHARE / MIB).clamp(1, Semaphore::MAX_PERMITS as u64);
    let shared = Rc::new(Shared {
        config: context.config.clone(),
        containers: Containers::default(),
        places: Arc::new(Semaphore::new(cores * AT_ONCE)),
        memory: Arc::new(Semaphore::new(most as usize)),
        most,
        interrupted: interrupt::told(),
    });
    let phase = Phase::new("looking at the sandboxes");
    let work = LocalSet::new();
    let work = work.run_until(all(&shared, sandboxes, dry_run, &phase));
    let done = waiting(context, &phase, work).await;
    let rows = done.into_iter().map(|(sandbox, outcome)| Row {
        sandbox: sandbox.id().clone(),
        name: names.remove(sandbox.id()).or_else(|| {
            let meta = sandbox.meta().ok().flatten();
            meta.and_then(|meta| meta.name)
        }),
        outcome,
    });
    let report = Report::of(rows.collect(), dry_run, began.elapsed().as_micros() as u64);
    let whole = report.is_whole();
    Ok((context.answer(&report, Report::text)?, whole))
}

/// What became of each, in the order in which they came.
async fn all(
    shared: &Rc<Shared>,
    sandboxes: Vec<SandboxStore>,
    dry_run: bool,
    phase: &Phase,
) -> Vec<(SandboxStore, Outcome)> {
    let mut looks = JoinSet::new();
    let at_once = Arc::new(Semaphore::new(LOOKS));
    for (number, sandbox) in sandboxes.into_iter().enumerate() {
        let (shared, at_once) = (shared.clone(), at_once.clone());
        looks.spawn_local(async move {
            let _place = at_once.acquire_owned().await;
            let verdict = look(&shared, &sandbox).await;
            (number, sandbox, verdict)
        });
    }
    let mut done = Vec::new();
    let mut lost = Vec::new();
    for (number, sandbox, verdict) in looks.join_all().await {
        match decided(verdict, dry_run) {
            Ok(outcome) => done.push((number, sandbox, outcome)),
            Err(verdict) => lost.push((number, sandbox, verdict)),
        }
    }
    // Who was active last is waited for first.
    lost.sort_by_key(|(_, sandbox, _)| {
        let head = sandbox.head().ok().flatten();
        std::cmp::Reverse(head.map(|head| head.created_ms))
    });
    let count = lost.len();
    let mut works = JoinSet::new();
    for (number, sandbox, verdict) in lost {
        let shared = shared.clone();
        works.spawn_local(async move {
            let outcome = bring(&shared, &sandbox, verdict).await;
            (number, sandbox, outcome)
        });
    }
    phase.now("bringing back what was lost");
    phase.at(0, count);
    for at in 1..=count {
        if let Some(one) = works.join_next().await {
            let (number, sandbox, outcome) =
                one.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
            phase.now(format!("last: {}", sandbox.id()));
            done.push((number, sandbox, outcome));
        }
        phase.at(at, count);
    }
    done.sort_by_key(|(number, ..)| *number);
    let done = done.into_iter();
    done.map(|(_, sandbox, outcome)| (sandbox, outcome))
        .collect()
}

/// What is an outcome already; otherwise what is to be done.
fn decided(verdict: Verdict, dry_run: bool) -> Result<Outcome, Verdict> {
    match verdict {
        Verdict::Leave(why) => Ok(Outcome::left(why)),
        Verdict::Fail(why) => Ok(Outcome::Failed { why }),
        Verdict::Restore(checkpoint) if dry_run => Ok(Outcome::WouldBeRestored { checkpoint }),
        Verdict::RollBack(checkpoint) if dry_run => Ok(Outcome::WouldBeRolledBack { checkpoint }),
        verdict => Err(verdict),
    }
}

/// What is to become of it. One that cannot be judged has failed.
async fn look(shared: &Shared, sandbox: &SandboxStore) -> Verdict {
    let judged = async {
        let (known, meta) = known(shared, sandbox).await?;
        if let Some(verdict) = without_container(&known) {
            return Ok(verdict);
        }
        let mut interrupted = shared.interrupted.clone();
        let asked = shared
            .containers
            .of(sandbox.id(), known.client, meta.as_ref());
        let container = tokio::select! {
            biased;
            _ = interrupted.wait_for(|it| *it) => Err("interrupted".to_owned()),
            container = asked => container,
        }?;
        Ok(with_container(&known, &container))
    };
    judged.await.unwrap_or_else(Verdict::Fail)
}

async fn known(
    shared: &Shared,
    sandbox: &SandboxStore,
) -> Result<(Known, Option<SandboxMeta>), String> {
    let state = match Live::find(&shared.config, sandbox.id()).await {
        Ok(live) => Some(live.status.state),
        Err(NoAnswer::Gone) => None,
        Err(NoAnswer::Deaf(why)) => {
            return Err(format!("its shim is there but does not answer: {why}"));
        }
    };
    let of = sandbox.clone();
    let read = spawn_blocking(move || -> Result<_, StoreError> {
        let known = Known {
            client: client(&of)?,
            // One of which that cannot be read is brought back rather than left.
            is_spare: matches!(of.spare(), Ok(Some(_))),
            life: of.life().map_err(|error| error.to_string()),
            state,
            head: match of.head() {
                Ok(head) => Ok(head.map(|manifest| manifest.turn)),
                Err(error) => Err(error.to_string()),
            },
        };
        Ok((known, of.meta()?))
    });
    let read = read.await.map_err(|panic| panic.to_string())?;
    read.map_err(|error| error.to_string())
}

/// Brings one back, when there is room for it.
async fn bring(shared: &Shared, sandbox: &SandboxStore, verdict: Verdict) -> Outcome {
    let mut interrupted = shared.interrupted.clone();
    let places = async {
        let place = shared.places.clone().acquire_owned().await;
        let needs = needs(sandbox, &verdict).await.clamp(1, shared.most);
        let memory = shared.memory.clone().acquire_many_owned(needs as u32).await;
        (place, memory)
    };
    let _places = tokio::select! {
        biased;
        _ = interrupted.wait_for(|it| *it) => return Outcome::failed("interrupted"),
        places = places => places,
    };
    let _alone = match alone(sandbox).await {
        Ok(alone) => alone,
        Err(error) => return Outcome::failed(error.why()),
    };
    // Somebody else may have brought it back meanwhile.
    let phase = Phase::new("");
    match look(shared, sandbox).await {
        Verdict::Leave(why) => Outcome::left(why),
        Verdict::Fail(why) => Outcome::Failed { why },
        Verdict::Restore(turn) => match one(&shared.config, sandbox, Some(turn), &phase).await {
            Ok((back, class)) => Outcome::Restored(Done::new(back, Some(class))),
            Err(error) => Outcome::failed(error.why()),
        },
        Verdict::RollBack(turn) => match roll_back(shared, sandbox, turn).await {
            Ok(done) => Outcome::RolledBack(done),
            Err(why) => Outcome::Failed { why },
        },
    }
}

async fn roll_back(shared: &Shared, sandbox: &SandboxStore, turn: TurnId) -> Result<Done, String> {
    let id = sandbox.id();
    let Ok(live) = Live::find(&shared.config, id).await else {
        return Err("it runs no more".to_owned());
    };
    let request = RollbackRequest {
        turn: turn.0,
        id: id.id().into(),
        ..Default::default()
    };
    let timeout = context::with_duration(WORK_TIMEOUT);
    let back = live.client.rollback(timeout, &request).await;
    let back = back.map_err(|error| refusal("roll back", id, &error).why().to_owned())?;
    let manifest = sandbox.manifest(TurnId(back.checkpoint)).ok().flatten();
    let done = Back {
        sandbox: id.clone(),
        turn,
        checkpoint: TurnId(back.checkpoint),
        processes: back.processes,
        pid: back.pid,
        took_us: back.took_us,
    };
    Ok(Done::new(done, manifest.map(|manifest| manifest.class)))
}

/// How many MiB of memory bringing it back takes, by the image of its processes. Of one that cannot
/// be read it is said later why.
async fn needs(sandbox: &SandboxStore, verdict: &Verdict) -> u64 {
    let (Verdict::Restore(checkpoint) | Verdict::RollBack(checkpoint)) = *verdict else {
        return 0;
    };
    let sandbox = sandbox.clone();
    let read = spawn_blocking(move || {
        let manifest = sandbox.manifest(checkpoint).ok()??;
        let reader = sandbox.reader(&manifest).ok()?;
        let image = reader.process_image(manifest.processes?.digest).ok()?;
        Some(image.files.iter().map(|file| file.size).sum::<u64>())
    });
    read.await.ok().flatten().unwrap_or(0) * TIMES / MIB
}

/// What the kernel could give to programs, in bytes; where it does not say, as if it were nothing.
fn available_memory() -> u64 {
    let table = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = table
        .lines()
        .find_map(|it| it.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|it| it.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
