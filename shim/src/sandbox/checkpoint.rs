// SPDX-License-Identifier: Apache-2.0
//! containerd's own Checkpoint: a process image by CRIU where the client wants it.
//!
//! ```text
//! refuse   what cannot be obeyed, or would do harm     before anything is frozen
//! hold     captures and turns wait                     ours freeze, too
//! freeze   by us: a dump that fails leaves nothing frozen
//! dump     by the runtime
//! thaw     or, with `exit`, see the init end
//! hand over    an image that any shim restores, whole in every place that was asked for
//! ```
//! It takes nothing from this sandbox's history, and adds nothing to it, but one: where
//! the container shall end, a checkpoint of ours is taken first, so that `crab restore`
//! brings back what there was.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, anyhow, bail};
use containerd_shim_protos::{
    api::CheckpointTaskRequest,
    events::task as events,
    protobuf::{Message, UnknownValueRef},
    shim::oci::CheckpointOptions as ApiOptions,
};
use crab_runtime::{
    cgroup::Cgroup,
    criu::release_netns,
    oci::{CgroupsMode, CheckpointOptions, ImagePaths},
    procs::Set,
};
use tokio::time::timeout;
use ttrpc::Code;

use super::{Container, KILL_LIMIT, blocking};
use crate::{
    capture::{Purpose, can_dump},
    container::{INIT, Phase, StateError},
    criu_work::{CriuWork, Verb},
    pipes::{self, SharedPipe},
    publisher::Event,
    still::Still,
    task::refuse,
};

/// Where the image goes if the client names no place.
const IMAGES_OF_CLIENT: &str = "checkpoint";
/// `parent_path`, of containerd after 2.2: these bindings do not have it yet.
const PARENT_PATH: u32 = 10;

/// Why there is no checkpoint. The container is as it was.
pub(crate) enum CheckpointFailure {
    /// The request cannot be obeyed.
    Argument(anyhow::Error),
    /// The container is not one that can be dumped now.
    State(StateError),
    /// It could not be done.
    Failed(anyhow::Error),
}

impl From<StateError> for CheckpointFailure {
    fn from(error: StateError) -> Self {
        Self::State(error)
    }
}

impl From<anyhow::Error> for CheckpointFailure {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<CheckpointFailure> for ttrpc::Error {
    fn from(failure: CheckpointFailure) -> Self {
        match failure {
            CheckpointFailure::Argument(error) => refuse(Code::INVALID_ARGUMENT, error),
            CheckpointFailure::State(error) => error.into(),
            CheckpointFailure::Failed(error) => refuse(Code::UNKNOWN, error),
        }
    }
}

/// What a client asks for, understood.
#[derive(Debug)]
struct Order {
    /// Where CRIU writes.
    images: PathBuf,
    /// containerd's directory, where that is another: it publishes what is in there.
    copy: Option<PathBuf>,
    /// Where the client wants CRIU's logs.
    work: Option<PathBuf>,
    options: CheckpointOptions,
}

impl Order {
    fn read(req: &CheckpointTaskRequest, bundle: &Path) -> Result<Self> {
        let api = match req.options.as_ref() {
            Some(any) => ApiOptions::parse_from_bytes(&any.value).context("the options")?,
            None => ApiOptions::default(),
        };
        let named = |what, path: &str| match Path::new(path) {
            _ if path.is_empty() => Ok(None),
            path if path.is_absolute() => Ok(Some(path.to_path_buf())),
            path => bail!("{what} {} is not absolute", path.display()),
        };
        let of_server = named("checkpoint path", &req.path)?;
        let of_client = named("image path", &api.image_path)?;
        // containerd 1.7 knows the client's path only for the runtimes that it has itself,
        // and otherwise makes an image of its own directory, whatever is in it.
        let (images, copy) = match (of_client, of_server) {
            (Some(images), Some(copy)) if images != copy => (images, Some(copy)),
            (Some(images), _) | (None, Some(images)) => (images, None),
            (None, None) => (bundle.join(IMAGES_OF_CLIENT), None),
        };
        let mut options = CheckpointOptions {
            leave_running: !api.exit,
            tcp_established: api.open_tcp,
            ext_unix_sk: api.external_unix_sockets,
            file_locks: api.file_locks,
            shell_job: api.terminal,
            cgroups: CgroupsMode::parse(&api.cgroups_mode)?,
            ..CheckpointOptions::default()
        };
        options.restore_empty(&api.empty_namespaces)?;
        if let Some(parent) = parent_path(&api)? {
            if let Some(copy) = &copy {
                bail!(
                    "parent path {}: an image in {} would be without its parent",
                    parent.display(),
                    copy.display()
                );
            }
            options.build_upon(&parent, &images)?;
        }
        Ok(Self {
            images,
            copy,
            work: named("work path", &api.work_path)?,
            options,
        })
    }
}

fn parent_path(api: &ApiOptions) -> Result<Option<PathBuf>> {
    match api.special_fields.unknown_fields().get(PARENT_PATH) {
        None => Ok(None),
        Some(UnknownValueRef::LengthDelimited([])) => Ok(None),
        Some(UnknownValueRef::LengthDelimited(path)) => {
            let path = std::str::from_utf8(path).context("the parent path")?;
            Ok(Some(path.into()))
        }
        Some(_) => bail!("the parent path is no text"),
    }
}

impl Container {
    /// Has CRIU dump the container's processes where the client wants them.
    pub(crate) async fn standard_checkpoint(
        self: &Arc<Self>,
        req: &CheckpointTaskRequest,
    ) -> Result<(), CheckpointFailure> {
        let order = Order::read(req, self.bundle.dir()).map_err(CheckpointFailure::Argument)?;
        let init = self.dumpable()?;
        let exit = !order.options.leave_running;
        if exit && let Some(turns) = self.turns() {
            let (this, cgroups) = (self.clone(), order.options.cgroups);
            blocking(move || this.refuse_dump(cgroups, init)).await?;
            // A sandbox without history ends like any other container.
            match turns.checkpoint().await {
                Ok(taken) => tracing::info!(turn = taken.turn.0, "checkpoint before the exit"),
                Err(error) => {
                    tracing::warn!(error = %format!("{error:#}"), "no checkpoint before the exit");
                }
            }
        }
        let _held = match self.turns() {
            Some(turns) => Some(turns.hold_for_dump().await),
            None => None,
        };
        // It may have ended, or been rolled back, meanwhile.
        let init = self.dumpable()?;
        let mut ended = self.processes.ended(INIT)?;
        let checkpoint = order.images.display().to_string();
        let this = self.clone();
        blocking(move || this.dump_for_client(order, init)).await?;
        if exit {
            let end = timeout(KILL_LIMIT, ended.wait_for(Option::is_some)).await;
            if end.is_err() {
                return Err(anyhow!("dumped, but process {init} has not ended").into());
            }
        }
        self.processes
            .publish(Event::Checkpointed(events::TaskCheckpointed {
                container_id: self.runtime.id.clone(),
                checkpoint,
                ..Default::default()
            }));
        Ok(())
    }

