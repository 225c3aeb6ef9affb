// SPDX-License-Identifier: Apache-2.0

//! Trees as tar archives.

mod layer;
mod member;

use std::io::Write;

pub(crate) use layer::{PREFIX, prefix as layer_prefix, write_layer};
pub use member::ArchiveError;
pub(crate) use member::{BLOCK, Get, end, member, pad};

use crate::{reader::ObjectReader, tree::Tree};

/// Writes a tree as GNU tar would have archived the directory that it was taken from, from within
/// that directory.
///
/// # Errors
/// When it cannot be written, or a content cannot be read.
pub fn write_archive(
    tree: &Tree,
    reader: &ObjectReader,
    out: &mut impl Write,
) -> Result<(), ArchiveError> {
    for entry in &tree.entries {
        member::entry(out, tree, entry, PREFIX, &mut |segment| {
            reader.get(segment.digest)
        })?;
    }
    Ok(end(out)?)
}
