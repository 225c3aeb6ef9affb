// SPDX-License-Identifier: Apache-2.0
//! Which cgroups have processes in them, by their ids.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};

use crab_bpf::CgroupId;

/// Those of `wanted` that have. The id of a cgroup is the inode number of its
/// directory.
pub(crate) fn populated(wanted: &BTreeSet<CgroupId>) -> BTreeSet<CgroupId> {
    let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
    let unified = roots
        .iter()
        .map(Path::new)
        .find(|root| root.join("cgroup.controllers").exists());
    let mut left: Vec<PathBuf> = unified.map(Path::to_path_buf).into_iter().collect();
    let mut found = BTreeSet::new();
    while let Some(dir) = left.pop() {
        // One that goes meanwhile has nobody in it.
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let (id, path) = (CgroupId(entry.ino()), entry.path());
            if wanted.contains(&id) && is_populated(&path) {
                found.insert(id);
            }
            left.push(path);
        }
    }
    found
}

/// Its descendants count, too.
fn is_populated(dir: &Path) -> bool {
    fs::read_to_string(dir.join("cgroup.events"))
        .is_ok_and(|events| events.lines().any(|line| line == "populated 1"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        os::unix::fs::MetadataExt,
        process::Command,
        thread::sleep,
        time::{Duration, Instant},
    };

    #[test]
    fn a_cgroup_with_processes_is_told_from_others() {
        let root = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
            .into_iter()
            .find(|root| Path::new(root).join("cgroup.procs").exists())
            .expect("a cgroup v2 hierarchy");
        let make = || {
            let dir = tempfile::Builder::new()
                .prefix("crab-test-")
                .tempdir_in(root);
            dir.unwrap().keep()
        };
        let dirs = [make(), make()];
        let [inhabited, empty] = dirs
            .each_ref()
            .map(|dir| CgroupId(fs::metadata(dir).unwrap().ino()));
        let mut process = Command::new("sleep").arg("1000").spawn().unwrap();
        let moved = fs::write(dirs[0].join("cgroup.procs"), process.id().to_string());
        let wanted = [inhabited, empty, CgroupId(1 << 60)].into();
        let found = populated(&wanted);
        process.kill().unwrap();
        process.wait().unwrap();
        // It is gone from it a moment after it was waited for.
        let start = Instant::now();
        while !populated(&wanted).is_empty() && start.elapsed() < Duration::from_secs(10) {
            sleep(Duration::from_millis(1));
        }
        let found_later = populated(&wanted);
        for dir in dirs {
            fs::remove_dir(dir).unwrap();
        }
        moved.unwrap();
        assert_eq!(found, [inhabited].into());
        assert_eq!(found_later, [].into());
    }
}
