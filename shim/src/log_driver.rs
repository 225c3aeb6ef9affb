// SPDX-License-Identifier: Apache-2.0
//! Log drivers: programs that take a process's output (`binary://`).
//!
//! ```text
//! process --pipe--> relay --pipe--> driver    descriptor 3: stdout, 4: stderr
//!                      ready <-pipe-- driver  descriptor 5: a byte, or its end
//! ```
//! The Go shim hands the process's own pipes to the driver. Here the shim stays in between,
//! as it does for FIFOs: a rollback makes new pipes for the process, and the driver does not
//! notice. A driver that dies or stalls costs output, never the container's exit.
//!
//! It is started with its process, reads the end when the process and all who inherited its
//! output are gone, and is ended when the process is deleted, if it has not ended by then.

use std::{
    ffi::OsString,
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use crab_runtime::reaper::Reaper;
use rustix::{
    pipe::{PipeFlags, pipe_with},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use tokio::{
    net::unix::pipe,
    sync::{oneshot, watch},
    time::timeout,
};

/// How long a driver may take until it says that it is ready.
const READY_LIMIT: Duration = Duration::from_secs(30);
/// How long a driver has to end by itself once its process is deleted.
const GRACE: Duration = Duration::from_secs(2);
/// How long after SIGTERM it is killed; the Go shim's.
const TERM_LIMIT: Duration = Duration::from_secs(12);

/// The first descriptor that a driver is given.
const FIRST_FD: i32 = 3;

/// What a `binary://` URI asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DriverCommand {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<OsString>,
    /// `binary-v2`: one that ends without a word was not ready.
    pub(crate) must_say_ready: bool,
}

/// A driver at work. It is ended when this is dropped.
#[derive(Debug)]
pub(crate) struct LogDriver {
    _held: oneshot::Sender<()>,
    ended: watch::Receiver<bool>,
}

/// Where a driver takes output.
pub(crate) struct DriverPipes {
    pub(crate) stdout: pipe::Sender,
    pub(crate) stderr: pipe::Sender,
}

impl LogDriver {
    /// Starts a driver for the process `id`, and waits until it is ready.
    pub(crate) async fn start(
        driver: &DriverCommand,
        id: &str,
        namespace: &str,
        reaper: &Reaper,
    ) -> Result<(Self, DriverPipes)> {
        let name = driver.program.display().to_string();
        let make = || pipe_with(PipeFlags::CLOEXEC).context("make a pipe");
        let (stdout_read, stdout) = make()?;
        let (stderr_read, stderr) = make()?;
        let (ready, ready_write) = make()?;
        let mut command = Command::new(&driver.program);
        command
            .args(&driver.args)
            // As the Go shim: nothing else of the shim's environment.
            .env_clear()
            .env("CONTAINER_ID", id)
            .env("CONTAINER_NAMESPACE", namespace)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        hand_over(&mut command, [stdout_read, stderr_read, ready_write]);
        let (child, exit) = reaper
            .spawn(&mut command)
            .with_context(|| format!("start the log driver {name}"))?;
        // Its ends of the pipes are in there, and must be the only ones.
        drop(command);
        // One that has ended already cannot be opened, and need not be signalled.
        let process = Pid::from_raw(child.id() as i32)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let (held, released) = oneshot::channel();
        let (told, ended) = watch::channel(false);
        tokio::spawn(async move {
            let mut exit = exit;
            tokio::select! {
                _ = &mut exit => {}
                _ = released => end(process, exit).await,
            }
            let _ = told.send(true);
        });
        let driver_handle = Self { _held: held, ended };
        let mut byte = [0];
        let ready = pipe::Receiver::from_owned_fd(ready)?;
        let said = timeout(READY_LIMIT, read_some(&ready, &mut byte))
            .await
            .with_context(|| format!("the log driver {name} is not ready after {READY_LIMIT:?}"))?
            .with_context(|| format!("wait for the log driver {name}"))?;
        if said == 0 && driver.must_say_ready {
            bail!("the log driver {name} ended without saying that it is ready");
        }
        let pipes = DriverPipes {
            stdout: pipe::Sender::from_owned_fd(stdout)?,
            stderr: pipe::Sender::from_owned_fd(stderr)?,
        };
        Ok((driver_handle, pipes))
    }

    /// Tells when it has ended.
    pub(crate) fn ended(&self) -> watch::Receiver<bool> {
        self.ended.clone()
    }
}

async fn read_some(pipe: &pipe::Receiver, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        pipe.readable().await?;
        match pipe.try_read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            done => return done,
        }
    }
}

/// Lets a driver finish, then makes it.
async fn end<T>(process: Option<OwnedFd>, mut exit: oneshot::Receiver<T>) {
    let steps = [
        (GRACE, Some(Signal::TERM)),
        (TERM_LIMIT, Some(Signal::KILL)),
    ];
    for (limit, signal) in steps {
        if timeout(limit, &mut exit).await.is_ok() {
            return;
        }
        if let (Some(process), Some(signal)) = (&process, signal) {
            tracing::warn!(?signal, "a log driver has not ended with its process");
            let _ = pidfd_send_signal(process, signal);
        }
    }
    let _ = exit.await;
}

/// Hands the descriptors to the command, at [`FIRST_FD`] and the next.
fn hand_over(command: &mut Command, fds: [OwnedFd; 3]) {
    // SAFETY: between fork and exec only fcntl and dup2 are called, which are
    // async-signal-safe; the descriptors are owned by the closure, so open until then.
    unsafe {
        command.pre_exec(move || {
            let mut moved = [0; 3];
            // Out of the way first: one may have the number that another is to get.
            for (to, fd) in moved.iter_mut().zip(&fds) {
                *to = libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, FIRST_FD + 3);
                if *to < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            for (number, fd) in (FIRST_FD..).zip(moved) {
                if libc::dup2(fd, number) < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
}
