// SPDX-License-Identifier: Apache-2.0
//! Where on the host a container's own directories are.
//!
//! They stay in the bundle as `directories.json`: `delete`, after a shim that died, has
//! to find them, whatever the configuration says by then.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use crab_api::paths;
use crab_config::Config;
use crab_store::SandboxId;
use rustix::fs::statvfs;
use serde::{Deserialize, Serialize};

use crate::criu_work::{CriuWork, Verb};

/// The file in the bundle.
const FILE: &str = "directories.json";

/// What is gone when the container is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Directories {
    /// What `crab` and the shim keep of it in the run directory.
    pub(crate) run: PathBuf,
    /// Where CRIU writes its images until they are in the store, in memory.
    pub(crate) memory: PathBuf,
    /// The same, on disk.
    pub(crate) disk: PathBuf,
    /// Where CRIU works while it restores. It stays, with the log of a failure, but for what CRIU
    /// mounts there. Bundles of older shims do not say.
    #[serde(default)]
    pub(crate) restoring: Option<PathBuf>,
}

impl Directories {
    /// Those of a container under this configuration.
    pub(crate) fn of(config: &Config, id: &SandboxId) -> Self {
        let staging = |base: PathBuf| base.join(id.namespace()).join(id.id());
        Self {
            run: paths::sandbox_dir(&config.run_dir, id.namespace(), id.id()),
            memory: staging(config.staging_dir()),
            disk: staging(config.store.join("staging")),
            restoring: Some(CriuWork::ours(config, id, Verb::Restore)),
        }
    }

    /// The network namespace that the shim holds for it, if it does.
    pub(crate) fn netns(&self) -> PathBuf {
        self.run.join("netns")
    }

    /// All of them.
    pub(crate) fn all(self) -> [PathBuf; 3] {
        [self.run, self.memory, self.disk]
    }

    /// Keeps them in the bundle, which has to be done before any of them is made.
    pub(crate) fn keep(&self, bundle: &Path) -> Result<()> {
        let path = bundle.join(FILE);
        fs::write(&path, serde_json::to_vec(self)?)
            .with_context(|| format!("write {}", path.display()))
    }

    /// Those of a bundle; none if none was made.
    pub(crate) fn of_bundle(bundle: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(bundle.join(FILE)).ok()?).ok()
    }
}

/// How many bytes the file system at a path has free for its users; nothing if it cannot be
/// asked. One in memory may have no size, and then all that there is.
pub(crate) fn free_bytes(path: &Path) -> Option<u64> {
    let found = statvfs(path).ok()?;
    Some(match found.f_blocks {
        0 => u64::MAX,
        _ => found.f_bavail.saturating_mul(found.f_frsize),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_knows_them_under_any_configuration() {
        let bundle = tempfile::tempdir().unwrap();
        assert_eq!(Directories::of_bundle(bundle.path()), None);
        let config = Config {
            run_dir: "/run/other".into(),
            store: "/srv/crab".into(),
            ..Config::default()
        };
        let directories = Directories::of(&config, &"default/x".parse().unwrap());
        directories.keep(bundle.path()).unwrap();
        let found = Directories::of_bundle(bundle.path()).unwrap();
        assert_eq!(found, directories);
        let all = [
            "/run/other/sandboxes/default/x",
            "/run/other/staging/default/x",
            "/srv/crab/staging/default/x",
        ];
        assert_eq!(found.all(), all.map(PathBuf::from));
    }
}
