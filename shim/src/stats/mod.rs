// SPDX-License-Identifier: Apache-2.0
//! Resource use, as the metric types of containerd: v2's where cgroup v2 is all there is,
//! else v1's. The same numbers as containerd/cgroups reads: the clients (`ctr task metrics`,
//! dockerd, the kubelet) take parts for granted, and dockerd dies where one is missing. What a
//! kernel or a hierarchy does not have is 0 or left out, as there.

mod read;
mod v1;
mod v2;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use containerd_shim_protos::protobuf::{Message, well_known_types::any::Any};
use crab_runtime::cgroup::path_of;

const MOUNT: &str = "/sys/fs/cgroup";

/// The cgroups of a container, which outlive its processes.
#[derive(Debug, Clone)]
pub(crate) struct Groups {
    /// As in `/proc/<pid>/cgroup`.
    table: String,
}

impl Groups {
    /// Those in which the process is.
    pub(crate) fn of_process(pid: i32) -> Result<Self> {
        let table = fs::read_to_string(format!("/proc/{pid}/cgroup"))
            .with_context(|| format!("read the cgroups of process {pid}"))?;
        Ok(Self { table })
    }

    /// The directory of a controller; none for cgroup v2.
    pub(crate) fn dir(&self, controller: &str) -> Option<PathBuf> {
        let path = path_of(&self.table, controller)?;
        let root = Path::new(MOUNT).join(controller);
        let dir = root.join(path.trim_start_matches('/'));
        dir.is_dir().then_some(dir)
    }

    /// Whether cgroup v2 is all there is.
    pub(crate) fn unified() -> bool {
        Path::new(MOUNT).join("cgroup.controllers").exists()
    }

    /// What they use.
    pub(crate) fn metrics(&self) -> Result<Any> {
        if Self::unified() {
            let dir = self.dir("").context("the container has no cgroup")?;
            any("io.containerd.cgroups.v2.Metrics", &v2::metrics(&dir))
        } else {
            any("io.containerd.cgroups.v1.Metrics", &v1::metrics(self))
        }
    }
}

fn any(type_url: &str, message: &impl Message) -> Result<Any> {
    Ok(Any {
        type_url: type_url.into(),
        value: message.write_to_bytes()?,
        ..Default::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_use_is_not_nothing() {
        let groups = Groups::of_process(std::process::id() as i32).unwrap();
        let metrics = groups.metrics().unwrap();
        assert!(metrics.type_url.starts_with("io.containerd.cgroups.v"));
        assert!(!metrics.value.is_empty());
    }
}
