// SPDX-License-Identifier: Apache-2.0
//! Between a process's stdio and the client's FIFOs.
//!
//! ```text
//! client --fifo--> pump  --pipe--> process        stdin
//! client <--fifo-- relay <--pipe-- process        stdout, stderr
//! ```
//! The shim stands in between so that the process holds pipes, which CRIU can
//! dump and which a restore can make anew while the client keeps its FIFOs.
//!
//! Both ends of an output FIFO are held: a reader that goes away and comes back
//! (containerd or dockerd restarting) neither breaks the pipe nor loses the place.
//! The client sees the end when the process and all who inherited its pipe have
//! closed it. A client that has deleted the process is no longer written to, but
//! the pipe goes on being drained: what runs on must not die of SIGPIPE. Where output
//! goes, a FIFO, a file or a log driver, is said in [`crate::sink`].
//!
//! Input that opens a turn waits at the [`Gate`], as an exec does.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use crab_runtime::{oci::Stdio3, reaper::Reaper};
use rustix::{
    fs::{Gid, Mode, OFlags, Uid},
    pipe::{PipeFlags, pipe_with},
};
use tokio::{
    net::unix::pipe,
    sync::{Mutex, OnceCell, watch},
    task::JoinHandle,
    time::timeout,
};

use crab_runtime::waits::Stdin;

use crate::{
    activity::Activity,
    log_driver::LogDriver,
    relay::{Attached, Leave, relay_output, relay_terminal},
    sink::{Sink, Target, write_pipe},
    terminal::Terminal,
    turns::Gate,
};

/// Size of one read from a pipe, in bytes.
pub(crate) const CHUNK: usize = 32 * 1024;

/// How long a delete waits for a client to take what a process has written. The Go shim's
/// waits for ten seconds, also where something in the background still has the output.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// Where a client wants a process's stdio, as it said so.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StdioPaths {
    pub(crate) stdin: String,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) terminal: bool,
}

/// Whose stdio it is.
#[derive(Clone)]
pub(crate) struct Owner {
    /// The container's id, or the exec's.
    pub(crate) id: String,
    pub(crate) namespace: String,
    /// The user and the group to whom the process's pipes belong.
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Collects the end of a log driver.
    pub(crate) reaper: Reaper,
}

/// Where output goes, open.
struct Outputs {
    stdout: Sink,
    stderr: Sink,
    driver: Option<Arc<LogDriver>>,
}

impl Outputs {
    async fn open(paths: &StdioPaths, owner: &Owner) -> Result<Self> {
        let stdout = Target::parse(&paths.stdout)?;
        if let Target::Driver(command) = &stdout {
            let started = LogDriver::start(command, &owner.id, &owner.namespace, &owner.reaper);
            let (driver, pipes) = started.await?;
            return Ok(Self {
                stdout: Sink::Pipe(pipes.stdout),
                stderr: Sink::Pipe(pipes.stderr),
                driver: Some(Arc::new(driver)),
            });
        }
        // A terminal has one output.
        let stderr = match paths.terminal {
            true => Target::Nowhere,
            false => Target::parse(&paths.stderr)?,
        };
        Ok(Self {
            stdout: Sink::open(&stdout).await?,
            stderr: Sink::open(&stderr).await?,
            driver: None,
        })
    }
}

/// Our ends of a process's output.
pub(crate) struct ProcessOutput {
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
}

/// The client's side of a process's stdio. It outlives the pipes: a rollback
/// makes new ones and attaches them here.
pub(crate) struct Client {
    paths: StdioPaths,
    owner: Owner,
    outputs: OnceCell<Outputs>,
    /// Whether the client has deleted the process.
    leave: watch::Sender<Leave>,
    /// How many relays have output for it.
    relays: watch::Sender<usize>,
    input: Input,
    activity: Arc<Activity>,
}

/// Whether a client can tell a process anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drive {
    /// There is no input, or no more.
    Never,
    /// There will be, once the process is there.
    NotYet,
    /// By this.
    By(Stdin),
}

struct Input {
    /// Where the pump writes to; none before a process is attached.
    sink: Arc<Mutex<Option<InputSink>>>,
    pump: std::sync::Mutex<Pump>,
    /// Our own writing end: the client's going away is not the end of input,
    /// only its CloseIO is.
    keep_open: std::sync::Mutex<Option<OwnedFd>>,
    /// CloseIO has come, maybe before there was anything to close.
    closed: AtomicBool,
}

/// What the client writes is read only once there is a process to take it.
enum Pump {
    /// The FIFO, not opened yet.
    Waiting(String),
    Running(JoinHandle<()>),
    /// The client wants no input, or it is over.
    Over,
}

enum InputSink {
    Pipe(pipe::Sender),
    Terminal(Arc<Terminal>),
}

