// SPDX-License-Identifier: Apache-2.0

//! Commands of the host, each with a time limit and with what it printed.

use std::{
    io::{Read, Write},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open},
};

use crate::testbed::patient;

/// How long a command may take unless something else is said.
const LIMIT: Duration = Duration::from_secs(60);
/// How long a command that has ended may take to let go of its output. What it
/// left behind in the background may hold on to it for good.
const DRAIN: Duration = Duration::from_secs(2);

/// A command line in the making.
#[derive(Clone, Debug)]
pub struct Tool {
    program: String,
    args: Vec<String>,
    stdin: Vec<u8>,
    limit: Duration,
}

/// What a command printed and how it ended.
#[derive(Clone, Debug)]
pub struct Output {
    /// The command, for messages.
    pub command: String,
    /// Its exit status; 128 and the signal, if one ended it.
    pub status: i32,
    /// What it printed.
    pub stdout: String,
    /// What it printed on the other one.
    pub stderr: String,
    /// How long it took.
    pub took: Duration,
}

/// A command that has not ended. Killed when dropped.
#[derive(Debug)]
pub struct Running {
    command: String,
    child: Child,
    stdout: Receiver<Vec<u8>>,
    stderr: Receiver<Vec<u8>>,
    started: Instant,
    limit: Duration,
}

impl Tool {
    /// A command without arguments.
    pub fn new(program: impl Into<String>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            stdin: Vec::new(),
            limit: LIMIT,
        }
    }

    /// More arguments.
    pub fn args<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// What it reads; nothing otherwise.
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = bytes.into();
        self
    }

    /// How long it may take.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// The whole command line.
    pub fn words(&self) -> Vec<String> {
        let mut words = vec![self.program.clone()];
        words.extend(self.args.iter().cloned());
        words
    }

    /// Runs it to its end, whatever its exit status.
    pub fn run(self) -> Result<Output> {
        self.start()?.wait()
    }

    /// Starts it.
    pub fn start(self) -> Result<Running> {
        let command = format!("{} {}", self.program, self.args.join(" "));
        let mut child = Command::new(&self.program)
            .args(&self.args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("run {command}"))?;
        if let Some(mut stdin) = child.stdin.take() {
            let bytes = self.stdin;
            thread::spawn(move || {
                // It may end without reading everything.
                let _ = stdin.write_all(&bytes);
            });
        }
        Ok(Running {
            command,
            stdout: collect(child.stdout.take()),
            stderr: collect(child.stderr.take()),
            child,
            started: Instant::now(),
            limit: patient(self.limit),
        })
    }
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (send, receive) = channel();
    thread::spawn(move || {
        let mut pipe = pipe;
        let mut block = [0; 16384];
        while let Some(Ok(read @ 1..)) = pipe.as_mut().map(|pipe| pipe.read(&mut block)) {
            if send.send(block[..read].to_vec()).is_err() {
                return;
            }
        }
    });
    receive
}

fn drain(pipe: &Receiver<Vec<u8>>) -> String {
    let deadline = Instant::now() + DRAIN;
    let mut all = Vec::new();
    loop {
        match pipe.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(block) => all.extend(block),
            Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout) => {
                return String::from_utf8_lossy(&all).into_owned();
            }
        }
    }
}

pub(crate) fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}

impl Running {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Waits for its end. One that takes too long is killed, which is an error.
    pub fn wait(mut self) -> Result<Output> {
        // One that was seen to have ended can no longer be watched.
        let ended = self.has_ended()? || self.ends_by(self.started + self.limit)?;
        let status = match ended {
            true => self.child.wait()?,
            false => {
                self.child.kill()?;
                self.child.wait()?;
                let (out, err) = (drain(&self.stdout), drain(&self.stderr));
                bail!(
                    "{} did not end within {:?}: {} {}",
                    self.command,
                    self.limit,
                    out.trim(),
                    err.trim()
                );
            }
        };
        let took = self.started.elapsed();
        Ok(Output {
            command: self.command.clone(),
            status: code(status),
            stdout: drain(&self.stdout),
            stderr: drain(&self.stderr),
            took,
        })
    }
}

impl Running {
    /// Whether it ends before the deadline. The kernel wakes us: benchmarks go by the
    /// moment at which it did.
    fn ends_by(&self, deadline: Instant) -> Result<bool> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        let pid = pid.context("its id is no process id")?;
        let end = pidfd_open(pid, PidfdFlags::empty()).context("watch a command")?;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let limit = Timespec::try_from(left)?;
            let mut ends = [PollFd::new(&end, PollFlags::IN)];
            match poll(&mut ends, Some(&limit)) {
                Ok(ended) => return Ok(ended > 0),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("wait for a command"),
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Output {
    /// Itself, if it ended well; an error with what it said otherwise.
    pub fn ok(self) -> Result<Self> {
        if self.status == 0 {
            return Ok(self);
        }
        bail!(
            "{} ended with {}: {} {}",
            self.command,
            self.status,
            self.stdout.trim(),
            self.stderr.trim()
        )
    }

    /// What it printed, without white space around it, if it ended well.
    pub fn text(self) -> Result<String> {
        Ok(self.ok()?.stdout.trim().to_owned())
    }
}
