// SPDX-License-Identifier: Apache-2.0

//! `crab fork S[@N]`: running copies of a sandbox, as it is or as it was at the end of a turn.
//!
//! ```text
//! a checkpoint of now, or that of turn N
//!   -> for each copy: container (containerd, Docker) -> history and wish (the store) -> start
//!   -> containerd: a new shim, Create -> shim: grants the wish, as for `crab restore`
//! ```
//! Copies are made beside each other, and one that fails takes nothing of the others along:
//! its container, snapshot and history go again.

mod containerd;
mod docker;
mod docker_config;
mod maker;
mod names;
mod spec;

use std::{
    str::FromStr,
    sync::Arc,
    thread::available_parallelism,
    time::{Duration, Instant},
};

use crab_api::{sandbox::CheckpointRequest, ttrpc::context};
use crab_store::{Fork, Manifest, OpenError, SandboxId, SandboxStore, Store, TurnId};
use serde::Serialize;
use tokio::{
    sync::{Semaphore, watch},
    task::{JoinHandle, JoinSet, spawn_blocking},
    time::sleep,
};

use self::maker::{Draft, Maker};
pub(crate) use self::names::Pattern;
use crate::{
    context::Context,
    error::{CliError, Code},
    interrupt,
    live::{Live, NoAnswer, WORK_TIMEOUT, refusal},
    named::TurnName,
    output::{duration, now_ms, visible},
    progress::{Phase, waiting},
    restore,
    rollback::with,
};

const WHAT: &str = "fork";
/// For how long the shim of a copy that failed may take to let go of its history.
const LET_GO: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

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

/// One copy that was made, or was not.
#[derive(Serialize)]
struct Copied {
    /// Where there is a container of it.
    sandbox: Option<SandboxId>,
    name: String,
    pid: Option<u32>,
    /// How long its container took to be made, its history, and its start.
    container_us: u64,
    history_us: u64,
    start_us: u64,
    took_us: u64,
    error: Option<String>,
}

/// What all copies have in common.
struct Template {
    maker: Maker,
    store: Store,
    parent: SandboxStore,
    turn: TurnId,
    manifest: Manifest,
}

/// The text, and whether all copies were made.
pub(crate) async fn run(context: &Context, wish: Wish) -> Result<(String, bool), CliError> {
    let began = Instant::now();
    let parent = context.sandbox(&wish.point.sandbox)?;
    let id = parent.id().clone();
    context.require_root(WHAT, &id)?;
    let what = format!("cannot {WHAT} {id}");
    let turn = wish.point.turn.as_ref();
    let turn = turn.map(|turn| turn.of(&parent)).transpose()?;
    let client = restore::client(&parent).map_err(|error| CliError::store(&what, error))?;
    let refused = |why: String| CliError::new(Code::Refused, &what, why, "nothing was changed");
    let maker = Maker::of(client, &id).await.map_err(refused)?;
    let names = match &wish.name {
        Some(pattern) => pattern.names(wish.count),
        None => {
            let taken = maker.taken().await.map_err(refused)?;
            names::free(maker.name(), &taken, wish.count)
        }
    };
    let phase = Phase::new(format!("{id}: a checkpoint of now"));
    let (turn, manifest) = waiting(context, &phase, state(context, &parent, turn)).await?;
    let secured = began.elapsed();
    let template = Arc::new(Template {
        maker,
        store: context.store()?,
        parent,
        turn,
        manifest,
    });
    let phase = Phase::new(format!("copies of {id}"));
    let forks = waiting(context, &phase, all(&template, names, &phase)).await;
    let made = forks.iter().filter(|fork| fork.error.is_none()).count();
    if let (0, [fork]) = (made, forks.as_slice()) {
        let why = fork.error.clone().unwrap_or_default();
        let what = format!("cannot {WHAT} {id} as {}", fork.name);
        return Err(CliError::failed(what, why, "nothing is left of it"));
    }
    let whole = made == forks.len();
    let forked = Forked {
        sandbox: id,
        turn,
        checkpoint: template.manifest.turn,
        processes: template.manifest.processes.is_some(),
        degraded: template.manifest.degraded.clone(),
        secured_us: micros(secured),
        took_us: micros(began.elapsed()),
        forks,
    };
    Ok((context.answer(&forked, text)?, whole))
}

fn micros(duration: Duration) -> u64 {
    duration.as_micros() as u64
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
            (None, Some(id)) if id.id() != fork.name => format!("  {} ({id})\n", fork.name),
            (None, _) => format!("  {}\n", fork.name),
        };
        text.push_str(&line);
    }
    text
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

/// Makes all copies, in the order of their names.
async fn all(template: &Arc<Template>, names: Vec<String>, phase: &Phase) -> Vec<Copied> {
    let cores = available_parallelism().map_or(1, usize::from);
    let places = Arc::new(Semaphore::new(cores * AT_ONCE));
    // What is half made then is taken away.
    let stop = interrupt::told();
    let mut tasks = JoinSet::new();
    let count = names.len();
    phase.at(0, count);
    for (number, name) in names.into_iter().enumerate() {
        let (template, places, stop) = (template.clone(), places.clone(), stop.clone());
        tasks.spawn(async move {
            let _place = places.acquire_owned().await;
            (number, one(&template, name, stop).await)
        });
    }
    let mut made = Vec::with_capacity(count);
    while let Some(one) = tasks.join_next().await {
        made.push(one.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())));
        phase.at(made.len(), count);
    }
    made.sort_by_key(|(number, _)| *number);
    made.into_iter().map(|(_, copied)| copied).collect()
}

