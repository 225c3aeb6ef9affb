// SPDX-License-Identifier: Apache-2.0
//! A tree as the archive in which CRIU keeps a tmpfs mount.
//!
//! CRIU stores each tmpfs as `tmpfs-dev-<minor>.tar.gz.img`, which is the plain
//! output of `tar --create --gzip --one-file-system --sparse --numeric-owner`
//! from within the mount, and restores it with `tar --extract --gzip`. An
//! archive made here takes its place in a copy of an image directory, so that
//! processes of one turn come back with the files of another.
//!
//! CRIU does not ask tar to restore attributes, which are there nevertheless, and makes the
//! sockets of the processes itself.

use std::io::Write;

use crab_store::{ArchiveError, ObjectReader, Tree, write_archive};
use flate2::{Compression, write::GzEncoder};

/// Writes `tree` as CRIU would have stored the tmpfs that it was taken from.
/// What was mounted on it is in the tree as empty directories, and so here.
///
/// # Errors
/// When it cannot be written, or a content cannot be read.
pub fn write_tmpfs_archive<W: Write>(
    tree: &Tree,
    reader: &ObjectReader,
    to: W,
) -> Result<W, ArchiveError> {
    let mut out = GzEncoder::new(to, Compression::fast());
    write_archive(tree, reader, &mut out)?;
    Ok(out.finish()?)
}
