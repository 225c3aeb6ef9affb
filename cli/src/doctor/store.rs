// SPDX-License-Identifier: Apache-2.0

//! The places on disk: the store, and where process images are staged.

use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crab_config::Config;
use crab_store::{OpenError, Store};
use rustix::fs::{Access, access, statvfs};

use super::check::Check;
use crate::output::size;

const STORE: &str = "store";
const STAGING: &str = "staging";

/// Free space below which checkpoints will soon fail.
const LITTLE: u64 = 1 << 30;
/// And below which they do.
const NOTHING: u64 = 64 << 20;

/// A directory, and the file system that it is on or will be.
struct Place {
    /// Itself, or the nearest directory above it that is there.
    existing: PathBuf,
    kind: String,
    free: u64,
    read_only: bool,
}

impl Place {
    fn of(dir: &Path) -> Result<Self, String> {
        let existing = dir.ancestors().find(|dir| dir.is_dir());
        let existing = existing.unwrap_or(Path::new("/")).to_path_buf();
        let told = |error: rustix::io::Errno| format!("{}: {error}", existing.display());
        let stat = statvfs(&existing).map_err(told)?;
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let real = fs::canonicalize(&existing).unwrap_or_else(|_| existing.clone());
        Ok(Self {
            kind: kind_of(&table, &real).unwrap_or("unknown").to_owned(),
            free: stat.f_bavail.saturating_mul(stat.f_frsize),
            read_only: access(&existing, Access::WRITE_OK) == Err(rustix::io::Errno::ROFS),
            existing,
        })
    }
}

/// The type of the file system on which a path is: that of the last of the longest mount
/// points above it.
fn kind_of<'a>(table: &'a str, path: &Path) -> Option<&'a str> {
    let mut best: Option<(usize, &str)> = None;
    for line in table.lines() {
        let Some((before, after)) = line.split_once(" - ") else {
            continue;
        };
        let (Some(point), Some(kind)) = (before.split(' ').nth(4), after.split(' ').next()) else {
            continue;
        };
        let above = path.starts_with(point);
        if above && best.is_none_or(|(length, _)| point.len() >= length) {
            best = Some((point.len(), kind));
        }
    }
    best.map(|(_, kind)| kind)
}

/// What is gone after a boot, or shared between hosts.
fn is_unfit(kind: &str) -> Option<&'static str> {
    match kind {
        "tmpfs" | "ramfs" => Some("is gone after a boot"),
        "nfs" | "nfs4" | "cifs" | "smb3" | "9p" | "ceph" | "fuse.sshfs" => {
            Some("is on another host, and locks and renames on it are not what they are here")
        }
        _ => None,
    }
}

pub(crate) fn store(root: &Path) -> Check {
    let shown = root.display();
    let mend_root = "name another directory as store in the configuration";
    let place = match Place::of(root) {
        Ok(place) => place,
        Err(why) => return Check::fail(STORE, why, mend_root),
    };
    let there = match Store::open(root) {
        Ok(_) => "",
        Err(OpenError::NoStore(_)) => ", made with the first sandbox",
        Err(OpenError::NewerFormat { found, known, .. }) => {
            return Check::fail(
                STORE,
                format!("{shown} is of format {found}, and this crab knows {known}"),
                "install the version of Crab that wrote it, or a newer one",
            );
        }
        Err(error) => return Check::fail(STORE, error.to_string(), mend_root),
    };
    let found = format!("{shown}{there}: {}, {} free", place.kind, size(place.free));
    match fs::symlink_metadata(root) {
        Ok(meta) if meta.is_dir() => {
            if let Some(check) = private(&found, root, meta.mode(), meta.uid()) {
                return check;
            }
        }
        Ok(_) if !root.is_dir() => {
            return Check::fail(STORE, format!("{shown} is no directory"), mend_root);
        }
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Check::fail(STORE, format!("{shown}: {error}"), mend_root),
    }
    judge(found, &place, mend_root)
}

/// Images of memory hold secrets.
fn private(found: &str, root: &Path, mode: u32, owner: u32) -> Option<Check> {
    if mode & 0o077 == 0 && owner == 0 {
        return None;
    }
    let shown = root.display();
    Some(Check::fail(
        STORE,
        format!(
            "{found}; others can look into it (mode {:04o}, user {owner})",
            mode & 0o7777
        ),
        format!("chown root:root {shown} && chmod 700 {shown}"),
    ))
}

