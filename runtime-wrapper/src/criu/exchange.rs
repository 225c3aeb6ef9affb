// SPDX-License-Identifier: Apache-2.0
//! Process images that are exchanged with others: clients keep them, and restore them
//! under another shim as well.
//!
//! To CRIU, a network namespace that the runtime's configuration names is *external*: the
//! image only notes a key for it (`netns-<id>.img`), and a restore fails without a
//! namespace for that key. One that it does not name leaves no such file, and a restore
//! makes an empty one. Crab makes the namespace itself and names it, where any other shim
//! leaves that to the runtime. So the note is taken out of an image that leaves Crab
//! ([`release_netns`]), and put into the copy of one that comes back ([`lay_out`]).

use std::{
    fs,
    os::unix::fs::{MetadataExt, symlink},
    path::{Component, Path, PathBuf},
};

use rustix::time::{ClockId, clock_gettime};

use super::{
    ImageError, TIMENS, io_error,
    records::{Field, field, first_record, number_in, put_bytes, write_records},
};

/// The key by which runc and crun tell CRIU of the network namespace.
const NETNS_KEY: &[u8] = b"extRootNetNS";
/// The link to the image upon which one builds.
const PARENT: &str = "parent";
const NETNS_MAGIC: u32 = 0x5593_3752;
/// `task_kobj_ids_entry.net_ns_id`.
pub(super) const NET_NS_ID: u64 = 6;
/// `netns_entry.ext_key`.
const EXT_KEY: u64 = 8;
const PSTREE_MAGIC: u32 = 0x5027_3030;
const IDS_MAGIC: u32 = 0x5443_2030;
const TIMENS_MAGIC: u32 = 0x4311_4433;
/// By how much the wall clock of an image's file may miss the boot's.
const SAME_BOOT_SECS: i64 = 2;

/// Makes an image whose network namespace was Crab's own one that any shim restores.
///
/// # Errors
/// When a file cannot be read or removed.
pub fn release_netns(images: &Path) -> Result<(), ImageError> {
    for entry in fs::read_dir(images).map_err(io_error("read", images))? {
        let path = entry.map_err(io_error("read", images))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !name.starts_with("netns-") || !name.ends_with(".img") {
            continue;
        }
        let record = first_record(&path, NETNS_MAGIC)?;
        if field(&record, EXT_KEY).and_then(Field::bytes) == Some(NETNS_KEY) {
            fs::remove_file(&path).map_err(io_error("remove", &path))?;
        }
    }
    Ok(())
}

/// Lays out the image in `images` anew in the empty directory `to`, by links: CRIU then
/// works on names that are ours. With `netns`, the processes' network namespace is made
/// the external one.
///
/// The links are relative all the way up from `to`: CRIU follows most of them when its
/// root is the container's already, where an absolute one leads elsewhere. An image that
/// builds upon a parent is laid out with it.
///
/// `timens-0.img` is left out where the clocks go on from the dump's, for the reason that
/// [`super`] gives.
///
/// # Errors
/// When a file cannot be read or written, or is none of CRIU's.
pub fn lay_out(images: &Path, to: &Path, netns: bool) -> Result<(), ImageError> {
    let from = fs::canonicalize(images).map_err(io_error("read", images))?;
    let up: PathBuf = fs::canonicalize(to)
        .map_err(io_error("read", to))?
        .components()
        .filter(|part| matches!(part, Component::Normal(_)))
        .map(|_| Component::ParentDir)
        .collect();
    for entry in fs::read_dir(&from).map_err(io_error("read", &from))? {
        let entry = entry.map_err(io_error("read", &from))?;
        if entry.file_name() == TIMENS && clocks_go_on(&entry.path()) {
            continue;
        }
        let link = to.join(entry.file_name());
        if entry.file_name() == PARENT {
            fs::create_dir(&link).map_err(io_error("write", &link))?;
            lay_out(&entry.path(), &link, false)?;
            continue;
        }
        let file = entry.path();
        let target = up.join(file.strip_prefix("/").unwrap_or(&file));
        symlink(target, &link).map_err(io_error("link", &link))?;
    }
    if netns {
        name_netns(images, to)?;
    }
    Ok(())
}

/// Notes the processes' network namespace as the external one, in the copy `to`.
pub(super) fn name_netns(images: &Path, to: &Path) -> Result<(), ImageError> {
    let root = number_in(&images.join("pstree.img"), PSTREE_MAGIC, 1)?;
    let ids = images.join(format!("ids-{root}.img"));
    let record = first_record(&ids, IDS_MAGIC)?;
    // Without one, the processes were in the host's.
    let Some(id) = field(&record, NET_NS_ID).and_then(Field::number) else {
        return Ok(());
    };
    let path = to.join(format!("netns-{id}.img"));
    if path.symlink_metadata().is_ok() {
        // Noted already, or described in full by somebody who dumps networks, too.
        return Ok(());
    }
    let mut record = Vec::new();
    put_bytes(&mut record, EXT_KEY, NETNS_KEY);
    write_records(&path, NETNS_MAGIC, &[record])
}

