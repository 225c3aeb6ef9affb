// SPDX-License-Identifier: Apache-2.0
//! The container of this shim: what containerd's calls do to it.
//!
//! Owns the bundle, the runtime, the root's mounts and the network namespace.
//! Its processes' states are in [`crate::container`], its turns, checkpoints and
//! rollbacks in [`crate::turns`]: this file only says when those begin.
//!
//! Every call of the runtime runs on a thread of its own kind; none holds a lock.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::SystemTime,
};

use anyhow::{Context, Result, anyhow, bail};
use containerd_shim_protos::{
    api::CreateTaskRequest,
    events::task as events,
    protobuf::{Message, MessageField},
    shim::oci::{CheckpointOptions as ApiCheckpointOptions, Options},
};
use crab_api::paths;
use crab_config::Config;
use crab_runtime::{
    cgroup::Cgroup,
    criu,
    mount::{MountRequest, mount_request, unmount_all},
    netns,
    oci::{CheckpointOptions, ImagePaths, Runtime, Stdio3},
    reaper::{Exit, Reaper},
};
use crab_store::SandboxId;

use crate::{
    bundle::Bundle,
    container::{INIT, Phase, Process, Processes, StateError},
    history::{self, Beginning, Images},
    pipes::{self, SharedPipe},
    publisher::{Event, Publisher},
    stdio::{Client, ConsoleSocket, StdioPaths},
    turns::{self, Turns},
};

/// Where runc keeps its state if the client names no place; the Go shim's.
const RUNC_ROOT: &str = "/run/containerd/runc";

/// What containerd's own restore names; see [`Container::standard_checkpoint`].
const IMAGES_OF_CLIENT: &str = "checkpoint";

/// What every container of this shim shares.
pub(crate) struct Host {
    pub(crate) config: Config,
    pub(crate) reaper: Reaper,
    pub(crate) publisher: Publisher,
    pub(crate) namespace: String,
    /// `unix://...`, where `crab` reaches this shim.
    pub(crate) address: String,
}

/// Why a container could not be created.
pub(crate) enum CreateFailure {
    /// The request makes no sense.
    Argument(anyhow::Error),
    /// It could not be done.
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for CreateFailure {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

/// One container.
pub(crate) struct Container {
    pub(crate) host: Arc<Host>,
    pub(crate) id: SandboxId,
    pub(crate) bundle: Bundle,
    pub(crate) runtime: Runtime,
    pub(crate) processes: Arc<Processes>,
    /// What `crab` and this shim keep of it in the run directory.
    pub(crate) run_dir: PathBuf,
    /// The network namespace that this shim holds for it.
    pub(crate) netns: Option<PathBuf>,
    cgroup: Mutex<Option<Cgroup>>,
    /// How the init begins: set by Create, used by Start.
    beginning: Mutex<Option<Beginning>>,
    turns: OnceLock<Turns>,
}

/// Runs something that blocks off the async threads.
pub(crate) async fn blocking<T: Send + 'static>(
    f: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(f)
        .await
        .map_err(|e| anyhow!("a worker thread panicked: {e}"))?
}

fn runtime_options(req: &CreateTaskRequest) -> Result<Options, CreateFailure> {
    match req.options.as_ref() {
        Some(any) if any.type_url.ends_with("containerd.runc.v1.Options") => {
            Options::parse_from_bytes(&any.value).map_err(|e| CreateFailure::Argument(e.into()))
        }
        _ => Ok(Options::default()),
    }
}

impl Container {
    /// Creates a container: mounts its root, makes its network namespace, and
    /// has the runtime set up everything but its program.
    pub(crate) async fn create(
        host: &Arc<Host>,
        req: CreateTaskRequest,
    ) -> Result<Arc<Self>, CreateFailure> {
        let options = runtime_options(&req)?;
        let id: SandboxId = format!("{}/{}", host.namespace, req.id)
            .parse()
            .map_err(|e: crab_store::IdError| CreateFailure::Argument(e.into()))?;
        let bundle = Bundle::open(Path::new(&req.bundle)).map_err(CreateFailure::Argument)?;
        let config = &host.config;
        let run_dir = paths::sandbox_dir(&config.run_dir, &host.namespace, &req.id);
        let netns = bundle.wants_own_netns().then(|| run_dir.join("netns"));
        let program = match options.binary_name.as_str() {
            "" => config.runtime.binary.clone(),
            name => name.into(),
        };
        let root = match options.root.as_str() {
            "" => Path::new(RUNC_ROOT),
            root => Path::new(root),
        };
        let runtime = Runtime {
            program,
            root: root.join(&host.namespace),
            id: req.id.clone(),
            bundle: bundle.dir().to_path_buf(),
            systemd_cgroup: options.systemd_cgroup,
            no_pivot: options.no_pivot_root,
            reaper: host.reaper.clone(),
        };
        let stdio = StdioPaths {
            stdin: req.stdin.clone(),
            stdout: req.stdout.clone(),
            stderr: req.stderr.clone(),
            terminal: req.terminal,
        };
        let client = Client::open(&stdio).map_err(CreateFailure::Argument)?;
        let container = Arc::new(Self {
            host: host.clone(),
            id,
            processes: Arc::new(Processes::new(req.id.clone(), host.publisher.clone())),
            run_dir,
            netns,
            cgroup: Mutex::default(),
            beginning: Mutex::default(),
            turns: OnceLock::new(),
            bundle,
            runtime,
        });
        match container.set_up(&req, &stdio, client).await {
            Ok(()) => Ok(container),
            Err(error) => {
                let this = container.clone();
                if let Err(left) = blocking(move || this.tear_down()).await {
                    tracing::warn!(error = %format!("{left:#}"), "left behind by a failed create");
                }
                Err(CreateFailure::Failed(error))
            }
        }
    }

