// SPDX-License-Identifier: Apache-2.0

//! Making copies: container, history, start.
//!
//! They are made beside each other, and one that fails takes nothing of the others along:
//! its container, snapshot and history go again.

use std::{
    sync::Arc,
    thread::available_parallelism,
    time::{Duration, Instant},
};

use crab_store::{Fork, Manifest, OpenError, SandboxId, SandboxStore, Spare, Store, TurnId};
use serde::Serialize;
use tokio::{
    sync::{Semaphore, watch},
    task::{JoinHandle, JoinSet, spawn_blocking},
    time::sleep,
};

use super::maker::{Draft, Maker};
use crate::{interrupt, output::now_ms, progress::Phase};

/// For how long the shim of a copy that failed may take to let go of its history.
const LET_GO: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// One copy that was made, or was not.
#[derive(Serialize)]
pub(super) struct Copied {
    /// Where there is a container of it.
    pub(super) sandbox: Option<SandboxId>,
    pub(super) name: String,
    pub(super) pid: Option<u32>,
    /// It was made in advance, and has only been told to go on.
    pub(super) warm: bool,
    /// How long its container took to be made, its history, and its start.
    pub(super) container_us: u64,
    pub(super) history_us: u64,
    pub(super) start_us: u64,
    pub(super) took_us: u64,
    pub(super) error: Option<String>,
}

/// What all copies have in common.
pub(super) struct Template {
    pub(super) maker: Maker,
    pub(super) store: Store,
    pub(super) parent: SandboxStore,
    pub(super) turn: TurnId,
    pub(super) manifest: Manifest,
}

/// How far a copy is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// It goes on at once.
    Runs,
    /// It is nobody's yet, and stands still.
    IsSpare,
}

pub(super) fn micros(duration: Duration) -> u64 {
    duration.as_micros() as u64
}

/// Makes all copies, in the order of their names.
pub(super) async fn all(
    template: &Arc<Template>,
    names: Vec<String>,
    until: Until,
    phase: &Phase,
) -> Vec<Copied> {
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
            (number, one(&template, name, until, stop).await)
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

async fn one(
    template: &Arc<Template>,
    name: String,
    until: Until,
    stop: watch::Receiver<bool>,
) -> Copied {
    let began = Instant::now();
    let stopped = *stop.borrow();
    let mut laps = Laps::default();
    let made = match stopped {
        true => Err("interrupted".to_owned()),
        false => copy(template, &name, until, stop, &mut laps).await,
    };
    let (sandbox, pid, error) = match made {
        Ok((id, pid)) => (Some(id), Some(pid), None),
        Err(why) => (None, None, Some(why)),
    };
    Copied {
        sandbox,
        name,
        pid,
        warm: false,
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
    until: Until,
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
        if until == Until::IsSpare {
            template.maker.pause(&draft.id).await?;
            // Only now: nobody else takes what is half made.
            let aside = history.set_aside(&Spare::of(&template.manifest));
            aside.map_err(|error| error.to_string())?;
        }
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
    match take_back(template, &draft).await {
        Ok(()) => Err(why),
        Err(left) => Err(format!("{why}; of it is left: {left}")),
    }
}

/// Takes a copy away as a whole: its container, its snapshot and its history. Tells what is left.
pub(super) async fn take_back(template: &Template, draft: &Draft) -> Result<(), String> {
    let mut left = Vec::new();
    left.extend(template.maker.undo(draft).await.err());
    left.extend(forget(&template.store, &draft.id).await.err());
    match left.is_empty() {
        true => Ok(()),
        false => Err(left.join(", ")),
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
}
