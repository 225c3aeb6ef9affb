// SPDX-License-Identifier: Apache-2.0
//! The limit that the host has for the checkpoints of all its sandboxes
//! (`retention.host_max_bytes`).
//!
//! ```text
//! sizes of all packs --over it?--> of sandboxes that are gone: removed here
//!   ^                              of live ones: asked of their shims, which have the writers
//!   +-- a pause, by what it took
//! ```
//! A look costs one `stat` per pack, and a thousand times what it took of a processor passes before
//! the next one. What must stay of each sandbox stays (`crab_store::SandboxWriter::collect`), also where that is more
//! than is allowed: that is told, and not tried again before more has come.
//!
//! All of it is on a thread of its own and of low priority, since looking at disks blocks.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    sync::atomic::{AtomicBool, Ordering},
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime},
};

use anyhow::Context;
use crab_api::{
    paths,
    sandbox::CollectRequest,
    sandbox_ttrpc::SandboxClient,
    ttrpc::{Error, context::with_duration},
};
use crab_config::Config;
use crab_store::{OpenError, SandboxId, SandboxStore, Store, Wanted, over};
use rustix::{
    process::{getpriority_process, setpriority_process},
    time::{ClockId, clock_gettime},
};
use tokio::{sync::Notify, time::sleep};
use tracing::{info, warn};

/// The least time between two looks: shorter than crabd stays when the last sandbox has gone.
const PAUSE: Duration = Duration::from_secs(5);
/// A look takes one part in so many of a processor's time, at most.
const LOOK_SHARE: u32 = 1000;
/// The same of a removal.
const REMOVAL_SHARE: u32 = 10;
/// When what could not be removed is tried again, even if nothing has come: what was read may
/// not be read any more.
const AGAIN: Duration = Duration::from_secs(600);
/// The part of what is allowed that has to come anew before then.
const NEW_SHARE: u64 = 64;
/// For how long a shim may take to remove.
const SHIM_TIMEOUT: Duration = Duration::from_secs(300);
/// As `nice` has it.
const NICENESS: i32 = 10;

/// Keeps the limit until it is ended.
pub(crate) struct Retention {
    stop: Arc<Stop>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct Stop {
    /// Looked at by whoever removes.
    told: AtomicBool,
    /// Wakes whoever waits.
    tell: Notify,
}

impl Retention {
    /// Begins to keep the limit, if the host has one.
    pub(crate) fn begin(config: &Config) -> io::Result<Option<Self>> {
        let Some(most) = config.retention.host_bytes() else {
            return Ok(None);
        };
        let stop = Arc::new(Stop::default());
        let keeper = Keeper {
            store: config.store.clone(),
            run_dir: config.run_dir.clone(),
            most,
            stop: stop.clone(),
            settled: None,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let work = move || {
            // Without, it is as any other thread.
            if getpriority_process(None).is_ok_and(|nice| nice < NICENESS) {
                let _ = setpriority_process(None, NICENESS);
            }
            runtime.block_on(keeper.run());
        };
        let thread = thread::Builder::new()
            .name("retention".into())
            .spawn(work)?;
        Ok(Some(Self { stop, thread }))
    }

    /// Has it end, and waits for it: a removal ends between two objects.
    pub(crate) fn end(self) {
        self.stop.told.store(true, Ordering::Relaxed);
        self.stop.tell.notify_one();
        if self.thread.join().is_err() {
            warn!("the thread that keeps the host's limit panicked");
        }
    }
}

/// What came of a removal.
#[derive(Default)]
struct Freed {
    bytes: u64,
    /// More of it is freed later, by whoever removes or when nobody reads it any more.
    goes_on: bool,
}

struct Keeper {
    store: PathBuf,
    run_dir: PathBuf,
    /// How many bytes all may take together.
    most: u64,
    stop: Arc<Stop>,
    settled: Option<Settled>,
}

/// What was left by a removal after which it was still too much.
#[derive(Clone, Copy)]
struct Settled {
    taken: u64,
    at: Instant,
}

/// Whether a removal may find something.
fn is_due(taken: u64, most: u64, settled: Option<Settled>, now: Instant) -> bool {
    taken > most
        && settled.is_none_or(|settled| {
            let new = taken.saturating_sub(settled.taken);
            new > most / NEW_SHARE || now.saturating_duration_since(settled.at) >= AGAIN
        })
}

impl Keeper {
    async fn run(mut self) {
        let stop = self.stop.clone();
        loop {
            let pause = tokio::select! {
                biased;
                () = stop.tell.notified() => return,
                pause = self.look() => pause,
            };
            tokio::select! {
                biased;
                () = stop.tell.notified() => return,
                () = sleep(pause) => {}
            }
        }
    }

