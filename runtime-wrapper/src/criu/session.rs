// SPDX-License-Identifier: Apache-2.0
//! One dump by a CRIU that is asked directly, without an OCI runtime in between.
//!
//! ```text
//! begin   criu swrk, the request          the container runs
//!         <- notify "pre-dump"            CRIU is loaded and set up, and has touched nothing
//!         (the caller freezes)
//! dump    -> go on                        the container stands still
//!         <- notify ..., -> go on
//!         <- done                         CRIU has let go of every process
//! ```
//! The protocol is what libcriu, runc and crun speak (CRIU's `rpc.proto`), over a
//! sequenced-packet socket. Dropped before [`Begun::dump`], CRIU ends without having
//! touched the container.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use protobuf::{EnumOrUnknown, Message, MessageField};
use rust_criu::rust_criu_protobuf::rpc::{Criu_req, Criu_req_type, Criu_resp};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use thiserror::Error;
use tokio::sync::oneshot;

use super::{remainder::Remainder, request::Asked};
use crate::{
    deadline::{Deadline, Limit},
    oci::ImagePaths,
    program::{find_program, path_with},
    reaper::{Exit, Reaper},
};

/// Why CRIU did not dump.
#[derive(Debug, Error)]
pub enum SessionError {
    /// What runc would ask for is not known for certain.
    #[error("{0}")]
    Unfit(String),
    /// There is none.
    #[error("{0} is not found")]
    NotFound(PathBuf),
    /// It could not be started, or its directories not be opened.
    #[error("{verb} {path}: {source}")]
    Io {
        /// "run" or "open".
        verb: &'static str,
        /// Its program, or the directory.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The conversation broke off.
    #[error("CRIU broke off: {0}")]
    Broken(String),
    /// It said no; its log says why.
    #[error("CRIU refused ({0})")]
    Refused(String),
}

fn broken(error: impl std::fmt::Display) -> SessionError {
    SessionError::Broken(error.to_string())
}

/// What its messages fit into, with much to spare.
const MESSAGE: usize = 64 << 10;

/// The descriptor at which CRIU finds its socket: above those that the standard library
/// uses between fork and exec.
const SOCKET: i32 = 400;

/// Before CRIU touches the container.
const PRE_DUMP: &str = "pre-dump";

/// The log in the work directory, named as runc names it.
const LOG: &str = "dump.log";

/// What CRIU logs: errors and warnings. With more, it looks up and writes a line for
/// about everything that it does while the container stands still.
const LOG_LEVEL: i32 = 2;

/// A CRIU that is about to dump a container, and waits for word that it stands still.
pub struct Begun {
    socket: OwnedFd,
    exit: oneshot::Receiver<Exit>,
    /// Ends CRIU if it hangs, and what is left of it.
    deadline: Option<Deadline>,
    /// CRIU opens them anew through this process.
    _directories: [File; 2],
    remainder: Remainder,
    leaves_files_alone: bool,
}

impl Begun {
    /// Whether it makes and removes nothing among the container's own files meanwhile, so that they
    /// can be read beside it.
    pub fn leaves_files_alone(&self) -> bool {
        self.leaves_files_alone
    }

    /// Starts a CRIU and asks it for a dump; returns when it waits for the container to
    /// stand still.
    ///
    /// # Errors
    /// When it cannot be started, or refuses the request.
    pub(crate) fn begin(
        criu: &Path,
        reaper: &Reaper,
        paths: &ImagePaths,
        asked: Asked,
        limit: Limit,
    ) -> Result<Self, SessionError> {
        let Asked {
            mut options,
            network,
            remainder,
            leaves_files_alone,
            ..
        } = asked;
        let program =
            find_program(criu).ok_or_else(|| SessionError::NotFound(criu.to_path_buf()))?;
        let open = |path: &Path| {
            File::open(path).map_err(|source| SessionError::Io {
                verb: "open",
                path: path.to_path_buf(),
                source,
            })
        };
        let directories = [open(&paths.images)?, open(&paths.work)?];
        options.images_dir_fd = Some(directories[0].as_raw_fd());
        options.work_dir_fd = Some(directories[1].as_raw_fd());
        options.log_file = Some(LOG.into());
        options.log_level = Some(LOG_LEVEL);
        options.notify_scripts = Some(true);
        let (socket, exit, deadline) = start(&program, network, reaper, limit)?;
        let mut begun = Self {
            socket,
            exit,
            deadline: Some(deadline),
            _directories: directories,
            remainder,
            leaves_files_alone,
        };
        begun.say(Criu_req {
            type_: Some(EnumOrUnknown::new(Criu_req_type::DUMP)),
            opts: MessageField::some(options),
            ..Criu_req::default()
        })?;
        loop {
            match begun.hear()? {
                Heard::Notification(script) if script == PRE_DUMP => return Ok(begun),
                Heard::Notification(_) => begun.go_on()?,
                Heard::Done => return Err(broken("it was done before it began")),
            }
        }
    }

    /// Has it dump the container, which stands still now. When this returns, CRIU has let
    /// go of the processes; tells what is left to do with the image.
    ///
    /// # Errors
    /// When CRIU cannot; its reason is in its log.
    pub fn dump(mut self) -> Result<Remainder, SessionError> {
        self.go_on()?;
        while let Heard::Notification(_) = self.hear()? {
            self.go_on()?;
        }
        // It only tidies up, and has its own time for that.
        self.deadline.take();
        Ok(std::mem::take(&mut self.remainder))
    }

