// SPDX-License-Identifier: Apache-2.0

//! A sandbox that begins as a copy of another.
//!
//! ```text
//! parent  packs/a.pack  packs/b.pack         manifests/7     it lives on, or is gone
//!              |             |                    |
//! fork    packs/a.pack  packs/b.pack         manifests/0     journal: "fork of parent@7", turn 0
//!           (the same files: hard links)     restore         the wish that its first start grants
//! ```
//! What a checkpoint needs is shared by hard links of whole packs. Packs are only ever
//! appended to while they are made, and replaced or removed by name: so each sandbox removes
//! what *it* does not need any more, and the file stays for as long as any sandbox has it.
//! Nothing of a fork refers to its parent's directory.
//!
//! A fork's history is built under a hidden name and appears by one rename: there whole, or
//! not at all. Whoever builds one has its directory locked, so that what a killed process left is
//! known by nobody having it, whatever process has its number by now.

use std::{
    fs::{self, File},
    io::{self, ErrorKind, Write},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rustix::{
    fs::{CWD, FlockOperation, RenameFlags, renameat_with},
    io::Errno,
};
use thiserror::Error;

use crate::{
    class::Class,
    durable,
    error::{FileError, OpenError, ReadError, WriteError},
    id::{PackId, SandboxId, TurnId},
    image::FileImage,
    journal::{Durability, JournalWriter},
    locks::{self, Lock},
    manifest::{Manifest, ProcessRef},
    record::{ForkRecord, JournalRecord, Trigger, TurnRecord},
    sandbox::{
        Client, MANIFEST, META, RESTORE, RESTORE_FILE, RestoreRequest, SandboxMeta, SandboxStore,
    },
    store::Store,
    writer,
};

/// Its only turn.
pub(crate) const START: TurnId = TurnId(0);
/// Between a sandbox's id and what tells its half made history from others. No id has it.
const HALF_MADE: &str = "~fork.";
/// The same behind the tilde: what is half removed has a number alone (writer.rs).
const FORK: &str = "fork.";
/// The pause between tries.
const PAUSE: Duration = Duration::from_millis(10);
/// For how long whoever else writes to an earlier history of that name is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// A copy that is to be made.
#[derive(Clone, Copy, Debug)]
pub struct Fork<'a> {
    /// Of this sandbox.
    pub parent: &'a SandboxStore,
    /// As it was at the end of this turn.
    pub turn: TurnId,
    /// The checkpoint that holds this state.
    pub manifest: &'a Manifest,
    /// The writable directory that its container has, where that is known: a container of the
    /// same name with another one is not the copy.
    pub upper: Option<&'a str>,
    /// Now, in milliseconds since the Unix epoch.
    pub now_ms: u64,
}

/// Why a copy could not be made. Nothing of it is left then.
#[derive(Debug, Error)]
pub enum ForkError {
    /// The history of an earlier sandbox of that name could not be put aside.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The parent's history could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The copy's could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl From<FileError> for ForkError {
    fn from(error: FileError) -> Self {
        Self::Write(error.into())
    }
}

impl Store {
    /// Makes the history of a sandbox that begins as a copy of another, with the wish that its
    /// first start restores it. The history of an earlier sandbox of that name is put aside.
    pub fn fork(&self, id: &SandboxId, fork: &Fork) -> Result<SandboxStore, ForkError> {
        let target = self.at(id);
        let packs = &fork.manifest.packs;
        // What others have left may hold much of the disk; that it cannot go is no reason not to fork.
        let _ = self.sweep();
        let (hidden, building) = self.half_made(id)?;
        let built = build(&hidden, packs, fork).and_then(|()| {
            if target.dir().exists() {
                self.retire_within(id, PATIENCE)?;
            }
            let (from, to) = (hidden.dir(), target.dir());
            renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)
                .map_err(|error| FileError::of("make", to)(error.into()))?;
            Ok(())
        });
        // Others have locks of their own on a sandbox's directory.
        drop(building);
        if let Err(error) = built {
            // The first error is the one to report.
            let _ = fs::remove_dir_all(hidden.dir());
            return Err(error);
        }
        if let Some(namespace) = target.dir().parent() {
            durable::sync_dir(namespace)?;
        }
        Ok(target)
    }

    /// Where the history is built, and that this is for us alone.
    fn half_made(&self, id: &SandboxId) -> Result<(SandboxStore, Lock), FileError> {
        let mut name = self.at(id).dir().as_os_str().to_owned();
        name.push(format!("{HALF_MADE}{}", std::process::id()));
        let dir = PathBuf::from(name);
        // One that a killed process with our number left.
        remove_dir(&dir)?;
        loop {
            durable::create_dir(&dir)?;
            // Somebody who sweeps may have it before us.
            if let Some(lock) = lock_dir(&dir)? {
                return Ok((SandboxStore::at(id.clone(), dir), lock));
            }
            thread::sleep(PAUSE);
        }
    }

    /// Removes what killed processes have left: histories that were being made, and such as were
    /// being removed. Tells how many there were, and the first that could not be looked at or
    /// removed.
    pub fn sweep(&self) -> (u64, Option<FileError>) {
        let (mut swept, mut failed) = (0, None);
        let namespaces = self.namespaces().unwrap_or_else(|error| {
            failed = Some(error);
            Vec::new()
        });
        for namespace in namespaces {
            let names = durable::names(&namespace).unwrap_or_else(|error| {
                failed.get_or_insert(error);
                Vec::new()
            });
            for name in names {
                match sweep_one(&namespace.join(&name), Left::of(&name)) {
                    Ok(true) => swept += 1,
                    Ok(false) => {}
                    Err(error) => {
                        failed.get_or_insert(error);
                    }
                }
            }
        }
        (swept, failed)
    }
}

