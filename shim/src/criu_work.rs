// SPDX-License-Identifier: Apache-2.0
//! Where CRIU works, and where its log is when it fails.
//!
//! A directory that a client names is the client's. One of ours goes with success, and
//! stays after a failure: the runtime's error names it, and it must be there when
//! somebody looks, though the container is deleted by then. Until the next one of the
//! same container, or until [`MAX_KEPT`] newer ones have failed.

use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::{Context, Result, anyhow};
use crab_config::Config;
use crab_runtime::{mount::remove_tree, oci::OciError};
use crab_store::SandboxId;

use crate::sandbox::{Host, make_private_dir};

/// How many of failed runs are kept on a host.
const MAX_KEPT: usize = 32;

/// What CRIU does there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Dump,
    Restore,
}

impl Verb {
    fn word(self) -> &'static str {
        match self {
            Self::Dump => "dump",
            Self::Restore => "restore",
        }
    }

    /// What CRIU calls its log.
    fn log(self) -> &'static str {
        match self {
            Self::Dump => "dump.log",
            Self::Restore => "restore.log",
        }
    }
}

/// One run's directory.
#[derive(Debug)]
pub(crate) struct CriuWork {
    path: PathBuf,
    verb: Verb,
    /// Not a client's.
    ours: bool,
}

impl CriuWork {
    /// The directory that the client names, or one of ours; there, and without the log of
    /// an earlier run.
    pub(crate) fn open(
        host: &Host,
        id: &SandboxId,
        verb: Verb,
        client: Option<&Path>,
    ) -> Result<Self> {
        if let Some(path) = client {
            fs::create_dir_all(path).with_context(|| format!("make {}", path.display()))?;
            let work = Self {
                path: path.to_path_buf(),
                verb,
                ours: false,
            };
            let _ = fs::remove_file(work.log());
            return Ok(work);
        }
        let path = Self::ours(&host.config, id, verb);
        remove_tree(&path)?;
        make_private_dir(&path)?;
        if let Some(all) = path.parent() {
            forget_old(all);
        }
        Ok(Self {
            path,
            verb,
            ours: true,
        })
    }

    /// Where it is ours.
    pub(crate) fn ours(config: &Config, id: &SandboxId, verb: Verb) -> PathBuf {
        let name = format!("{}.{}.{}", id.namespace(), id.id(), verb.word());
        config.run_dir.join("criu").join(name)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn log(&self) -> PathBuf {
        self.path.join(self.verb.log())
    }

    /// Why it failed, in CRIU's own words, with where the rest of them is.
    pub(crate) fn explain(&self, error: OciError) -> anyhow::Error {
        let reason = match self.verb {
            Verb::Dump => crab_runtime::criu::dump_error(&self.path),
            Verb::Restore => crab_runtime::criu::restore_error(&self.path),
        };
        match reason {
            Some(reason) => anyhow!("{error}; CRIU: {reason} ({})", self.log().display()),
            None => error.into(),
        }
    }

    /// It went well: CRIU's log is of no more use, but to a client who wants it.
    pub(crate) fn done(self) {
        if self.ours {
            let _ = remove_tree(&self.path);
        }
    }
}

/// Only the newest are kept: a container that fails again and again under new names must
/// not fill the memory.
fn forget_old(all: &Path) {
    let mut dirs: Vec<(SystemTime, PathBuf)> = fs::read_dir(all)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    dirs.sort();
    for (_, dir) in dirs.iter().rev().skip(MAX_KEPT) {
        let _ = remove_tree(dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..MAX_KEPT + 3 {
            let path = dir.path().join(format!("default.c{n}.dump"));
            fs::create_dir(&path).unwrap();
            let at = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(n as u64);
            fs::File::open(&path).unwrap().set_modified(at).unwrap();
        }
        forget_old(dir.path());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), MAX_KEPT);
        assert!(!dir.path().join("default.c2.dump").exists());
        assert!(dir.path().join("default.c3.dump").exists());
    }
}