    /// Looks, and has removed what is too much; tells how long not to look again.
    async fn look(&mut self) -> Duration {
        let (now, began) = (Instant::now(), spent());
        let (store, sandboxes) = match self.sandboxes() {
            Ok(Some(found)) => found,
            Ok(None) => return PAUSE,
            Err(error) => {
                warn!("the limit of the host cannot be kept: {error}");
                return AGAIN;
            }
        };
        let taken = store.bytes_of(&sandboxes);
        let pause = PAUSE.max((spent() - began) * LOOK_SHARE);
        if taken <= self.most {
            self.settled = None;
        }
        if !is_due(taken, self.most, self.settled, now) {
            return pause;
        }
        let Freed { bytes, goes_on } = self
            .remove(&store, &sandboxes, over(taken, self.most))
            .await;
        let left = store.bytes_of(&sandboxes);
        info!(
            taken,
            left,
            freed = bytes,
            most = self.most,
            "the host's limit"
        );
        self.settled = None;
        if left > self.most && !goes_on {
            warn!(
                "the checkpoints of all sandboxes take {left} bytes, and retention.host_max_bytes \
                 allows {}; what is left must stay, is shared by copies, or is in use: see crab du, \
                 remove names with crab tag --delete, or allow more",
                self.most
            );
            self.settled = Some(Settled {
                taken: left,
                at: Instant::now(),
            });
        }
        pause.max((spent() - began) * REMOVAL_SHARE)
    }

    /// All that have a history; nothing where Crab has not run yet.
    fn sandboxes(&self) -> Result<Option<(Store, Vec<SandboxId>)>, OpenError> {
        match Store::open(&self.store) {
            Err(OpenError::NoStore(_)) => Ok(None),
            store => {
                let store = store?;
                let sandboxes = store.sandboxes()?;
                Ok(Some((store, sandboxes)))
            }
        }
    }

    /// Has so many bytes removed.
    async fn remove(&self, store: &Store, sandboxes: &[SandboxId], mut over: u64) -> Freed {
        let is_live = |id: &SandboxId| self.address(id).exists();
        let mut all = Freed::default();
        for sandbox in store.givers(sandboxes, is_live) {
            all.goes_on |= self.stop.told.load(Ordering::Relaxed);
            // What is to be freed of one is not taken from the next.
            if over == 0 || all.goes_on {
                break;
            }
            let room = sandbox
                .bytes()
                .map(|left| sandbox.room(left, over, now_ms()));
            let Ok(Some(room)) = room else {
                continue;
            };
            match self.remove_from(store, &sandbox, room).await {
                Ok(freed) => {
                    over = over.saturating_sub(freed.bytes);
                    all.bytes += freed.bytes;
                    all.goes_on |= freed.goes_on;
                }
                // The next one may have something to give, and this one another time.
                Err(error) => warn!("nothing is removed of {}: {error:#}", sandbox.id()),
            }
        }
        all
    }

    /// Has a sandbox keep what needs no more than `room`.
    async fn remove_from(
        &self,
        store: &Store,
        sandbox: &SandboxStore,
        room: u64,
    ) -> anyhow::Result<Freed> {
        let id = sandbox.id();
        match store.writer(id) {
            Ok(writer) => {
                let wanted = Wanted {
                    stop: Some(&self.stop.told),
                    yields: true,
                    ..Wanted::down_to(room, now_ms())
                };
                let done = writer.collect(&wanted)?;
                Ok(Freed {
                    bytes: done.bytes_freed,
                    goes_on: done.postponed.is_some(),
                })
            }
            Err(OpenError::Locked(_)) => self.ask(id, room).await,
            Err(error) => Err(error.into()),
        }
    }

    /// Asks the shim that has the writer.
    async fn ask(&self, id: &SandboxId, room: u64) -> anyhow::Result<Freed> {
        let address = fs::read_to_string(self.address(id)).context("it has no shim")?;
        let client = crab_api::connect(Path::new(address.trim())).await?;
        let request = CollectRequest {
            id: id.id().into(),
            max_bytes: Some(room),
            ..Default::default()
        };
        let client = SandboxClient::new(client);
        let timeout = with_duration(SHIM_TIMEOUT);
        Ok(match client.collect(timeout, &request).await {
            Ok(done) => Freed {
                bytes: done.bytes_freed,
                goes_on: !done.postponed.is_empty(),
            },
            Err(Error::RpcStatus(status)) => return Err(Error::RpcStatus(status).into()),
            // It was asked, and may be at it.
            Err(_) => Freed {
                bytes: 0,
                goes_on: true,
            },
        })
    }

    fn address(&self, id: &SandboxId) -> PathBuf {
        paths::sandbox_address(&self.run_dir, id.namespace(), id.id())
    }
}

/// What this thread has had of a processor: on a busy host much less than the time that passes.
fn spent() -> Duration {
    let spent = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_removed_is_tried_again_when_more_has_come_or_it_is_long_ago() {
        let now = Instant::now();
        let settled = Some(Settled {
            taken: 7000,
            at: now,
        });
        assert!(!is_due(6400, 6400, None, now));
        assert!(is_due(6401, 6400, None, now));
        assert!(!is_due(7100, 6400, settled, now));
        assert!(is_due(7101, 6400, settled, now));
        assert!(is_due(7000, 6400, settled, now + AGAIN));
        assert!(!is_due(6400, 6400, settled, now + AGAIN));
    }
}
