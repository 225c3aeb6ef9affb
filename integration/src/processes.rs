// SPDX-License-Identifier: Apache-2.0

//! Processes of the host: found by what they are, killed by their id.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use rustix::{
    io::Errno,
    process::{Pid, Signal},
};

use crate::testbed::poll;

/// The name of Crab's shim.
pub const SHIM: &str = "containerd-shim-crab-v1";
/// The name of Crab's daemon.
pub const CRABD: &str = "crabd";
/// Where its program is, for tests that replace it.
pub const CRABD_PATH: &str = "/usr/local/bin/crabd";
/// Where CRIU is.
pub const CRIU_PATH: &str = "/usr/sbin/criu";

/// Every process that has not ended, with its command line.
pub fn all() -> Vec<(u32, Vec<String>)> {
    let Ok(dir) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = dir.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let running = pids.filter_map(|pid: u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let words = line.split(|byte| *byte == 0);
        let words: Vec<String> = words
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect();
        is_alive(pid).then_some((pid, words))
    });
    running.collect()
}

fn program(words: &[String]) -> &str {
    let path = words.first().map_or("", String::as_str);
    // CRIU at work calls itself "criu: dump ...".
    let path = path.split(": ").next().unwrap_or(path);
    path.rsplit('/').next().unwrap_or(path)
}

/// Those of a program.
pub fn named(name: &str) -> Vec<u32> {
    let all = all().into_iter();
    all.filter(|(_, words)| program(words) == name)
        .map(|(pid, _)| pid)
        .collect()
}

/// The shim that serves a container.
pub fn shim_of(namespace: &str, id: &str) -> Option<u32> {
    let has = |words: &[String], flag: &str, value: &str| {
        words
            .windows(2)
            .any(|pair| pair[0].trim_start_matches('-') == flag && pair[1] == value)
    };
    all()
        .into_iter()
        .find(|(_, words)| {
            program(words).starts_with("containerd-shim-")
                // Nor who starts it or cleans up after it.
                && !words.iter().any(|word| word == "start" || word == "delete")
                && has(words, "namespace", namespace)
                && has(words, "id", id)
        })
        .map(|(pid, _)| pid)
}

/// Crab's daemon.
pub fn crabd() -> Option<u32> {
    named(CRABD).into_iter().min()
}

/// Whether a process, or any thread of it, has not ended. One that nobody has waited for
/// has. The first thread may end before the others.
pub fn is_alive(pid: u32) -> bool {
    states(pid).any(|state| !matches!(state, 'Z' | 'X' | 'x'))
}

/// Whether a process stands still, by a signal.
pub fn is_stopped(pid: u32) -> bool {
    let mut states = states(pid).peekable();
    states.peek().is_some() && states.all(|state| state == 'T')
}

/// In which state each thread of a process is.
fn states(pid: u32) -> impl Iterator<Item = char> {
    // "<pid> (<name>) <state> ...": the name may hold anything, and ends with
    // the last parenthesis.
    let state = |task: fs::DirEntry| {
        let stat = fs::read_to_string(task.path().join("stat")).ok()?;
        stat.rsplit_once(')')?.1.trim_start().chars().next()
    };
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    tasks.into_iter().flatten().flatten().filter_map(state)
}

/// SIGKILL to one process; false if there is none any more.
pub fn kill(pid: u32) -> Result<bool> {
    signal(pid, Signal::KILL)
}

/// A signal to one process; false if there is none any more.
pub fn signal(pid: u32, signal: Signal) -> Result<bool> {
    let id = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .with_context(|| format!("{pid} is no process id"))?;
    match rustix::process::kill_process(id, signal) {
        Ok(()) => Ok(true),
        Err(Errno::SRCH) => Ok(false),
        Err(error) => Err(error).with_context(|| format!("signal process {pid}")),
    }
}

/// Waits until a process has ended.
pub fn wait_gone(pid: u32, limit: Duration) -> Result<()> {
    poll(&format!("process {pid} is gone"), limit, || {
        Ok((!is_alive(pid)).then_some(()))
    })
}

/// Whether the cgroup of a process is frozen, by either freezer.
pub fn is_frozen(pid: u32) -> Result<bool> {
    let memberships = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    for line in memberships.lines() {
        let path = line
            .splitn(3, ':')
            .nth(2)
            .context("a line without a path")?;
        // In v2 mode the hierarchies of v1 are there, and not to be seen.
        let v1 = fs::read_to_string(format!("/sys/fs/cgroup/freezer{path}/freezer.state"));
        if line.contains(":freezer:") && v1.is_ok_and(|state| state.trim() == "FROZEN") {
            return Ok(true);
        }
        if line.starts_with("0::") {
            for root in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
                let events = fs::read_to_string(format!("{root}{path}/cgroup.events"));
                if events.is_ok_and(|events| events.contains("frozen 1")) {
                    return Ok(true);
                }
            }
        }
    }
    Ok(false)
}

/// Kills Crab's daemon, which has to run, and waits for its end; gives its process id.
/// With it goes one that is only just coming, and would take its place.
pub fn kill_crabd() -> Result<u32> {
    let crabd = crabd().context("no crabd runs")?;
    ensure!(kill(crabd)?, "crabd was gone already");
    for coming in named(CRABD) {
        kill(coming)?;
        wait_gone(coming, Duration::from_secs(20))?;
    }
    wait_gone(crabd, Duration::from_secs(20))?;
    Ok(crabd)
}

/// The processes in the same pid namespace as this one, itself included.
pub fn in_pid_namespace_of(pid: u32) -> Vec<u32> {
    let namespace = |pid: u32| fs::read_link(Path::new("/proc").join(format!("{pid}/ns/pid"))).ok();
    let Some(wanted) = namespace(pid) else {
        return Vec::new();
    };
    let all = all().into_iter().map(|(pid, _)| pid);
    all.filter(|pid| namespace(*pid).as_ref() == Some(&wanted))
        .collect()
}

/// What a process has started. The kernel lists them by the thread that made them.
pub fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let lists = threads
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let mut all: Vec<u32> = Vec::new();
    for list in lists {
        all.extend(list.split(' ').filter_map(|pid| pid.parse::<u32>().ok()));
    }
    all
}
