// SPDX-License-Identifier: Apache-2.0
//! A container of this shim: what containerd's calls do to it.
//!
//! Owns the bundle, the runtime, the root's mounts and the network namespace.
//! Its processes' states are in [`crate::container`], its turns, checkpoints and
//! rollbacks in [`crate::turns`]: this file only says when those begin.
//!
//! Every call of the runtime runs on a thread of its own kind; none holds a lock.

mod checkpoint;
mod requests;
mod start;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, atomic::AtomicUsize},
    time::SystemTime,
};

use anyhow::{Context, Result, anyhow, bail};
use containerd_shim_protos::{
    api::CreateTaskRequest, events::task as events, protobuf::MessageField,
};
use crab_api::paths;
use crab_config::Config;
use crab_runtime::{
    cgroup::Cgroup,
    criu::Criu,
    driver::Program,
    mount::{MountRequest, mount_request, unmount_all, unmount_below},
    netns::{self, StandIn},
    oci::Runtime,
    reaper::Reaper,
};
use crab_store::{Limits, Manifest, SandboxId};

pub(crate) use self::start::{KILL_LIMIT, Launch, Launched, Restore};
use crate::{
    bundle::Bundle,
    container::{INIT, Phase, Process, Processes},
    directories::Directories,
    history::{self, Beginning},
    oom::{self, OomWatch},
    options::RuntimeOptions,
    overrides,
    programs::Programs,
    publisher::Publisher,
    stats::Groups,
    stdio::{Client, Owner, StdioPaths},
    tracer::Tracer,
    turns::{self, Turns},
};

/// Where runc keeps its state if the client names no place; the Go shim's.
const RUNC_ROOT: &str = "/run/containerd/runc";

/// The file in the bundle that names the runtime's program, for `delete`; there from
/// before the runtime's first call until everything of the container is gone.
pub(crate) const RUNTIME_FILE: &str = "runtime";
/// And the runtime's state directory.
pub(crate) const RUNTIME_ROOT_FILE: &str = "runtime-root";

/// What every container of this shim shares.
pub(crate) struct Host {
    pub(crate) config: Config,
    /// Why that is the default one, if the file could not be used.
    pub(crate) config_fault: Option<String>,
    pub(crate) reaper: Reaper,
    pub(crate) programs: Arc<Programs>,
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
    /// The host's, with what this container may say for itself.
    pub(crate) config: Config,
    /// What of its configuration is not followed, a line each.
    pub(crate) config_faults: Vec<String>,
    pub(crate) id: SandboxId,
    pub(crate) bundle: Bundle,
    pub(crate) runtime: Runtime,
    pub(crate) processes: Arc<Processes>,
    /// How the client wants it run.
    pub(crate) options: RuntimeOptions,
    /// Whose the stdio of its processes is; an exec's goes by its own id.
    pub(crate) stdio_owner: Owner,
    /// What `crab` and this shim keep of it in the run directory.
    pub(crate) run_dir: PathBuf,
    /// The network namespace that this shim holds for it.
    pub(crate) netns: Option<PathBuf>,
    cgroup: Mutex<Option<Cgroup>>,
    groups: Mutex<Option<Groups>>,
    /// From Create on: the init may run out of memory before it is started.
    oom: Mutex<Option<OomWatch>>,
    /// How the init begins: set by Create, used by Start.
    beginning: Mutex<Option<Beginning>>,
    turns: OnceLock<Turns>,
    /// Whether it began as a copy of another sandbox; set by Create.
    pub(crate) is_copy: OnceLock<bool>,
    /// In its network namespace, as long as nothing of it runs that has yet to be restored.
    stand_in: Mutex<Option<StandIn>>,
    /// How many captures have it frozen, or rollbacks have taken its processes away: nothing
    /// can be started in it.
    pub(crate) standing_still: AtomicUsize,
    /// How many processes are being started in it.
    pub(crate) entering: AtomicUsize,
    /// Held by the Delete of the container.
    deleting: tokio::sync::Mutex<()>,
    /// The limits that a client has set since Create, as OCI JSON.
    limits: Mutex<Option<Vec<u8>>>,
}

/// Runs something that blocks off the async threads.
pub(crate) async fn blocking<T: Send + 'static>(
    f: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(f)
        .await
        .map_err(|e| anyhow!("a worker thread panicked: {e}"))?
}

/// The checkpoint that the client wants to begin with: containerd 1.7 hands the path of
/// the options on as it is, unless the runtime is one of its own.
fn client_images(req: &CreateTaskRequest, options: &RuntimeOptions) -> Result<Option<PathBuf>> {
    if !req.parent_checkpoint.is_empty() {
        bail!(
            "parent checkpoint {}: an image names its parent itself",
            req.parent_checkpoint
        );
    }
    let path = match (req.checkpoint.as_str(), options.criu_image_path.as_str()) {
        ("", "") => return Ok(None),
        ("", path) | (path, _) => PathBuf::from(path),
    };
    let inventory = path.join("inventory.img");
    fs::metadata(&inventory).with_context(|| {
        format!(
            "no checkpoint in {}: {}",
            path.display(),
            inventory.display()
        )
    })?;
    Ok(Some(path))
}

