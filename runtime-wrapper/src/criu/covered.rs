// SPDX-License-Identifier: Apache-2.0
//! Whether CRIU makes directories in a container's own files while it dumps it.
//!
//! It archives a mount through its path. Where something is mounted on that, it makes a
//! directory in the container's `/tmp` or `/`, moves a copy of the mount there, and removes it
//! again (`open_mountpoint` and `get_clean_mnt` in CRIU's `mount.c`). Whoever reads the container's
//! files meanwhile takes it for one of them.

use std::path::Path;

use crate::mount::MountPoint;

/// The file systems of which CRIU archives nothing, though mounts are on them in about every
/// container (`filesystems.c`).
const ARCHIVES_NOTHING: [&str; 6] = ["proc", "sysfs", "devpts", "cgroup", "cgroup2", "overlay"];

/// Whether it does, of a container with these mounts; `external` are those that are not its own to
/// archive.
pub(super) fn archives_covered(points: &[MountPoint], external: &[&Path]) -> bool {
    points.iter().enumerate().any(|(place, point)| {
        let archived = point.at != Path::new("/")
            && !ARCHIVES_NOTHING.contains(&point.kind.as_str())
            && !external.contains(&point.at.as_path());
        let covers = |(other, above): (usize, &MountPoint)| {
            other != place && above.at.starts_with(&point.at)
        };
        archived && points.iter().enumerate().any(covers)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::mount_points;

    fn archives(table: &str, external: &[&str]) -> bool {
        let external: Vec<&Path> = external.iter().map(Path::new).collect();
        archives_covered(&mount_points(table.as_bytes()), &external)
    }

    const USUAL: &str = "1 0 0:50 / / rw - overlay overlay rw\n\
                         2 1 0:51 / /proc rw - proc proc rw\n\
                         3 2 0:51 /bus /proc/bus ro - proc proc rw\n\
                         4 1 0:52 / /dev rw - tmpfs tmpfs rw\n\
                         5 4 0:53 / /dev/pts rw - devpts devpts rw\n\
                         6 1 0:54 / /sys ro - sysfs sysfs ro\n\
                         7 1 0:55 / /run rw - tmpfs tmpfs rw\n";

    #[test]
    fn a_mount_under_another_is_archived_by_way_of_a_directory() {
        assert!(archives(USUAL, &[]));
        assert!(!archives(USUAL, &["/dev"]));
    }

    #[test]
    fn a_hierarchy_of_cgroup_v1_has_its_controllers_on_it() {
        let table = format!(
            "{USUAL}8 6 0:56 / /sys/fs/cgroup ro - tmpfs tmpfs rw\n\
             9 8 0:57 /x /sys/fs/cgroup/cpu ro - cgroup cgroup rw\n"
        );
        assert!(archives(&table, &["/dev", "/sys/fs/cgroup/cpu"]));
        assert!(!archives(&table, &["/dev", "/sys/fs/cgroup"]));
    }

    #[test]
    fn what_is_hidden_by_a_mount_in_the_same_place_is_covered_too() {
        let table = format!("{USUAL}8 7 0:56 / /run rw - tmpfs tmpfs rw\n");
        assert!(archives(&table, &["/dev"]));
    }
}
