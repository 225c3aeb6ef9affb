// SPDX-License-Identifier: Apache-2.0

//! The one writer of a sandbox's history.
//!
//! It holds an exclusive lock on the sandbox for as long as it, or a checkpoint
//! that it began, lives. The kernel drops the lock with the process, however
//! that dies. Opening it puts the directory in order: it cuts off the journal's
//! torn tail and removes what a killed writer had not published.
//!
//! Checkpoints are written while others are removed (collect.rs). A checkpoint in the making
//! leans on objects of published packs; it *borrows* each of them when it finds it, and what
//! is borrowed is not removed. One that is published while a removal is under way leaves what
//! it borrowed as *lasting* until that is over, because the removal may have looked at the
//! manifests before.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fs::File,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crab_fault::Point;

use crate::{
    digest::Digest,
    durable,
    error::{FileError, OpenError, ReadError, WriteError},
    id::{PackId, SandboxId, TurnId},
    journal::{Durability, JournalWriter},
    locks::{self, Lock},
    manifest::{Manifest, packs_of},
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
    /// Where the objects of all published packs are, and who leans on them.
    objects: Mutex<Objects>,
    /// Checkpoints that are not to be removed, and how many times that was said.
    held: Mutex<BTreeMap<TurnId, usize>>,
    /// Held while checkpoints are removed.
    collecting: Mutex<()>,
    /// Held while a checkpoint is published. Whether the sandbox's own
    /// directory is known to be durable.
    publishing: Mutex<bool>,
    /// Dropped last, with everything that may still write.
    _lock: Lock,
}

/// The objects of all published packs.
#[derive(Default)]
struct Objects {
    /// The packs that sound manifests name, as long as there is no index.
    named: BTreeSet<PackId>,
    /// Where they are; read when first needed.
    index: Option<Index>,
    /// The published packs that are in the index.
    packs: BTreeSet<PackId>,
    /// What each checkpoint in the making leans on.
    borrowed: HashMap<u64, HashSet<Digest>>,
    /// What published ones leant on, since the removal began that is under way.
    lasting: Option<HashSet<Digest>>,
    next_borrower: u64,
}

impl Objects {
    fn is_borrowed(&self, digest: &Digest) -> bool {
        let has = |set: &HashSet<Digest>| set.contains(digest);
        self.borrowed.values().any(has) || self.lasting.as_ref().is_some_and(has)
    }
}

/// A checkpoint in the making, as far as it leans on published objects.
pub(crate) struct Borrower {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Borrower {
    fn drop(&mut self) {
        let mut objects = held(&self.shared.objects);
        let own = objects.borrowed.remove(&self.number).unwrap_or_default();
        if let Some(lasting) = &mut objects.lasting {
            lasting.extend(own);
        }
    }
}

/// The removal that is under way, as far as it concerns who writes meanwhile.
pub(crate) struct Collecting<'a> {
    shared: &'a Shared,
    _alone: MutexGuard<'a, ()>,
    /// The packs that were published when it began.
    pub(crate) packs: BTreeSet<PackId>,
}

impl Drop for Collecting<'_> {
    fn drop(&mut self) {
        held(&self.shared.objects).lasting = None;
    }
}

/// That nobody publishes: whoever does reads from packs by the index.
pub(crate) struct Publishing<'a>(#[expect(dead_code, reason = "it is held")] MutexGuard<'a, bool>);

impl Collecting<'_> {
    /// Waits for a publication that is under way, and keeps others from beginning.
    pub(crate) fn publishing(&self) -> Publishing<'_> {
        Publishing(held(&self.shared.publishing))
    }

    /// Has a pack replaced by `change`, after which it holds `now`, unless a checkpoint in
    /// the making leans on something that would go. Whether it was done.
    pub(crate) fn replace(
        &self,
        _publishing: &Publishing<'_>,
        pack: PackId,
        goes: &[Digest],
        now: &[(Digest, Location)],
        change: impl FnOnce() -> Result<(), FileError>,
    ) -> Result<bool, FileError> {
        let mut objects = held(&self.shared.objects);
        if goes.iter().any(|digest| objects.is_borrowed(digest)) {
            return Ok(false);
        }
        let changed = change();
        // Also if it failed: then nobody knows what is there.
        if let Some(index) = &mut objects.index {
            index.remove(pack);
            if changed.is_ok() && !now.is_empty() {
                index.add(pack, now);
            }
        }
        if now.is_empty() {
            objects.packs.remove(&pack);
        }
        changed.map(|()| true)
    }
}