    /// The init of a container that runs, or is paused.
    fn dumpable(&self) -> Result<i32, StateError> {
        match self.processes.init()? {
            Phase::Running(pid) | Phase::Paused(pid) | Phase::Replacing(pid) => Ok(pid),
            phase => Err(StateError::Refused {
                verb: "checkpoint",
                id: self.id.to_string(),
                state: phase.word(),
            }),
        }
    }

    /// What is known to fail or to do harm, before anything is frozen.
    fn refuse_dump(&self, cgroups: Option<CgroupsMode>, init: i32) -> Result<Cgroup> {
        let cgroup = self.cgroup().context("the container has no cgroup")?;
        can_dump(self, &cgroup, init, Purpose::Client)
            .map_err(|obstacles| anyhow!(obstacles.join("; ")))?;
        if let Some(mode) = cgroups {
            self.runtime.check_cgroups_mode(mode)?;
        }
        Ok(cgroup)
    }

    fn dump_for_client(self: &Arc<Self>, order: Order, init: i32) -> Result<()> {
        let cgroup = self.refuse_dump(order.options.cgroups, init)?;
        let all = Set::of(&cgroup, None)?;
        if let Some(process) = all.beside_init(init) {
            tracing::warn!(
                pid = process.pid,
                comm = process.comm,
                "an exec that still runs is left out by CRIU"
            );
        }
        let work = CriuWork::open(&self.host, &self.id, Verb::Dump, order.work.as_deref())?;
        let fresh = !order.images.exists();
        let dumped = self.dump_frozen(&order, &cgroup, init, &work);
        let shared = dumped.inspect_err(|_| void(&order.images, fresh))?;
        work.done();
        pipes::note(&shared, &order.images)?;
        if self.netns.is_some() {
            release_netns(&order.images)?;
        }
        if let Some(copy) = &order.copy {
            copy_image(&order.images, copy)?;
        }
        Ok(())
    }

    /// The container is running or paused afterwards as it was before, or has been killed
    /// by CRIU if that was asked for. Tells the pipes that it shares with this shim.
    fn dump_frozen(
        self: &Arc<Self>,
        order: &Order,
        cgroup: &Cgroup,
        init: i32,
        work: &CriuWork,
    ) -> Result<Vec<SharedPipe>> {
        let paths = ImagePaths {
            images: order.images.clone(),
            work: work.path().to_path_buf(),
        };
        fs::create_dir_all(&paths.images)
            .with_context(|| format!("make {}", paths.images.display()))?;
        let limit = self.config.runtime.freeze_timeout_of_client();
        let still = Still::stand_when_entered(self.clone());
        let paused = cgroup.is_frozen()?;
        let frozen = cgroup.freeze(limit)?;
        let shared = pipes::shared_with(&Set::of(cgroup, None)?, init);
        let dumped = self
            .runtime
            .checkpoint(&paths, &order.options)
            .map_err(|error| work.explain(error));
        if dumped.is_ok() && !order.options.leave_running {
            frozen.leave_frozen();
            // What was killed dies only now; what is gone already is no error.
            let _ = cgroup.thaw();
            return Ok(shared);
        }
        frozen.thaw()?;
        if paused && !cgroup.is_frozen()? {
            // Its user has paused it.
            cgroup.freeze(limit)?.leave_frozen();
        }
        drop(still);
        dumped.map(|()| shared)
    }
}

/// What a failed dump leaves is no checkpoint, and must not be taken for one.
fn void(images: &Path, fresh: bool) {
    let removed = if fresh {
        fs::remove_dir_all(images)
    } else {
        fs::remove_file(images.join("inventory.img"))
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %images.display(), %error, "half an image is left");
        }
        _ => {}
    }
}

/// The same image in another directory. Never both by the same name: a client may change
/// what is its own.
fn copy_image(images: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("make {}", to.display()))?;
    for entry in fs::read_dir(images).with_context(|| format!("read {}", images.display()))? {
        let from = entry?.path();
        if !from.symlink_metadata()?.is_file() {
            continue;
        }
        let target = to.join(from.file_name().unwrap_or_default());
        fs::copy(&from, &target)
            .with_context(|| format!("copy {} to {}", from.display(), target.display()))?;
    }
    Ok(())
}
