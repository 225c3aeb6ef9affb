// SPDX-License-Identifier: Apache-2.0

//! Who may do what beside whom. Beside the lock of the one writer (writer.rs), which a
//! live sandbox's shim holds all its life, a sandbox has three for short:
//!
//! | lock | shared | exclusive |
//! | --- | --- | --- |
//! | on `manifests/` | - | who removes checkpoints, who makes one irremovable (a tag, a wish to be restored) |
//! | on the sandbox's directory | who waits for the writer: a container that is about to begin | who removes or repairs there meanwhile, for a look whether he should end |
//! | on `packs/` | who reads a checkpoint's objects | who removes or replaces packs |
//!
//! Whoever brings a sandbox back has a further one for as long as that takes, on a file of its own
//! (`restoring`): it is none of a shim's business, which has the others meanwhile.
//!
//! The others are `flock`s of directories that are there anyway, so that a reader changes
//! nothing, and they end with their holder, however that dies. Nobody waits for a reader:
//! what a reader keeps from being removed is left for the next time.

use std::{
    fs::File,
    io::ErrorKind,
    ops::Deref,
    os::unix::fs::OpenOptionsExt,
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::{Errno, retry_on_intr},
};

use crate::{
    error::{FileError, ReadError},
    sandbox::{RESTORING_FILE, SandboxStore},
};

/// A locked file, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock(File);

impl Deref for Lock {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Not by closing it alone: a child that another thread has just forked, and that is yet to
        // run another program, has it open, too.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// A lock, until it is dropped. Nothing where the directory does not exist.
pub(crate) struct Held(#[expect(dead_code, reason = "it is held")] Option<Lock>);

fn take(dir: &Path, how: FlockOperation) -> Result<Option<Held>, FileError> {
    let file = match File::open(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Some(Held(None))),
        file => file.map_err(FileError::of("open", dir))?,
    };
    let locked = lock(file, dir, how)?;
    Ok(locked.map(|file| Held(Some(file))))
}

/// Locks what is open from this path; nothing while somebody else has it.
pub(crate) fn lock(
    file: File,
    path: &Path,
    how: FlockOperation,
) -> Result<Option<Lock>, FileError> {
    match retry_on_intr(|| flock(&file, how)) {
        Ok(()) => Ok(Some(Lock(file))),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(FileError::of("lock", path)(error.into())),
    }
}

/// Locks a file that is there for nothing else, and is made where it is not; nothing while somebody
/// else has it.
pub(crate) fn file(path: &Path) -> Result<Option<Lock>, FileError> {
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(FileError::of("open", path))?;
    lock(file, path, FlockOperation::NonBlockingLockExclusive)
}

/// Tells whoever has the writer, and could do it another time, that somebody waits for it.
pub(crate) fn wanted(store: &SandboxStore) -> Result<Held, FileError> {
    let held = take(store.dir(), FlockOperation::LockShared)?;
    Ok(held.unwrap_or(Held(None)))
}

/// Whether somebody waits for the writer, who should not have to wait for long.
pub(crate) fn is_wanted(store: &SandboxStore) -> Result<bool, FileError> {
    let alone = take(store.dir(), FlockOperation::NonBlockingLockExclusive)?;
    Ok(alone.is_none())
}

/// How often whoever could do it another time asks whether somebody waits for the writer.
const ASK: Duration = Duration::from_millis(50);

/// Long work that gives way to who waits for the writer, if it gives way at all.
pub(crate) struct Pace<'a> {
    store: Option<&'a SandboxStore>,
    asked: Option<Instant>,
}

impl<'a> Pace<'a> {
    /// It gives way.
    pub(crate) fn yielding(store: &'a SandboxStore) -> Self {
        Self {
            store: Some(store),
            asked: None,
        }
    }

    /// It does not.
    pub(crate) fn steady() -> Self {
        Self {
            store: None,
            asked: None,
        }
    }

    /// To be asked before each small part of the work: whether to go on.
    pub(crate) fn go_on(&mut self) -> Result<(), ReadError> {
        let Some(store) = self.store else {
            return Ok(());
        };
        if self.asked.is_some_and(|asked| asked.elapsed() < ASK) {
            return Ok(());
        }
        self.asked = Some(Instant::now());
        match is_wanted(store)? {
            true => Err(ReadError::Wanted(store.id().clone())),
            false => Ok(()),
        }
    }
}

/// The right to bring a sandbox back, until it is dropped.
pub struct Restoring(#[expect(dead_code, reason = "it is held")] Lock);

impl SandboxStore {
    /// Takes the right to bring the sandbox back; nothing while somebody else has it.
    ///
    /// # Errors
    /// When the sandbox's directory cannot be written.
    pub fn restoring(&self) -> Result<Option<Restoring>, FileError> {
        let file = file(&self.dir().join(RESTORING_FILE))?;
        Ok(file.map(Restoring))
    }
}

/// Waits until it is certain that no checkpoint is removed meanwhile.
pub(crate) fn checkpoints(store: &SandboxStore) -> Result<Held, FileError> {
    let held = take(&store.manifests_dir(), FlockOperation::LockExclusive)?;
    Ok(held.unwrap_or(Held(None)))
}

/// Waits until no pack is removed or replaced, and keeps it so.
pub(crate) fn reading(store: &SandboxStore) -> Result<Held, FileError> {
    let held = take(&store.packs_dir(), FlockOperation::LockShared)?;
    Ok(held.unwrap_or(Held(None)))
}

/// The right to remove and replace packs; nothing if somebody reads.
pub(crate) fn sweeping(store: &SandboxStore) -> Result<Option<Held>, FileError> {
    take(&store.packs_dir(), FlockOperation::NonBlockingLockExclusive)
}

/// The same for whoever has this patience with readers.
pub(crate) fn sweeping_within(
    store: &SandboxStore,
    patience: Duration,
    pause: Duration,
) -> Result<Option<Held>, FileError> {
    for _ in 0..patience.as_millis() / pause.as_millis() {
        if let Some(held) = sweeping(store)? {
            return Ok(Some(held));
        }
        sleep(pause);
    }
    Ok(None)
}
