// SPDX-License-Identifier: Apache-2.0
//! What processes share and no directory holds: memory that is mapped shared, memory files,
//! files that were removed and are still open. Each is read once, whoever has it.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
};

use crab_store::Digest;
use rustix::fs::{FileType, MemfdFlags, SeekFrom, Statx, fstat, memfd_create, seek};

use super::{super::read::look, areas::Area, digests::Hash, memory::Pages};

/// How much is read at once.
const PIECE: u64 = 256 << 10;
const PAGE: u64 = 4096;

/// By device and inode.
pub(super) struct Objects {
    seen: BTreeMap<(u64, u64), Digest>,
    /// How many bytes may still be read.
    pub(super) left: u64,
}

impl Objects {
    pub(super) fn new(limit: u64) -> Self {
        Self {
            seen: BTreeMap::new(),
            left: limit,
        }
    }

    pub(super) fn finish(self) -> BTreeMap<(u64, u64), Digest> {
        self.seen
    }

    /// What a mapping shares; nothing of a file that has a name.
    pub(super) fn add_mapping(&mut self, proc: &Path, area: &Area) -> io::Result<()> {
        let path = proc.join(format!("map_files/{:x}-{:x}", area.start, area.end));
        let stat = look(&path)?;
        if FileType::from_raw_mode(u32::from(stat.stx_mode)) != FileType::RegularFile {
            return Err(io::Error::other("a mapped device"));
        }
        if stat.stx_nlink == 0 {
            self.add(proc, &path, &stat)?;
        }
        Ok(())
    }

    /// The content of an open or mapped file of a process, by its link in `/proc`.
    pub(super) fn add(&mut self, proc: &Path, link: &Path, stat: &Statx) -> io::Result<()> {
        let key = (super::device(stat), stat.stx_ino);
        if self.seen.contains_key(&key) {
            return Ok(());
        }
        let mounts = std::fs::read(proc.join("mountinfo"))?;
        let is_local = match file_system(&mounts, stat.stx_mnt_id) {
            Some(name) => LOCAL.contains(&name),
            None => super::device(stat) == nameless_memory()?,
        };
        if !is_local {
            return Err(io::Error::other(
                "a removed file of a file system that may not answer",
            ));
        }
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(link)?;
        let digest = self.content(&file)?;
        self.seen.insert(key, digest);
        Ok(())
    }

    fn content(&mut self, file: &File) -> io::Result<Digest> {
        let length = file.metadata()?.len();
        let mut pages = Pages::new();
        let mut buffer = vec![0; PIECE as usize];
        let mut at = 0;
        while at < length {
            match seek(file, SeekFrom::Data(at)) {
                // By whole pages, as holes end where the file system likes.
                Ok(data) => at = data / PAGE * PAGE,
                Err(rustix::io::Errno::NXIO) => break,
                // It knows no holes.
                Err(rustix::io::Errno::INVAL) => {}
                Err(error) => return Err(error.into()),
            }
            let piece = &mut buffer[..(length - at).min(PIECE) as usize];
            self.left = self
                .left
                .checked_sub(piece.len() as u64)
                .ok_or(ErrorKind::FileTooLarge)?;
            file.read_exact_at(piece, at)?;
            pages.add(at, piece, true);
            at += piece.len() as u64;
        }
        let mut hash = Hash::new();
        hash.word(length);
        hash.update(&pages.finish().0);
        Ok(hash.finish())
    }
}

/// File systems of the kernel's own, which need nobody to answer. One whose server is in the
/// sandbox would hang whoever reads from it while that is frozen.
const LOCAL: [&[u8]; 9] = [
    b"tmpfs", b"ramfs", b"overlay", b"ext2", b"ext3", b"ext4", b"xfs", b"btrfs", b"f2fs",
];

/// The device on which memory without a name is, and which is mounted nowhere.
fn nameless_memory() -> io::Result<u64> {
    let memory = memfd_create("device", MemfdFlags::CLOEXEC)?;
    Ok(fstat(memory)?.st_dev)
}

/// What file system a mount is of (proc_pid_mountinfo(5)), if it is in the table.
fn file_system(mountinfo: &[u8], mount: u64) -> Option<&[u8]> {
    let mount = mount.to_string();
    let mut lines = mountinfo.split(|byte| *byte == b'\n');
    let line = lines.find(|line| line.split(|byte| *byte == b' ').next() == Some(mount.as_bytes()));
    let line = line?;
    let mut words = line
        .split(|byte| *byte == b' ')
        .skip_while(|word| *word != b"-");
    words.nth(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_that_somebody_serves_is_not_local() {
        let table = b"30 1 0:20 / / rw shared:1 - overlay overlay rw\n\
                      31 30 0:50 / /mnt rw - fuse.sshfs x rw\n32 30 8:1 / /b rw - ext4 /dev/x rw";
        let is_local = |mount| file_system(table, mount).map(|name| LOCAL.contains(&name));
        assert_eq!(is_local(30), Some(true));
        assert_eq!(is_local(31), Some(false));
        assert_eq!(is_local(32), Some(true));
        assert_eq!(is_local(7), None);
    }
}
