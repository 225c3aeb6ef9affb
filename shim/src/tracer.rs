// SPDX-License-Identifier: Apache-2.0
//! The shim's side of crabd: the effects of its sandbox.
//!
//! crabd is started if none listens, and asked again if it went away; while it is
//! away, the answer is the reason, and the sandbox goes on as ever. Only one start
//! is tried per [`RETRY`], so that a host where crabd cannot run does not pay for
//! it with every turn.

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
use tokio::{
    sync::Mutex,
    task::AbortHandle,
    time::{sleep, timeout},
};
use ttrpc::context::Context as Call;

use crate::sandbox::Host;

/// How long a start of crabd may take until it listens.
const START_LIMIT: Duration = Duration::from_secs(3);
/// How long one answer may take: crabd answers in microseconds.
const CALL_LIMIT: Duration = Duration::from_secs(1);
/// And while the sandbox stands still.
const QUICK_LIMIT: Duration = Duration::from_millis(200);
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
    link: Mutex<Link>,
    /// Holds the link until crabd is there.
    preparing: std::sync::Mutex<Option<AbortHandle>>,
    /// A crabd is expected that did not listen in time.
    is_late: AtomicBool,
}

#[derive(Default)]
struct Link {
    client: Option<TracerClient>,
    watched: Option<Watched>,
    /// When crabd last could not be started or did not answer, and why.
    failed: Option<(Instant, String)>,
}

impl Tracer {
    pub(crate) fn new(host: Arc<Host>, sandbox: String) -> Self {
        Self {
            host,
            sandbox,
            link: Mutex::default(),
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
            let mut link = this.link.lock().await;
            if link.client.is_none()
                && let Ok(client) = this.connect(&mut link).await
            {
                link.client = Some(client);
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
        let mut link = self.link.lock().await;
        link.watched = Some(watched);
        self.renew(&mut link).await
    }

    /// The counters now.
    pub(crate) async fn effects(self: &Arc<Self>) -> Result<Effects, String> {
        let mut link = self.link.lock().await;
        if let Some(client) = &link.client {
            match self.ask(client, None).await {
                Err(CallError::Refused(error)) => {
                    tracing::debug!(%error, "crabd does not know us; asking again");
                    link.client = None;
                }
                answer => return answer.map_err(|error| link.failure(error)),
            }
        }
        // Gone, or another one that knows nothing of us yet.
        self.renew(&mut link).await
    }

    /// The same while the sandbox stands still, which no crabd may prolong: of one that
    /// answers, and at once. With attention, [`Effects::calls`] counts from then on.
    pub(crate) async fn effects_now(&self, attention: Option<&Attention>) -> Option<Effects> {
        let mut link = self.link.lock().await;
        let client = link.client.as_ref()?;
        let answer = timeout(QUICK_LIMIT, self.ask(client, attention)).await;
        match answer {
            Ok(Ok(effects)) => Some(effects),
            _ => {
                // Dialled again, or started, when it is next asked at leisure.
                link.client = None;
                None
            }
        }
    }

    /// Which inodes of an overlay have changed since an earlier answer, of which `mark` is.
    /// The sandbox may stand still meanwhile, and is not to wait for a crabd that is only just
    /// coming; without an answer, anything may have changed.
    pub(crate) async fn changes(&self, device: u64, mark: &str) -> Option<Changes> {
        let link = self.link.try_lock().ok()?;
        let request = ChangesRequest {
            sandbox: self.sandbox.clone(),
            device,
            mark: mark.to_owned(),
            ..Default::default()
        };
        let client = link.client.as_ref()?;
        let asked = client.changes(Call::default(), &request);
        match timeout(QUICK_LIMIT, asked).await {
            Ok(Ok(changes)) => Some(changes),
            _ => None,
        }
    }

    async fn ask(
        &self,
        client: &TracerClient,
        attention: Option<&Attention>,
    ) -> Result<Effects, CallError> {
        let mut request = EffectsRequest {
            sandbox: self.sandbox.clone(),
            ..Default::default()
        };
        if let Some(attention) = attention {
            request.count_calls_ms = attention.duration.as_millis() as u32;
            request.spared_pid_namespace = attention.pid_namespace;
            request.spared_pids = attention.spared.clone();
        }
        within(client.effects(Call::default(), &request)).await
    }

    /// Ends the watch. Does not wait for a crabd that is only just coming.
    pub(crate) async fn unwatch(&self) {
        if let Some(preparing) = self.preparing().take() {
            preparing.abort();
        }
        let mut link = self.link.lock().await;
        link.watched = None;
        if let Some(client) = link.client.take() {
            let request = UnwatchRequest {
                sandbox: self.sandbox.clone(),
                ..Default::default()
            };
            // crabd also sees the shim go.
            let _ = within(client.unwatch(Call::default(), &request)).await;
        }
    }

    async fn renew(self: &Arc<Self>, link: &mut Link) -> Result<Effects, String> {
        let Some(watched) = link.watched.clone() else {
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
        if let Some(client) = link.client.take() {
            match within(client.watch(Call::default(), &request)).await {
                Err(CallError::Refused(error)) => {
                    tracing::debug!(%error, "crabd is gone or going; dialling again");
                }
                answer => return link.watches(client, answer),
            }
        }
        let client = self.connect(link).await?;
        let answer = within(client.watch(Call::default(), &request)).await;
        link.watches(client, answer)
    }

    async fn connect(self: &Arc<Self>, link: &mut Link) -> Result<TracerClient, String> {
        if let Some((when, why)) = &link.failed
            && when.elapsed() < RETRY
        {
            return Err(why.clone());
        }
        let socket = self.socket();
        if let Ok(client) = connect(&socket).await {
            link.failed = None;
            return Ok(TracerClient::new(client));
        }
        match self.start().await {
            Ok(client) => {
                link.failed = None;
                Ok(client)
            }
            Err(error) => {
                let why = format!("no crabd: {error:#}");
                link.failed = Some((Instant::now(), why.clone()));
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
                    let mut link = this.link.lock().await;
                    link.failed = None;
                    if link.client.is_none()
                        && let Err(why) = this.renew(&mut link).await
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

/// Why a call failed.
enum CallError {
    /// A crabd that hangs is not asked again with every turn: each question would
    /// cost the turn its whole limit.
    Silent,
    Refused(ttrpc::Error),
}

async fn within<T>(call: impl Future<Output = ttrpc::Result<T>>) -> Result<T, CallError> {
    match timeout(CALL_LIMIT, call).await {
        Ok(answer) => answer.map_err(CallError::Refused),
        Err(_) => Err(CallError::Silent),
    }
}

impl Link {
    /// Keeps a client that has begun to watch.
    fn watches(
        &mut self,
        client: TracerClient,
        answer: Result<Effects, CallError>,
    ) -> Result<Effects, String> {
        let effects = answer.map_err(|error| self.failure(error))?;
        self.client = Some(client);
        Ok(effects)
    }

    /// Why there is no answer; one that hangs is left.
    fn failure(&mut self, error: CallError) -> String {
        match error {
            CallError::Silent => {
                let why = "crabd does not answer in time".to_string();
                self.client = None;
                self.failed = Some((Instant::now(), why.clone()));
                why
            }
            CallError::Refused(ttrpc::Error::RpcStatus(status)) => status.message,
            CallError::Refused(other) => format!("crabd does not answer: {other}"),
        }
    }
}
