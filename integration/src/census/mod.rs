// SPDX-License-Identifier: Apache-2.0

//! What is on the host at one moment, to see what is left later.
//!
//! Counted are processes, mounts, cgroups in every hierarchy, and what lies in the run
//! directories (directories, FIFOs, sockets, files) and in the daemons' own; if asked for,
//! also the descriptors of every process that lives on, by kind: inotify instances and their
//! watches, sockets, pipes, namespaces. This process and what it has started are
//! left out.

mod descriptors;
mod look;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::ErrorKind,
    path::Path,
    time::Duration,
};

use anyhow::{Context, Result, bail};

pub use self::descriptors::{Descriptors, descriptors};
use crate::{processes, testbed::poll};

/// Where `ctr` makes the FIFOs of stdio.
const FIFOS: &str = "/run/containerd/fifo";

/// Directories and cgroups that stay once the first container has been there, whatever
/// becomes of it: those of namespaces, of clients, and Crab's own.
const SHARED: [&str; 8] = [
    "default",
    "moby",
    "k8s.io",
    "docker",
    "crab",
    "criu",
    "sandboxes",
    "staging",
];
/// And more of that kind: the daemons' directories, Crab's caches, crabd's files.
const KEPT: [&str; 14] = [
    "/run/containerd/fifo",
    "/run/containerd/runc",
    "/run/containerd/s",
    // What CRIU has found out about the kernel.
    "/run/criu.kdat",
    "/run/crab/criu.checked",
    "/run/crab/crabd.lock",
    "/run/crab/crabd.log",
    "/run/crab/crabd.sock",
    "/run/crab/programs.sock",
    "/run/docker/containerd",
    "/run/docker/runtime-runc",
    // The CRI makes it for its first pod, and mounts it on itself.
    "/run/netns",
    "tmpfs /run/netns",
    "/var/lib/crab/FORMAT",
];

/// Of which each dockerd makes one for itself.
const OF_DOCKERD: &str = "/run/docker/libnetwork/";
/// And journald, for the output of each service.
const OF_JOURNALD: &str = "/run/systemd/journal/streams/";

/// Sometimes dockerd keeps connections of clients that are gone, under any shim (seen: 6 to
/// 39 of those of 50 containers).
const OF_CLIENTS: &str = "unix socket /var/run/docker.sock in dockerd";

/// Those may be others than before.
const DAEMONS: [&str; 3] = ["containerd", "dockerd", processes::CRABD];

/// How long containerd and the runtimes may take to clean up.
const CLEAN_UP: Duration = Duration::from_secs(20);
/// How long a shim may stay after everything else of its container: less than one waits
/// for answers and events that will never go out.
const SHIM_ENDS: Duration = Duration::from_secs(5);

/// What is on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Mounts: type and place, as often as something is mounted there.
    mounts: Vec<String>,
    /// Directories under the cgroup file systems.
    cgroups: BTreeSet<String>,
    /// The names of processes, by their id.
    processes: BTreeMap<u32, String>,
    /// What they hold open, if that is counted.
    open: Option<BTreeMap<u32, Descriptors>>,
    /// What is in the run directories: kind and path.
    entries: BTreeSet<String>,
}

impl Census {
    /// Looks.
    pub fn take() -> Result<Self> {
        Ok(Self {
            mounts: look::mounts()?,
            cgroups: look::cgroups(),
            processes: look::processes(),
            open: None,
            entries: look::entries(),
        })
    }

    /// Looks, and counts descriptors as well. A daemon makes some for its first
    /// containers and keeps them: those must have been there.
    pub fn with_descriptors() -> Result<Self> {
        let mut census = Self::take()?;
        let pids = census.processes.keys();
        census.open = Some(pids.map(|pid| (*pid, descriptors(*pid))).collect());
        Ok(census)
    }

    /// Looks once more, at the same kinds of things.
    fn again(&self) -> Result<Self> {
        match self.open {
            Some(_) => Self::with_descriptors(),
            None => Self::take(),
        }
    }

