// SPDX-License-Identifier: Apache-2.0

//! What is on the host at one moment, to see what is left later.

use std::{collections::BTreeSet, fs, io::ErrorKind, path::Path, time::Duration};

use anyhow::{Context, Result, bail};

use crate::{processes, testbed::poll};

/// Programs that come and go with containers.
const PROGRAMS: [&str; 6] = [
    processes::SHIM,
    "containerd-shim-runc-v2",
    "runc",
    "crun",
    "criu",
    processes::CRABD,
];
/// Where Crab and containerd keep what belongs to live containers.
const STATE: [&str; 5] = [
    "/run/crab",
    "/run/containerd/io.containerd.runtime.v2.task",
    "/run/containerd/runc",
    FIFOS,
    "/run/docker/containerd",
];
/// Where `ctr` makes the FIFOs of stdio.
const FIFOS: &str = "/run/containerd/fifo";
/// Where shims listen.
const SOCKETS: &str = "/run/containerd/s";

/// Directories that stay once the first container has been there: those of
/// namespaces, and Crab's own.
const SHARED: [&str; 6] = ["default", "moby", "docker", "crab", "sandboxes", "staging"];

/// How long containerd and the runtimes may take to clean up.
const CLEAN_UP: Duration = Duration::from_secs(20);
/// How long a shim may stay after everything else of its container: less than one waits
/// for answers and events that will never go out.
const SHIM_ENDS: Duration = Duration::from_secs(5);

/// Mounts, cgroups, processes and directories of containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Mount points, as often as something is mounted there.
    pub mounts: Vec<String>,
    /// Directories under the cgroup file systems.
    pub cgroups: BTreeSet<String>,
    /// Shims, runtimes, CRIU, crabd: `program pid`.
    pub processes: BTreeSet<String>,
    /// What is in the run directories.
    pub state: BTreeSet<String>,
    /// The sockets of shims.
    pub sockets: BTreeSet<String>,
}

impl Census {
    /// Looks.
    pub fn take() -> Result<Self> {
        let table = fs::read_to_string("/proc/self/mountinfo").context("read the mount table")?;
        let mut mounts: Vec<String> = table
            .lines()
            .filter_map(|line| line.split(' ').nth(4).map(str::to_owned))
            .collect();
        mounts.sort();
        let mut cgroups = BTreeSet::new();
        directories(Path::new("/sys/fs/cgroup"), &mut cgroups);
        let processes = PROGRAMS.iter().flat_map(|program| {
            let pids = processes::named(program).into_iter();
            pids.map(move |pid| format!("{program} {pid}"))
        });
        let mut state = BTreeSet::new();
        for dir in STATE {
            directories(Path::new(dir), &mut state);
        }
        Ok(Self {
            mounts,
            cgroups,
            processes: processes.collect(),
            state,
            sockets: fs::read_dir(SOCKETS)
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path().display().to_string())
                .collect(),
        })
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
        let sets = [
            ("cgroup", &self.cgroups, &before.cgroups),
            ("process", &self.processes, &before.processes),
            ("directory", &self.state, &before.state),
            ("socket", &self.sockets, &before.sockets),
        ];
        for (what, now, before) in sets {
            left.extend(now.difference(before).map(|name| format!("{what} {name}")));
        }
        left
    }

    /// Waits until nothing is left of what came after this census; the daemon `crabd`
    /// and what all containers share may stay. A shim that is all that is left has to
    /// find its own end before it gives up waiting for it.
    pub fn wait_for_nothing_left(&self) -> Result<()> {
        let shim = format!("process {} ", processes::SHIM);
        let is_of_a_shim = |line: &String| line.starts_with(&shim) || line.starts_with("socket ");
        self.wait_for_none(CLEAN_UP, |line| !is_of_a_shim(line))?;
        self.wait_for_none(SHIM_ENDS, |_| true)
    }

    /// The same for some of it.
    fn wait_for_none(&self, limit: Duration, some: impl Fn(&String) -> bool) -> Result<()> {
        let mut left = Vec::new();
        let waited = poll("nothing is left", limit, || {
            left = Self::take()?.since(self);
            left.retain(|line| {
                let name = line.rsplit('/').next().unwrap_or_default();
                !line.starts_with("process crabd ") && !SHARED.contains(&name) && some(line)
            });
            Ok(left.is_empty().then_some(()))
        });
        if waited.is_err() {
            bail!("left behind: {}", left.join(", "));
        }
        Ok(())
    }
}

/// Removes the FIFOs of `ctr`, which are its own, and which it deletes with the task:
/// where containerd has deleted that, they are left, under any shim.
pub fn forget_fifos() -> Result<()> {
    match fs::remove_dir_all(FIFOS) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).context("remove the FIFOs of ctr")
        }
        _ => Ok(()),
    }
}

fn directories(dir: &Path, found: &mut BTreeSet<String>) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        // Not through symlinks, and not into the roots of containers.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) && entry.file_name() != "rootfs" {
            found.insert(entry.path().display().to_string());
            directories(&entry.path(), found);
        }
    }
}
