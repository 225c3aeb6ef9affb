// SPDX-License-Identifier: Apache-2.0
//! The shim's side of crabd: the effects of its sandbox.
//!
//! crabd is started if none listens, and asked again if it went away; while it is
//! away, the answer is the reason, and the sandbox goes on as ever. Only one start
//! is tried per [`RETRY`], so that a host where crabd cannot run does not pay for
//! it with every turn. What becomes of a connection on which nobody answers, or not in time, is
//! for [`link`] to say.

mod link;

use std::{
    fs::File,
    path::PathBuf,
    process::{Command, Stdio},
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use crab_api::{
    connect, paths,
    tracer::{Changes, ChangesRequest, Effects, EffectsRequest, UnwatchRequest, WatchRequest},
    tracer_ttrpc::TracerClient,
};
use crab_runtime::cgroup::Cgroup;
use tokio::{sync::Mutex, task::AbortHandle, time::sleep};

use self::link::{Link, NoAnswer};
use crate::sandbox::Host;

/// How long a start of crabd may take until it listens.
const START_LIMIT: Duration = Duration::from_secs(3);
/// How long one answer may take: crabd answers in microseconds.
const CALL_LIMIT: Duration = Duration::from_secs(1);
/// And while the sandbox stands still.
const QUICK_LIMIT: Duration = Duration::from_millis(400);
/// For how long one that did not is expected to come nevertheless: on a busy host the
/// kernel checks its programs for longer than a turn can wait.
const LATE_LIMIT: Duration = Duration::from_secs(60);
/// How often it is looked whether it has come.
const LATE_PAUSE: Duration = Duration::from_millis(100);
/// The pause between two tries to start a crabd that does not come up.
const RETRY: Duration = Duration::from_secs(10);

/// What is watched for a sandbox.
#[derive(Clone)]
pub(crate) struct Watched {
    pub(crate) cgroup: Cgroup,
    pub(crate) devices: Vec<u64>,
    /// Process id of its init.
    pub(crate) init: i32,
}

/// The wish to know whether a sandbox's processes go on.
pub(crate) struct Attention {
    pub(crate) duration: Duration,
    /// Those whose doings do not matter, by their ids in the innermost pid namespace that
    /// they are in, and its inode number.
    pub(crate) spared: Vec<u32>,
    pub(crate) pid_namespace: u32,
}

/// The link to crabd.
pub(crate) struct Tracer {
    host: Arc<Host>,
    sandbox: String,
    state: Mutex<State>,
    /// Holds the link until crabd is there.
    preparing: std::sync::Mutex<Option<AbortHandle>>,
    /// A crabd is expected that did not listen in time.
    is_late: AtomicBool,
}

#[derive(Default)]
struct State {
    link: Link,
    watched: Option<Watched>,
    /// When crabd last could not be started, and why.
    failed: Option<(Instant, String)>,
}

impl Tracer {
    pub(crate) fn new(host: Arc<Host>, sandbox: String) -> Self {
        Self {
            host,
            sandbox,
            state: Mutex::default(),
            preparing: std::sync::Mutex::default(),
            is_late: AtomicBool::new(false),
        }
    }

    fn socket(&self) -> PathBuf {
        paths::crabd_socket(&self.host.config.run_dir)
    }

    /// Connects ahead of the first question, and starts crabd where it does not run, which
    /// takes as long as its programs take to be checked. That it failed is told to
    /// whoever asks.
    pub(crate) fn prepare(self: &Arc<Self>) {
        let this = self.clone();
        let task = tokio::spawn(async move {
            let mut state = this.state.lock().await;
            if !state.link.is_there()
                && let Ok(client) = this.connect(&mut state).await
            {
                state.link.is(client);
            }
        });
        *self.preparing() = Some(task.abort_handle());
    }

    fn preparing(&self) -> std::sync::MutexGuard<'_, Option<AbortHandle>> {
        self.preparing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether crabd is still on its way: whoever asks it now waits for it.
    pub(crate) fn is_coming(&self) -> bool {
        let preparing = self.preparing();
        preparing.as_ref().is_some_and(|task| !task.is_finished())
    }

    /// Begins to watch, or goes on with another cgroup and other devices.
    pub(crate) async fn watch(self: &Arc<Self>, watched: Watched) -> Result<Effects, String> {
        let mut state = self.state.lock().await;
        state.watched = Some(watched);
        self.renew(&mut state).await
    }

    /// The counters now.
    pub(crate) async fn effects(self: &Arc<Self>) -> Result<Effects, String> {
        let mut state = self.state.lock().await;
        match state.link.effects(CALL_LIMIT, &self.question(None)).await {
            Ok(effects) => Ok(effects),
            Err(silent @ NoAnswer::Silent) => Err(silent.to_string()),
            // Gone, or another one that knows nothing of us yet.
            Err(why) => {
                tracing::debug!(%why, "telling crabd of the sandbox again");
                self.renew(&mut state).await
            }
        }
    }

    /// The same while the sandbox stands still, which no crabd may prolong: of one that
    /// answers, and at once. With attention, [`Effects::calls`] counts from then on.
    pub(crate) async fn effects_now(&self, attention: Option<&Attention>) -> Option<Effects> {
        let mut state = self.state.lock().await;
        let question = self.question(attention);
        // One that is gone is dialled again, or started, when it is next asked at leisure.
        state.link.effects(QUICK_LIMIT, &question).await.ok()
    }

    /// Which inodes of an overlay have changed since an earlier answer, of which `mark` is.
    /// The sandbox may stand still meanwhile, and is not to wait for a crabd that is only just
    /// coming; without an answer, anything may have changed.
    pub(crate) async fn changes(&self, device: u64, mark: &str) -> Option<Changes> {
        let mut state = self.state.try_lock().ok()?;
        let request = ChangesRequest {
            sandbox: self.sandbox.clone(),
            device,
            mark: mark.to_owned(),
            ..Default::default()
        };
        state.link.changes(QUICK_LIMIT, &request).await.ok()
    }

    fn question(&self, attention: Option<&Attention>) -> EffectsRequest {
        let mut request = EffectsRequest {
            sandbox: self.sandbox.clone(),
            ..Default::default()
        };
        if let Some(attention) = attention {
            request.count_calls_ms = attention.duration.as_millis() as u32;
            request.spared_pid_namespace = attention.pid_namespace;
            request.spared_pids = attention.spared.clone();
        }
        request
    }

    /// Ends the watch. Does not wait for a crabd that is only just coming.
    pub(crate) async fn unwatch(&self) {
        if let Some(preparing) = self.preparing().take() {
            preparing.abort();
        }
        let mut state = self.state.lock().await;
        state.watched = None;
        let request = UnwatchRequest {
            sandbox: self.sandbox.clone(),
            ..Default::default()
        };
        state.link.end(CALL_LIMIT, &request).await;
    }

    async fn renew(self: &Arc<Self>, state: &mut State) -> Result<Effects, String> {
        let Some(watched) = state.watched.clone() else {
            return Err("the sandbox is not watched yet".into());
        };
        let request = WatchRequest {
            sandbox: self.sandbox.clone(),
            cgroup_id: watched.cgroup.id(),
            devices: watched.devices,
            shim_address: self.host.address.clone(),
            shim_pid: std::process::id(),
            init_pid: watched.init as u32,
            ..Default::default()
        };
        if state.link.is_there() {
            match state.link.watch(CALL_LIMIT, &request).await {
                Err(NoAnswer::Gone(error)) => {
                    tracing::debug!(error, "crabd is gone or going; dialling again");
                }
                answer => return answer.map_err(|why| why.to_string()),
            }
        }
        let client = self.connect(state).await?;
        state.link.is(client);
        let answer = state.link.watch(CALL_LIMIT, &request).await;
        answer.map_err(|why| why.to_string())
    }

    async fn connect(self: &Arc<Self>, state: &mut State) -> Result<TracerClient, String> {
        if let Some((when, why)) = &state.failed
            && when.elapsed() < RETRY
        {
            return Err(why.clone());
        }
        let socket = self.socket();
        if let Ok(client) = connect(&socket).await {
            state.failed = None;
            return Ok(TracerClient::new(client));
        }
        match self.start().await {
            Ok(client) => {
                state.failed = None;
                Ok(client)
            }
            Err(error) => {
                let why = format!("no crabd: {error:#}");
                state.failed = Some((Instant::now(), why.clone()));
                Err(why)
            }
        }
    }

    /// Starts crabd. Several shims may do so at once: crabd itself sees to it
    /// that one stays.
    async fn start(self: &Arc<Self>) -> Result<TracerClient> {
        let run_dir = &self.host.config.run_dir;
        let Some(program) = self.host.config.crabd_binary() else {
            bail!("crabd is neither beside the shim nor on PATH; install it");
        };
        std::fs::create_dir_all(run_dir).with_context(|| format!("make {}", run_dir.display()))?;
        let log = File::options()
            .create(true)
            .append(true)
            .open(paths::crabd_log(run_dir))
            .context("open crabd's log")?;
        let mut command = Command::new(&program);
        command
            .arg("--socket")
            .arg(self.socket())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .current_dir("/");
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let (_child, mut exit) = self
            .host
            .reaper
            .spawn(&mut command)
            .with_context(|| format!("start {}", program.display()))?;
        let start = Instant::now();
        loop {
            if let Ok(client) = connect(&self.socket()).await {
                return Ok(TracerClient::new(client));
            }
            if let Ok(exit) = exit.try_recv()
                && exit.status != 0
            {
                bail!("crabd ended with {}; see its log", exit.status);
            }
            if start.elapsed() > START_LIMIT {
                self.expect_late();
                bail!("crabd does not listen after {} s", START_LIMIT.as_secs());
            }
            sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Tracer {
    /// Begins the watch when a crabd listens that was too slow for whoever asked it: it goes
    /// again if it gets no sandbox, and with turns far apart none would ever find it there.
    fn expect_late(self: &Arc<Self>) {
        if self.is_late.swap(true, Ordering::SeqCst) {
            return;
        }
        let this = Arc::downgrade(self);
        tokio::spawn(async move {
            let start = Instant::now();
            while start.elapsed() < LATE_LIMIT {
                sleep(LATE_PAUSE).await;
                let Some(this) = this.upgrade() else { return };
                if connect(&this.socket()).await.is_ok() {
                    let mut state = this.state.lock().await;
                    state.failed = None;
                    if !state.link.is_there()
                        && let Err(why) = this.renew(&mut state).await
                    {
                        tracing::debug!(why, "crabd came late, and does not watch");
                    }
                    break;
                }
            }
            if let Some(this) = this.upgrade() {
                this.is_late.store(false, Ordering::SeqCst);
            }
        });
    }
}
