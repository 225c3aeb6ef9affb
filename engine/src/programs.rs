// SPDX-License-Identifier: Apache-2.0
//! One sealed copy per host of each program that enters containers, lent to the shims.
//!
//! A program that enters a container can be reached from inside through `/proc/<pid>/exe`
//! and, where it lies in a file, be overwritten with code that the host runs next
//! (CVE-2019-5736). So runc copies itself into a memfd and seals that against writing, each
//! time anew: 11 MB for each container and each exec. It leaves that out where it finds
//! itself in a sealed memfd already. Here is that memfd, for everybody; memory that all
//! share, and none that a shim has.
//!
//! What can be done through `/proc/<pid>/exe` to a memfd that others use as well: nothing to
//! its content. Its mode could be changed by a container's root, which would keep
//! others from running it; so it is made immutable, which takes a capability
//! that containers do not have. A kernel that cannot do that (before 6.6) leaves it at
//! that: a copy that has lost its mode is not lent again, and shims look before they
//! run one.

use std::{
    fs::{File, Permissions},
    io::{self, Read, Seek},
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use crab_api::programs::{Identity, answer, question};
use rustix::{
    fs::{
        IFlags, MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ioctl_setflags,
        memfd_create,
    },
    io::Errno,
};
use tracing::{debug, info, warn};

/// How long whoever asks may take to say what.
const PATIENCE: Duration = Duration::from_millis(500);

/// How many programs are held; the one that was asked for longest ago goes first.
const MAX_HELD: usize = 4;

/// The largest program that is copied, in bytes.
const MAX_SIZE: u64 = 256 << 20;

/// What runc 1.1 wants to find, exactly.
const SEALS: SealFlags = SealFlags::SEAL
    .union(SealFlags::SHRINK)
    .union(SealFlags::GROW)
    .union(SealFlags::WRITE);

/// How often sealing is tried: the kernel refuses it while anybody has a page of the memfd
/// in the hand, be it its own reclaim.
const SEAL_TRIES: u32 = 5;

/// A program that is held.
struct Held {
    path: PathBuf,
    identity: Identity,
    copy: File,
}

impl Held {
    /// Copies what is at the path now.
    fn make(path: &Path) -> io::Result<Self> {
        let mut program = File::open(path)?;
        let before = program.metadata()?;
        if !before.is_file() || before.size() > MAX_SIZE || before.mode() & 0o111 == 0 {
            return Err(io::Error::other("it is no program, or too large"));
        }
        let mut magic = [0; 4];
        program.read_exact(&mut magic)?;
        if magic != *b"\x7fELF" {
            // The kernel runs an interpreter on the name, which is gone then.
            return Err(io::Error::other("it is a script"));
        }
        program.rewind()?;
        let name = path.file_name().unwrap_or_default();
        let mut copy = File::from(executable_memfd(&name.to_string_lossy())?);
        io::copy(&mut program, &mut copy)?;
        let identity = Identity::from(&before);
        if Identity::from(&program.metadata()?) != identity
            || copy.metadata()?.size() != before.size()
        {
            return Err(io::Error::other("it changes while it is copied"));
        }
        copy.set_permissions(Permissions::from_mode(0o555))?;
        seal(&copy)?;
        if let Err(error) = ioctl_setflags(&copy, IFlags::IMMUTABLE) {
            debug!(%error, "the copy cannot be made immutable");
        }
        Ok(Self {
            path: path.to_path_buf(),
            identity,
            copy,
        })
    }

    /// Whether it is still a copy of what is at its path, and can be run.
    fn is_good(&self) -> bool {
        let runs = |file: std::fs::Metadata| file.mode() & 0o111 == 0o111;
        Identity::of(&self.path).is_ok_and(|now| now == self.identity)
            && self.copy.metadata().is_ok_and(runs)
            && fcntl_get_seals(&self.copy).is_ok_and(|seals| seals == SEALS)
    }
}

fn executable_memfd(name: &str) -> io::Result<std::os::fd::OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match memfd_create(name, flags | MemfdFlags::EXEC) {
        // Linux before 6.3, where every memfd can be run.
        Err(Errno::INVAL) => Ok(memfd_create(name, flags)?),
        made => Ok(made?),
    }
}

fn seal(copy: &File) -> io::Result<()> {
    let mut tries = 1;
    loop {
        match fcntl_add_seals(copy, SEALS) {
            Err(Errno::BUSY) if tries < SEAL_TRIES => tries += 1,
            sealed => return Ok(sealed?),
        }
    }
}

