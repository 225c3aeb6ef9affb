// SPDX-License-Identifier: Apache-2.0

//! Looking at the host: each function gives one kind of thing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::FileTypeExt,
    path::Path,
    process,
};

use anyhow::{Context, Result};

/// Where everything that belongs to live containers lies, by whoever made it.
const RUN: &str = "/run";

/// Directories of the daemons, of which each container has one or more: only what is
/// directly in them, or one below where they are by namespace.
const OF_CONTAINERS: [(&str, usize); 7] = [
    ("/var/lib/containerd/io.containerd.runtime.v2.task", 2),
    ("/var/lib/containerd/io.containerd.grpc.v1.cri", 2),
    // `1935db59` is what nerdctl calls this host's containerd, by its address.
    ("/var/lib/nerdctl/1935db59/containers", 2),
    ("/var/lib/docker/containers", 1),
    ("/var/lib/docker/overlay2", 1),
    // What is in `sandboxes` is history, which outlives its sandbox.
    ("/var/lib/crab", 1),
    ("/var/lib/crab/staging", 2),
];

/// Of a thread of the kernel, in its flags (`PF_KTHREAD`).
const KERNEL_THREAD: u32 = 0x0020_0000;

/// The mount table: type and place of each.
pub(super) fn mounts() -> Result<Vec<String>> {
    let table = fs::read_to_string("/proc/self/mountinfo").context("read the mount table")?;
    let mounts = table.lines().filter_map(|line| {
        // "<id> <parent> <device> <root> <place> <options> [<fields>] - <type> ..."
        let (left, right) = line.split_once(" - ")?;
        let kind = right.split(' ').next()?;
        Some(format!("{kind} {}", left.split(' ').nth(4)?))
    });
    let mut mounts: Vec<String> = mounts.collect();
    mounts.sort();
    Ok(mounts)
}

/// Every cgroup of every hierarchy.
pub(super) fn cgroups() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    walk(
        Path::new("/sys/fs/cgroup"),
        usize::MAX,
        &mut |path, kind| {
            if kind.is_dir() {
                found.insert(path.display().to_string());
            }
            true
        },
    );
    found
}

/// What is in the run directories and in those of the daemons.
pub(super) fn entries() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut note = |path: &Path, kind: &fs::FileType| {
        let what = match kind {
            _ if kind.is_dir() => "directory",
            _ if kind.is_fifo() => "FIFO",
            _ if kind.is_socket() => "socket",
            _ => "file",
        };
        found.insert(format!("{what} {}", path.display()));
        // Not into the roots of containers.
        path.file_name().is_none_or(|name| name != "rootfs")
    };
    walk(Path::new(RUN), usize::MAX, &mut note);
    for (dir, depth) in OF_CONTAINERS {
        walk(Path::new(dir), depth, &mut note);
    }
    found
}

/// Every process but this one and what it has started, and but the kernel's own: its
/// name by its id. One that nobody has waited for is told from others.
pub(super) fn processes() -> BTreeMap<u32, String> {
    let mut all = BTreeMap::new();
    let dir = fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in dir.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        // "<pid> (<name>) <state> <parent> <group> <session> <tty> <tpgid> <flags> ...": the
        // name may hold anything, and ends with the last parenthesis.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let Some((name, rest)) = stat
            .split_once('(')
            .and_then(|(_, rest)| rest.rsplit_once(')'))
        else {
            continue;
        };
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let field = |at: usize| fields.get(at).and_then(|field| field.parse::<u32>().ok());
        let is_kernels = field(6).is_some_and(|flags| flags & KERNEL_THREAD != 0);
        if !is_kernels {
            let state = match fields.first() {
                Some(&"Z") => "zombie ",
                _ => "",
            };
            // Of a name the kernel keeps fifteen bytes; a shim's is longer.
            let name = program(pid).unwrap_or_else(|| name.to_owned());
            all.insert(pid, (field(1).unwrap_or(0), format!("{state}{name}")));
        }
    }
    let is_own = |pid: u32| {
        let mut pid = pid;
        while pid != process::id() {
            match all.get(&pid) {
                Some((parent, _)) => pid = *parent,
                None => return false,
            }
        }
        true
    };
    let others = all.iter().filter(|(pid, _)| !is_own(**pid));
    others
        .map(|(pid, (_, name))| (*pid, name.clone()))
        .collect()
}

fn program(pid: u32) -> Option<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let first = String::from_utf8_lossy(line.split(|byte| *byte == 0).next()?).into_owned();
    let name = first.rsplit('/').next()?.to_owned();
    (!name.is_empty()).then_some(name)
}

/// Visits what is in a directory, so deep, and not through symlinks; whether to go into a
/// directory is what `visit` says.
fn walk(dir: &Path, depth: usize, visit: &mut impl FnMut(&Path, &fs::FileType) -> bool) {
    let Some(below) = depth.checked_sub(1) else {
        return;
    };
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        let path = entry.path();
        if visit(&path, &kind) && kind.is_dir() {
            walk(&path, below, visit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_not_among_the_others() {
        let mut child = process::Command::new("sleep").arg("60").spawn().unwrap();
        let others = processes();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(others.contains_key(&1));
        assert!(!others.contains_key(&process::id()));
        assert!(!others.contains_key(&child.id()));
    }
}