/// Keeps a checkpoint from being removed, until it is dropped.
pub struct Hold {
    shared: Arc<Shared>,
    turn: TurnId,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut turns = held(&self.shared.held);
        if let Some(times) = turns.get_mut(&self.turn) {
            *times -= 1;
            if *times == 0 {
                turns.remove(&self.turn);
            }
        }
    }
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

    pub(crate) fn load_index(&self) {
        let mut objects = held(&self.objects);
        if objects.index.is_some() {
            return;
        }
        // What no manifest names may have been left by who was killed before it was on the
        // disk, and stays for as long as somebody reads. What a damaged one names, nobody
        // knows.
        let mut loaded = Index::default();
        for pack in std::mem::take(&mut objects.named) {
            // One that is not sound holds nothing that may be relied on; what
            // was in it is stored anew.
            if let Ok(found) = pack::read_index(&self.store.pack_path(pack)) {
                loaded.add(pack, &found);
                objects.packs.insert(pack);
            }
        }
        objects.index = Some(loaded);
    }

    pub(crate) fn borrower(self: &Arc<Self>) -> Borrower {
        let mut objects = held(&self.objects);
        let number = objects.next_borrower;
        objects.next_borrower += 1;
        Borrower {
            shared: self.clone(),
            number,
        }
    }

    /// Where an object is, which stays there for as long as the borrower lives.
    pub(crate) fn borrow(
        &self,
        borrower: &Borrower,
        digest: &Digest,
    ) -> Option<(PackId, Location)> {
        let mut objects = held(&self.objects);
        let found = objects.index.as_ref()?.find(digest)?;
        let own = objects.borrowed.entry(borrower.number).or_default();
        own.insert(*digest);
        Some(found)
    }

    pub(crate) fn add_pack(&self, pack: PackId, added: &[(Digest, Location)]) {
        let mut objects = held(&self.objects);
        if let Some(index) = &mut objects.index {
            index.add(pack, added);
            objects.packs.insert(pack);
        }
    }

    /// Begins to remove; waits for a removal that is under way.
    pub(crate) fn collecting(&self) -> Collecting<'_> {
        let alone = held(&self.collecting);
        self.load_index();
        let mut objects = held(&self.objects);
        objects.lasting = Some(HashSet::new());
        Collecting {
            shared: self,
            _alone: alone,
            packs: objects.packs.clone(),
        }
    }

    /// The checkpoints that are in use here.
    pub(crate) fn held(&self) -> BTreeSet<TurnId> {
        held(&self.held).keys().copied().collect()
    }
}

/// Writes a sandbox's history. May be shared between threads.
pub struct SandboxWriter {
    shared: Arc<Shared>,
    journal: Mutex<JournalWriter>,
}

impl SandboxWriter {
    /// Removes the sandbox's whole history, and ends.
    pub(crate) fn remove(self) -> Result<(), FileError> {
        clear(self.store())
    }