/// What a configuration has kept of a sandbox's history.
pub(crate) fn limits(config: &Config) -> Limits {
    let retention = &config.retention;
    Limits {
        count: retention.count(),
        age_ms: retention.age_ms(),
        bytes: retention.bytes(),
    }
}

impl Container {
    /// How much of its history is kept.
    pub(crate) fn retention(&self) -> Limits {
        limits(&self.config)
    }

    /// Creates a container: mounts its root, makes its network namespace, and
    /// has the runtime set up everything but its program.
    pub(crate) async fn create(
        host: &Arc<Host>,
        req: CreateTaskRequest,
    ) -> Result<Arc<Self>, CreateFailure> {
        let options =
            RuntimeOptions::of_request(req.options.as_ref()).map_err(CreateFailure::Argument)?;
        let id: SandboxId = format!("{}/{}", host.namespace, req.id)
            .parse()
            .map_err(|e: crab_store::IdError| CreateFailure::Argument(e.into()))?;
        let mut bundle = Bundle::open(Path::new(&req.bundle)).map_err(CreateFailure::Argument)?;
        let checkpoint = client_images(&req, &options).map_err(CreateFailure::Argument)?;
        if checkpoint.is_some() {
            bundle
                .leave_cgroup_of_another(&host.namespace, &req.id, Cgroup::is_in_use)
                .map_err(CreateFailure::Argument)?;
        }
        let (config, config_faults) = overrides::of_container(host, &bundle, &req.id);
        let directories = Directories::of(&config, &id);
        let netns = bundle.wants_own_netns().then(|| directories.netns());
        let named = options.program();
        let program = Program::named(named.as_deref().or(config.runtime.binary.as_deref()));
        let criu = match options.criu_path.as_str() {
            "" => config.runtime.criu.clone(),
            path => Some(path.into()),
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
            systemd_cgroup: options.systemd_cgroup || bundle.wants_systemd_cgroup(),
            no_pivot: options.no_pivot_root,
            no_new_keyring: options.no_new_keyring,
            criu,
            sealer: Some(host.programs.clone()),
            reaper: host.reaper.clone(),
        };
        let stdio = StdioPaths {
            stdin: req.stdin.clone(),
            stdout: req.stdout.clone(),
            stderr: req.stderr.clone(),
            terminal: req.terminal,
        };
        let owner = Owner {
            id: req.id.clone(),
            namespace: host.namespace.clone(),
            uid: options.io_uid,
            gid: options.io_gid,
            reaper: host.reaper.clone(),
        };
        let client = Client::new(stdio.clone(), owner.clone());
        let container = Arc::new(Self {
            host: host.clone(),
            config,
            config_faults,
            id,
            processes: Arc::new(Processes::new(req.id.clone(), host.publisher.clone())),
            options,
            stdio_owner: owner,
            run_dir: directories.run,
            netns,
            cgroup: Mutex::default(),
            groups: Mutex::default(),
            oom: Mutex::default(),
            beginning: Mutex::default(),
            turns: OnceLock::new(),
            is_copy: OnceLock::new(),
            stand_in: Mutex::default(),
            standing_still: AtomicUsize::new(0),
            entering: AtomicUsize::new(0),
            deleting: tokio::sync::Mutex::default(),
            limits: Mutex::default(),
            bundle,
            runtime,
        });
        match container.set_up(&req, &stdio, client, checkpoint).await {
            Ok(()) => Ok(container),
            Err(error) => {
                let this = container.clone();
                let undone = blocking(move || {
                    this.tear_down()?;
                    this.bundle.put_back()
                });
                if let Err(left) = undone.await {
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
        checkpoint: Option<PathBuf>,
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
        let by_client = checkpoint.is_some();
        let beginning = blocking(move || {
            if checkpoint.is_some() {
                this.runtime.can_restore()?;
            }
            this.prepare(&mounts)?;
            history::open(&this, &mounts, checkpoint.as_deref())
        })
        .await?;
        let tracer = Arc::new(Tracer::new(self.host.clone(), self.id.to_string()));
        if beginning.ledger.is_ok() {
            // It is needed only before Start, and may have to be started.
            tracer.prepare();
        }
        let launched = if beginning.images.is_some() {
            // As the Go shim: Create records, Start restores.
            if !by_client {
                self.stand_in()?;
            }
            None
        } else {
            let launched = self.launch(&client, Launch::Create).await?;
            self.adopt(launched.pid)?;
            Some(launched)
        };
        let pid = launched.as_ref().map(|launched| launched.pid);
        let mut process = Process::new(Phase::Created(pid), paths.clone(), Some(client));
        let since = launched.map(|launched| {
            process.terminal = launched.terminal;
            launched.since
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
                pid: self.pid_to_tell(pid.unwrap_or(0)) as u32,
                ..Default::default()
            },
        );
        if let (Some(pid), Some(since)) = (pid, since) {
            self.watch_exit(INIT, pid, since);
        }
        let turns = turns::start(self.clone(), tracer);
        let _ = self.turns.set(turns);
        *self
            .beginning
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(beginning);
        Ok(())
    }

    /// Everything that must be there before the runtime is called.
    fn prepare(&self, mounts: &[MountRequest]) -> Result<()> {
        // For `delete`, which is told nothing but the bundle.
        self.directories().keep(self.bundle.dir())?;
        make_private_dir(&self.run_dir)?;
        fs::create_dir_all(&self.runtime.root)
            .with_context(|| format!("make {}", self.runtime.root.display()))?;
        let address =
            paths::sandbox_address(&self.config.run_dir, self.id.namespace(), self.id.id());
        fs::write(address, &self.host.address).context("write the shim's address for crab")?;
        self.options.keep(self.bundle.dir())?;
        fs::write(
            self.bundle.dir().join(RUNTIME_FILE),
            self.runtime.program.name().as_os_str().as_encoded_bytes(),
        )?;
        fs::write(
            self.bundle.dir().join(RUNTIME_ROOT_FILE),
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

    /// Docker (from 28 on) asks between Create and Start for the network of the task's process
    /// to move interfaces into. Who has asked for nothing but a start is told of one.
    fn stand_in(&self) -> Result<()> {
        if let Some(netns) = &self.netns {
            let entered = StandIn::enter(netns)?;
            *self.standing_in() = Some(entered);
        }
        Ok(())
    }

    fn standing_in(&self) -> MutexGuard<'_, Option<StandIn>> {
        self.stand_in.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process id of the init that a client is told.
    pub(crate) fn pid_to_tell(&self, pid: i32) -> i32 {
        match (pid, &*self.standing_in()) {
            (0, Some(stand_in)) => stand_in.id(),
            (pid, _) => pid,
        }
    }

    /// What is on the host because of it.
    pub(crate) fn directories(&self) -> Directories {
        Directories::of(&self.config, &self.id)
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
        self.bundle.run_poststop(self.id.id(), &self.host.reaper);
        unmount_all(&self.bundle.dir().join("rootfs"))?;
        self.standing_in().take();
        if let Some(netns) = &self.netns {
            netns::remove(netns)?;
        }
        let Directories {
            run,
            memory,
            disk,
            restoring,
        } = self.directories();
        if let Some(restoring) = restoring {
            unmount_below(&restoring)?;
        }
        for dir in [memory, disk] {
            // Of a dump that failed half way.
            let _ = fs::remove_dir_all(dir);
        }
        match fs::remove_dir_all(&run) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("remove {}", run.display()));
            }
            _ => {}
        }
        deleted?;
        let _ = fs::remove_file(self.bundle.dir().join(RUNTIME_FILE));
        Ok(())
    }

    /// Takes note of the container's cgroup, once it has a process.
    pub(crate) fn adopt(&self, pid: i32) -> Result<()> {
        let cgroup = Cgroup::of_process(pid)?;
        let groups = Groups::of_process(pid)?;
        let oom = oom::watch(self.id.id(), &groups, &self.host.publisher);
        *self.oom.lock().unwrap_or_else(PoisonError::into_inner) = oom;
        *self.cgroup.lock().unwrap_or_else(PoisonError::into_inner) = Some(cgroup);
        *self.groups.lock().unwrap_or_else(PoisonError::into_inner) = Some(groups);
        Ok(())
    }

    /// Tells of what was killed for its memory, before an exit is told; after that of the
    /// init there is nothing more to tell.
    pub(crate) fn look_for_oom(&self, last: bool) {
        let mut oom = self.oom.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(oom) = &*oom {
            oom.look();
        }
        if last {
            oom.take();
        }
    }

    /// What is measured of it.
    pub(crate) fn groups(&self) -> Option<Groups> {
        self.groups
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The CRIU that dumps this container, if it is sound: looked at once, and again when
    /// it is another.
    pub(crate) fn criu(&self) -> Result<Criu, String> {
        let program = self.runtime.criu.clone();
        let program = program.unwrap_or_else(|| PathBuf::from("criu"));
        let cache = self.host.config.run_dir.join("criu.checked");
        Criu::probe(&program, &cache, &self.host.reaper)
    }

    /// The container's cgroup.
    pub(crate) fn cgroup(&self) -> Option<Cgroup> {
        self.cgroup
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Whether the runtime can bring back what a checkpoint holds.
    pub(crate) async fn restorable(&self, manifest: &Manifest) -> Result<()> {
        let runtime = self.runtime.clone();
        let manifest = manifest.clone();
        blocking(move || history::can_restore(&runtime, &manifest)).await
    }

    /// The turns of this container; set from Create on.
    pub(crate) fn turns(&self) -> Option<&Turns> {
        self.turns.get()
    }
}

/// Milliseconds since the Unix epoch.
pub(crate) fn unix_ms(at: SystemTime) -> u64 {
    at.duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |d| d.as_millis() as u64)
}

/// Makes a directory that only root reads: images of memory hold secrets.
pub(crate) fn make_private_dir(path: &Path) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .with_context(|| format!("make {}", path.display()))
}