/// Removes what is left; tells whether it has.
fn sweep_one(dir: &Path, left: Option<Left>) -> Result<bool, FileError> {
    match left {
        Some(Left::HalfMade) => {
            let Some(_alone) = lock_dir(dir)? else {
                return Ok(false);
            };
            remove_dir(dir)?;
        }
        // Whoever began it, and goes on with it, minds nobody who helps.
        Some(Left::HalfRemoved) => remove_dir(dir)?,
        None => return Ok(false),
    }
    Ok(true)
}

/// What no sandbox is called.
#[derive(Debug, PartialEq, Eq)]
enum Left {
    HalfMade,
    HalfRemoved,
}

impl Left {
    fn of(name: &str) -> Option<Self> {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let (id, rest) = name.split_once('~')?;
        let of_fork = rest.strip_prefix(FORK);
        match (id.is_empty(), of_fork) {
            (false, Some(pid)) if is_number(pid) => Some(Self::HalfMade),
            (false, None) if is_number(rest) => Some(Self::HalfRemoved),
            _ => None,
        }
    }
}

/// Locks a directory; nothing if somebody else has it, or it is another one by now.
fn lock_dir(dir: &Path) -> Result<Option<Lock>, FileError> {
    let lock = match File::open(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        lock => lock.map_err(FileError::of("open", dir))?,
    };
    let Some(lock) = locks::lock(lock, dir, FlockOperation::NonBlockingLockExclusive)? else {
        return Ok(None);
    };
    Ok(writer::is_same(&lock, dir)?.then_some(lock))
}

/// Removes a directory; that it is not there is no error.
fn remove_dir(dir: &Path) -> Result<(), FileError> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(FileError::of("remove", dir)(error))
        }
        _ => Ok(()),
    }
}

fn build(hidden: &SandboxStore, packs: &[PackId], fork: &Fork) -> Result<(), ForkError> {
    // As long as this lives, none of the parent's packs goes.
    let _reading = fork.parent.reader(fork.manifest)?;
    for dir in [hidden.manifests_dir(), hidden.packs_dir()] {
        durable::create_dir(&dir)?;
    }
    for pack in packs {
        share(&fork.parent.pack_path(*pack), &hidden.pack_path(*pack))?;
    }
    let manifest = of_copy(hidden.id(), fork);
    let wish = RestoreRequest {
        turn: START,
        checkpoint: START,
        requested_ms: fork.now_ms,
        fork: true,
    };
    let small = [
        (hidden.manifest_path(START), MANIFEST.seal(&manifest)),
        (hidden.meta_path(), META.seal(&meta(fork)?)),
        (hidden.dir().join(RESTORE_FILE), RESTORE.seal(&wish)),
    ];
    // Nobody sees any of it yet: all is written first, and waits for the disk together.
    let mut written = vec![hidden.journal_path()];
    for (path, sealed) in small {
        let sealed = sealed.map_err(|error| WriteError::Value {
            what: "record of a copy",
            why: error.to_string(),
        })?;
        durable::create_new(&path)?
            .write_all(&sealed)
            .map_err(FileError::of("write", &path))?;
        written.push(path);
    }
    let mut journal = JournalWriter::open(&hidden.journal_path())?;
    let origin = ForkRecord {
        at_ms: fork.now_ms,
        from: fork.parent.id().clone(),
        turn: fork.turn,
        checkpoint: fork.manifest.turn,
    };
    journal.append(JournalRecord::Fork(origin), Durability::Lazy)?;
    let start = start(&manifest, fork.parent.id(), fork.turn, fork.now_ms);
    journal.append(JournalRecord::Turn(start), Durability::Lazy)?;
    let dirs = [
        hidden.manifests_dir(),
        hidden.packs_dir(),
        hidden.dir().to_owned(),
    ];
    Ok(sync_all(&written, &dirs)?)
}