impl Client {
    /// Nothing is opened yet: see [`Self::connect`] and [`Self::begin_input`].
    pub(crate) fn new(paths: StdioPaths, owner: Owner) -> Arc<Self> {
        let pump = match paths.stdin.as_str() {
            "" => Pump::Over,
            path => Pump::Waiting(path.strip_prefix("fifo://").unwrap_or(path).to_owned()),
        };
        Arc::new(Self {
            paths,
            owner,
            outputs: OnceCell::new(),
            leave: watch::Sender::new(Leave::Here),
            relays: watch::Sender::new(0),
            input: Input {
                sink: Arc::default(),
                pump: std::sync::Mutex::new(pump),
                keep_open: std::sync::Mutex::default(),
                closed: AtomicBool::new(false),
            },
            activity: Arc::default(),
        })
    }

    /// What passes between it and the process.
    pub(crate) fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    /// How it can tell the process something.
    pub(crate) fn drive(&self) -> Drive {
        let is_over = match &*lock(&self.input.pump) {
            Pump::Waiting(_) => false,
            Pump::Running(pump) => pump.is_finished(),
            Pump::Over => true,
        };
        match self.activity.stdin() {
            _ if is_over => Drive::Never,
            Some(stdin) => Drive::By(stdin),
            None => Drive::NotYet,
        }
    }

    /// Opens where the output goes, or starts the log driver, unless that is done. Never
    /// waits for the other end of a FIFO.
    pub(crate) async fn connect(&self) -> Result<()> {
        let opened = self
            .outputs
            .get_or_try_init(|| Outputs::open(&self.paths, &self.owner));
        opened.await.context("stdio")?;
        Ok(())
    }

    /// The log driver, if there is one and it is started.
    pub(crate) fn driver(&self) -> Option<Arc<LogDriver>> {
        self.outputs.get()?.driver.clone()
    }

    /// Whether the process gets a terminal.
    pub(crate) fn terminal(&self) -> bool {
        self.paths.terminal
    }

    /// Makes pipes for a process about to start. Its output is to be relayed once it has
    /// been: until then only the runtime writes, whose errors the client is told otherwise.
    pub(crate) async fn attach_pipes(&self) -> Result<(Stdio3, ProcessOutput)> {
        let make = || {
            let (read, write) = pipe_with(PipeFlags::CLOEXEC).context("make a pipe")?;
            self.give(&read)?;
            Ok::<_, anyhow::Error>((read, write))
        };
        let (stdin_read, stdin_write) = make()?;
        self.activity.set_stdin(Some(Stdin::of_pipe(&stdin_read)?));
        let sender = pipe::Sender::from_owned_fd(stdin_write)?;
        self.attach_input(InputSink::Pipe(sender)).await;
        let (stdout_read, stdout_write) = make()?;
        let (stderr_read, stderr_write) = make()?;
        let stdio = Stdio3 {
            stdin: Some(stdin_read),
            stdout: Some(stdout_write),
            stderr: Some(stderr_write),
        };
        let output = ProcessOutput {
            stdout: pipe::Receiver::from_owned_fd(stdout_read)?,
            stderr: pipe::Receiver::from_owned_fd(stderr_read)?,
        };
        Ok((stdio, output))
    }

    /// Relays output until its end.
    pub(crate) fn relay(self: &Arc<Self>, output: ProcessOutput) {
        for (pipe, to_stderr) in [(output.stdout, false), (output.stderr, true)] {
            tokio::spawn(relay_output(pipe, Attached::new(self.clone()), to_stderr));
        }
    }

    /// Writes output where the client wants it.
    pub(crate) async fn write(&self, to_stderr: bool, data: &[u8]) -> io::Result<()> {
        self.activity.output();
        match self.outputs.get() {
            Some(outputs) if to_stderr => outputs.stderr.write(data).await,
            Some(outputs) => outputs.stdout.write(data).await,
            None => Ok(()),
        }
    }

    /// Tells when nothing more is to be written.
    pub(crate) fn leave(&self) -> watch::Receiver<Leave> {
        self.leave.subscribe()
    }

    /// Counts the relays.
    pub(crate) fn relays(&self) -> &watch::Sender<usize> {
        &self.relays
    }