/// How many copies are made at a time for each core: half of each one's time is waiting.
const AT_ONCE: usize = 2;

/// How long each step of a copy took.
#[derive(Default)]
struct Laps {
    container: Duration,
    history: Duration,
    start: Duration,
}

async fn one(template: &Arc<Template>, name: String, stop: watch::Receiver<bool>) -> Copied {
    let began = Instant::now();
    let stopped = *stop.borrow();
    let mut laps = Laps::default();
    let made = match stopped {
        true => Err("interrupted".to_owned()),
        false => copy(template, &name, stop, &mut laps).await,
    };
    let (sandbox, pid, error) = match made {
        Ok((id, pid)) => (Some(id), Some(pid), None),
        Err(why) => (None, None, Some(why)),
    };
    Copied {
        sandbox,
        name,
        pid,
        container_us: micros(laps.container),
        history_us: micros(laps.history),
        start_us: micros(laps.start),
        took_us: micros(began.elapsed()),
        error,
    }
}

async fn copy(
    template: &Arc<Template>,
    name: &str,
    mut stop: watch::Receiver<bool>,
    laps: &mut Laps,
) -> Result<(SandboxId, u32), String> {
    let began = Instant::now();
    let draft = template.maker.create(name).await?;
    laps.container = began.elapsed();
    let began = Instant::now();
    let history = begin(template, &draft);
    let start = async |history: SandboxStore| {
        laps.history = began.elapsed();
        let began = Instant::now();
        let pid = template.maker.start(&draft).await?;
        laps.start = began.elapsed();
        match history.restore_request() {
            Ok(None) => Ok(pid),
            // Its shim could not: then it runs, but as something else.
            Ok(Some(_)) => Err("it was started, but not as a copy".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    };
    let begun = unless_stopped(history, start, &mut stop).await;
    let why = match begun {
        Ok(pid) => return Ok((draft.id, pid)),
        Err(why) => why,
    };
    let mut left = Vec::new();
    left.extend(template.maker.undo(&draft).await.err());
    left.extend(forget(&template.store, &draft.id).await.err());
    match left.is_empty() {
        true => Err(why),
        false => Err(format!("{why}; of it is left: {}", left.join(", "))),
    }
}

/// Does one thing and then another, or tells why not. The first, which is on a thread and cannot
/// be broken off, has ended in any case when this returns: whoever takes it back takes back all
/// of it.
async fn unless_stopped<A, B>(
    mut first: JoinHandle<Result<A, String>>,
    then: impl AsyncFnOnce(A) -> Result<B, String>,
    stop: &mut watch::Receiver<bool>,
) -> Result<B, String> {
    let both = async {
        let done = (&mut first).await.map_err(|error| error.to_string())?;
        then(done?).await
    };
    let done = tokio::select! {
        done = both => done,
        _ = stop.wait_for(|stop| *stop) => Err("interrupted".to_owned()),
    };
    // Whoever has its outcome must not ask for it again.
    if !first.is_finished() {
        let _ = first.await;
    }
    done
}

/// Makes the history of a copy.
fn begin(template: &Arc<Template>, draft: &Draft) -> JoinHandle<Result<SandboxStore, String>> {
    let template = template.clone();
    let (id, upper) = (draft.id.clone(), draft.upper.clone());
    spawn_blocking(move || {
        let fork = Fork {
            parent: &template.parent,
            turn: template.turn,
            manifest: &template.manifest,
            upper: upper.as_deref(),
            now_ms: now_ms(),
        };
        let forked = template.store.fork(&id, &fork);
        forked.map_err(|error| error.to_string())
    })
}

/// Takes the history of a copy away that never was.
async fn forget(store: &Store, id: &SandboxId) -> Result<(), String> {
    let began = Instant::now();
    loop {
        match store.remove(id) {
            Ok(()) | Err(OpenError::NoSandbox(_)) => return Ok(()),
            Err(OpenError::Locked(_)) if began.elapsed() < LET_GO => sleep(PAUSE).await,
            Err(error) => return Err(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[tokio::test]
    async fn what_is_interrupted_leaves_nothing_running_behind() {
        let (interrupt, mut stop) = watch::channel(false);
        let ended = Arc::new(AtomicBool::new(false));
        let end = ended.clone();
        let first = spawn_blocking(move || {
            std::thread::sleep(Duration::from_millis(200));
            end.store(true, Ordering::Relaxed);
            Ok(())
        });
        interrupt.send(true).unwrap();
        let done = unless_stopped(first, async |()| Ok(()), &mut stop).await;
        assert_eq!(done, Err("interrupted".to_owned()));
        assert!(ended.load(Ordering::Relaxed));

        // Nor where the second step is, or nothing was.
        let first = spawn_blocking(|| Ok(7));
        let then = async |_| std::future::pending::<Result<(), String>>().await;
        let done = unless_stopped(first, then, &mut stop).await;
        assert_eq!(done, Err("interrupted".to_owned()));
        interrupt.send(false).unwrap();
        let first = spawn_blocking(|| Ok(7));
        let done = unless_stopped(first, async |seven| Ok(seven + 1), &mut stop).await;
        assert_eq!(done, Ok(8));
        let first = spawn_blocking(|| Err::<u8, _>("no room".to_owned()));
        let done = unless_stopped(first, async |_| Ok(()), &mut stop).await;
        assert_eq!(done, Err("no room".to_owned()));
    }

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