    pub(crate) fn open(store: SandboxStore) -> Result<Self, OpenError> {
        let lock = lock(&store)?;
        for dir in [store.manifests_dir(), store.packs_dir()] {
            durable::create_dir(&dir)?;
            durable::remove_temporaries(&dir)?;
        }
        durable::remove_temporaries(store.dir())?;
        let named = remove_unpublished(&store)?;
        let journal = JournalWriter::open(&store.journal_path())?;
        Ok(Self {
            shared: Arc::new(Shared {
                store,
                objects: Mutex::new(Objects {
                    named,
                    ..Objects::default()
                }),
                held: Mutex::default(),
                collecting: Mutex::default(),
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

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Keeps a checkpoint, if it is there still, from being removed.
    pub fn hold(&self, turn: TurnId) -> Result<Hold, ReadError> {
        *held(&self.shared.held).entry(turn).or_default() += 1;
        let hold = Hold {
            shared: self.shared.clone(),
            turn,
        };
        // A removal that did not see this is over then.
        locks::checkpoints(self.store())?;
        Ok(hold)
    }

    /// Begins a checkpoint.
    pub fn begin(&self) -> Result<PackWriter, WriteError> {
        PackWriter::new(self.shared.clone())
    }

    /// Appends to the journal.
    pub fn append(&self, record: JournalRecord, durability: Durability) -> Result<(), WriteError> {
        held(&self.journal).append(record, durability)
    }

    /// Waits until all that was appended to the journal is on disk.
    pub fn sync_journal(&self) -> Result<(), WriteError> {
        Ok(held(&self.journal).sync()?)
    }

    /// Where the journal ends now.
    pub(crate) fn journal_end(&self) -> u64 {
        held(&self.journal).end()
    }

    /// Writes down what is known of the sandbox.
    pub fn set_meta(&self, meta: &SandboxMeta) -> Result<(), WriteError> {
        self.shared.store.write_meta(meta)
    }
}

/// Takes the sandbox's lock, or tells that somebody else has it.
pub(crate) fn lock(store: &SandboxStore) -> Result<Lock, OpenError> {
    let path = store.dir().join(LOCK_FILE);
    loop {
        durable::create_dir(store.dir())?;
        let Some(file) = locks::file(&path)? else {
            return Err(OpenError::Locked(store.id().clone()));
        };
        // The sandbox may have been removed between open and lock.
        if is_same(&file, &path)? {
            return Ok(file);
        }
    }
}

pub(crate) fn is_same(file: &File, path: &Path) -> Result<bool, FileError> {
    let ours = file.metadata().map_err(FileError::of("read", path))?;
    match path.metadata() {
        Ok(there) => Ok((there.dev(), there.ino()) == (ours.dev(), ours.ino())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(FileError::of("read", path)(error)),
    }
}

pub(crate) fn packs(store: &SandboxStore) -> Result<Vec<PackId>, FileError> {
    let names = durable::names(&store.packs_dir())?;
    let pack = |name: &String| name.strip_suffix(PACK_SUFFIX)?.parse().ok();
    Ok(names.iter().filter_map(pack).collect())
}

/// Removes the packs that no manifest names. Gives those that sound ones name.
fn remove_unpublished(store: &SandboxStore) -> Result<BTreeSet<PackId>, OpenError> {
    let packs = packs(store)?;
    if packs.is_empty() {
        return Ok(BTreeSet::new());
    }
    let manifests = store.manifests()?;
    let all = manifests.len();
    let manifests = manifests.into_iter().filter_map(|(_, it)| it.ok());
    let manifests: Vec<Manifest> = manifests.collect();
    let named = packs_of(&manifests);
    // Which packs a damaged manifest names is not known, so all stay.
    if manifests.len() < all {
        return Ok(named);
    }
    // Somebody may still read what was removed under him: then they go the next time.
    let Some(_alone) = locks::sweeping(store)? else {
        return Ok(named);
    };
    for pack in packs.iter().filter(|pack| !named.contains(pack)) {
        durable::remove(&store.pack_path(*pack))?;
    }
    Ok(named)
}

/// Removes a sandbox's whole history, if nobody writes to it.
pub(crate) fn remove(store: &SandboxStore) -> Result<(), OpenError> {
    let _lock = lock(store)?;
    Ok(clear(store)?)
}

/// Whoever calls has the lock.
fn clear(store: &SandboxStore) -> Result<(), FileError> {
    // First out of sight in one step, so that no half of it is ever seen.
    let mut hidden = store.dir().as_os_str().to_owned();
    hidden.push(format!("~{}", std::process::id()));
    let hidden = Path::new(&hidden);
    std::fs::rename(store.dir(), hidden).map_err(FileError::of("remove", store.dir()))?;
    match std::fs::remove_dir_all(hidden) {
        // By somebody who took it for what a killed process left.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(FileError::of("remove", hidden)),
    }
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
            crab_fault::at(Point::Retired);
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