fn judge(found: String, place: &Place, mend_root: &str) -> Check {
    let free = "free some space, or name another directory as store in the configuration";
    if place.read_only {
        return Check::fail(
            STORE,
            format!("{found}; {} is read-only", place.existing.display()),
            mend_root,
        );
    }
    if place.free < NOTHING {
        return Check::fail(STORE, found, free);
    }
    if let Some(why) = is_unfit(&place.kind) {
        return Check::warn(STORE, format!("{found}; it {why}"), mend_root);
    }
    if place.free < LITTLE {
        return Check::warn(STORE, found, free);
    }
    Check::ok(STORE, found)
}

pub(crate) fn staging(config: &Config) -> Check {
    let dir = config.staging_dir();
    let place = match Place::of(&dir) {
        Ok(place) => place,
        Err(why) => {
            return Check::fail(
                STAGING,
                why,
                "name another directory as checkpoints.staging_dir in the configuration",
            );
        }
    };
    room(&dir, &place, config.checkpoints.staging_bytes)
}

/// `wanted`: what one sandbox may use of it.
fn room(dir: &Path, place: &Place, wanted: u64) -> Check {
    let found = format!(
        "{}: {}, {} free",
        dir.display(),
        place.kind,
        size(place.free)
    );
    if place.read_only {
        return Check::fail(
            STAGING,
            format!("{found}; it is read-only"),
            "name another directory as checkpoints.staging_dir in the configuration",
        );
    }
    if place.free < wanted {
        return Check::warn(
            STAGING,
            format!(
                "{found}, less than the {} that one process image may take",
                size(wanted)
            ),
            format!(
                "set checkpoints.staging_bytes to at most {} (larger ones go to the store), or checkpoints.staging_dir to where there is more",
                place.free / 2
            ),
        );
    }
    Check::ok(STAGING, found)
}

#[cfg(test)]
mod tests {
    use super::{super::check::Verdict, *};

    const TABLE: &str = "1 0 254:0 / / rw - ext4 /dev/vda rw\n\
                         2 1 0:20 / /run rw shared:3 - tmpfs tmpfs rw\n\
                         3 1 0:30 / /var/lib rw - xfs /dev/vdb rw\n\
                         4 1 0:31 / /var/lib rw - btrfs /dev/vdc rw\n";

    #[test]
    fn the_file_system_of_a_path_is_that_of_the_nearest_and_last_mount() {
        for (path, kind) in [
            ("/", "ext4"),
            ("/runner", "ext4"),
            ("/run/crab", "tmpfs"),
            ("/var/lib/crab", "btrfs"),
        ] {
            assert_eq!(kind_of(TABLE, Path::new(path)), Some(kind), "{path}");
        }
        assert_eq!(kind_of("", Path::new("/")), None);
    }

    fn place(kind: &str, free: u64, read_only: bool) -> Place {
        Place {
            existing: "/x".into(),
            kind: kind.into(),
            free,
            read_only,
        }
    }

    #[test]
    fn a_store_wants_room_on_a_disk_that_stays() {
        let verdict =
            |kind, free, read_only| judge(String::new(), &place(kind, free, read_only), "").verdict;
        assert_eq!(verdict("ext4", 100 << 30, false), Verdict::Ok);
        assert_eq!(verdict("ext4", 100 << 30, true), Verdict::Fail);
        assert_eq!(verdict("ext4", 100 << 20, false), Verdict::Warn);
        assert_eq!(verdict("ext4", 1 << 20, false), Verdict::Fail);
        assert_eq!(verdict("tmpfs", 100 << 30, false), Verdict::Warn);
        assert_eq!(verdict("nfs4", 100 << 30, false), Verdict::Warn);
    }

    #[test]
    fn a_store_is_for_root_alone() {
        assert_eq!(private("", Path::new("/s"), 0o40700, 0), None);
        assert!(private("", Path::new("/s"), 0o40750, 0).is_some());
        assert!(private("", Path::new("/s"), 0o40700, 1000).is_some());
    }

    #[test]
    fn staging_wants_room_for_one_image() {
        let verdict = |free| room(Path::new("/s"), &place("tmpfs", free, false), 2 << 30).verdict;
        assert_eq!(verdict(3 << 30), Verdict::Ok);
        assert_eq!(verdict(1 << 30), Verdict::Warn);
    }
}
