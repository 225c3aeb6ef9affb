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
//! the pipe goes on being drained: what runs on must not die of SIGPIPE.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::{Context, Result, bail};
use crab_runtime::oci::Stdio3;
use rustix::{
    fs::{Mode, OFlags},
    pipe::{PipeFlags, pipe_with},
};
use tokio::{
    net::unix::pipe,
    sync::{Mutex, watch},
    task::JoinHandle,
};

use crate::terminal::Terminal;

/// Size of one read from a pipe, in bytes.
const CHUNK: usize = 32 * 1024;

/// Where a client wants a process's stdio, as it said so.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StdioPaths {
    pub(crate) stdin: String,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) terminal: bool,
}

/// Where output goes.
enum Sink {
    Fifo(pipe::Sender),
    File(File),
    /// The client wants none.
    Nowhere,
}

impl Sink {
    fn open(target: &str) -> Result<Self> {
        if target.is_empty() {
            return Ok(Self::Nowhere);
        }
        if target.starts_with("binary://") {
            bail!("log drivers ({target}) are not supported; use a FIFO or file://");
        }
        let (path, is_file) = match target.strip_prefix("file://") {
            Some(path) => (path, true),
            None => (target.strip_prefix("fifo://").unwrap_or(target), false),
        };
        if is_file {
            let file = File::options().append(true).create(true).open(path);
            return Ok(Self::File(file.with_context(|| format!("open {path}"))?));
        }
        let fifo = pipe::OpenOptions::new()
            .read_write(true)
            .open_sender(path)
            .with_context(|| format!("open the FIFO {path}"))?;
        Ok(Self::Fifo(fifo))
    }