    async fn set_up(
        self: &Arc<Self>,
        req: &CreateTaskRequest,
        paths: &StdioPaths,
        client: Arc<Client>,
    ) -> Result<()> {
        let this = self.clone();
        let mounts: Vec<MountRequest> = req
            .rootfs
            .iter()
            .map(|m| MountRequest {
                kind: m.type_.clone(),
                source: m.source.clone(),
                target: m.target.clone(),
                options: m.options.clone(),
            })
            .collect();
        let mut beginning = blocking(move || {
            this.prepare(&mounts)?;
            history::open(&this, &mounts)
        })
        .await?;
        if !req.checkpoint.is_empty() {
            beginning.images = Some(Images::of_client(Path::new(&req.checkpoint)));
        }
        let pid = if beginning.images.is_some() {
            // As the Go shim: Create records, Start restores.
            None
        } else {
            let (pid, terminal) = self.launch(&client, Launch::Create).await?;
            self.adopt(pid)?;
            Some((pid, terminal))
        };
        let mut process = Process::new(
            Phase::Created(pid.as_ref().map(|(pid, _)| *pid)),
            paths.clone(),
            Some(client),
        );
        let pid = pid.map_or(0, |(pid, terminal)| {
            process.terminal = terminal;
            pid
        });
        self.processes.created(
            process,
            events::TaskCreate {
                container_id: req.id.clone(),
                bundle: req.bundle.clone(),
                rootfs: req.rootfs.clone(),
                io: MessageField::some(events::TaskIO {
                    stdin: req.stdin.clone(),
                    stdout: req.stdout.clone(),
                    stderr: req.stderr.clone(),
                    terminal: req.terminal,
                    ..Default::default()
                }),
                checkpoint: req.checkpoint.clone(),
                pid: pid as u32,
                ..Default::default()
            },
        );
        if pid != 0 {
            self.watch_exit(INIT, pid);
        }
        let turns = turns::start(self.clone());
        let _ = self.turns.set(turns);
        *self
            .beginning
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(beginning);
        Ok(())
    }

    /// Everything that must be there before the runtime is called.
    fn prepare(&self, mounts: &[MountRequest]) -> Result<()> {
        fs::create_dir_all(&self.run_dir)
            .with_context(|| format!("make {}", self.run_dir.display()))?;
        fs::create_dir_all(&self.runtime.root)
            .with_context(|| format!("make {}", self.runtime.root.display()))?;
        fs::write(self.run_dir.join("address"), &self.host.address)
            .context("write the shim's address for crab")?;
        // For `delete`, which is told nothing but the bundle.
        fs::write(
            self.bundle.dir().join("runtime"),
            self.runtime.program.as_os_str().as_encoded_bytes(),
        )?;
        fs::write(
            self.bundle.dir().join("runtime-root"),
            self.runtime.root.as_os_str().as_encoded_bytes(),
        )?;
        if let Some(netns) = &self.netns {
            netns::create(netns)?;
        }
        self.write_config(false)?;
        for mount in mounts {
            mount_request(mount, self.bundle.rootfs())?;
        }
        Ok(())
    }

    /// Writes what the runtime reads; `again` after a rollback.
    pub(crate) fn write_config(&self, again: bool) -> Result<()> {
        self.bundle.write_config(self.netns.as_deref(), again)
    }

