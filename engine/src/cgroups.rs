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
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_cgroup_with_processes_is_told_from_others() {
        // Where this process is, there is one.
        let table = fs::read_to_string("/proc/self/cgroup").unwrap();
        let path = table
            .lines()
            .find_map(|line| line.strip_prefix("0::/"))
            .unwrap();
        let own = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
            .iter()
            .map(|root| Path::new(root).join(path))
            .find(|dir| dir.join("cgroup.events").exists());
        let Some(own) = own else {
            println!("skipped: this process is in the root of its cgroups");
            return;
        };
        let own = CgroupId(fs::metadata(own).unwrap().ino());
        let found = populated(&[own, CgroupId(1 << 60)].into());
        assert_eq!(found, [own].into());
    }
}
