// SPDX-License-Identifier: Apache-2.0
//! Pipes between the shim and what an exec left running.
//!
//! A process that an exec left in the background still has the exec's stdio: pipes
//! whose other ends this shim holds. CRIU restores such a pipe with nobody at the other
//! end, and the first write would end the process. So an image notes these pipes, and a
//! restore gives CRIU new ones for them: output is read and dropped, as nobody listens
//! to that exec any more, and input is at its end.
//!
//! CRIU learns of them as it learns of the init's stdio: runc writes the names of the
//! init's descriptors 0 to 2 into `descriptors.json` in the image, and on restore has
//! CRIU inherit descriptor *n* for the pipe that the *n*th name says. We append to that
//! list. (CRIU's own configuration file would be the other way, but CRIU reads it twice
//! when it is driven by runc, and fails on the second mention of a descriptor.)

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::fd::OwnedFd,
    path::Path,
};

use anyhow::{Context, Result};
use crab_runtime::{
    criu::DESCRIPTORS,
    foreign,
    oci::inherited_fd,
    procs::{Set, descriptors},
};
use rustix::pipe::{PipeFlags, pipe_with};
use serde::{Deserialize, Serialize};
use tokio::net::unix::pipe;

/// One such pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SharedPipe {
    /// Its inode, by which CRIU knows it.
    inode: u64,
    /// The container writes, the shim reads.
    output: bool,
}

fn pipes_of(process: &Path) -> impl Iterator<Item = (i32, u64)> + use<> {
    descriptors(process, "pipe")
}

/// Whether one of this process's own descriptors reads.
fn reads(number: i32) -> bool {
    fs::read_to_string(format!("/proc/self/fdinfo/{number}"))
        .ok()
        .and_then(|info| {
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
            i32::from_str_radix(flags.trim(), 8).ok()
        })
        .is_some_and(|flags| flags & libc::O_ACCMODE == libc::O_RDONLY)
}

/// The pipes that processes of a container share with this shim.
pub(crate) fn shared_with(set: &Set, init: i32) -> Vec<SharedPipe> {
    let stdio: BTreeSet<u64> = pipes_of(Path::new(&format!("/proc/{init}")))
        .filter(|(number, _)| *number <= 2)
        .map(|(_, inode)| inode)
        .collect();
    let ours: BTreeMap<u64, i32> = pipes_of(Path::new("/proc/self"))
        .map(|(number, inode)| (inode, number))
        .collect();
    let theirs: BTreeSet<u64> = set
        .iter()
        .flat_map(|process| pipes_of(&process.dir()))
        .map(|(_, inode)| inode)
        .filter(|inode| !stdio.contains(inode))
        .collect();
    theirs
        .into_iter()
        .filter_map(|inode| {
            let number = *ours.get(&inode)?;
            Some(SharedPipe {
                inode,
                output: reads(number),
            })
        })
        .collect()
}

/// The largest list that is read, in bytes; a usual one has some hundred.
const LIST_MAX: usize = 1 << 20;

/// Names the pipes to the runtime, in an image directory that is about to be
/// restored from.
pub(crate) fn announce(shared: &[SharedPipe], images: &Path) -> Result<()> {
    if shared.is_empty() {
        return Ok(());
    }
    let path = images.join(DESCRIPTORS);
    let text =
        foreign::read(&path, LIST_MAX).with_context(|| format!("read {}", path.display()))?;
    // It may be a link to what is the client's.
    fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
    let mut names: Vec<String> =
        serde_json::from_slice(&text).with_context(|| format!("parse {}", path.display()))?;
    names.resize(inherited_fd(0) as usize, String::new());
    names.extend(shared.iter().map(|pipe| format!("pipe:[{}]", pipe.inode)));
    fs::write(&path, serde_json::to_vec(&names)?)
        .with_context(|| format!("write {}", path.display()))
}

/// What an image that a client keeps notes of its own accord, beside CRIU's files.
const NOTE: &str = "crab.json";

/// Notes the pipes in an image that is handed over. Other shims do not know the note, and
/// restore such a pipe with nobody at its other end.
pub(crate) fn note(shared: &[SharedPipe], images: &Path) -> Result<()> {
    let path = images.join(NOTE);
    if shared.is_empty() {
        // Of an earlier image in the same place.
        let _ = fs::remove_file(path);
        return Ok(());
    }
    fs::write(&path, serde_json::to_vec(&shared)?)
        .with_context(|| format!("write {}", path.display()))
}

/// The pipes that an image notes. It may be another shim's, or a newer Crab's.
pub(crate) fn noted(images: &Path) -> Vec<SharedPipe> {
    let note = foreign::read(&images.join(NOTE), LIST_MAX).ok();
    note.and_then(|text| serde_json::from_slice(&text).ok())
        .unwrap_or_default()
}

/// Makes new pipes for those of an image: the container's ends, in order.
pub(crate) fn renew(shared: &[SharedPipe]) -> Result<Vec<OwnedFd>> {
    let mut ends = Vec::new();
    for pipe in shared {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).context("make a pipe")?;
        if pipe.output {
            tokio::spawn(drain(pipe::Receiver::from_owned_fd(read)?));
            ends.push(write);
        } else {
            ends.push(read);
        }
    }
    Ok(ends)
}

/// Reads and drops what comes, until nobody can write any more.
async fn drain(pipe: pipe::Receiver) {
    let mut buffer = vec![0; 4096];
    while pipe.readable().await.is_ok() {
        match pipe.try_read(&mut buffer) {
            Ok(0) => return,
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return,
            _ => {}
        }
    }
}