    /// Undoes [`Self::prepare`] and the runtime's `create`.
    fn tear_down(&self) -> Result<()> {
        if let Some(cgroup) = self.cgroup() {
            // A frozen process does not die.
            let _ = cgroup.thaw();
        }
        let deleted = self.runtime.delete();
        unmount_all(&self.bundle.dir().join("rootfs"))?;
        if let Some(netns) = &self.netns {
            netns::remove(netns)?;
        }
        match fs::remove_dir_all(&self.run_dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("remove {}", self.run_dir.display()));
            }
            _ => {}
        }
        Ok(deleted?)
    }

    /// Takes note of the container's cgroup, once it has a process.
    pub(crate) fn adopt(&self, pid: i32) -> Result<()> {
        let cgroup = Cgroup::of_process(pid)?;
        *self.cgroup.lock().unwrap_or_else(PoisonError::into_inner) = Some(cgroup);
        Ok(())
    }

    /// The container's cgroup.
    pub(crate) fn cgroup(&self) -> Option<Cgroup> {
        self.cgroup
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The turns of this container; set from Create on.
    pub(crate) fn turns(&self) -> Option<&Turns> {
        self.turns.get()
    }

    /// Has the runtime make a process, with new pipes or a new terminal that
    /// are attached to the client's FIFOs.
    pub(crate) async fn launch(
        &self,
        client: &Arc<Client>,
        launch: Launch,
    ) -> Result<(i32, Option<Arc<crate::stdio::Terminal>>)> {
        let mut inherited = Vec::new();
        if let Launch::Restore(restore) = &launch {
            inherited = pipes::renew(&restore.pipes)?;
        }
        let (stdio, console) = if client.terminal() {
            let path = self.run_dir.join(format!("{}.tty", launch.name()));
            (Stdio3::default(), Some(ConsoleSocket::listen(&path)?))
        } else {
            (client.attach_pipes().await?, None)
        };
        let runtime = self.runtime.clone();
        let name = launch.name().to_string();
        let (pid, master) = blocking(move || {
            let socket = console.as_ref().map(ConsoleSocket::path);
            let pid = match &launch {
                Launch::Create => runtime.create(socket, stdio)?,
                Launch::Restore(Restore { paths, options, .. }) => {
                    fs::create_dir_all(&paths.work)?;
                    runtime
                        .restore(paths, options, socket, stdio, inherited)
                        .map_err(|error| match criu::restore_error(&paths.work) {
                            Some(reason) => anyhow!("{error}; CRIU: {reason}"),
                            None => error.into(),
                        })?
                }
                Launch::Exec(id, spec) => runtime.exec(id, spec, socket, stdio)?,
            };
            Ok((pid, console.map(ConsoleSocket::receive).transpose()?))
        })
        .await
        .with_context(|| name)?;
        let terminal = match master {
            Some(master) => Some(client.attach_terminal(master).await?),
            None => None,
        };
        Ok((pid, terminal))
    }

    /// Tells the process table when a process ends.
    pub(crate) fn watch_exit(self: &Arc<Self>, exec: &str, pid: i32) {
        let exit = self.host.reaper.exit_of(pid);
        let this = self.clone();
        let exec = exec.to_string();
        tokio::spawn(async move {
            let Ok(exit) = exit.await else { return };
            this.processes.exited(&exec, pid, exit);
            if exec != INIT
                && let Some(turns) = this.turns()
            {
                turns.ended(&exec, Some(exit.status));
            }
        });
    }

    /// Start of the init.
    pub(crate) async fn start_init(self: &Arc<Self>) -> Result<i32> {
        let begun = self.begin_init().await;
        if begun.is_err() {
            self.processes.start_failed(INIT);
        }
        begun
    }

    async fn begin_init(self: &Arc<Self>) -> Result<i32> {
        let beginning = self
            .beginning
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            .context("the container was started before")?;
        let turns = self.turns().context("the container is not set up")?;
        match &beginning.images {
            None => {
                let pid = self.init_pid()?;
                turns.before_start(beginning).await?;
                let runtime = self.runtime.clone();
                blocking(move || Ok(runtime.start()?)).await?;
                self.processes.started(INIT, pid);
                turns.after_start(false).await;
                Ok(pid)
            }
            Some(images) => {
                let client = self
                    .processes
                    .with(INIT, |p| p.client.clone())?
                    .context("the container has no stdio")?;
                let launch = Launch::Restore(Restore::new(self, images, client.terminal()));
                let (pid, terminal) = self.launch(&client, launch).await?;
                self.adopt(pid)?;
                self.processes.with(INIT, |p| p.terminal = terminal)?;
                self.processes.started(INIT, pid);
                self.watch_exit(INIT, pid);
                turns.before_start(beginning).await?;
                turns.after_start(true).await;
                Ok(pid)
            }
        }
    }

    /// The init that `create` left, from the runtime's pid file.
    pub(crate) fn init_pid(&self) -> Result<i32> {
        let path = self.bundle.dir().join("init.pid");
        fs::read_to_string(&path)
            .with_context(|| format!("read {}", path.display()))?
            .trim()
            .parse()
            .with_context(|| format!("parse {}", path.display()))
    }

    /// Start of an exec: a turn may begin, and waits for a capture to let go.
    pub(crate) async fn start_exec(self: &Arc<Self>, exec: &str) -> Result<i32> {
        let (spec, client) = self
            .processes
            .with(exec, |p| (std::mem::take(&mut p.spec), p.client.clone()))?;
        let client = client.context("the exec has no stdio")?;
        if let Some(turns) = self.turns() {
            turns.begin(exec, &spec).await;
        }
        let started = self.run_exec(exec, &spec, &client).await;
        let pid = match started {
            Ok((pid, terminal)) => {
                self.processes.with(exec, |p| p.terminal = terminal)?;
                pid
            }
            Err(error) => {
                self.processes.start_failed(exec);
                if let Some(turns) = self.turns() {
                    turns.ended(exec, None);
                }
                return Err(error);
            }
        };
        self.processes.started(exec, pid);
        self.watch_exit(exec, pid);
        Ok(pid)
    }

    async fn run_exec(
        &self,
        exec: &str,
        spec: &[u8],
        client: &Arc<Client>,
    ) -> Result<(i32, Option<Arc<crate::stdio::Terminal>>)> {
        let file = self.run_dir.join(format!("{exec}.json"));
        fs::write(&file, spec).with_context(|| format!("write {}", file.display()))?;
        let launched = self
            .launch(client, Launch::Exec(exec.into(), file.clone()))
            .await;
        let _ = fs::remove_file(&file);
        launched
    }

    /// Sends a signal to a process, or to all of the container.
    pub(crate) async fn kill(&self, exec: &str, signal: i32, all: bool) -> ttrpc::Result<()> {
        let phase = self.processes.with(exec, |p| p.phase)?;
        let refuse = |verb| {
            ttrpc::Error::from(StateError::NotFound {
                what: verb,
                id: if exec == INIT {
                    self.id.to_string()
                } else {
                    exec.into()
                },
            })
        };
        let pid = match phase {
            Phase::Created(None) | Phase::Starting => return Err(refuse("process")),
            Phase::Stopped(..) => return Err(refuse("running process")),
            phase => phase.pid(),
        };
        let mut targets = vec![pid];
        if all && exec == INIT {
            targets = self
                .cgroup()
                .and_then(|cgroup| cgroup.processes().ok())
                .unwrap_or(targets);
        }
        for target in targets {
            send_signal(target, signal)
                .map_err(|e| crate::task::refuse(ttrpc::Code::UNKNOWN, e))?;
        }
        if signal == libc::SIGKILL
            && matches!(phase, Phase::Paused(_))
            && let Some(cgroup) = self.cgroup()
        {
            // A frozen process dies only when it is thawed.
            let _ = blocking(move || Ok(cgroup.thaw()?)).await;
        }
        Ok(())
    }

    /// Removes a process that has ended; with the init goes the container.
    pub(crate) async fn delete(self: &Arc<Self>, exec: &str) -> ttrpc::Result<(i32, Exit)> {
        if exec != INIT {
            if let Ok(Some(client)) = self.processes.with(exec, |p| p.client.take()) {
                client.detach();
            }
            return Ok(self.processes.delete(exec)?);
        }
        match self.processes.init()? {
            Phase::Created(_) | Phase::Stopped(..) => {}
            _ => return Ok(self.processes.delete(INIT)?),
        }
        if let Some(turns) = self.turns() {
            turns.close().await;
        }
        let this = self.clone();
        blocking(move || this.tear_down())
            .await
            .map_err(crate::task::unknown)?;
        let gone = self.processes.delete(INIT)?;
        Ok(gone)
    }

    pub(crate) async fn pause(&self) -> ttrpc::Result<()> {
        self.processes.set_paused(true)?;
        let cgroup = self.cgroup();
        let limit = self.host.config.runtime.freeze_timeout();
        let frozen = blocking(move || {
            let cgroup = cgroup.context("the container has no cgroup")?;
            // Stays frozen: the guard is for captures.
            std::mem::forget(cgroup.freeze(limit)?);
            Ok(())
        })
        .await;
        frozen.map_err(|error| {
            let _ = self.processes.set_paused(false);
            crate::task::unknown(error)
        })
    }

    pub(crate) async fn resume(&self) -> ttrpc::Result<()> {
        match self.processes.init()? {
            Phase::Paused(_) => {}
            // Refused with the right words.
            _ => return Ok(self.processes.set_paused(false)?),
        }
        let cgroup = self.cgroup();
        blocking(move || Ok(cgroup.context("the container has no cgroup")?.thaw()?))
            .await
            .map_err(crate::task::unknown)?;
        Ok(self.processes.set_paused(false)?)
    }

    /// containerd's own Checkpoint: a CRIU image where the client wants it.
    pub(crate) async fn standard_checkpoint(
        self: &Arc<Self>,
        path: &str,
        api: &ApiCheckpointOptions,
    ) -> Result<()> {
        if !matches!(self.processes.init()?, Phase::Running(_) | Phase::Paused(_)) {
            bail!("the container is not running");
        }
        let images = match (api.image_path.as_str(), path) {
            ("", "") => self.bundle.dir().join(IMAGES_OF_CLIENT),
            ("", path) => PathBuf::from(path),
            (image_path, _) => PathBuf::from(image_path),
        };
        let work = match api.work_path.as_str() {
            "" => self.run_dir.join("standard-checkpoint"),
            work => PathBuf::from(work),
        };
        let options = CheckpointOptions {
            leave_running: !api.exit,
            tcp_established: api.open_tcp,
            ext_unix_sk: api.external_unix_sockets,
            file_locks: api.file_locks,
            shell_job: api.terminal,
        };
        let runtime = self.runtime.clone();
        let checkpoint = images.display().to_string();
        blocking(move || {
            fs::create_dir_all(&work)?;
            let paths = ImagePaths { images, work };
            runtime.checkpoint(&paths, &options).map_err(|error| {
                match criu::dump_error(&paths.work) {
                    Some(reason) => anyhow!("{error}; CRIU: {reason}"),
                    None => error.into(),
                }
            })
        })
        .await?;
        self.processes
            .publish(Event::Checkpointed(events::TaskCheckpointed {
                container_id: self.runtime.id.clone(),
                checkpoint,
                ..Default::default()
            }));
        Ok(())
    }

    /// New resource limits, as OCI JSON.
    pub(crate) async fn update(&self, resources: Vec<u8>) -> Result<()> {
        let file = self.run_dir.join("resources.json");
        let runtime = self.runtime.clone();
        blocking(move || {
            fs::write(&file, resources)?;
            let updated = runtime.update(&file);
            let _ = fs::remove_file(&file);
            Ok(updated?)
        })
        .await
    }
}

