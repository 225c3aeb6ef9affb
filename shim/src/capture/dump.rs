// SPDX-License-Identifier: Apache-2.0
//! The process half: whether CRIU can be asked, and asking it.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use crab_runtime::{
    cgroup::{Cgroup, CgroupError},
    criu::{self, Begun, Criu, Extent, Remainder, SessionError},
    oci::{CheckpointOptions, ImagePaths},
    procs::Set,
};
use crab_store::{ProcessEntry, command_line};

use super::{Capture, lack::Lack, mount_table};
use crate::{
    container::INIT,
    directories::{Directories, free_bytes},
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

/// What an image is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A client keeps it: who restores it, and where, is not known.
    Client,
    /// One of the sandbox's own history: it has to come back here.
    History,
}

/// CRIU, if it can be asked to dump what is in the cgroup, and would do no harm; or all that is
/// in the way. Found out without freezing anything.
pub(crate) fn can_dump(
    container: &Container,
    cgroup: &Cgroup,
    init: i32,
    purpose: Purpose,
) -> Result<Criu, Vec<String>> {
    let mut obstacles = Vec::new();
    if purpose == Purpose::History && !container.bundle.has_own_processes() {
        obstacles.push(SHARED_PROCESSES.into());
    }
    let driver = container.runtime.driver();
    obstacles.extend(match purpose {
        Purpose::Client => driver.dumps().err(),
        Purpose::History => driver.process_images().err(),
    });
    let criu = container.criu();
    // With the init, keep-alive or not: a dump takes it along.
    match begun(cgroup, init) {
        Err(error) => obstacles.push(error.to_string()),
        Ok(all) => {
            obstacles.extend(all.obstacles(init));
            if let Ok(criu) = &criu
                && !criu.dumps_inet_sockets()
                && let Some(process) = all.inet_socket()
            {
                obstacles.push(format!(
                    "process {} ({}) holds an internet socket, which CRIU {} cannot dump on \
                     this kernel; CRIU 4.2 can",
                    process.pid, process.comm, criu.version
                ));
            }
        }
    }
    match criu {
        Ok(criu) if obstacles.is_empty() => Ok(criu),
        Ok(_) => Err(obstacles),
        Err(reason) => {
            obstacles.insert(0, reason);
            Err(obstacles)
        }
    }
}

/// What CRIU, which dumps the tree of the init, leaves out of an image, if anything.
pub(crate) fn left_out(all: &Set, init: i32) -> Option<String> {
    let process = all.beside_init(init)?;
    Some(format!(
        "without process {} ({}): an exec that still runs is left out by CRIU",
        process.pid, process.comm
    ))
}

impl Capture {
    /// Whether CRIU can be asked, and would do no harm.
    pub(super) fn can_dump(&self) -> Result<Criu, String> {
        can_dump(&self.container, &self.cgroup, self.init, Purpose::History)
            .map_err(|mut obstacles| obstacles.swap_remove(0))
    }

