// SPDX-License-Identifier: Apache-2.0
//! What is left to do with an image for which CRIU was asked directly.
//!
//! It was told less than the truth, so that it had less to do while the container stood still:
//!
//! * memory-backed mounts are external, under a name of ours ([`super::leave_out`]). A restore would
//!   have to name them as well, which runc does not do;
//! * CRIU was in the container's network namespace itself. So it neither locked nor dumped that:
//!   it would have run `iptables-restore` eight times and had the kernel list its connection
//!   tracking, all for a namespace that is external, and noted by its name alone.
//!
//! Both are put right in the image, after the thaw, which is then as if CRIU had done it all.

use std::{fs, path::Path};

use super::{
    ImageError,
    exchange::{NET_NS_ID, name_netns},
    io_error,
    left_out::{LEFT_OUT, LeftOut},
    records::{INVENTORY_MAGIC, field, put_bytes, put_number, rewrite, without_field},
};

/// What the images of mount tables begin with.
const MOUNTS_MAGIC: u32 = 0x5556_3928;
/// `mnt_entry.ext_key`.
const EXT_KEY: u64 = 18;
/// `inventory_entry.root_ids`: the namespaces of CRIU itself.
const ROOT_IDS: u64 = 3;
/// The id of a network namespace that CRIU, which counts from 1, gives to none.
const NOBODYS: u64 = u32::MAX as u64;

/// What is left to do.
#[derive(Debug, Clone, Default)]
pub struct Remainder {
    pub(super) left_out: Vec<LeftOut>,
    /// CRIU was in the container's network namespace.
    pub(super) network: bool,
}

impl Remainder {
    /// Makes the image one that any runtime can restore, once the archives of the captured
    /// mounts are in it.
    ///
    /// # Errors
    /// When a file cannot be read or written, or is none of CRIU's.
    pub fn complete(&self, images: &Path) -> Result<(), ImageError> {
        if self.network {
            leave_network(&images.join("inventory.img"))?;
            name_netns(images, images)?;
        }
        if self.left_out.is_empty() {
            return Ok(());
        }
        for entry in fs::read_dir(images).map_err(io_error("read", images))? {
            let path = entry.map_err(io_error("read", images))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with("mountpoints-") && name.ends_with(".img") {
                forget_name(&path)?;
            }
        }
        for mount in &self.left_out {
            mount.archive(images)?;
        }
        Ok(())
    }
}

/// Takes our name out of a table of mounts.
fn forget_name(path: &Path) -> Result<(), ImageError> {
    rewrite(path, MOUNTS_MAGIC, |mount| {
        let name = field(mount, EXT_KEY)?.bytes()?;
        (name == LEFT_OUT.as_bytes()).then(|| without_field(mount, EXT_KEY))?
    })
}

/// Notes that CRIU was in another network namespace than the processes.
fn leave_network(inventory: &Path) -> Result<(), ImageError> {
    rewrite(inventory, INVENTORY_MAGIC, |entry| {
        let ids = field(entry, ROOT_IDS)?.bytes()?;
        let mut ids = without_field(ids, NET_NS_ID)?;
        let mut rest = without_field(entry, ROOT_IDS)?;
        put_number(&mut ids, NET_NS_ID, NOBODYS);
        put_bytes(&mut rest, ROOT_IDS, &ids);
        Some(rest)
    })
}

#[cfg(test)]
mod tests {
    use super::{
        super::records::{Field, records, write_records},
        *,
    };

    fn mount(mountpoint: &str, ext_key: Option<&str>) -> Vec<u8> {
        let mut record = Vec::new();
        put_number(&mut record, 1, 5);
        put_bytes(&mut record, 7, mountpoint.as_bytes());
        if let Some(key) = ext_key {
            put_bytes(&mut record, EXT_KEY, key.as_bytes());
        }
        record
    }

    #[test]
    fn only_our_name_is_taken_out_of_an_image() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mountpoints-13.img");
        let all = [
            mount("/", None),
            mount("/dev", Some(LEFT_OUT)),
            mount("/etc/hosts", Some("/etc/hosts")),
        ];
        write_records(&path, MOUNTS_MAGIC, &all).unwrap();
        let remainder = Remainder {
            left_out: super::super::leave_out(
                1,
                b"2 1 0:51 / /dev rw - tmpfs tmpfs rw",
                &["/dev".into()],
            ),
            network: false,
        };
        remainder.complete(dir.path()).unwrap();
        let left = records(&path, MOUNTS_MAGIC).unwrap();
        assert_eq!(left, [all[0].clone(), mount("/dev", None), all[2].clone()]);
    }

    #[test]
    fn the_processes_are_in_another_network_than_criu() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("inventory.img");
        let mut ids = Vec::new();
        put_number(&mut ids, 1, 2);
        put_number(&mut ids, NET_NS_ID, 10);
        let mut inventory = Vec::new();
        put_number(&mut inventory, 1, 1);
        put_bytes(&mut inventory, ROOT_IDS, &ids);
        put_number(&mut inventory, 5, 1);
        write_records(&path, INVENTORY_MAGIC, &[inventory]).unwrap();
        leave_network(&path).unwrap();
        let all = records(&path, INVENTORY_MAGIC).unwrap();
        let ids = field(&all[0], ROOT_IDS).and_then(Field::bytes).unwrap();
        assert_eq!(field(ids, NET_NS_ID), Some(Field::Number(NOBODYS)));
        assert_eq!(field(ids, 1), Some(Field::Number(2)));
        assert_eq!(field(&all[0], 5), Some(Field::Number(1)));
    }
}
