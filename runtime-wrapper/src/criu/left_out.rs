// SPDX-License-Identifier: Apache-2.0
//! Memory-backed mounts whose content CRIU does not archive.
//!
//! CRIU runs `tar` and `gzip` for each tmpfs of a container, one after the other, while
//! the container stands still: most of what a dump of a small one takes. Those that Crab
//! captures as files anyway, and the empty ones behind which runc hides directories of
//! `/proc` and `/sys`, are called external to CRIU, under a name of ours, and so left out.
//!
//! The archives of empty mounts are written afterwards ([`super::Remainder`]), those of captured
//! ones when the image is laid out for a restore, from the files of the checkpoint.

use std::{
    fs::{self, File},
    io,
    os::{fd::AsRawFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
};

use flate2::{Compression, write::GzEncoder};
use rustix::fs::OFlags;
use tar::{EntryType, Header};

use super::{ImageError, io_error, request::key};
use crate::{
    in_root::{Links, open_in_root},
    mount::{criu_image, mount_points},
};

/// The name under which these mounts are external.
pub(super) const LEFT_OUT: &str = "crab-left-out";

/// A mount that is left out.
#[derive(Debug, Clone)]
pub struct LeftOut {
    at: PathBuf,
    image: String,
    /// Its root, if there is nothing else in it.
    empty: Option<Header>,
}

impl LeftOut {
    pub(super) fn at(&self) -> &Path {
        &self.at
    }
}

/// Which mounts CRIU need not archive, by the mount table of a container's init. `captured`
/// are those whose content is captured as files.
pub fn leave_out(init: i32, table: &[u8], captured: &[PathBuf]) -> Vec<LeftOut> {
    let points = mount_points(table);
    let only_one = |at: &Path| points.iter().filter(|point| point.at == at).count() == 1;
    let found = points.iter().filter_map(|point| {
        // CRIU finds it by its path.
        if point.kind != "tmpfs" || !point.whole || !only_one(&point.at) {
            return None;
        }
        let empty = if captured.contains(&point.at) {
            None
        } else if point.sealed {
            Some(empty_root(init, &point.at, point.device)?)
        } else {
            return None;
        };
        Some(LeftOut {
            at: point.at.clone(),
            image: criu_image(point.device),
            empty,
        })
    });
    found.filter(|left_out| key(&left_out.at).is_ok()).collect()
}

/// The root of a mount, if it is this device's and there is nothing in it.
fn empty_root(init: i32, at: &Path, device: u64) -> Option<Header> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let root = File::open(format!("/proc/{init}/root")).ok()?;
    let dir = open_in_root(&root, at, flags, Links::Refused).ok()?;
    let mut names = fs::read_dir(format!("/proc/self/fd/{}", dir.as_raw_fd())).ok()?;
    let meta = File::from(dir).metadata().ok()?;
    if meta.dev() != device || names.next().is_some() {
        return None;
    }
    let mut header = Header::new_gnu();
    header.set_path("./").ok()?;
    header.set_entry_type(EntryType::Directory);
    header.set_mode(meta.mode() & 0o7777);
    header.set_uid(meta.uid().into());
    header.set_gid(meta.gid().into());
    header.set_mtime(u64::try_from(meta.mtime()).unwrap_or(0));
    header.set_size(0);
    header.set_cksum();
    Some(header)
}

impl LeftOut {
    /// Writes the archive that CRIU would have written, if the mount is empty.
    pub(super) fn archive(&self, images: &Path) -> Result<(), ImageError> {
        let Some(root) = &self.empty else {
            return Ok(());
        };
        let path = images.join(&self.image);
        write_archive(&path, root).map_err(io_error("write", &path))
    }
}

/// The archive of an empty mount.
fn write_archive(path: &Path, root: &Header) -> io::Result<()> {
    let file = GzEncoder::new(File::create(path)?, Compression::fast());
    let mut archive = tar::Builder::new(file);
    archive.append(root, io::empty())?;
    archive.into_inner()?.finish()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_mount_is_archived_as_one_directory() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("empty");
        fs::create_dir(&at).unwrap();
        let own = std::process::id() as i32;
        let device = fs::metadata(&at).unwrap().dev();
        let root = empty_root(own, &at, device).unwrap();
        assert!(empty_root(own, &at, device + 1).is_none());
        assert!(empty_root(own, dir.path(), device).is_none(), "not empty");
        let path = dir.path().join("a.img");
        write_archive(&path, &root).unwrap();
        let file = flate2::read::GzDecoder::new(File::open(&path).unwrap());
        let mut archive = tar::Archive::new(file);
        let entries: Vec<_> = archive.entries().unwrap().map(Result::unwrap).collect();
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0].header().entry_type(), EntryType::Directory);
        assert_eq!(entries[0].path_bytes().as_ref(), b"./");
    }

    #[test]
    fn what_is_neither_captured_nor_empty_is_left_to_criu() {
        let table = b"1 0 0:50 / / rw - overlay overlay rw\n\
                      2 1 0:51 / /dev rw - tmpfs tmpfs rw\n\
                      3 1 0:52 / /run rw - tmpfs tmpfs rw\n\
                      4 1 0:53 / /data rw - tmpfs tmpfs rw\n\
                      5 1 0:54 / /data rw - tmpfs tmpfs rw\n\
                      6 1 0:55 /sub /part rw - tmpfs tmpfs rw\n";
        let captured = ["/dev", "/data", "/part"].map(PathBuf::from);
        let found = leave_out(1, table, &captured);
        let paths: Vec<_> = found.iter().map(LeftOut::at).collect();
        assert_eq!(paths, [Path::new("/dev")]);
        assert_eq!(found[0].image, "tmpfs-dev-51.tar.gz.img");
    }
}
