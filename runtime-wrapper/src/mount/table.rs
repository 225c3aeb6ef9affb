// SPDX-License-Identifier: Apache-2.0
//! A table of mounts, proc_pid_mountinfo(5):
//! `id parent major:minor root mountpoint options [optional...] - type source superoptions`.

use std::{ffi::OsString, os::unix::ffi::OsStringExt, path::PathBuf};

use crate::overlay::unescape_octal;

/// A line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountPoint {
    /// Where it is mounted.
    pub at: PathBuf,
    /// The type of its file system.
    pub kind: String,
    /// Its superblock's device number, as `stat` tells it.
    pub device: u64,
    /// Its file system is seen from its root on, and not only a part of it.
    pub whole: bool,
    /// This mount cannot be written to.
    pub read_only: bool,
    /// Nothing can be written to its file system, through whatever mount.
    pub sealed: bool,
}

/// Every mount of a table, in its order.
pub fn mount_points(table: &[u8]) -> Vec<MountPoint> {
    let lines = table.split(|byte| *byte == b'\n');
    lines.filter_map(mount_point).collect()
}

fn mount_point(line: &[u8]) -> Option<MountPoint> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let dash = fields.iter().position(|field| *field == b"-")?;
    let has = |list: &[u8], word: &[u8]| list.split(|byte| *byte == b',').any(|o| o == word);
    Some(MountPoint {
        at: PathBuf::from(OsString::from_vec(unescape_octal(fields.get(4)?))),
        kind: String::from_utf8_lossy(fields.get(dash + 1)?).into_owned(),
        device: device(fields.get(2)?)?,
        whole: *fields.get(3)? == b"/",
        read_only: has(fields.get(5)?, b"ro"),
        sealed: fields
            .get(dash + 3)
            .is_some_and(|options| has(options, b"ro")),
    })
}

/// `major:minor`.
pub(super) fn device(text: &[u8]) -> Option<u64> {
    let (major, minor) = std::str::from_utf8(text).ok()?.split_once(':')?;
    Some(rustix::fs::makedev(
        major.parse().ok()?,
        minor.parse().ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_whatever_its_optional_fields() {
        let table = b"3 2 0:52 /x /a\\040b rw,nosuid shared:1 master:2 - tmpfs shm ro,size=1\n\
                      nonsense\n4 1 8:1 / / ro - ext4 /dev/sda rw\n";
        let found = mount_points(table);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].at, PathBuf::from("/a b"));
        assert_eq!(found[0].kind, "tmpfs");
        assert!(!found[0].whole && !found[0].read_only && found[0].sealed);
        assert!(found[1].whole && found[1].read_only && !found[1].sealed);
        assert_eq!(found[1].device, rustix::fs::makedev(8, 1));
    }
}
