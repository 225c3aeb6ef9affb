// SPDX-License-Identifier: Apache-2.0
//! What can be told of a process that goes on meanwhile, and is only to be the same program
//! that does the same.

use std::{fs, io, os::unix::ffi::OsStrExt};

use crab_store::Digest;

use super::{Process, areas::areas, digests::Hash};

/// Its program, its threads, how its memory is laid out, and what it has open, by name.
pub(in super::super) fn shape(process: &Process) -> io::Result<Digest> {
    let proc = process.dir();
    let mut hash = Hash::new();
    hash.text(fs::read_link(proc.join("exe"))?.as_os_str().as_bytes());
    hash.word(process.threads.len() as u64);
    areas(&proc)?
        .iter()
        .for_each(|area| area.describe(&mut hash));
    let open: io::Result<Vec<_>> = fs::read_dir(proc.join("fd"))?.collect();
    let mut open: Vec<_> = open?.into_iter().map(|entry| entry.path()).collect();
    open.sort_unstable();
    for descriptor in open {
        hash.text(descriptor.as_os_str().as_bytes());
        hash.text(fs::read_link(&descriptor)?.as_os_str().as_bytes());
    }
    Ok(hash.finish())
}
