// SPDX-License-Identifier: Apache-2.0

//! The one writer of a sandbox's history.
//!
//! It holds an exclusive lock on the sandbox for as long as it, or a checkpoint
//! that it began, lives. The kernel drops the lock with the process, however
//! that dies. Opening it puts the directory in order: it cuts off the journal's
//! torn tail and removes what a killed writer had not published.

use std::{
    collections::BTreeSet,
    fs::File,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use crate::{
    digest::Digest,
    durable,
    error::{FileError, OpenError, ReadError, WriteError},
    id::{PackId, SandboxId},
    journal::{Durability, JournalWriter},
    manifest::Manifest,
    pack::{self, Index, Location},
    pack_writer::PackWriter,
    record::JournalRecord,
    sandbox::{LOCK_FILE, PACK_SUFFIX, SandboxMeta, SandboxStore},
};

/// `<id>`, `<namespace>`, `sandboxes`, the root, and where the root is.
const ANCESTORS: usize = 5;

/// What a sandbox's writer and its checkpoints in flight have in common.
pub(crate) struct Shared {
    pub(crate) store: SandboxStore,
    /// Where the objects of all published packs are; read when first needed.
    index: Mutex<Option<Index>>,
    /// Held while a checkpoint is published. Whether the sandbox's own
    /// directory is known to be durable.
    publishing: Mutex<bool>,
    /// Dropped last, with everything that may still write.
    _lock: File,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind the locks is changed in one step, so that a panic in
    // between leaves nothing half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Waits for the turn to publish. The first time it makes the directories
    /// durable that the manifest will be found through; not earlier, because a
    /// container's start should not wait for the disk.
    pub(crate) fn publishing(&self) -> Result<MutexGuard<'_, bool>, FileError> {
        let mut durable = held(&self.publishing);
        if !*durable {
            for dir in self.store.dir().ancestors().take(ANCESTORS) {
                durable::sync_dir(dir)?;
            }
            *durable = true;
        }
        Ok(durable)
    }

    pub(crate) fn load_index(&self) -> Result<(), WriteError> {
        let mut index = held(&self.index);
        if index.is_some() {
            return Ok(());
        }
        let mut loaded = Index::default();
        for pack in packs(&self.store)? {
            // One that is not sound holds nothing that may be relied on; what
            // was in it is stored anew.
            if let Ok(objects) = pack::read_index(&self.store.pack_path(pack)) {
                loaded.add(pack, &objects);
            }
        }
        *index = Some(loaded);
        Ok(())
    }

    pub(crate) fn find(&self, digest: &Digest) -> Option<(PackId, Location)> {
        held(&self.index).as_ref()?.find(digest)
    }

    pub(crate) fn add_pack(&self, pack: PackId, objects: &[(Digest, Location)]) {
        if let Some(index) = held(&self.index).as_mut() {
            index.add(pack, objects);
        }
    }
}

/// Writes a sandbox's history. May be shared between threads.
pub struct SandboxWriter {
    shared: Arc<Shared>,
    journal: Mutex<JournalWriter>,
}

impl SandboxWriter {
    pub(crate) fn open(store: SandboxStore) -> Result<Self, OpenError> {
        let lock = lock(&store)?;
        for dir in [store.manifests_dir(), store.packs_dir()] {
            durable::create_dir(&dir)?;
            durable::remove_temporaries(&dir)?;
        }
        durable::remove_temporaries(store.dir())?;
        remove_unpublished(&store)?;
        let journal = JournalWriter::open(&store.journal_path())?;
        Ok(Self {
            shared: Arc::new(Shared {
                store,
                index: Mutex::new(None),
                publishing: Mutex::new(false),
                _lock: lock,
            }),
            journal: Mutex::new(journal),
        })
    }

    /// The same sandbox for reading.
    pub fn store(&self) -> &SandboxStore {
        &self.shared.store
    }

    /// Begins a checkpoint.
    pub fn begin(&self) -> Result<PackWriter, WriteError> {
        PackWriter::new(self.shared.clone())
    }