    /// What is there now and was not then, one line each.
    pub fn since(&self, before: &Self) -> Vec<String> {
        let mut left = Vec::new();
        let mut known = before.mounts.clone();
        for mount in &self.mounts {
            match known.iter().position(|other| other == mount) {
                Some(at) => drop(known.swap_remove(at)),
                None => left.push(format!("mount {mount}")),
            }
        }
        let cgroups = self.cgroups.difference(&before.cgroups);
        left.extend(cgroups.map(|path| format!("cgroup {path}")));
        left.extend(self.entries.difference(&before.entries).cloned());
        for (pid, name) in &self.processes {
            if !before.processes.contains_key(pid) {
                left.push(format!("process {name} {pid}"));
            }
        }
        let (Some(open), Some(then)) = (&self.open, &before.open) else {
            return left;
        };
        for (pid, open) in open {
            let Some(then) = then.get(pid) else {
                continue;
            };
            let name = self.processes.get(pid).map_or("", String::as_str);
            let more = open.more_than(then);
            left.extend(more.map(|(kind, more)| format!("{more} more {kind} in {name} {pid}")));
        }
        left
    }

    /// Waits until nothing is left of what came after this census; the daemon `crabd`
    /// and what all containers share may stay. A shim that is all that is left has to
    /// find its own end before it gives up waiting for it.
    pub fn wait_for_nothing_left(&self) -> Result<()> {
        let left = self.left()?;
        if !left.is_empty() {
            bail!("left behind: {}", left.join(", "));
        }
        Ok(())
    }

    /// The same, and gives what is left in the end.
    pub fn left(&self) -> Result<Vec<String>> {
        self.left_but(|_| false)
    }

    /// The same without lines that are somebody else's.
    pub fn left_but(&self, passed_over: impl Fn(&str) -> bool) -> Result<Vec<String>> {
        let shim = format!("process {} ", processes::SHIM);
        let is_of_a_shim = |line: &String| line.starts_with(&shim) || line.starts_with("socket ");
        let left = self.left_after(CLEAN_UP, |line| !is_of_a_shim(line) && !passed_over(line))?;
        if !left.is_empty() {
            return Ok(left);
        }
        self.left_after(SHIM_ENDS, |line| !passed_over(line))
    }

    /// The same for some of it.
    fn left_after(&self, limit: Duration, some: impl Fn(&String) -> bool) -> Result<Vec<String>> {
        let mut left = Vec::new();
        let waited = poll("nothing is left", limit, || {
            left = self.again()?.since(self);
            left.retain(|line| !may_stay(line) && some(line));
            Ok(left.is_empty().then_some(()))
        });
        match waited {
            Err(error) if left.is_empty() => Err(error),
            _ => Ok(left),
        }
    }
}

/// Whether a line is of what containers share.
fn may_stay(line: &str) -> bool {
    if let Some(process) = line.strip_prefix("process ") {
        // Some tests end a daemon and start another.
        return DAEMONS.iter().any(|daemon| {
            let pid = process.strip_prefix(daemon);
            pid.is_some_and(|pid| pid.starts_with(' '))
        });
    }
    if line.contains(OF_CLIENTS) {
        return true;
    }
    let (_, path) = line.split_once(' ').unwrap_or_default();
    let name = path.rsplit('/').next().unwrap_or_default();
    let of_a_daemon = [OF_DOCKERD, OF_JOURNALD];
    SHARED.contains(&name)
        || KEPT.contains(&path)
        || of_a_daemon.iter().any(|dir| path.starts_with(dir))
}

/// Removes the FIFOs of `ctr`, which are its own, and which it deletes with the task:
/// where containerd has deleted that, they are left, under any shim.
pub fn forget_fifos() -> Result<()> {
    match fs::remove_dir_all(Path::new(FIFOS)) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).context("remove the FIFOs of ctr")
        }
        _ => Ok(()),
    }
}