    /// Gives a pipe to the user whom the client names (IoUid, IoGid): a process that is not
    /// root opens /dev/stdout and its kin only if they are its own.
    fn give(&self, pipe: impl AsFd) -> Result<()> {
        let Owner { uid, gid, .. } = self.owner;
        if (uid, gid) == (0, 0) {
            return Ok(());
        }
        rustix::fs::fchown(pipe, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
            .with_context(|| format!("give a pipe to user {uid} and group {gid}"))
    }

    /// Attaches the master of a started process's terminal.
    pub(crate) async fn attach_terminal(
        self: &Arc<Self>,
        master: OwnedFd,
    ) -> Result<Arc<Terminal>> {
        match Stdin::of_terminal(&master) {
            Ok(stdin) => self.activity.set_stdin(Some(stdin)),
            // Its turns then end with the process.
            Err(error) => tracing::warn!(%error, "a terminal that cannot be told by its number"),
        }
        let terminal = Arc::new(Terminal::new(master)?);
        self.attach_input(InputSink::Terminal(terminal.clone()))
            .await;
        tokio::spawn(relay_terminal(
            terminal.clone(),
            Attached::new(self.clone()),
        ));
        Ok(terminal)
    }

    /// Input goes here from now on. Where there is none (any more), the sink is
    /// closed at once: the process reads the end.
    async fn attach_input(&self, sink: InputSink) {
        let mut current = self.input.sink.lock().await;
        let mut pump = lock(&self.input.pump);
        match std::mem::replace(&mut *pump, Pump::Over) {
            Pump::Waiting(path) => {
                *current = Some(sink);
                *pump = Pump::Waiting(path);
            }
            Pump::Running(task) if !task.is_finished() => {
                *current = Some(sink);
                *pump = Pump::Running(task);
            }
            Pump::Running(_) | Pump::Over => {}
        }
    }

    /// The process has its stdio and is about to start, or has: begins to read what
    /// the client writes.
    ///
    /// Not before, as the Go shim: a client whose input is short is blocked until
    /// somebody opens its FIFO, reaches its input's end right after, and says so by
    /// CloseIO. `ctr` can say so only once its Create or Exec has been answered.
    pub(crate) fn begin_input(&self, gate: Gate) {
        if let Err(error) = self.open_input(gate) {
            // The client is gone; its process runs on without input, and reads its end.
            tracing::warn!(error = %format!("{error:#}"), "no input");
            *lock(&self.input.pump) = Pump::Over;
            if let Ok(mut sink) = self.input.sink.try_lock() {
                // Nobody else has it while no pump runs and nothing is being attached.
                sink.take();
            }
        }
    }

    fn open_input(&self, gate: Gate) -> Result<()> {
        let mut pump = lock(&self.input.pump);
        let Pump::Waiting(path) = &*pump else {
            return Ok(());
        };
        let fifo = pipe::OpenOptions::new()
            .open_receiver(path)
            .with_context(|| format!("open the FIFO {path}"))?;
        let writer = rustix::fs::open(
            path,
            OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .with_context(|| format!("open the FIFO {path} for writing"))?;
        let mut keep_open = lock(&self.input.keep_open);
        if !self.input.closed.load(Ordering::SeqCst) {
            *keep_open = Some(writer);
        }
        let task = pump_input(fifo, self.input.sink.clone(), self.activity.clone(), gate);
        *pump = Pump::Running(tokio::spawn(task));
        Ok(())
    }

    /// The client's CloseIO: the process reads to the end.
    pub(crate) fn close_stdin(&self) {
        // The FIFO's last writer goes; the pump then reads its end and lets the
        // process's pipe go.
        let mut keep_open = lock(&self.input.keep_open);
        self.input.closed.store(true, Ordering::SeqCst);
        keep_open.take();
    }

    /// The process is deleted: what it has written so far is, and nothing more, unless the
    /// client stalls.
    pub(crate) async fn take_leave(&self) {
        self.stop_input();
        self.leave.send_replace(Leave::Going);
        let mut relays = self.relays.subscribe();
        let delivered = async {
            let _ = relays.wait_for(|count| *count == 0).await;
            if let Some(outputs) = self.outputs.get() {
                outputs.stdout.wait_for_reader().await;
                outputs.stderr.wait_for_reader().await;
            }
        };
        let _ = timeout(DRAIN_LIMIT, delivered).await;
        self.leave.send_replace(Leave::Gone);
    }

    /// The process has ended: nobody reads its stdin.
    pub(crate) fn stop_input(&self) {
        lock(&self.input.keep_open).take();
        if let Pump::Running(pump) = std::mem::replace(&mut *lock(&self.input.pump), Pump::Over) {
            pump.abort();
        }
    }
}

fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stop_input();
    }
}

async fn pump_input(
    fifo: pipe::Receiver,
    sink: Arc<Mutex<Option<InputSink>>>,
    activity: Arc<Activity>,
    gate: Gate,
) {
    let mut buffer = vec![0; CHUNK];
    loop {
        if fifo.readable().await.is_err() {
            break;
        }
        let count = match fifo.try_read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(_) => break,
        };
        if !activity.input() {
            gate.pass().await;
        }
        // Held over the write; a rollback that wants to put a new pipe here waits
        // only until the old one breaks, which its process's end makes it do.
        if let Some(sink) = &*sink.lock().await {
            let written = match sink {
                InputSink::Pipe(pipe) => write_pipe(pipe, &buffer[..count]).await,
                InputSink::Terminal(terminal) => terminal.write(&buffer[..count]).await,
            };
            if let Err(error) = written {
                tracing::debug!(%error, "input dropped: the process has closed its stdin");
            }
        }
    }
    sink.lock().await.take();
}