/// Whether this is the boot of the dump: then its clocks go on by themselves. The file's
/// time and the clock in it tell when that boot was.
fn clocks_go_on(timens: &Path) -> bool {
    let boottime = || -> Option<i64> {
        let record = first_record(timens, TIMENS_MAGIC).ok()?;
        let boottime = field(&record, 2)?.bytes()?;
        i64::try_from(field(boottime, 1)?.number()?).ok()
    };
    let (Some(then), Ok(file)) = (boottime(), fs::metadata(timens)) else {
        return false;
    };
    let now = |clock| clock_gettime(clock).tv_sec;
    let (wall, boot) = (now(ClockId::Realtime), now(ClockId::Boottime));
    then <= boot && ((file.mtime() - then) - (wall - boot)).abs() <= SAME_BOOT_SECS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(path: &Path, magic: u32, record: &[u8]) {
        write_records(path, magic, &[record.to_vec()]).unwrap();
    }

    /// Process 1 is in the network namespace 300.
    fn dumped(dir: &Path) {
        image(&dir.join("pstree.img"), PSTREE_MAGIC, &[8, 1, 16, 0]);
        let ids = [8, 1, 16, 1, 24, 1, 32, 1, 40, 7, 48, 0xac, 2, 56, 9];
        image(&dir.join("ids-1.img"), IDS_MAGIC, &ids);
        fs::write(dir.join("pages-1.img"), "pages").unwrap();
    }

    #[test]
    fn what_is_named_on_the_way_in_is_released_on_the_way_out() {
        let dir = tempfile::tempdir().unwrap();
        let (images, to) = (dir.path().join("images"), dir.path().join("to"));
        fs::create_dir(&images).unwrap();
        fs::create_dir(&to).unwrap();
        dumped(&images);
        lay_out(&images, &to, true).unwrap();
        let note = to.join("netns-300.img");
        let record = first_record(&note, NETNS_MAGIC).unwrap();
        assert_eq!(field(&record, 8), Some(Field::Bytes(NETNS_KEY)));
        assert_eq!(fs::read_to_string(to.join("pages-1.img")).unwrap(), "pages");
        assert!(!images.join("netns-300.img").exists());
        release_netns(&to).unwrap();
        assert!(!note.exists());
        assert!(to.join("pstree.img").exists());
    }

    #[test]
    fn links_lead_there_from_any_root_and_the_parent_comes_along() {
        let dir = tempfile::tempdir().unwrap();
        let (images, to) = (dir.path().join("images"), dir.path().join("a/to"));
        fs::create_dir(&images).unwrap();
        fs::create_dir_all(&to).unwrap();
        dumped(&images);
        fs::create_dir(dir.path().join("before")).unwrap();
        fs::write(dir.path().join("before/pages-1.img"), "older").unwrap();
        symlink("../before", images.join(PARENT)).unwrap();
        lay_out(&images, &to, false).unwrap();
        let read = |name: &str| fs::read_to_string(to.join(name)).unwrap();
        assert_eq!(read("pages-1.img"), "pages");
        assert_eq!(read("parent/pages-1.img"), "older");
        assert!(fs::read_link(to.join("pages-1.img")).unwrap().is_relative());
        assert!(to.join(PARENT).symlink_metadata().unwrap().is_dir());
    }

    #[test]
    fn a_namespace_of_somebody_else_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("netns-5.img");
        image(&path, NETNS_MAGIC, b"\x42\x05mykey");
        release_netns(dir.path()).unwrap();
        assert!(path.exists());
    }

    #[test]
    fn what_is_no_image_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let (images, to) = (dir.path().join("images"), dir.path().join("to"));
        fs::create_dir(&images).unwrap();
        for text in [&b""[..], b"short", &[0xff; 64]] {
            fs::write(images.join("pstree.img"), text).unwrap();
            let _ = fs::remove_dir_all(&to);
            fs::create_dir(&to).unwrap();
            assert!(lay_out(&images, &to, true).is_err());
        }
        // A record that claims more than there is.
        write_records(&images.join("pstree.img"), PSTREE_MAGIC, &[]).unwrap();
        let mut huge = fs::read(images.join("pstree.img")).unwrap();
        huge.extend(u32::MAX.to_le_bytes());
        fs::write(images.join("pstree.img"), huge).unwrap();
        assert!(first_record(&images.join("pstree.img"), PSTREE_MAGIC).is_err());
    }

    #[test]
    fn only_an_image_of_this_boot_goes_without_a_time_namespace() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(TIMENS);
        let boot = clock_gettime(ClockId::Boottime).tv_sec as u64;
        for (seconds, goes_on) in [(boot, true), (boot + 3600, false), (0, boot < 2)] {
            let mut clock = vec![8];
            let mut left = seconds;
            while left >= 0x80 {
                clock.push(left as u8 | 0x80);
                left >>= 7;
            }
            clock.push(left as u8);
            let mut record = vec![10, clock.len() as u8];
            record.extend(&clock);
            record.extend([18, clock.len() as u8]);
            record.extend(&clock);
            image(&path, TIMENS_MAGIC, &record);
            assert_eq!(clocks_go_on(&path), goes_on, "{seconds}");
        }
        assert!(!clocks_go_on(&dir.path().join("none")));
    }
}