    /// Gets a dump ready while the sandbox runs: what is known of it is in `set`, and
    /// `criu` can be asked.
    pub(super) fn prepare_dump(&self, criu: Criu, set: &Set) -> Result<Dump> {
        let container = self.container.clone();
        let config = &container.config;
        let Directories { memory, disk, .. } = container.directories();
        for images in [&memory, &disk] {
            if images.exists() {
                // Of a dump that was never published.
                fs::remove_dir_all(images)
                    .with_context(|| format!("remove {}", images.display()))?;
            }
        }
        let bytes = set.image_bytes().saturating_add(set.nameless_bytes());
        // In memory, as the sandbox stands still meanwhile; but not at the price of the host's,
        // and not where it is known to fail. Others may take the room at the same time.
        let fits = bytes <= config.checkpoints.staging_bytes && has_room(&memory, bytes);
        let has_failed = self.known.lack.as_ref().is_some_and(Lack::is_failure);
        let images = if fits && !(has_failed && has_room(&disk, bytes)) {
            memory
        } else {
            disk
        };
        let paths = ImagePaths {
            images,
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
        let asked = config.runtime.ask_criu;
        let direct = match asked.then(|| self.begin_dump(&paths, &options)) {
            None => None,
            Some(Ok(direct)) => Some(direct),
            Some(Err(reason)) => {
                tracing::info!(%reason, "CRIU is asked through the runtime");
                None
            }
        };
        Ok(Dump {
            container,
            criu,
            init: self.init,
            paths,
            options,
            direct,
        })
    }

    /// Has CRIU begin, as far as it can while the sandbox runs.
    fn begin_dump(
        &self,
        paths: &ImagePaths,
        options: &CheckpointOptions,
    ) -> Result<Direct, SessionError> {
        let captured: Vec<PathBuf> = self.roots.iter().filter_map(|r| r.mount.clone()).collect();
        let left_out = criu::leave_out(self.init, &self.mount_table, &captured);
        let all = Set::of(&self.cgroup, None);
        let no_connections = all.is_ok_and(|all| !is_connected(&all, self.init));
        let extent = Extent {
            left_out,
            no_connections,
            nameless_file_limit: NAMELESS_LIMIT,
        };
        let runtime = &self.container.runtime;
        let begun = runtime.begin_dump(paths, options, extent, self.init, &self.cgroup)?;
        Ok(Direct {
            begun,
            mount_table: self.mount_table.clone(),
            no_connections,
        })
    }
}

/// What an image takes beside memory: the state of each process and mount.
const BESIDE_MEMORY: u64 = 8 << 20;

/// Whether an image of this much memory has room at a path that need not be there yet. If that
/// cannot be found out, who writes it will.
fn has_room(path: &Path, bytes: u64) -> bool {
    let needed = bytes
        .saturating_add(bytes / 8)
        .saturating_add(BESIDE_MEMORY);
    let free = path.ancestors().find_map(free_bytes);
    free.is_none_or(|free| free >= needed)
}

/// The largest file without a name that an image holds. CRIU's own limit is 1 MiB, less than
/// what databases and editors have.
const NAMELESS_LIMIT: u32 = 256 << 20;

/// Whether a process has a TCP connection, or another network namespace than the init; what
/// is not known counts as one.
fn is_connected(all: &Set, init: i32) -> bool {
    !all.shares_network(init) || all.connection().is_some()
}

/// A dump that is about to be made.
pub(super) struct Dump {
    container: Arc<Container>,
    criu: Criu,
    init: i32,
    paths: ImagePaths,
    options: CheckpointOptions,
    /// Nothing where the runtime asks CRIU.
    direct: Option<Direct>,
}

/// A CRIU that was asked directly, and what was true when it was.
struct Direct {
    begun: Begun,
    mount_table: Vec<u8>,
    no_connections: bool,
}

impl Direct {
    /// Whether what CRIU was told still holds. The sandbox stands still.
    fn holds(&self, all: &Set, init: i32) -> bool {
        mount_table(init) == self.mount_table && !(self.no_connections && is_connected(all, init))
    }
}

impl Dump {
    /// The CRIU that is asked.
    pub(super) fn criu(&self) -> &Criu {
        &self.criu
    }

    /// It is not needed. CRIU has not touched anything yet.
    pub(super) fn give_up(self) {
        drop(self.direct);
        let _ = fs::remove_dir_all(&self.paths.images);
    }

    /// The same dump, through the runtime if what CRIU was told does not hold any more. The
    /// sandbox is frozen, with `all` these processes.
    pub(super) fn confirmed(mut self, all: &Set) -> Self {
        let direct = self.direct.take();
        let was_direct = direct.is_some();
        self.direct = direct.filter(|direct| direct.holds(all, self.init));
        if was_direct && self.direct.is_none() {
            let reason = "mounts or connections are others than when it began";
            tracing::info!(reason, "CRIU is asked through the runtime");
        }
        self
    }

    /// Whether CRIU is known to leave the container's files alone.
    pub(super) fn leaves_files_alone(&self) -> bool {
        let direct = self.direct.as_ref();
        direct.is_some_and(|direct| direct.begun.leaves_files_alone())
    }

    /// Has CRIU write the image. The sandbox is frozen.
    pub(super) fn write(mut self) -> Result<Dumped> {
        let dumped = Dumped {
            dir: self.paths.images.clone(),
            remainder: Remainder::default(),
        };
        let written = match self.direct.take() {
            Some(direct) => direct.begun.dump().map_err(anyhow::Error::from),
            None => {
                let runtime = &self.container.runtime;
                let asked = runtime.checkpoint(&self.paths, &self.options);
                asked
                    .map(|()| Remainder::default())
                    .map_err(anyhow::Error::from)
            }
        };
        match written {
            Ok(remainder) => Ok(Dumped {
                remainder,
                ..dumped
            }),
            Err(error) => {
                let reason = criu::dump_error(&self.paths.work);
                let _ = fs::remove_dir_all(&dumped.dir);
                Err(match reason {
                    Some(reason) => anyhow!("CRIU: {reason}"),
                    None => error,
                })
            }
        }
    }
}

/// What CRIU wrote.
pub(super) struct Dumped {
    pub(super) dir: PathBuf,
    pub(super) remainder: Remainder,
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

#[cfg(test)]
mod tests {
    use rustix::fs::statvfs;

    use super::*;

    #[test]
    fn an_image_has_room_where_it_fits_with_what_is_beside_memory() {
        let dir = tempfile::tempdir().unwrap();
        let later = dir.path().join("not/there/yet");
        let disk = statvfs(dir.path()).unwrap();
        let all = disk.f_blocks * disk.f_frsize;
        assert!(!has_room(&later, all), "of {all} bytes");
        assert!(!has_room(&later, u64::MAX));
        assert!(
            has_room(&later, 1),
            "the directory for temporary files is full"
        );
    }
}
