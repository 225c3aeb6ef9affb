// SPDX-License-Identifier: Apache-2.0

//! What is in a file, by its digest.

use std::{
    collections::HashSet,
    fs::File,
    io::Read,
    os::unix::{
        fs::{FileExt, OpenOptionsExt},
        io::{AsFd, AsRawFd},
    },
};

use anyhow::{Context, Result, ensure};
use rustix::{
    fs::{FileType, OFlags, SeekFrom, fstat, seek},
    io::Errno,
};

use super::{
    Digest, add,
    rules::{self, Window},
};

/// What is read at once.
const BLOCK: usize = 64 << 10;
/// Up to so much the rules look into a file.
const RULED: u64 = 16 << 20;
/// More than this of one file, holes aside, no sandbox under test has.
const MOST: u64 = 8 << 30;

/// A file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) size: u64,
    pub(super) exact: Digest,
    /// By the rules.
    pub(super) normal: Digest,
}

/// Opens what an `O_PATH` descriptor is, if it is a regular file. Nothing else is ever opened:
/// a FIFO would block, and a device may do anything.
pub(super) fn open(place: impl AsFd) -> Result<Option<File>> {
    let place = place.as_fd();
    if !FileType::from_raw_mode(fstat(place)?.st_mode).is_file() {
        return Ok(None);
    }
    // A lease that another holds must not be waited for.
    let flags = (OFlags::NONBLOCK | OFlags::NOATIME | OFlags::NOCTTY).bits();
    let file = File::options()
        .read(true)
        .custom_flags(flags as i32)
        .open(format!("/proc/self/fd/{}", place.as_raw_fd()))
        .context("open a file")?;
    Ok(Some(file))
}

/// Reads a file. With a window the rules apply to it, unless it is what a file of the image was
/// that was read without one: the host may move the times of those, too.
pub(super) fn read(
    file: &File,
    size: u64,
    window: Option<&Window>,
    image: &mut HashSet<Digest>,
) -> Result<Content> {
    let exact = digest(file, size)?;
    let mut normal = exact;
    if window.is_none() {
        image.insert(exact);
    }
    if let Some(window) = window
        && size <= RULED
        && !image.contains(&exact)
    {
        let mut bytes = Vec::with_capacity(size as usize);
        let mut whole = file;
        seek(file, SeekFrom::Start(0))?;
        (&mut whole).take(RULED).read_to_end(&mut bytes)?;
        if let Some(ruled) = rules::content(&bytes, window) {
            normal = blake3::hash(&ruled).into();
            window.sums.add(&bytes, normal);
        }
    }
    Ok(Content {
        size,
        exact,
        normal,
    })
}

/// Blocks of nothing but zeros are left out, so that a hole is what it reads as and costs
/// nothing.
fn digest(file: &File, size: u64) -> Result<Digest> {
    let mut hasher = blake3::Hasher::new();
    add(&mut hasher, &size.to_le_bytes());
    let mut block = vec![0; BLOCK];
    let (mut at, mut data, mut read) = (0, 0, 0);
    while at < size {
        if at >= data {
            // On a file system that knows no holes everything is data.
            at = match seek(file, SeekFrom::Data(at)) {
                Ok(next) => next - next % BLOCK as u64,
                Err(Errno::NXIO) => break,
                Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
                Err(error) => return Err(error).context("find the data of a file"),
            };
            data = match seek(file, SeekFrom::Hole(at)) {
                Ok(hole) if hole > at => hole,
                // Nothing up to the next data; or a hole within the block that began before.
                Ok(_) => at + BLOCK as u64,
                Err(_) => size,
            };
        }
        let length = fill(file, &mut block, at)?;
        if length == 0 {
            break;
        }
        if block[..length].iter().any(|byte| *byte != 0) {
            hasher.update(&at.to_le_bytes());
            hasher.update(&(length as u64).to_le_bytes());
            hasher.update(&block[..length]);
        }
        at += BLOCK as u64;
        read += length as u64;
        ensure!(read <= MOST, "it has more than {MOST} bytes of data");
    }
    Ok(hasher.finalize().into())
}

fn fill(file: &File, block: &mut [u8], at: u64) -> Result<usize> {
    let mut length = 0;
    while length < block.len() {
        match file.read_at(&mut block[length..], at + length as u64) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("read a file"),
        }
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write, sync::Arc, time::SystemTime};

    use super::*;

    fn of(write: impl FnOnce(&mut File)) -> Content {
        let mut file = tempfile::tempfile().unwrap();
        write(&mut file);
        let size = file.metadata().unwrap().len();
        read(&file, size, None, &mut HashSet::new()).unwrap()
    }

    #[test]
    fn a_hole_is_what_it_reads_as() {
        let zeros = of(|file| file.write_all(&[0; 3 * BLOCK + 5]).unwrap());
        let hole = of(|file| file.set_len(3 * BLOCK as u64 + 5).unwrap());
        assert_eq!(zeros, hole);
        assert_ne!(
            zeros,
            of(|file| file.write_all(&[0; 3 * BLOCK + 4]).unwrap())
        );
        // Data in the middle of a block, after a hole and before one.
        for at in [1, BLOCK - 1, BLOCK, 150_000, 3 * BLOCK + 4] {
            let written = of(|file| {
                let mut bytes = vec![0; 3 * BLOCK + 5];
                bytes[at] = 1;
                file.write_all(&bytes).unwrap();
            });
            let sparse = of(|file| {
                file.set_len(3 * BLOCK as u64 + 5).unwrap();
                file.write_all_at(&[1], at as u64).unwrap();
            });
            assert_eq!(written, sparse, "at {at}");
            assert_ne!(written, zeros, "at {at}");
        }
        // A terabyte of nothing costs nothing.
        of(|file| file.set_len(1 << 40).unwrap());
    }

    #[test]
    fn the_rules_are_for_what_a_run_has_written() {
        let window = Window::since(SystemTime::now(), Arc::default());
        let mut image = HashSet::new();
        let mut of = |text: &str, window| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(text.as_bytes()).unwrap();
            read(&file, text.len() as u64, window, &mut image).unwrap()
        };
        let (one, other) = ("in /tmp/tmpaaaaaaaa", "in /tmp/tmpbbbbbbbb");
        assert_eq!(
            of(one, Some(&window)).normal,
            of(other, Some(&window)).normal
        );
        assert_ne!(of(one, None).normal, of(other, Some(&window)).normal);
        // It is the image's, whatever its times are later.
        assert_eq!(of(one, None), of(one, Some(&window)));
    }

    #[test]
    fn nothing_but_a_file_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).unwrap();
        fs::write(dir.path().join("file"), "x").unwrap();
        for (name, is_file) in [("fifo", false), (".", false), ("file", true)] {
            let place = rustix::fs::open(
                dir.path().join(name),
                OFlags::PATH | OFlags::NOFOLLOW,
                rustix::fs::Mode::empty(),
            );
            assert_eq!(open(place.unwrap()).unwrap().is_some(), is_file, "{name}");
        }
    }
}
