// SPDX-License-Identifier: Apache-2.0
//! A container's place in the cgroup hierarchies that libcontainer does not know.
//!
//! Beside cgroup v1 controllers a host may mount the v2 hierarchy without controllers
//! (`/sys/fs/cgroup/unified`) and systemd's own (`/sys/fs/cgroup/systemd`). runc puts a
//! container into each of them; libcontainer leaves it where its parent was. Crab knows a
//! container by its v2 cgroup, and systemd kills by its own.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::{Failure, io_failure};

const BASE: &str = "/sys/fs/cgroup";

/// Those of a hybrid host that are not libcontainer's.
const OTHERS: [&str; 4] = ["unified", "systemd", "rdma", "misc"];

/// How long what was killed may take to leave its cgroup.
const EMPTY_LIMIT: Duration = Duration::from_secs(5);

/// Whether there is cgroup v2 alone.
pub(super) fn is_unified() -> bool {
    Path::new(BASE).join("cgroup.controllers").exists()
}

/// The container's directories that libcontainer does not make.
fn others(path: &Path) -> Vec<PathBuf> {
    let roots = OTHERS.iter().map(|name| Path::new(BASE).join(name));
    roots
        .filter(|root| root.join("cgroup.procs").exists())
        .map(|root| below(&root, path))
        .collect()
}

/// The container's directory on a host with cgroup v2 alone.
pub(super) fn unified_dir(path: &Path) -> PathBuf {
    below(Path::new(BASE), path)
}

fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Moves a process that waits to be started.
pub(super) fn join(path: &Path, pid: i32) -> Result<(), Failure> {
    for dir in others(path) {
        fs::create_dir_all(&dir).map_err(io_failure("make", &dir))?;
        let procs = dir.join("cgroup.procs");
        fs::write(&procs, pid.to_string()).map_err(io_failure("write", &procs))?;
    }
    Ok(())
}

/// The way in for a process that cannot see the hierarchies any more when it goes.
#[derive(Debug, Clone, Default)]
pub(super) struct Doors(Vec<Arc<File>>);

impl Doors {
    /// Those of the container with this cgroup path.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let open = |dir: PathBuf| {
            let procs = dir.join("cgroup.procs");
            let file = File::options().write(true).open(&procs);
            file.map(Arc::new).map_err(io_failure("open", &procs))
        };
        others(path)
            .into_iter()
            .map(open)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// The calling process goes in.
    pub(super) fn enter(&self) -> io::Result<()> {
        // By whom the file was opened, not by whom it is written, decides (Linux 5.16 on;
        // before, the writer has not yet given up its privileges either).
        self.0.iter().try_for_each(|door| (&**door).write_all(b"0"))
    }
}

/// Kills what is left of the container and removes its directories in every hierarchy,
/// those of its own children included.
pub(super) fn remove(path: &Path) -> Result<(), Failure> {
    if path.as_os_str().is_empty() || path == Path::new("/") {
        return Ok(());
    }
    let mut dirs = vec![unified_dir(path)];
    if !is_unified() {
        let roots = fs::read_dir(BASE).map_err(io_failure("read", Path::new(BASE)))?;
        dirs = roots
            .flatten()
            .filter(|root| root.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|root| below(&root.path(), path))
            .collect();
    }
    let start = Instant::now();
    for dir in dirs {
        while let Err(error) = remove_tree(&dir) {
            if start.elapsed() > EMPTY_LIMIT {
                return Err(io_failure("remove", &dir)(error));
            }
            kill(&dir);
            thread::sleep(Duration::from_millis(2));
        }
    }
    Ok(())
}

fn kill(dir: &Path) {
    let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    for pid in text
        .lines()
        .filter_map(|line| Pid::from_raw(line.parse().ok()?))
    {
        // One that has just ended is what is wanted.
        let _ = kill_process(pid, Signal::KILL);
    }
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            kill(&entry.path());
        }
    }
}

fn remove_tree(dir: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries.flatten() {
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    match fs::remove_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
