// SPDX-License-Identifier: Apache-2.0
//! A history that could not be opened when its container was created, and may be later.
//!
//! What the system or another process refused then (no room, too many files, a lock) passes. What
//! is configured, and what a root is, stays. The history begins with what is there when it is
//! opened: what a container is to begin as has to be put in place before it runs, so a wish to be
//! restored, or a rollback that was interrupted, is refused here and waits for the next start.

use std::{io, time::Duration};

use anyhow::{Result, bail};
use crab_runtime::{mount::MountRequest, rootfs::RootFs};
use crab_store::{OpenError, ReadError, Store, WriteError};

use super::{Ledger, apart, belongs_to_another, claim, layer, retire};
use crate::sandbox::Container;

/// For how long whoever else writes to the history is waited for. Execs wait meanwhile.
const LOCKED: Duration = Duration::from_millis(200);

/// That a sandbox has no history.
#[derive(Debug)]
pub(crate) struct Without {
    /// Why not, in one line for people.
    pub(crate) reason: String,
    /// It may be otherwise later: [`reopen`].
    pub(crate) may_pass: bool,
}

impl Without {
    /// For as long as the container lives.
    pub(super) fn for_good(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            may_pass: false,
        }
    }

    /// Because of this.
    pub(crate) fn because(error: &anyhow::Error) -> Self {
        Self {
            reason: format!("no checkpoints: {error:#}"),
            may_pass: may_pass(error),
        }
    }
}

/// Whether what failed may be right later: a call of the system, or somebody else who writes to
/// the history. Not what is configured, or what a root is.
fn may_pass(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let by_the_store = match cause.downcast_ref() {
            Some(OpenError::Locked(_) | OpenError::NoSpace(_) | OpenError::File(_)) => true,
            Some(OpenError::Read(ReadError::File(_))) => true,
            _ => matches!(
                cause.downcast_ref(),
                Some(WriteError::NoSpace(_) | WriteError::File(_))
            ),
        };
        by_the_store
            || matches!(cause.downcast_ref(), Some(ReadError::File(_)))
            || cause.is::<io::Error>()
            || cause.is::<rustix::io::Errno>()
    })
}

/// Opens the history of a container that runs, and for which [`super::open`] could not.
pub(crate) fn reopen(container: &Container, mounts: &[MountRequest]) -> Result<Ledger> {
    let config = &container.config;
    let root = RootFs::find(container.bundle.rootfs())?;
    let store = Store::create(&config.store)?;
    apart(&root, &config.store)?;
    let upper = layer(&root, mounts);
    if let Ok(sandbox) = store.sandbox(&container.id) {
        let is_anothers = belongs_to_another(&sandbox, &upper);
        let request = sandbox.restore_request()?;
        if let Some(request) = request.filter(|request| !(request.fork && is_anothers)) {
            bail!(
                "turn {} was to be restored and could not be looked for; stop the container and \
                 run crab restore again",
                request.turn
            );
        }
        if is_anothers {
            retire(container, &store, LOCKED)?;
        } else if sandbox.rollback_begun()?.is_some() {
            bail!(
                "a rollback was interrupted, and its files are still to be put back; stop the \
                 container and start it again"
            );
        }
    }
    let writer = store.writer_within(&container.id, LOCKED)?;
    claim(container, &writer, &root, upper, mounts)?;
    Ok(Ledger {
        writer,
        root,
        restored: None,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_the_system_refuses_may_pass_and_what_is_wrong_stays() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let id: crab_store::SandboxId = "default/c1".parse().unwrap();
        let root = crab_runtime::rootfs::RootError::FileSystem {
            path: "/root".into(),
            fstype: "vfat".into(),
        };
        let of_store = |error: OpenError| anyhow::Error::from(error);
        for error in [
            anyhow::Error::from(full).context("write a file"),
            of_store(OpenError::Locked(id)),
            anyhow::Error::from(rustix::io::Errno::MFILE),
        ] {
            assert!(may_pass(&error), "{error:#}");
        }
        for error in [
            of_store(OpenError::NotAStore("/var".into())),
            anyhow::Error::from(root),
            anyhow::anyhow!("rootfs holds the store"),
        ] {
            assert!(!may_pass(&error), "{error:#}");
        }
        // As the store itself says it.
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        let error = Store::create(dir.path().join("file/store")).unwrap_err();
        assert!(may_pass(&error.into()));
    }
}