/// What the runtime is asked to make.
pub(crate) enum Launch {
    Create,
    Restore(Restore),
    /// An exec's id and the file with its specification.
    Exec(String, PathBuf),
}

/// What is restored by CRIU.
pub(crate) struct Restore {
    paths: ImagePaths,
    options: CheckpointOptions,
    /// Pipes of the image whose other ends were this shim's.
    pipes: Vec<SharedPipe>,
}

impl Restore {
    /// From images in a directory of which CRIU may change what it likes.
    pub(crate) fn new(container: &Container, images: &Images, terminal: bool) -> Self {
        Self {
            paths: ImagePaths {
                images: images.dir.clone(),
                work: container.run_dir.join("restore"),
            },
            options: turns::criu_options(terminal),
            pipes: images.pipes.clone(),
        }
    }
}

impl Launch {
    fn name(&self) -> &str {
        match self {
            Self::Create => "create",
            Self::Restore(_) => "restore",
            Self::Exec(id, _) => id,
        }
    }
}

/// kill(2); a process that is gone already is no error.
fn send_signal(pid: i32, signal: i32) -> std::io::Result<()> {
    if pid <= 0 {
        // These address groups of processes.
        return Err(std::io::Error::from_raw_os_error(libc::ESRCH));
    }
    // SAFETY: kill takes plain numbers. The pid is of a child that only this
    // process reaps, or of a cgroup of ours.
    let sent = unsafe { libc::kill(pid, signal) };
    match std::io::Error::last_os_error() {
        error if sent != 0 && error.raw_os_error() != Some(libc::ESRCH) => Err(error),
        _ => Ok(()),
    }
}

/// Milliseconds since the Unix epoch.
pub(crate) fn unix_ms(at: SystemTime) -> u64 {
    at.duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |d| d.as_millis() as u64)
}
