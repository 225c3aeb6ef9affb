// SPDX-License-Identifier: Apache-2.0
//! The process half: whether CRIU can be asked, and asking it.

use std::{
    fs,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use crab_runtime::{
    cgroup::{Cgroup, CgroupError},
    criu::{self, Criu},
    oci::ImagePaths,
    procs::Set,
};
use crab_store::{ProcessEntry, command_line};

use super::Capture;
use crate::{
    container::INIT,
    directories::Directories,
    sandbox::{Container, make_private_dir},
    turns::criu_options,
};

/// Why the processes of some containers are not imaged. A restore needs each process
/// id again, and in a shared namespace somebody else may have it by then.
const SHARED_PROCESSES: &str = "its process namespace is shared with its pod or the host: a restore could not have its process ids back";

/// How long a container's program may take to be executed once it was started.
const BEGIN_LIMIT: Duration = Duration::from_secs(2);

/// The processes, once the container's program is what its init is.
fn begun(cgroup: &Cgroup, init: i32) -> Result<Set, CgroupError> {
    let start = Instant::now();
    loop {
        let all = Set::of(cgroup, None)?;
        if !all.has_yet_to_begin(init) || start.elapsed() > BEGIN_LIMIT {
            return Ok(all);
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Whether CRIU can be asked to dump what is in the cgroup, and would do no harm. Found
/// out before anything is frozen.
pub(crate) fn can_dump(container: &Container, cgroup: &Cgroup, init: i32) -> Result<Criu, String> {
    container.runtime.driver().dumps()?;
    let criu = container.criu()?;
    // With the init, keep-alive or not: a dump takes it along.
    let all = begun(cgroup, init).map_err(|e| e.to_string())?;
    if let Some(reason) = all.undumpable(init) {
        return Err(reason);
    }
    if !criu.dumps_inet_sockets()
        && let Some(process) = all.inet_socket()
    {
        return Err(format!(
            "process {} ({}) holds an internet socket, which CRIU {} cannot dump on this kernel; \
             CRIU 4.2 can",
            process.pid, process.comm, criu.version
        ));
    }
    Ok(criu)
}

impl Capture {
    /// Whether CRIU can be asked, and would do no harm.
    pub(super) fn can_dump(&self) -> Result<Criu, String> {
        if !self.container.bundle.has_own_processes() {
            return Err(SHARED_PROCESSES.into());
        }
        // One that cannot come back here is of no use to a rollback.
        self.container.runtime.driver().process_images()?;
        can_dump(&self.container, &self.cgroup, self.init)
    }

    /// What an image lacks, if anything.
    pub(super) fn left_out(&self) -> Option<String> {
        let all = Set::of(&self.cgroup, None).ok()?;
        let process = all.beside_init(self.init)?;
        Some(format!(
            "without process {} ({}): an exec that still runs is left out by CRIU",
            process.pid, process.comm
        ))
    }

    /// Has CRIU write an image, in memory-backed staging. The sandbox is frozen.
    pub(super) fn dump(&self, set: &Set) -> Result<PathBuf> {
        let container = &self.container;
        let config = &container.config;
        // In memory, as the sandbox stands still meanwhile; but not at the price of
        // the host's.
        let Directories { memory, disk, .. } = container.directories();
        let dir = if set.image_bytes() <= config.checkpoints.staging_bytes {
            memory
        } else {
            disk
        };
        if dir.exists() {
            // Of a dump that was never published.
            fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))?;
        }
        let paths = ImagePaths {
            images: dir.clone(),
            work: container.run_dir.join("dump"),
        };
        for path in [&paths.images, &paths.work] {
            make_private_dir(path)?;
        }
        let terminal = container
            .processes
            .with(INIT, |p| p.paths.terminal)
            .unwrap_or(false);
        let mut options = criu_options(terminal);
        options.leave_running = true;
        container
            .runtime
            .checkpoint(&paths, &options)
            .map_err(|error| {
                let _ = fs::remove_dir_all(&dir);
                match criu::dump_error(&paths.work) {
                    Some(reason) => anyhow!("CRIU: {reason}"),
                    None => error.into(),
                }
            })?;
        Ok(dir)
    }
}

pub(super) fn entries(set: &Set) -> Vec<ProcessEntry> {
    set.iter()
        .map(|process| ProcessEntry {
            pid: process.inner_pid().unwrap_or(process.pid as u32),
            comm: process.comm.clone(),
            cmdline: command_line(&process.args),
        })
        .collect()
}