    fn go_on(&mut self) -> Result<(), SessionError> {
        self.say(Criu_req {
            type_: Some(EnumOrUnknown::new(Criu_req_type::NOTIFY)),
            notify_success: Some(true),
            ..Criu_req::default()
        })
    }

    fn say(&mut self, request: Criu_req) -> Result<(), SessionError> {
        let bytes = request.write_to_bytes().map_err(broken)?;
        rustix::io::retry_on_intr(|| send(&self.socket, &bytes, SendFlags::NOSIGNAL))
            .map(drop)
            .map_err(broken)
    }

    fn hear(&mut self) -> Result<Heard, SessionError> {
        let mut buffer = vec![0; MESSAGE];
        let received = rustix::io::retry_on_intr(|| {
            recv(&self.socket, buffer.as_mut_slice(), RecvFlags::empty())
        });
        let (length, _) = received.map_err(broken)?;
        if length == 0 {
            let status = self.exit.try_recv().ok().map(|exit| exit.status);
            return Err(broken(match status {
                Some(status) => format!("it ended with status {status}"),
                None => "it ended".into(),
            }));
        }
        let answer = Criu_resp::parse_from_bytes(&buffer[..length]).map_err(broken)?;
        heard(&answer)
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if let Some(deadline) = self.deadline.take() {
            // Not before it has let go of what it may have seized: its code may be in a
            // process of the container. Its conversation is over, and it knows.
            let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
            deadline.let_finish();
            deadline.end();
        }
    }
}

/// What CRIU has to say.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    Notification(String),
    Done,
}

fn heard(answer: &Criu_resp) -> Result<Heard, SessionError> {
    let kind = answer.type_.and_then(|kind| kind.enum_value().ok());
    if !answer.success.unwrap_or(false) {
        let reason = answer.cr_errmsg.clone().unwrap_or_default();
        return Err(SessionError::Refused(match answer.cr_errno {
            _ if !reason.is_empty() => reason,
            Some(errno) => io::Error::from_raw_os_error(errno).to_string(),
            None => "it gave no reason".into(),
        }));
    }
    match kind {
        Some(Criu_req_type::NOTIFY) => {
            let script = answer.notify.as_ref().and_then(|n| n.script.clone());
            Ok(Heard::Notification(script.unwrap_or_default()))
        }
        Some(Criu_req_type::DUMP) => Ok(Heard::Done),
        other => Err(broken(format!(
            "an answer that was not asked for: {other:?}"
        ))),
    }
}

/// Starts `criu swrk` at one end of a socket; the other end, its exit, and its limit.
fn start(
    program: &Path,
    network: Option<File>,
    reaper: &Reaper,
    limit: Limit,
) -> Result<(OwnedFd, oneshot::Receiver<Exit>, Deadline), SessionError> {
    let fail = |source: io::Error| SessionError::Io {
        verb: "run",
        path: program.to_path_buf(),
        source,
    };
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|error| fail(error.into()))?;
    let mut command = Command::new(program);
    command
        .arg("swrk")
        .arg(SOCKET.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    if let Some(dir) = program.parent() {
        command.env("PATH", path_with(dir));
    }
    // SAFETY: between fork and exec only setns and dup2 are called, which are
    // async-signal-safe; the descriptors are owned by the closure, so open until then, and
    // none is the target: that one is only ever made here, in the child.
    unsafe {
        command.pre_exec(move || {
            if let Some(network) = &network
                && libc::setns(network.as_raw_fd(), libc::CLONE_NEWNET) != 0
            {
                return Err(io::Error::last_os_error());
            }
            match libc::dup2(theirs.as_raw_fd(), SOCKET) {
                -1 => Err(io::Error::last_os_error()),
                _ => Ok(()),
            }
        });
    }
    let (child, exit) = reaper.spawn(&mut command).map_err(fail)?;
    let deadline = Deadline::of(child.id(), limit);
    // With it our copy of CRIU's end: or its death would never be seen.
    drop(command);
    Ok((ours, exit, deadline))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rust_criu::rust_criu_protobuf::rpc::Criu_notify;

    fn answer(kind: Criu_req_type, success: bool) -> Criu_resp {
        Criu_resp {
            type_: Some(EnumOrUnknown::new(kind)),
            success: Some(success),
            ..Criu_resp::default()
        }
    }

    #[test]
    fn what_criu_says_is_understood() {
        let mut notify = answer(Criu_req_type::NOTIFY, true);
        notify.notify = MessageField::some(Criu_notify {
            script: Some("pre-dump".into()),
            ..Criu_notify::default()
        });
        let said = heard(&notify).unwrap();
        assert_eq!(said, Heard::Notification("pre-dump".into()));
        let done = heard(&answer(Criu_req_type::DUMP, true)).unwrap();
        assert_eq!(done, Heard::Done);
        let mut refused = answer(Criu_req_type::DUMP, false);
        refused.cr_errno = Some(3);
        let error = heard(&refused).unwrap_err().to_string();
        assert!(error.contains("No such process"), "{error}");
        assert!(heard(&answer(Criu_req_type::RESTORE, true)).is_err());
    }
}
