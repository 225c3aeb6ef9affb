// SPDX-License-Identifier: Apache-2.0
//! The cgroup of the shim itself (`ShimCgroup`): so that what a shim uses is not counted as
//! containerd's own. As by the Go shim, the cgroup has to be there.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};

const MOUNT: &str = "/sys/fs/cgroup";

/// Puts a process there, in every hierarchy that has it.
pub(crate) fn join(pid: u32, cgroup: &str) -> Result<()> {
    let below = cgroup.trim_start_matches('/');
    let mount = Path::new(MOUNT);
    let mut joined = 0;
    let hierarchies = match mount.join("cgroup.controllers").exists() {
        true => vec![mount.to_path_buf()],
        false => fs::read_dir(mount)
            .with_context(|| format!("read {MOUNT}"))?
            .flatten()
            // Some are links: "cpu" to "cpu,cpuacct".
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|entry| entry.path())
            .collect(),
    };
    for hierarchy in hierarchies {
        let procs = hierarchy.join(below).join("cgroup.procs");
        if procs.exists() {
            fs::write(&procs, pid.to_string())
                .with_context(|| format!("join {}", procs.display()))?;
            joined += 1;
        }
    }
    ensure!(joined > 0, "there is no cgroup {cgroup} for the shim");
    Ok(())
}