    async fn write(&self, mut data: &[u8]) -> io::Result<()> {
        match self {
            Self::Nowhere => Ok(()),
            Self::File(file) => {
                let mut file: &File = file;
                file.write_all(data)
            }
            Self::Fifo(fifo) => {
                while !data.is_empty() {
                    fifo.writable().await?;
                    match fifo.try_write(data) {
                        Ok(count) => data = &data[count..],
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok(())
            }
        }
    }
}

/// The client's side of a process's stdio. It outlives the pipes: a rollback
/// makes new ones and attaches them here.
pub(crate) struct Client {
    stdout: Sink,
    stderr: Sink,
    /// The client has deleted the process.
    gone: watch::Sender<bool>,
    terminal: bool,
    input: Input,
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
    /// Opens the client's FIFOs, but that of the input: see
    /// [`Self::begin_input`]. Never waits for their other ends.
    pub(crate) fn open(paths: &StdioPaths) -> Result<Arc<Self>> {
        let pump = match paths.stdin.as_str() {
            "" => Pump::Over,
            path => Pump::Waiting(path.strip_prefix("fifo://").unwrap_or(path).to_owned()),
        };
        Ok(Arc::new(Self {
            stdout: Sink::open(&paths.stdout)?,
            // A terminal has one output.
            stderr: if paths.terminal {
                Sink::Nowhere
            } else {
                Sink::open(&paths.stderr)?
            },
            gone: watch::Sender::new(false),
            terminal: paths.terminal,
            input: Input {
                sink: Arc::default(),
                pump: std::sync::Mutex::new(pump),
                keep_open: std::sync::Mutex::default(),
                closed: AtomicBool::new(false),
            },
        }))
    }

    /// Whether the process gets a terminal.
    pub(crate) fn terminal(&self) -> bool {
        self.terminal
    }

    /// Makes pipes for a process about to start; output is relayed from now on.
    pub(crate) async fn attach_pipes(self: &Arc<Self>) -> Result<Stdio3> {
        let make = || pipe_with(PipeFlags::CLOEXEC).context("make a pipe");
        let (stdin_read, stdin_write) = make()?;
        let sender = pipe::Sender::from_owned_fd(stdin_write)?;
        self.attach_input(InputSink::Pipe(sender)).await;
        let (stdout_read, stdout_write) = make()?;
        let (stderr_read, stderr_write) = make()?;
        for (read, to_stderr) in [(stdout_read, false), (stderr_read, true)] {
            let receiver = pipe::Receiver::from_owned_fd(read)?;
            tokio::spawn(relay_output(receiver, self.clone(), to_stderr));
        }
        Ok(Stdio3 {
            stdin: Some(stdin_read),
            stdout: Some(stdout_write),
            stderr: Some(stderr_write),
        })
    }

    /// Attaches the master of a started process's terminal.
    pub(crate) async fn attach_terminal(
        self: &Arc<Self>,
        master: OwnedFd,
    ) -> Result<Arc<Terminal>> {
        let terminal = Arc::new(Terminal::new(master)?);
        self.attach_input(InputSink::Terminal(terminal.clone()))
            .await;
        tokio::spawn(relay_terminal(terminal.clone(), self.clone()));
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
    pub(crate) fn begin_input(&self) {
        if let Err(error) = self.open_input() {
            // The client is gone; its process runs on without input.
            tracing::warn!(error = %format!("{error:#}"), "no input");
            *lock(&self.input.pump) = Pump::Over;
        }
    }

    fn open_input(&self) -> Result<()> {
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
        let task = pump_input(fifo, self.input.sink.clone());
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

    /// The process is deleted: nothing more is written to the client.
    pub(crate) fn detach(&self) {
        self.gone.send_replace(true);
        self.stop_input();
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

async fn pump_input(fifo: pipe::Receiver, sink: Arc<Mutex<Option<InputSink>>>) {
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

async fn write_pipe(pipe: &pipe::Sender, mut data: &[u8]) -> io::Result<()> {
    while !data.is_empty() {
        pipe.writable().await?;
        match pipe.try_write(data) {
            Ok(count) => data = &data[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Where output goes until the client is gone; then nowhere, and the client's FIFOs
/// are let go.
struct Outlet {
    client: Option<Arc<Client>>,
    gone: watch::Receiver<bool>,
    to_stderr: bool,
}

impl Outlet {
    fn new(client: Arc<Client>, to_stderr: bool) -> Self {
        Self {
            gone: client.gone.subscribe(),
            client: Some(client),
            to_stderr,
        }
    }

    /// Ends when the client is gone; never if it was before.
    async fn closed(&mut self) {
        if self.client.is_some() {
            let _ = self.gone.wait_for(|gone| *gone).await;
            self.client = None;
        } else {
            std::future::pending().await
        }
    }

    async fn deliver(&mut self, data: &[u8]) {
        let Some(client) = self.client.clone() else {
            return;
        };
        let sink = if self.to_stderr {
            &client.stderr
        } else {
            &client.stdout
        };
        tokio::select! {
            written = sink.write(data) => {
                if let Err(error) = written {
                    tracing::warn!(%error, "output dropped");
                }
            }
            () = self.closed() => {}
        }
    }
}

async fn relay_output(pipe: pipe::Receiver, client: Arc<Client>, to_stderr: bool) {
    let mut outlet = Outlet::new(client, to_stderr);
    let mut buffer = vec![0; CHUNK];
    loop {
        tokio::select! {
            ready = pipe.readable() => {
                if ready.is_err() {
                    return;
                }
            }
            () = outlet.closed() => continue,
        }
        match pipe.try_read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => outlet.deliver(&buffer[..count]).await,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

async fn relay_terminal(terminal: Arc<Terminal>, client: Arc<Client>) {
    let mut outlet = Outlet::new(client, false);
    let mut buffer = vec![0; CHUNK];
    loop {
        tokio::select! {
            // A terminal whose last process is gone reads as EIO.
            read = terminal.read(&mut buffer) => match read {
                Ok(0) | Err(_) => return,
                Ok(count) => outlet.deliver(&buffer[..count]).await,
            },
            () = outlet.closed() => {}
        }
    }
}