/// What is held; the one that was asked for last is the last.
#[derive(Default)]
struct Shelf(Vec<Held>);

impl Shelf {
    fn lend(&mut self, path: &Path) -> io::Result<&Held> {
        let held = self.0.iter().position(|held| held.path == path);
        let known = held.map(|at| self.0.remove(at)).filter(Held::is_good);
        let held = match known {
            Some(held) => held,
            None => {
                let held = Held::make(path)?;
                info!(program = %path.display(), "sealed");
                held
            }
        };
        if self.0.len() == MAX_HELD {
            self.0.remove(0);
        }
        self.0.push(held);
        self.0
            .last()
            .ok_or_else(|| io::Error::other("nothing is held"))
    }

    fn serve(&mut self, stream: &UnixStream) -> io::Result<()> {
        let path = question(stream, PATIENCE)?;
        match self.lend(&path) {
            Ok(held) => answer(stream, Ok((held.identity, &held.copy))),
            Err(error) => answer(stream, Err(error.to_string())),
        }
    }
}

/// Lends programs to whoever connects, on a thread of its own: copying blocks. It ends
/// with the process.
pub(crate) fn lend(listener: UnixListener) -> io::Result<()> {
    listener.set_nonblocking(false)?;
    thread::Builder::new()
        .name("programs".into())
        .stack_size(128 * 1024)
        .spawn(move || {
            let mut shelf = Shelf::default();
            for stream in listener.incoming() {
                let failed = stream.is_err();
                if let Err(error) = stream.and_then(|stream| shelf.serve(&stream)) {
                    warn!(%error, "a shim that asked for a program got none");
                }
                if failed {
                    // No descriptor is left: the log is not to be filled with that.
                    thread::sleep(PATIENCE);
                }
            }
        })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::process::CommandExt, process::Command};

    fn program() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("true");
        fs::copy("/bin/true", &path).unwrap();
        (dir, path)
    }

    fn by_descriptor(copy: &File) -> String {
        use std::os::fd::AsRawFd;
        format!("/proc/self/fd/{}", copy.as_raw_fd())
    }

    #[test]
    fn a_copy_runs_and_nobody_changes_it() {
        let (_dir, path) = program();
        let mut shelf = Shelf::default();
        let held = shelf.lend(&path).unwrap();
        let way = by_descriptor(&held.copy);
        assert!(Command::new(&way).arg0("true").status().unwrap().success());
        assert!(fs::OpenOptions::new().write(true).open(&way).is_err());
        // EPERM where it is immutable; where it could not be made so, it is not lent again.
        let changed = fs::set_permissions(&way, Permissions::from_mode(0o000));
        assert_eq!(changed.is_ok(), !held.is_good());
    }

    #[test]
    fn a_program_is_copied_once_until_it_is_another() {
        let (dir, path) = program();
        let mut shelf = Shelf::default();
        let inode = |held: &Held| held.copy.metadata().unwrap().ino();
        let first = inode(shelf.lend(&path).unwrap());
        assert_eq!(inode(shelf.lend(&path).unwrap()), first);
        let next = dir.path().join("next");
        fs::copy("/bin/false", &next).unwrap();
        fs::rename(&next, &path).unwrap();
        let held = shelf.lend(&path).unwrap();
        assert_ne!(inode(held), first);
        let status = Command::new(by_descriptor(&held.copy))
            .arg0("false")
            .status();
        assert!(!status.unwrap().success());
    }

    #[test]
    fn what_the_kernel_would_not_run_from_a_memfd_is_not_lent() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("script");
        fs::write(&script, "#!/bin/sh\n").unwrap();
        let mut shelf = Shelf::default();
        assert!(shelf.lend(&script).is_err(), "it cannot be run at all");
        fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
        let refused = shelf.lend(&script).map(|_| ()).unwrap_err();
        assert_eq!(refused.to_string(), "it is a script");
        assert!(shelf.lend(dir.path()).is_err(), "a directory");
        assert!(shelf.lend(&dir.path().join("none")).is_err());
    }

    #[test]
    fn only_a_few_are_held() {
        let (dir, path) = program();
        let mut shelf = Shelf::default();
        for n in 0..=MAX_HELD {
            let other = dir.path().join(format!("true{n}"));
            fs::copy(&path, &other).unwrap();
            shelf.lend(&other).unwrap();
        }
        assert_eq!(shelf.0.len(), MAX_HELD);
    }
}
