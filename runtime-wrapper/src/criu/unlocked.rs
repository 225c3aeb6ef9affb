// SPDX-License-Identifier: Apache-2.0
//! Images that are restored without a lock on the network.
//!
//! CRIU locks a container's network while it restores connections, and has `iptables-restore` run for
//! that, twice for each protocol; it does so by the method that the image was taken with, whatever it is
//! told. Where there is no connection there is nothing to be locked.

use std::path::Path;

use super::{
    Criu, ImageError, holds_connections, parse_version,
    records::{INVENTORY_MAGIC, put_number, rewrite, without_field},
};

/// `inventory_entry.network_lock_method`.
const LOCK_METHOD: u64 = 11;
/// `NETWORK_LOCK_SKIP` (CRIU's `cr_options.h`).
const SKIP: u64 = 3;
/// The oldest CRIU that is relied upon to know it.
const SINCE: (u32, u32) = (4, 0);

/// Has an image without connections be restored without a lock, if this CRIU can.
///
/// # Errors
/// When the image cannot be read or written.
pub fn lock_nothing(criu: &Criu, images: &Path) -> Result<(), ImageError> {
    if parse_version(&criu.version).is_none_or(|version| version < SINCE) {
        return Ok(());
    }
    if holds_connections(images)? {
        return Ok(());
    }
    let inventory = images.join("inventory.img");
    rewrite(&inventory, INVENTORY_MAGIC, |entry| {
        let mut rest = without_field(entry, LOCK_METHOD)?;
        put_number(&mut rest, LOCK_METHOD, SKIP);
        Some(rest)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{
        super::records::{field, records, write_records},
        *,
    };

    #[test]
    fn only_without_connections_nothing_is_locked() {
        let dir = tempfile::tempdir().unwrap();
        let inventory = dir.path().join("inventory.img");
        let mut record = Vec::new();
        put_number(&mut record, 1, 1);
        put_number(&mut record, LOCK_METHOD, 1);
        let method = || {
            let all = records(&inventory, INVENTORY_MAGIC).unwrap();
            assert_eq!(field(&all[0], 1).and_then(|it| it.number()), Some(1));
            field(&all[0], LOCK_METHOD).and_then(|it| it.number())
        };
        let criu = |version: &str| Criu {
            version: version.into(),
        };
        write_records(&inventory, INVENTORY_MAGIC, &[record]).unwrap();
        lock_nothing(&criu("3.19"), dir.path()).unwrap();
        assert_eq!(method(), Some(1));
        let connection = dir.path().join("tcp-stream-1f.img");
        fs::write(&connection, "").unwrap();
        lock_nothing(&criu("4.1.1"), dir.path()).unwrap();
        assert_eq!(method(), Some(1));
        fs::remove_file(connection).unwrap();
        lock_nothing(&criu("4.1.1"), dir.path()).unwrap();
        assert_eq!(method(), Some(SKIP));
    }
}
