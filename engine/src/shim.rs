// SPDX-License-Identifier: Apache-2.0
//! A shim, held by its pidfd: its number may be given to another process
//! while we look away.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use thiserror::Error;

use crate::registry::Liveness;

#[derive(Debug, Error)]
pub(crate) enum ShimError {
    #[error("{0} is no process id")]
    NoPid(u32),
    #[error("shim process {pid}: {source}")]
    Open { pid: u32, source: io::Error },
}

/// One shim's process.
#[derive(Debug)]
pub(crate) struct Shim {
    pidfd: OwnedFd,
}

impl Shim {
    pub(crate) fn hold(pid: u32) -> Result<Self, ShimError> {
        let raw = i32::try_from(pid)
            .ok()
            .and_then(Pid::from_raw)
            .ok_or(ShimError::NoPid(pid))?;
        let pidfd = pidfd_open(raw, PidfdFlags::empty()).map_err(|source| ShimError::Open {
            pid,
            source: source.into(),
        })?;
        Ok(Self { pidfd })
    }
}

impl Liveness for Shim {
    /// A pidfd becomes readable when its process ends, reaped or not.
    fn lives(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        !matches!(poll(&mut fds, Some(&Timespec::default())), Ok(ready) if ready > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_lives_until_it_ends() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let shim = Shim::hold(child.id()).unwrap();
        assert!(shim.lives());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!shim.lives());
        assert!(Shim::hold(0).is_err());
    }
}