/// Beside each other, because a file system writes its log once for all who wait for it.
fn sync_all(files: &[PathBuf], dirs: &[PathBuf]) -> Result<(), FileError> {
    type Sync = fn(&Path) -> Result<(), FileError>;
    let files = files.iter().map(|file| (durable::sync_file as Sync, file));
    let dirs = dirs.iter().map(|dir| (durable::sync_dir as Sync, dir));
    thread::scope(|scope| {
        let mut waiting = Vec::new();
        for (sync, path) in files.chain(dirs) {
            match thread::Builder::new().spawn_scoped(scope, move || sync(path)) {
                Ok(syncing) => waiting.push(syncing),
                // No room for a thread: one after the other, then.
                Err(_) => sync(path)?,
            }
        }
        waiting.into_iter().try_for_each(|synced| {
            synced
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
}

/// One file under two names; two files where the file system has no more names for it.
fn share(from: &Path, to: &Path) -> Result<(), FileError> {
    match fs::hard_link(from, to) {
        Err(error) if has_no_more_names(&error) => {
            fs::copy(from, to).map_err(FileError::of("copy", from))?;
            durable::sync_file(to)
        }
        linked => linked.map_err(FileError::of("link", from)),
    }
}

fn has_no_more_names(error: &io::Error) -> bool {
    let error = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(error, Some(Errno::MLINK | Errno::PERM | Errno::OPNOTSUPP))
}

/// The copy's only checkpoint: complete in itself, as any other.
fn of_copy(id: &SandboxId, fork: &Fork) -> Manifest {
    let Manifest {
        files, processes, ..
    } = fork.manifest.clone();
    let image = |image: ProcessRef| ProcessRef {
        turn: START,
        ..image
    };
    Manifest {
        sandbox: id.clone(),
        turn: START,
        class: match processes {
            Some(_) => Class::Full,
            None => Class::Files,
        },
        created_ms: fork.now_ms,
        parent: None,
        files: FileImage {
            turn: START,
            ..files
        },
        processes: processes.map(image),
        degraded: fork.manifest.degraded.clone(),
        machine: fork.manifest.machine.clone(),
        spec: fork.manifest.spec,
        packs: fork.manifest.packs.clone(),
        bytes_stored: 0,
        bytes_raw: 0,
    }
}

/// The record of its only turn.
pub(crate) fn start(
    manifest: &Manifest,
    parent: &SandboxId,
    turn: TurnId,
    at_ms: u64,
) -> TurnRecord {
    TurnRecord {
        began_ms: at_ms,
        ended_ms: at_ms,
        class: manifest.class,
        reason: format!("a copy of {parent} at turn {turn}"),
        checkpoint: Some(START),
        degraded: manifest.degraded.clone(),
        ..TurnRecord::new(START, Trigger::Fork)
    }
}

/// What is known of the copy before its shim says more.
fn meta(fork: &Fork) -> Result<SandboxMeta, ReadError> {
    let of_parent = fork.parent.meta()?;
    let client = of_parent.as_ref().map(|meta| meta.client);
    let upper = fork.upper.map(|upper| (UPPER.into(), upper.into()));
    Ok(SandboxMeta {
        client: client.unwrap_or(Client::Containerd),
        name: None,
        image: of_parent.and_then(|meta| meta.image),
        bundle: String::new(),
        created_ms: fork.now_ms,
        snapshot: upper.into_iter().collect(),
        layers: None,
        config_faults: Vec::new(),
        limits: Default::default(),
    })
}

/// Where the writable directory of a sandbox's container is noted in its metadata.
pub const UPPER: &str = "upper";

/// What tells a container's writable layer from any other, by the mount that a client of containerd
/// is given for it: a path or device; of btrfs the subvolume, as devices are numbered anew with each
/// start of a host.
pub fn layer_of(kind: &str, source: &str, options: &[String]) -> String {
    let option = |name: &str| options.iter().find_map(|it| it.strip_prefix(name));
    match kind {
        "overlay" => option("upperdir=").unwrap_or(source).to_owned(),
        "btrfs" => match option("subvolid=").or_else(|| option("subvol=")) {
            Some(subvolume) => format!("btrfs subvolume {subvolume}"),
            None => source.to_owned(),
        },
        _ => source.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_known_by_a_name_that_no_sandbox_has() {
        assert_eq!(Left::of("demo~fork.12"), Some(Left::HalfMade));
        assert_eq!(Left::of("demo~12"), Some(Left::HalfRemoved));
        for other in [
            "demo",
            "demo.1700000000000",
            "~12",
            "demo~",
            "demo~fork.",
            "demo~x",
            "a~1~2",
        ] {
            assert_eq!(Left::of(other), None, "{other}");
        }
    }

    #[test]
    fn a_layer_is_told_by_what_is_its_own() {
        let options = |all: &[&str]| all.iter().map(|&it| it.to_owned()).collect::<Vec<_>>();
        let overlay = options(&["index=off", "upperdir=/s/8/fs", "lowerdir=/s/1/fs"]);
        assert_eq!(layer_of("overlay", "overlay", &overlay), "/s/8/fs");
        let bind = options(&["rbind", "rw"]);
        assert_eq!(layer_of("bind", "/s/9", &bind), "/s/9");
        let (one, two) = (options(&["subvolid=260"]), options(&["subvolid=261"]));
        let layer = |device, options| layer_of("btrfs", device, options);
        assert_eq!(layer("/dev/sda", &one), layer("/dev/sdb", &one));
        assert_ne!(layer("/dev/sda", &one), layer("/dev/sda", &two));
        assert_eq!(
            layer_of("ext4", "/dev/mapper/snap-5", &[]),
            "/dev/mapper/snap-5"
        );
    }
}