    /// Appends to the journal.
    pub fn append(&self, record: JournalRecord, durability: Durability) -> Result<(), WriteError> {
        held(&self.journal).append(record, durability)
    }

    /// Writes down what is known of the sandbox.
    pub fn set_meta(&self, meta: &SandboxMeta) -> Result<(), WriteError> {
        self.shared.store.write_meta(meta)
    }
}

/// Takes the sandbox's lock, or tells that somebody else has it.
fn lock(store: &SandboxStore) -> Result<File, OpenError> {
    let path = store.dir().join(LOCK_FILE);
    loop {
        durable::create_dir(store.dir())?;
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(FileError::of("open", &path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(OpenError::Locked(store.id().clone())),
            locked => locked.map_err(|error| FileError::of("lock", &path)(error.into()))?,
        }
        // The sandbox may have been removed between open and lock.
        if is_same(&file, &path)? {
            return Ok(file);
        }
    }
}

fn is_same(file: &File, path: &Path) -> Result<bool, FileError> {
    let ours = file.metadata().map_err(FileError::of("read", path))?;
    match path.metadata() {
        Ok(there) => Ok((there.dev(), there.ino()) == (ours.dev(), ours.ino())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(FileError::of("read", path)(error)),
    }
}

fn packs(store: &SandboxStore) -> Result<Vec<PackId>, FileError> {
    let names = durable::names(&store.packs_dir())?;
    let pack = |name: &String| name.strip_suffix(PACK_SUFFIX)?.parse().ok();
    Ok(names.iter().filter_map(pack).collect())
}

/// Removes the packs that no manifest names.
fn remove_unpublished(store: &SandboxStore) -> Result<(), OpenError> {
    let packs = packs(store)?;
    if packs.is_empty() {
        return Ok(());
    }
    let manifests = store.manifests()?.into_iter();
    let manifests: Result<Vec<Manifest>, _> = manifests.map(|(_, manifest)| manifest).collect();
    // Which packs a damaged manifest names is not known, so all stay.
    let Ok(manifests) = manifests else {
        return Ok(());
    };
    let named: BTreeSet<PackId> = manifests.into_iter().flat_map(|m| m.packs).collect();
    for pack in packs.iter().filter(|pack| !named.contains(pack)) {
        durable::remove(&store.pack_path(*pack))?;
    }
    Ok(())
}

/// Removes a sandbox's whole history, if nobody writes to it.
pub(crate) fn remove(store: &SandboxStore) -> Result<(), OpenError> {
    let _lock = lock(store)?;
    // First out of sight in one step, so that no half of it is ever seen.
    let mut hidden = store.dir().as_os_str().to_owned();
    hidden.push(format!("~{}", std::process::id()));
    let hidden = Path::new(&hidden);
    std::fs::rename(store.dir(), hidden).map_err(FileError::of("remove", store.dir()))?;
    std::fs::remove_dir_all(hidden).map_err(FileError::of("remove", hidden))?;
    Ok(())
}

/// Gives a sandbox's history another name, if nobody writes to it.
pub(crate) fn retire(
    store: &SandboxStore,
    at: impl Fn(&SandboxId) -> SandboxStore,
) -> Result<SandboxId, OpenError> {
    let _lock = lock(store)?;
    let mut when = store.meta()?.map_or(0, |meta| meta.created_ms);
    loop {
        let id = store.id().retired(when).map_err(|error| {
            let source = std::io::Error::other(error);
            FileError::of("rename", store.dir())(source)
        })?;
        let target = at(&id);
        if !target.dir().exists() {
            std::fs::rename(store.dir(), target.dir())
                .map_err(FileError::of("rename", store.dir()))?;
            return Ok(id);
        }
        when += 1;
    }
}

// So that an error of the journal's names its file once.
impl From<ReadError> for WriteError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::File(error) => error.into(),
            error => Self::Incomplete(error),
        }
    }
}
