// SPDX-License-Identifier: Apache-2.0
//! Starting processes: the init, fresh or from an image, and execs.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use crab_runtime::{
    cgroup::Cgroup,
    oci::{CheckpointOptions, ImagePaths, Stdio3},
    reaper::Exit,
};

use super::{Container, blocking};
use crate::{
    container::{INIT, InitEnd, Phase},
    criu_work::{CriuWork, Verb},
    exit_note,
    history::Images,
    host_end, pipes,
    stdio::Client,
    still::Entering,
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

/// What is restored by CRIU, from a directory of which it may change what it likes.
pub(crate) struct Restore {
    images: Images,
    options: CheckpointOptions,
}

impl Restore {
    pub(crate) fn new(images: Images, terminal: bool) -> Self {
        let mut options = turns::criu_options(terminal);
        options.tcp_established = !images.ends_connections;
        Self { images, options }
    }
}

/// CRIU is told to close TCP connections. The runtimes have no option for that, and hand a
/// configuration file on; what the host's own says holds as well.
struct EndingConnections {
    own: PathBuf,
    others: Vec<u8>,
}

impl EndingConnections {
    fn begin(container: &Container) -> Result<Self> {
        let own = container.run_dir.join("criu.conf");
        let others = container.bundle.criu_config().map(fs::read);
        let others = others.and_then(Result::ok).unwrap_or_default();
        let mut text = others.clone();
        text.extend_from_slice(b"\ntcp-close\n");
        fs::write(&own, text).with_context(|| format!("write {}", own.display()))?;
        container.bundle.name_criu_config(&own)?;
        Ok(Self { own, others })
    }

    /// runc remembers the name of the file: a dump by it is as without.
    fn done(self) -> Result<()> {
        fs::write(&self.own, self.others).with_context(|| format!("write {}", self.own.display()))
    }
}

/// Whether another namespace has a container of the same id: with a cgroup that the client
/// named, it may be the same one. containerd has bundles at `<state>/<namespace>/<id>`.
fn has_namesake(bundle: &Path) -> bool {
    let (Some(id), Some(namespace)) = (bundle.file_name(), bundle.parent()) else {
        return false;
    };
    let namespaces = namespace.parent().map(fs::read_dir);
    let Some(Ok(namespaces)) = namespaces else {
        return false;
    };
    namespaces
        .flatten()
        .any(|other| other.path() != namespace && other.path().join(id).exists())
}

/// A process that the runtime has made.
pub(crate) struct Launched {
    pub(crate) pid: i32,
    pub(crate) terminal: Option<Arc<Terminal>>,
    /// Just before: no earlier exit is this process's.
    pub(crate) since: Instant,
}

impl Container {
    /// Has the runtime make a process, with new pipes or a new terminal that
    /// are attached to the client's FIFOs.
    pub(crate) async fn launch(&self, client: &Arc<Client>, launch: Launch) -> Result<Launched> {
        client.connect().await?;
        if !matches!(launch, Launch::Exec(..)) {
            self.empty_cgroup().await;
        }
        let since = Instant::now();
        let mut inherited = Vec::new();
        if let Launch::Restore(restore) = &launch {
            inherited = pipes::renew(&restore.images.pipes)?;
        }
        let ending = match &launch {
            Launch::Restore(restore) if restore.images.ends_connections => {
                Some(EndingConnections::begin(self)?)
            }
            _ => None,
        };
        let (stdio, output, console) = if client.terminal() {
            // Short, because a socket's address holds 107 bytes, of which the ids of
            // Docker would take 130.
            let unique = CONSOLES.fetch_add(1, Ordering::Relaxed);
            let name = format!("{}-{unique}.tty", std::process::id());
            let path = self.config.run_dir.join(name);
            let console = ConsoleSocket::listen(&path)?;
            (Stdio3::default(), None, Some(console))
        } else {
            let (stdio, output) = client.attach_pipes().await?;
            (stdio, Some(output), None)
        };
        let runtime = self.runtime.clone();
        let (host, id) = (self.host.clone(), self.id.clone());
        let criu_work = match self.options.criu_work_path.as_str() {
            "" => None,
            path => Some(PathBuf::from(path)),
        };
        let (pid, master) = blocking(move || {
            let socket = console.as_ref().map(ConsoleSocket::path);
            let pid = match &launch {
                Launch::Create => runtime.create(socket, stdio)?,
                Launch::Restore(restore) => {
                    let work = CriuWork::open(&host, &id, Verb::Restore, criu_work.as_deref())?;
                    let paths = ImagePaths {
                        images: restore.images.dir.clone(),
                        work: work.path().to_path_buf(),
                    };
                    let pid = runtime
                        .restore(&paths, &restore.options, socket, stdio, inherited)
                        .map_err(|error| {
                            let error = work.explain(error);
                            match &restore.images.drift {
                                Some(drift) => anyhow!("{error:#}; {drift}"),
                                None => error,
                            }
                        })?;
                    work.done();
                    pid
                }
                Launch::Exec(id, spec) => runtime.exec(id, spec, socket, stdio)?,
            };
            Ok((pid, console.map(ConsoleSocket::receive).transpose()?))
        })
        .await?;
        if let Some(Err(error)) = ending.map(EndingConnections::done) {
            // It runs; its next image will lack connections.
            tracing::warn!(error = %format!("{error:#}"), "what CRIU is told stays as for a copy");
        }
        if let Some(output) = output {
            client.relay(output);
        }
        let terminal = match master {
            Some(master) => Some(client.attach_terminal(master).await?),
            None => None,
        };
        Ok(Launched {
            pid,
            terminal,
            since,
        })
    }

    /// Ends what is in the container's own cgroup before anything of the container is: what a CRIU
    /// that was killed in the middle of a restore leaves behind comes there by itself, later than
    /// whoever cleaned up after it. It would pass for one of the sandbox's processes.
    async fn empty_cgroup(&self) {
        let (id, path) = (
            self.id.clone(),
            self.bundle.cgroup_path(self.runtime.systemd_cgroup),
        );
        let bundle = self.bundle.dir().to_path_buf();
        let emptied = blocking(move || {
            let Some(cgroup) = path.as_deref().map(Cgroup::at).transpose()?.flatten() else {
                return Ok(());
            };
            // One that others may share is none of its own.
            let left = cgroup.processes()?;
            if left.is_empty() || !cgroup.names(id.id()) || has_namesake(&bundle) {
                return Ok(());
            }
            tracing::warn!(
                ?left,
                "processes are in the cgroup of a container that has none"
            );
            // A freezer that holds them does not let them die.
            let _ = cgroup.thaw();
            Ok(cgroup.kill(KILL_LIMIT)?)
        });
        if let Err(error) = emptied.await {
            // The runtime says what it thinks of it.
            tracing::warn!(error = %format!("{error:#}"), "the cgroup is not empty");
        }
    }

    /// Tells the process table when a process ends.
    pub(crate) fn watch_exit(self: &Arc<Self>, exec: &str, pid: i32, since: Instant) {
        let exit = self.host.reaper.exit_of(pid, since);
        let this = self.clone();
        let exec = exec.to_string();
        tokio::spawn(async move {
            let Ok(exit) = exit.await else { return };
            if exec == INIT {
                this.init_ended(pid, exit).await;
                return;
            }
            this.look_for_oom(false);
            this.processes.exited(&exec, pid, exit);
            if let Some(turns) = this.turns() {
                turns.ended(&exec, Some(exit));
            }
        });
    }

    async fn init_ended(self: &Arc<Self>, pid: i32, exit: Exit) {
        loop {
            match self.processes.init_exited(pid, exit) {
                InitEnd::None => return,
                // If it is gone by then, the next look says so.
                InitEnd::TooEarly => drop(self.processes.settled(INIT).await),
                InitEnd::End => break,
            }
        }
        exit_note::write(self.bundle.dir(), exit);
        let reaper = self.host.reaper.clone();
        let host_ends = tokio::task::spawn_blocking(move || host_end::is_near(&reaper));
        // With a process namespace of its own the kernel has killed the rest by now;
        // without, nobody else does. What is frozen does not die.
        let cgroup = self.cgroup();
        let left = blocking(move || {
            let Some(cgroup) = cgroup else { return Ok(()) };
            match cgroup.thaw() {
                Err(error) if !error.is_gone() => Err(error.into()),
                _ => Ok(cgroup.kill(KILL_LIMIT)?),
            }
        });
        if let Err(error) = left.await {
            tracing::warn!(error = %format!("{error:#}"), "processes are left");
        }
        self.look_for_oom(true);
        if let Some(turns) = self.turns() {
            turns.ended(INIT, Some(exit));
            turns.over(exit, host_ends);
        }
        self.processes.swept();
    }

    /// Start of the init.
    pub(crate) async fn start_init(self: &Arc<Self>) -> Result<i32> {
        let begun = self.begin_init().await;
        self.standing_in().take();
        if begun.is_err() {
            self.processes.start_failed(INIT);
        }
        begun
    }

    async fn begin_init(self: &Arc<Self>) -> Result<i32> {
        let mut beginning = self
            .beginning
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            .context("the container was started before")?;
        let turns = self.turns().context("the container is not set up")?;
        let client = self
            .processes
            .with(INIT, |p| p.client.clone())?
            .context("the container has no stdio")?;
        let Some(images) = beginning.images.take() else {
            let pid = self.init_pid()?;
            turns.before_start(beginning, true).await?;
            client.begin_input(turns.gate(INIT));
            let runtime = self.runtime.clone();
            blocking(move || Ok(runtime.start()?)).await?;
            self.processes.started(INIT, pid);
            turns.after_start(false).await;
            return Ok(pid);
        };
        let restore = Restore::new(images, client.terminal());
        let Launched {
            pid,
            terminal,
            since,
        } = self.launch(&client, Launch::Restore(restore)).await?;
        let begun = async {
            if let Some(path) = self.bundle.other_cgroup().map(str::to_owned) {
                blocking(move || Ok(Cgroup::gather(pid, &path)?)).await?;
            }
            self.adopt(pid)?;
            client.begin_input(turns.gate(INIT));
            self.processes.with(INIT, |p| p.terminal = terminal)?;
            turns.before_start(beginning, false).await
        };
        if let Err(error) = begun.await {
            // It runs, but not as it was asked for: not at all, then.
            let runtime = self.runtime.clone();
            let _ = blocking(move || Ok(runtime.delete()?)).await;
            return Err(error);
        }
        self.processes.started(INIT, pid);
        self.watch_exit(INIT, pid, since);
        turns.after_start(true).await;
        Ok(pid)
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
        // Before the init runs there are no turns.
        let begun = !matches!(self.processes.init()?, Phase::Created(_));
        if begun && let Some(turns) = self.turns() {
            turns.begin(exec, &spec).await;
        }
        let entering = Entering::begin(self).await;
        let started = self.run_exec(exec, &spec, &client).await;
        drop(entering);
        let Launched {
            pid,
            terminal,
            since,
        } = match started {
            Ok(launched) => launched,
            Err(error) => {
                self.processes.start_failed(exec);
                if let Some(turns) = self.turns() {
                    turns.ended(exec, None);
                }
                return Err(error);
            }
        };
        let _ = self.processes.with(exec, |p| p.terminal = terminal);
        self.processes.started(exec, pid);
        self.watch_exit(exec, pid, since);
        Ok(pid)
    }

    async fn run_exec(&self, exec: &str, spec: &[u8], client: &Arc<Client>) -> Result<Launched> {
        let file = self.run_dir.join(format!("exec-{exec}.json"));
        fs::write(&file, spec).with_context(|| format!("write {}", file.display()))?;
        let launched = self
            .launch(client, Launch::Exec(exec.into(), file.clone()))
            .await;
        let _ = fs::remove_file(&file);
        let launched = launched?;
        let turns = self.turns().context("the container is not set up")?;
        client.begin_input(turns.gate(exec));
        Ok(launched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_container_of_the_same_id_in_another_namespace_is_a_namesake() {
        let state = tempfile::tempdir().unwrap();
        let bundle = |name: &str| {
            let dir = state.path().join(name);
            fs::create_dir_all(&dir).unwrap();
            dir
        };
        let (own, _) = (bundle("default/a"), bundle("moby/b"));
        assert!(!has_namesake(&own));
        bundle("moby/a");
        assert!(has_namesake(&own));
    }
}
