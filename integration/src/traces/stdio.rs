// SPDX-License-Identifier: Apache-2.0

//! The FIFOs of one exec: what it reads, and what it prints.

use std::{
    fs::{self, File},
    io::{ErrorKind, PipeReader, PipeWriter, Read, Write, pipe},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{CWD, Mode, OFlags, mkfifoat},
    io::Errno,
};

/// So much of what an exec prints is kept, its end.
const KEPT: usize = 64 << 10;
/// After how long it is tried again to open what has no reader yet.
const AGAIN: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 2_000_000,
};

/// Two FIFOs, gone when dropped: both outputs share one.
pub(super) struct Fifos {
    pub(super) stdin: Option<PathBuf>,
    pub(super) output: PathBuf,
    reading: File,
    told: PipeReader,
}

/// Tells who reads that there will be no more than what is there already: something that an
/// exec has left behind may hold its output for good.
pub(super) struct Enough(Option<PipeWriter>);

impl Enough {
    pub(super) fn say(&mut self) {
        self.0 = None;
    }
}

impl Fifos {
    /// Makes those of an exec in a directory.
    pub(super) fn new(dir: &Path, exec: &str, reads: bool) -> Result<(Self, Enough)> {
        let make = |what: &str| {
            let path = dir.join(format!("{exec}-{what}"));
            mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR)
                .with_context(|| format!("make {}", path.display()))?;
            anyhow::Ok(path)
        };
        let output = make("output")?;
        let reading = File::options()
            .read(true)
            .custom_flags(OFlags::NONBLOCK.bits() as i32)
            .open(&output)
            .with_context(|| format!("open {}", output.display()))?;
        let (told, telling) = pipe().context("make a pipe")?;
        let fifos = Self {
            stdin: reads.then(|| make("stdin")).transpose()?,
            output,
            reading,
            told,
        };
        Ok((fifos, Enough(Some(telling))))
    }

    /// Hands over what the exec reads; returns when it is all taken, or nobody wants more.
    pub(super) fn feed(&self, bytes: &[u8]) -> Result<()> {
        let Some(path) = &self.stdin else {
            return Ok(());
        };
        let Some(mut file) = self.open(path)? else {
            return Ok(());
        };
        let mut left = bytes;
        while !left.is_empty() {
            match file.write(left) {
                Ok(written) => left = &left[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let mut ends = [
                        PollFd::new(&file, PollFlags::OUT),
                        PollFd::new(&self.told, PollFlags::IN),
                    ];
                    wait(&mut ends)?;
                    if !ends[1].revents().is_empty() {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
                Err(error) => return Err(error).context("write to an exec"),
            }
        }
        Ok(())
    }

    /// Opens what the exec reads; nothing if nobody wants it. The stock shim opens its end in
    /// the background, and may say that the exec runs before it has.
    fn open(&self, path: &Path) -> Result<Option<File>> {
        loop {
            let opened = File::options()
                .write(true)
                .custom_flags(OFlags::NONBLOCK.bits() as i32)
                .open(path);
            match opened {
                Ok(file) => return Ok(Some(file)),
                Err(error) if Errno::from_io_error(&error) == Some(Errno::NXIO) => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("open {}", path.display()));
                }
            }
            let mut told = [PollFd::new(&self.told, PollFlags::IN)];
            wait_for(&mut told, Some(&AGAIN))?;
            if !told[0].revents().is_empty() {
                return Ok(None);
            }
        }
    }

    /// What it prints, until its end or [`Enough`].
    pub(super) fn collect(&self) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        let mut block = [0; 16 << 10];
        loop {
            let mut ends = [
                PollFd::new(&self.reading, PollFlags::IN),
                PollFd::new(&self.told, PollFlags::IN),
            ];
            wait(&mut ends)?;
            let enough = !ends[1].revents().is_empty();
            loop {
                match (&self.reading).read(&mut block) {
                    // Before anybody has it open for writing this is no end.
                    Ok(0) if enough || ends[0].revents().contains(PollFlags::HUP) => {
                        return Ok(all);
                    }
                    Ok(0) => break,
                    Ok(read) => {
                        all.extend_from_slice(&block[..read]);
                        if all.len() > 2 * KEPT {
                            all.drain(..all.len() - KEPT);
                        }
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        if enough {
                            return Ok(all);
                        }
                        break;
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error).context("read what an exec printed"),
                }
            }
        }
    }
}

fn wait(ends: &mut [PollFd<'_>]) -> Result<()> {
    wait_for(ends, None)
}

fn wait_for(ends: &mut [PollFd<'_>], limit: Option<&Timespec>) -> Result<()> {
    loop {
        match poll(ends, limit) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("wait for an exec's stdio"),
        }
    }
}

impl Drop for Fifos {
    fn drop(&mut self) {
        for path in self.stdin.iter().chain([&self.output]) {
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn what_is_printed_is_collected_also_where_somebody_keeps_it_open() {
        let dir = tempfile::tempdir().unwrap();
        let (fifos, mut enough) = Fifos::new(dir.path(), "e", false).unwrap();
        let mut printing = File::options().write(true).open(&fifos.output).unwrap();
        thread::scope(|scope| {
            let reader = scope.spawn(|| fifos.collect());
            printing.write_all(&vec![b'x'; 200_000]).unwrap();
            printing.write_all(b"the end").unwrap();
            enough.say();
            let all = reader.join().unwrap().unwrap();
            assert!(all.ends_with(b"xthe end") && all.len() < 200_000);
        });
        let (fifos, _enough) = Fifos::new(dir.path(), "f", false).unwrap();
        thread::scope(|scope| {
            let reader = scope.spawn(|| fifos.collect());
            fs::write(&fifos.output, "all").unwrap();
            assert_eq!(reader.join().unwrap().unwrap(), b"all");
        });
        drop(fifos);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_read_is_handed_over_until_nobody_wants_more() {
        let dir = tempfile::tempdir().unwrap();
        let (fifos, mut enough) = Fifos::new(dir.path(), "e", true).unwrap();
        let path = fifos.stdin.clone().unwrap();
        let mut reading = File::options()
            .read(true)
            .custom_flags(OFlags::NONBLOCK.bits() as i32)
            .open(path)
            .unwrap();
        fifos.feed(b"some").unwrap();
        let mut text = String::new();
        reading.read_to_string(&mut text).unwrap();
        assert_eq!(text, "some");
        drop(reading);
        // Who reads it comes later than who writes it.
        let path = fifos.stdin.clone().unwrap();
        let read = thread::scope(|scope| {
            let feeder = scope.spawn(|| fifos.feed(b"late"));
            let read = fs::read(path).unwrap();
            feeder.join().unwrap().unwrap();
            read
        });
        assert_eq!(read, b"late");
        // Or never.
        thread::scope(|scope| {
            let feeder = scope.spawn(|| fifos.feed(b"never"));
            enough.say();
            feeder.join().unwrap().unwrap();
        });
        let (fifos, mut enough) = Fifos::new(dir.path(), "f", true).unwrap();
        let path = fifos.stdin.clone().unwrap();
        let _reading = File::options()
            .read(true)
            .custom_flags(OFlags::NONBLOCK.bits() as i32)
            .open(path)
            .unwrap();
        // More than a pipe holds, and nobody takes it.
        thread::scope(|scope| {
            let feeder = scope.spawn(|| fifos.feed(&[0; 1 << 20]));
            enough.say();
            feeder.join().unwrap().unwrap();
        });
    }
}
