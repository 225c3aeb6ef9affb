// SPDX-License-Identifier: Apache-2.0
//! Starting processes: the init, fresh or from an image, and execs.

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use crab_runtime::{
    criu,
    oci::{CheckpointOptions, ImagePaths, Stdio3},
};

use super::{Container, blocking, make_private_dir};
use crate::{
    container::{INIT, Phase},
    history::Images,
    pipes::{self, SharedPipe},
    stdio::Client,
    terminal::{ConsoleSocket, Terminal},
    turns,
};

/// How long killed processes may take to be gone.
pub(crate) const KILL_LIMIT: Duration = Duration::from_secs(10);

/// Numbers the console sockets of this shim.
static CONSOLES: AtomicU32 = AtomicU32::new(0);

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
    /// A copy of the store's, of no use afterwards.
    disposable: bool,
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
            disposable: images.disposable,
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

impl Container {
    /// Has the runtime make a process, with new pipes or a new terminal that
    /// are attached to the client's FIFOs.
    pub(crate) async fn launch(
        &self,
        client: &Arc<Client>,
        launch: Launch,
    ) -> Result<(i32, Option<Arc<Terminal>>)> {
        let mut inherited = Vec::new();
        if let Launch::Restore(restore) = &launch {
            inherited = pipes::renew(&restore.pipes)?;
        }
        let (stdio, console) = if client.terminal() {
            // Short, because a socket's address holds 107 bytes, of which the ids of
            // Docker would take 130.
            let unique = CONSOLES.fetch_add(1, Ordering::Relaxed);
            let name = format!("{}-{unique}.tty", std::process::id());
            let path = self.host.config.run_dir.join(name);
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
                Launch::Restore(Restore {
                    paths,
                    options,
                    disposable,
                    ..
                }) => {
                    make_private_dir(&paths.work)?;
                    let restored = runtime.restore(paths, options, socket, stdio, inherited);
                    if *disposable {
                        let _ = fs::remove_dir_all(&paths.images);
                    }
                    restored.map_err(|error| match criu::restore_error(&paths.work) {
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
            if exec != INIT {
                if let Some(turns) = this.turns() {
                    turns.ended(&exec, Some(exit.status));
                }
            } else if matches!(this.processes.init(), Ok(Phase::Stopped(..))) {
                // With a process namespace of its own the kernel has killed the rest
                // by now; without, nobody else does.
                let cgroup = this.cgroup();
                let left = blocking(move || match cgroup {
                    Some(cgroup) if cgroup.processes().is_ok() => Ok(cgroup.kill(KILL_LIMIT)?),
                    _ => Ok(()),
                });
                if let Err(error) = left.await {
                    tracing::warn!(error = %format!("{error:#}"), "processes are left");
                }
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
                if let Some(client) = self.processes.with(INIT, |p| p.client.clone())? {
                    client.begin_input()?;
                }
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
                client.begin_input()?;
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
    ) -> Result<(i32, Option<Arc<Terminal>>)> {
        let file = self.run_dir.join(format!("{exec}.json"));
        fs::write(&file, spec).with_context(|| format!("write {}", file.display()))?;
        let launched = self
            .launch(client, Launch::Exec(exec.into(), file.clone()))
            .await;
        let _ = fs::remove_file(&file);
        let launched = launched?;
        client.begin_input()?;
        Ok(launched)
    }
}
