// SPDX-License-Identifier: Apache-2.0

//! What a sandbox is on its host, past its client: processes and directories.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};

use crate::{processes, sandbox::Sandbox, testbed::poll};

/// How long what was killed may take to end.
const LIMIT: Duration = Duration::from_secs(20);

impl Sandbox {
    /// The process id of its shim.
    pub fn shim(&self) -> Result<u32> {
        processes::shim_of(self.client().namespace(), self.id())
            .with_context(|| format!("{} has no shim", self.name()))
    }

    /// All its processes, as the host knows them.
    pub fn processes(&self) -> Result<Vec<u32>> {
        Ok(processes::in_pid_namespace_of(self.pid()?))
    }

    /// The directory in which its rootfs is mounted.
    pub fn bundle(&self) -> PathBuf {
        PathBuf::from("/run/containerd/io.containerd.runtime.v2.task").join(self.sandbox_id())
    }

    /// Where Crab keeps its history and its checkpoints.
    pub fn store(&self) -> PathBuf {
        Path::new("/var/lib/crab/sandboxes").join(self.sandbox_id())
    }

    /// Where its shim keeps what lives no longer than it.
    pub fn run_dir(&self) -> PathBuf {
        Path::new("/run/crab/sandboxes").join(self.sandbox_id())
    }

    /// Where an image of its processes is written.
    pub fn staging(&self) -> PathBuf {
        Path::new("/run/crab/staging").join(self.sandbox_id())
    }

    /// Its root, as its init sees it.
    pub fn root(&self) -> Result<PathBuf> {
        Ok(PathBuf::from(format!("/proc/{}/root", self.pid()?)))
    }

    /// The upper directory of its overlay, as its init's mount table says.
    pub fn upper_dir(&self) -> Result<PathBuf> {
        let path = format!("/proc/{}/mountinfo", self.pid()?);
        let table = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        let options = table
            .lines()
            .find(|line| line.split(' ').nth(4) == Some("/"))
            .and_then(|line| line.rsplit(' ').next())
            .with_context(|| format!("{path} has no root"))?;
        let upper = options
            .split(',')
            .find_map(|option| option.strip_prefix("upperdir="))
            .with_context(|| format!("the root of {} is no overlay", self.name()))?;
        Ok(PathBuf::from(upper))
    }

    /// Its cgroup in the hierarchy of v2, while it runs.
    pub fn cgroup(&self) -> Result<PathBuf> {
        let table = fs::read_to_string(format!("/proc/{}/cgroup", self.pid()?))?;
        let path = table.lines().find_map(|line| line.strip_prefix("0::/"));
        let path = path.context("it is in no cgroup of v2")?;
        let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
        let mut all = roots.iter().map(|root| Path::new(root).join(path));
        all.find(|dir| dir.is_dir())
            .context("its cgroup is not there")
    }

    /// As a crash that takes shim, runtime and everything in the sandbox at once:
    /// SIGKILL to the shim first, then to every process that the sandbox has.
    /// Gives back which these were.
    pub fn crash(&self) -> Result<Vec<u32>> {
        let inside = self.processes()?;
        let mut killed = Vec::new();
        for pid in [self.shim()?].into_iter().chain(inside) {
            // Those after init go with it.
            if processes::kill(pid)? {
                killed.push(pid);
            }
        }
        for pid in &killed {
            processes::wait_gone(*pid, LIMIT)?;
        }
        Ok(killed)
    }

    /// Waits until containerd has cleaned up after its shim, which was killed: of what ran
    /// inside, and of what worked on it, nothing is left.
    pub fn wait_until_cleaned_up(&self, inside: &[u32]) -> Result<()> {
        for pid in inside {
            processes::wait_gone(*pid, LIMIT)?;
        }
        poll("the runtimes have ended", LIMIT, || {
            let left = ["runc", "criu"].map(processes::named).concat();
            Ok(left.is_empty().then_some(()))
        })
        .with_context(|| {
            let left = ["runc", "criu"].map(processes::named).concat();
            let all = processes::all().into_iter();
            let left: Vec<_> = all.filter(|(pid, _)| left.contains(pid)).collect();
            format!("left: {left:?}")
        })?;
        poll("containerd has cleaned up", LIMIT, || {
            Ok(self.left_of_it()?.is_empty().then_some(()))
        })
        .with_context(|| format!("left: {:?}", self.left_of_it()))
    }

    /// What there is of it beside its history, when it does not run.
    fn left_of_it(&self) -> Result<Vec<String>> {
        let bundle = self.bundle().display().to_string();
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let mut left: Vec<String> = mounts
            .lines()
            .filter(|line| line.contains(&bundle))
            .map(str::to_owned)
            .collect();
        let dirs = [self.staging(), self.run_dir()];
        let dirs = dirs.iter().filter(|dir| dir.exists());
        left.extend(dirs.map(|dir| dir.display().to_string()));
        Ok(left)
    }
}
