// SPDX-License-Identifier: Apache-2.0
//! Lock and socket: who is *the* crabd of a run directory, and where it
//! listens.
//!
//! The lock is held until the process ends, so a successor never meets half an
//! exit. The socket appears only when its owner is ready to answer.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crab_api::paths;
use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;
use thiserror::Error;

use crate::holder::Holder;

/// For how long a lock may be held by one that does not answer: one that is
/// loading its programs, which takes seconds on a busy host, or on its way out.
const PATIENCE: Duration = Duration::from_secs(30);

/// For how long one that was told to end may take to.
const FAREWELL: Duration = Duration::from_secs(5);

#[derive(Debug, Error)]
pub(crate) enum EndpointError {
    #[error("{path} has no directory")]
    NoDirectory { path: PathBuf },
    #[error("{verb} {path}: {source}")]
    Io {
        verb: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{path} is held by a crabd that does not answer")]
    Unresponsive { path: PathBuf },
    #[error("{path} is held by a crabd that does not end")]
    Lasting { path: PathBuf },
}

/// The right to serve in a run directory.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

/// What became of the attempt to be the one.
#[derive(Debug)]
pub(crate) enum Election {
    Won(Lock),
    /// Another one serves.
    Lost,
}

/// Who gives way to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// To one that answers.
    Modest,
    /// The other one to this: it is told to end, and killed if it does not.
    TakeOver,
}

/// Takes the lock beside `socket`, or finds that its holder answers.
pub(crate) fn elect(socket: &Path, claim: Claim) -> Result<Election, EndpointError> {
    let directory = socket
        .parent()
        .filter(|directory| !directory.as_os_str().is_empty())
        .ok_or_else(|| EndpointError::NoDirectory {
            path: socket.to_path_buf(),
        })?;
    let at = |verb, path: &Path, source| EndpointError::Io {
        verb,
        path: path.to_path_buf(),
        source,
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(|source| at("create", directory, source))?;
    let path = paths::crabd_lock(directory);
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(|source| at("open", &path, source))?;
    let mut start = Instant::now();
    // What a holder that is in the way has been sent, the mildest first.
    let mut signals = [Signal::TERM, Signal::KILL].into_iter();
    let mut next_signal = start;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Election::Won(Lock { _file: file })),
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            Err(source) => return Err(at("lock", &path, source.into())),
        }
        match claim {
            Claim::Modest if UnixStream::connect(socket).is_ok() => return Ok(Election::Lost),
            Claim::TakeOver if Instant::now() >= next_signal => {
                let holder =
                    Holder::of(&file).map_err(|source| at("find the holder of", &path, source))?;
                // Gone in between, or another: the next round meets that one.
                if let Some(holder) = holder {
                    let Some(signal) = signals.next() else {
                        return Err(EndpointError::Lasting { path });
                    };
                    holder
                        .signal(signal)
                        .map_err(|source| at("end the holder of", &path, source))?;
                    next_signal = Instant::now() + FAREWELL;
                    start = next_signal;
                }
            }
            _ => {}
        }
        if start.elapsed() > PATIENCE {
            return Err(EndpointError::Unresponsive { path });
        }
        sleep(Duration::from_millis(20));
    }
}

/// Listens on `socket`. Only the holder of the lock may: it removes what a
/// dead predecessor left there.
pub(crate) fn listen(socket: &Path, _lock: &Lock) -> Result<UnixListener, EndpointError> {
    let at = |verb| {
        let path = socket.to_path_buf();
        move |source| EndpointError::Io { verb, path, source }
    };
    remove(socket).map_err(at("remove"))?;
    let listener = UnixListener::bind(socket).map_err(at("listen on"))?;
    fs::set_permissions(socket, Permissions::from_mode(0o600)).map_err(at("restrict"))?;
    listener
        .set_nonblocking(true)
        .map_err(at("make non-blocking"))?;
    Ok(listener)
}

/// Removes the socket; that it is gone already is fine.
pub(crate) fn remove(socket: &Path) -> io::Result<()> {
    match fs::remove_file(socket) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
