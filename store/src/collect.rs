// SPDX-License-Identifier: Apache-2.0

//! Removing what nobody needs any more, beside whoever writes and reads.
//!
//! ```text
//! journal: "removed 3, 4"  ->  manifests go  ->  packs that no manifest names go
//!       durable                 durable      ->  packs of which half is dead are replaced
//! ```
//!
//! A pack is replaced *under its own name*, by one rename of a file that holds what is left of
//! it. So no manifest is ever written again, and at each instant every manifest names packs
//! that hold what it refers to: before the rename the old file does, after it the new one. A
//! replaced pack copies no more bytes than it frees.
//!
//! Who is protected, and how:
//! * the newest checkpoint of the branch that history is on, the newest by number, tagged
//!   ones, the one of an open wish to be restored, that of before a
//!   rollback that is not over, and those that [`crate::SandboxWriter::hold`]
//!   or the caller names are never removed;
//! * a checkpoint in the making borrows what it leans on (writer.rs);
//! * readers have a lock (locks.rs): what they keep is freed the next time;
//! * where anything is damaged, so that it is not known what is needed, nothing is removed.
//!
//! A crash leaves either something that the next removal removes, or a temporary file, which
//! the next writer does.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fs::{self, File, Metadata},
    os::unix::fs::MetadataExt,
    sync::atomic::{AtomicBool, Ordering},
    thread::sleep,
    time::{Duration, Instant},
};

use crab_fault::Point;
use serde::Serialize;
use thiserror::Error;

use crate::{
    digest::Digest,
    durable,
    error::{FileError, ReadError, WriteError},
    id::{PackId, SandboxId, TurnId},
    journal::Durability,
    lineage, locks,
    manifest::{Manifest, packs_of},
    mark::Marks,
    pack::{self, Location},
    pack_file::PackFile,
    record::{JournalRecord, RemovedRecord},
    retention::{self, Candidate, Limits},
    sandbox::SandboxStore,
    store::Store,
    writer::{Collecting, Publishing, SandboxWriter, packs},
};

/// A pack of which so many parts of a hundred are dead is replaced.
const DEAD_SHARE: u64 = 50;
/// The same where disk space is short.
const DEAD_SHARE_SHORT: u64 = 10;
/// For how long readers are waited for, and the pause between tries.
const PATIENCE: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(10);
/// Why a removal that was broken off has left something.
const BROKEN_OFF: &str = "it was broken off, since a container is about to begin or its shim ends: the \
    rest is freed the next time";

/// What is to be removed.
#[derive(Debug, Default)]
pub struct Wanted<'a> {
    /// What is kept.
    pub limits: Limits,
    /// The time, in milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// Checkpoints that stay, beside those that always do.
    pub in_use: BTreeSet<TurnId>,
    /// Set when it is to end early: nothing is left half done. What was removed by then is told.
    pub stop: Option<&'a AtomicBool>,
    /// Ends early, too, where a container is about to begin, which needs the writer.
    pub yields: bool,
}

/// What was removed, or would be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Collected {
    /// The checkpoints, each with the reason.
    pub removed: BTreeMap<TurnId, String>,
    /// How many are left.
    pub kept: u64,
    /// What all packs took before, in bytes of disk.
    pub bytes_before: u64,
    /// What was freed of it.
    pub bytes_freed: u64,
    /// Packs that are gone.
    pub packs_removed: u64,
    /// Packs that were replaced by a smaller one.
    pub packs_replaced: u64,
    /// Why something that is dead was left for the next time.
    pub postponed: Option<String>,
}

/// Why nothing, or not all, was removed.
#[derive(Debug, Error)]
pub enum CollectError {
    /// It is not known what is still needed.
    #[error("nothing is removed where something is damaged: {0}")]
    Damaged(ReadError),
    /// What is there could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// It was told to end, or somebody needs the writer.
    #[error(
        "it was broken off before anything was removed, since a container is about to begin or its \
         shim ends"
    )]
    Stopped,
}

impl From<FileError> for CollectError {
    fn from(error: FileError) -> Self {
        Self::Write(error.into())
    }
}

impl Wanted<'_> {
    /// No more than so many bytes of packs, at `now_ms` since the Unix epoch.
    pub fn down_to(bytes: u64, now_ms: u64) -> Self {
        Self {
            limits: Limits {
                bytes: Some(bytes),
                ..Limits::default()
            },
            now_ms,
            ..Self::default()
        }
    }

    fn go_on(&self, store: &SandboxStore) -> Result<(), CollectError> {
        let told = self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed));
        if told || self.yields && locks::is_wanted(store)? {
            return Err(CollectError::Stopped);
        }
        Ok(())
    }
}

/// Which checkpoints go, and which stay.
struct Choice {
    removed: BTreeMap<TurnId, String>,
    kept: Vec<Manifest>,
    /// Disk space is short.
    short: bool,
}

/// What becomes of the packs.
#[derive(Default)]
struct Sweep {
    /// Each pack that goes, and its length.
    dead: Vec<(PackId, u64)>,
    /// Each pack that is to be replaced, its length, and what of it is dead.
    replace: Vec<(PackId, u64, u64)>,
    live: HashSet<Digest>,
}

impl SandboxStore {
    /// What [`SandboxWriter::collect`] would do. Changes nothing.
    pub fn would_collect(&self, wanted: &Wanted<'_>) -> Result<Collected, CollectError> {
        // Or what is looked at might go meanwhile.
        let _reading = locks::reading(self)?;
        let choice = choose(self, wanted)?;
        let packs = packs(self)?.into_iter();
        // One that cannot be read is no pack that is published, or is left alone.
        let sound = |pack: &PackId| pack::read_index(&self.pack_path(*pack)).is_ok();
        let sweep = sweep(self, &choice, packs.filter(sound), wanted)?;
        Ok(Collected {
            kept: choice.kept.len() as u64,
            bytes_before: bytes_on_disk(self)?,
            bytes_freed: sweep.dead.iter().map(|(_, len)| len).sum::<u64>()
                + sweep.replace.iter().map(|(_, _, dead)| dead).sum::<u64>(),
            packs_removed: sweep.dead.len() as u64,
            packs_replaced: sweep.replace.len() as u64,
            removed: choice.removed,
            postponed: None,
        })
    }
}

impl SandboxWriter {
    /// Removes the checkpoints that are not to be kept, and what no checkpoint needs.
    pub fn collect(&self, wanted: &Wanted<'_>) -> Result<Collected, CollectError> {
        let store = self.store();
        let collecting = self.shared().collecting();
        let bytes_before = bytes_on_disk(store)?;
        let mut wanted = Wanted {
            in_use: wanted.in_use.clone(),
            ..*wanted
        };
        let (choice, sweep) = loop {
            wanted.in_use.extend(self.shared().held());
            let choice = choose(store, &wanted)?;
            // Before anything is removed it is known that what is left can be read.
            let sweep = sweep(store, &choice, collecting.packs.iter().copied(), &wanted)?;
            let in_use = self.remove_checkpoints(&choice, &wanted)?;
            if in_use.is_empty() {
                break (choice, sweep);
            }
            wanted.in_use.extend(in_use);
        };
        let mut done = Collected {
            removed: choice.removed,
            kept: choice.kept.len() as u64,
            bytes_before,
            ..Collected::default()
        };
        match free(store, &collecting, &sweep, &wanted, &mut done) {
            // What is gone is gone, and to be told.
            Err(CollectError::Stopped) => done.postponed = Some(BROKEN_OFF.to_owned()),
            freed => freed?,
        }
        crab_fault::at(Point::Collected);
        Ok(done)
    }

    /// The first half: manifests. If some of them must not be removed any more, removes none
    /// and says which.
    fn remove_checkpoints(
        &self,
        choice: &Choice,
        wanted: &Wanted<'_>,
    ) -> Result<BTreeSet<TurnId>, CollectError> {
        if choice.removed.is_empty() {
            return Ok(BTreeSet::new());
        }
        let store = self.store();
        // Whoever makes a checkpoint irremovable waits for this.
        let _alone = locks::checkpoints(store)?;
        let mut in_use = must_stay(store, &store.checkpoints()?)?;
        in_use.extend(self.shared().held());
        in_use.retain(|turn| choice.removed.contains_key(turn));
        if !in_use.is_empty() {
            return Ok(in_use);
        }
        self.note(&choice.removed, wanted.now_ms)?;
        crab_fault::at(Point::RemovalRecorded);
        for turn in choice.removed.keys() {
            durable::remove(&store.manifest_path(*turn))?;
            crab_fault::at(Point::ManifestRemoved);
        }
        durable::sync_dir(&store.manifests_dir())?;
        crab_fault::at(Point::ManifestsRemoved);
        Ok(BTreeSet::new())
    }

    /// Has the journal say what is removed, and why, before it is.
    fn note(&self, removed: &BTreeMap<TurnId, String>, at_ms: u64) -> Result<(), WriteError> {
        let mut by_reason: BTreeMap<&str, Vec<TurnId>> = BTreeMap::new();
        for (turn, why) in removed {
            by_reason.entry(why).or_default().push(*turn);
        }
        for (why, turns) in by_reason {
            for record in RemovedRecord::all(&turns, why, at_ms) {
                match self.append(record, Durability::Lazy) {
                    // That is what the removal is going to change.
                    Err(WriteError::NoSpace(_)) => {}
                    written => written?,
                }
            }
        }
        // Not by the writer: whoever else appends would wait for the disk.
        Ok(durable::sync_file(&self.store().journal_path())?)
    }
}

/// Damage means that it is not known what is needed.
fn unknown(error: ReadError) -> CollectError {
    match error {
        ReadError::Damaged { .. } => CollectError::Damaged(error),
        error => CollectError::Read(error),
    }
}

/// The checkpoints that must not be removed, as far as the disk says.
fn must_stay(
    store: &SandboxStore,
    published: &BTreeSet<TurnId>,
) -> Result<BTreeSet<TurnId>, CollectError> {
    let mut stay: BTreeSet<TurnId> = published.last().copied().into_iter().collect();
    let journal = store.journal().map_err(unknown)?;
    // The record that is gone, or not understood, may be the one that says which checkpoint
    // the sandbox is at.
    let is_newer = |record: &JournalRecord| matches!(record, JournalRecord::Unknown);
    let why = if journal.damaged > 0 {
        Some("some of its records are gone")
    } else if journal.records.iter().any(is_newer) {
        Some("a later version of crab wrote some of its records")
    } else if journal.records.is_empty() && published.len() > 1 {
        Some("it is empty, and there are checkpoints")
    } else {
        None
    };
    if let Some(why) = why {
        return Err(CollectError::Damaged(ReadError::Damaged {
            path: store.journal_path(),
            why: why.to_owned(),
        }));
    }
    stay.extend(lineage::head(&journal.records, published));
    let wish = store.restore_request().map_err(unknown)?;
    stay.extend(wish.map(|wish| wish.checkpoint));
    let rollback = store.rollback_begun().map_err(unknown)?;
    stay.extend(rollback.map(|rollback| rollback.before));
    for (_, tag) in store.tags()? {
        stay.insert(tag.map_err(unknown)?.checkpoint);
    }
    Ok(stay)
}

/// Reads everything that says what is needed; what of that is damaged is an error.
fn choose(store: &SandboxStore, wanted: &Wanted<'_>) -> Result<Choice, CollectError> {
    let mut manifests = Vec::new();
    for (_, manifest) in store.manifests()? {
        manifests.push(manifest.map_err(unknown)?);
    }
    let published: BTreeSet<TurnId> = manifests.iter().map(|manifest| manifest.turn).collect();
    let mut stay = must_stay(store, &published)?;
    stay.extend(&wanted.in_use);
    let candidates: Vec<Candidate> = manifests
        .iter()
        .map(|manifest| Candidate {
            turn: manifest.turn,
            created_ms: manifest.created_ms,
        })
        .collect();
    let limits = &wanted.limits;
    let mut removed = retention::unwanted(&candidates, &stay, limits, wanted.now_ms);
    let mut short = false;
    if let Some(bytes) = limits.bytes
        && bytes_on_disk(store)? > bytes
    {
        short = true;
        let rest = manifests.iter().filter(|m| !removed.contains_key(&m.turn));
        let rest: Vec<&Manifest> = rest.collect();
        for turn in too_many_bytes(store, &rest, &stay, bytes, wanted)? {
            removed.insert(turn, format!("newer ones need {bytes} bytes"));
        }
    }
    manifests.retain(|manifest| !removed.contains_key(&manifest.turn));
    Ok(Choice {
        removed,
        kept: manifests,
        short,
    })
}

/// The checkpoints for which there is no room beside newer ones and those that stay.
fn too_many_bytes(
    store: &SandboxStore,
    manifests: &[&Manifest],
    stay: &BTreeSet<TurnId>,
    bytes: u64,
    wanted: &Wanted<'_>,
) -> Result<Vec<TurnId>, CollectError> {
    // Not to the last byte, or the next checkpoint would be over it again.
    let room = bytes - bytes / 16;
    let mut marks = Marks::new(store)?;
    let mut taken = 0;
    let (must, mut may): (Vec<&Manifest>, Vec<&Manifest>) = manifests
        .iter()
        .partition(|manifest| stay.contains(&manifest.turn));
    for manifest in must {
        taken += marks.mark(manifest).map_err(CollectError::Damaged)?.total();
    }
    may.sort_by_key(|manifest| std::cmp::Reverse(manifest.turn));
    let mut over = Vec::new();
    for manifest in may {
        wanted.go_on(store)?;
        if over.is_empty() {
            taken += marks.mark(manifest).map_err(CollectError::Damaged)?.total();
        }
        if taken > room {
            over.push(manifest.turn);
        }
    }
    Ok(over)
}

/// Looks at packs that are published, and sound.
fn sweep(
    store: &SandboxStore,
    choice: &Choice,
    published: impl Iterator<Item = PackId>,
    wanted: &Wanted<'_>,
) -> Result<Sweep, CollectError> {
    let named = packs_of(&choice.kept);
    let mut marks = Marks::new(store)?;
    for manifest in &choice.kept {
        wanted.go_on(store)?;
        marks.mark(manifest).map_err(CollectError::Damaged)?;
    }
    let mut sweep = Sweep {
        live: marks.into_live(),
        ..Sweep::default()
    };
    let share = if choice.short {
        DEAD_SHARE_SHORT
    } else {
        DEAD_SHARE
    };
    for pack in published {
        let path = store.pack_path(pack);
        let file = fs::metadata(&path).map_err(FileError::of("read", &path))?;
        let len = file.len();
        // A fork has it as well (fork.rs): what goes here is not free, and a smaller one beside
        // it would take more.
        let is_shared = file.nlink() > 1;
        if !named.contains(&pack) {
            sweep.dead.push((pack, if is_shared { 0 } else { len }));
            continue;
        }
        if is_shared {
            continue;
        }
        let objects = pack::read_index(&path)?;
        let dead = objects
            .iter()
            .filter(|(digest, _)| !sweep.live.contains(digest));
        let dead: u64 = dead.map(|(_, location)| pack::room(location)).sum();
        if dead > 0 && dead.saturating_mul(100) >= len.saturating_mul(share) {
            sweep.replace.push((pack, len, dead));
        }
    }
    Ok(sweep)
}

/// The second half: packs.
fn free(
    store: &SandboxStore,
    collecting: &Collecting<'_>,
    sweep: &Sweep,
    wanted: &Wanted<'_>,
    done: &mut Collected,
) -> Result<(), CollectError> {
    remove_dead(store, collecting, sweep, done)?;
    for (pack, len, _) in &sweep.replace {
        wanted.go_on(store)?;
        let live = &sweep.live;
        replace(store, collecting, (*pack, *len), live, wanted, done)?;
    }
    Ok(())
}

/// The right to change packs; nothing, and a reason, if somebody reads for too long.
fn without_readers<'a>(
    store: &SandboxStore,
    collecting: &'a Collecting<'_>,
    done: &mut Collected,
) -> Result<Option<Alone<'a>>, CollectError> {
    let until = Instant::now() + PATIENCE;
    loop {
        // First who publishes, which may take long: meanwhile everybody can read.
        let publishing = collecting.publishing();
        if let Some(readers) = locks::sweeping(store)? {
            return Ok(Some(Alone {
                _readers: readers,
                publishing,
            }));
        }
        drop(publishing);
        if Instant::now() > until {
            done.postponed = Some("a checkpoint is being read".to_owned());
            return Ok(None);
        }
        sleep(PAUSE);
    }
}

/// That nobody reads and nobody publishes.
struct Alone<'a> {
    _readers: locks::Held,
    publishing: Publishing<'a>,
}

fn remove_dead(
    store: &SandboxStore,
    collecting: &Collecting<'_>,
    sweep: &Sweep,
    done: &mut Collected,
) -> Result<(), CollectError> {
    if sweep.dead.is_empty() {
        return Ok(());
    }
    let Some(alone) = without_readers(store, collecting, done)? else {
        return Ok(());
    };
    for (pack, len) in &sweep.dead {
        let path = store.pack_path(*pack);
        // Damaged since it was published: for the next writer to remove.
        let Ok(objects) = pack::read_index(&path) else {
            continue;
        };
        let goes: Vec<Digest> = objects.into_iter().map(|(digest, _)| digest).collect();
        let removed = collecting.replace(&alone.publishing, *pack, &goes, &[], || {
            durable::remove(&path)
        })?;
        if removed {
            crab_fault::at(Point::PackRemoved);
            done.packs_removed += 1;
            done.bytes_freed += len;
        } else {
            done.postponed = Some("a checkpoint that is being taken needs it".to_owned());
        }
    }
    // Readers need not wait for the disk: what comes back after a power cut is a leftover.
    drop(alone);
    Ok(durable::sync_dir(&store.packs_dir())?)
}

/// Replaces a pack by what of it is live.
fn replace(
    store: &SandboxStore,
    collecting: &Collecting<'_>,
    (pack, len): (PackId, u64),
    live: &HashSet<Digest>,
    wanted: &Wanted<'_>,
    done: &mut Collected,
) -> Result<(), CollectError> {
    let path = store.pack_path(pack);
    let (stays, goes): (Vec<_>, Vec<_>) = pack::read_index(&path)?
        .into_iter()
        .partition(|(digest, _)| live.contains(digest));
    let goes: Vec<Digest> = goes.into_iter().map(|(digest, _)| digest).collect();
    let temporary = Temporary(durable::temporary(&path)?);
    let copy = match copy(store, pack, &stays, &temporary, wanted) {
        Err(CollectError::Write(WriteError::NoSpace(error))) => {
            done.postponed = Some(format!("no room for what is left of a pack: {error}"));
            return Ok(());
        }
        copied => copied?,
    };
    crab_fault::at(Point::PackCopied);
    let Some(alone) = without_readers(store, collecting, done)? else {
        return Ok(());
    };
    let replaced = collecting.replace(&alone.publishing, pack, &goes, copy.objects(), || {
        fs::rename(&temporary.0, &path).map_err(FileError::of("publish", &path))?;
        crab_fault::at(Point::PackReplaced);
        Ok(())
    })?;
    // Nobody need wait for the disk: either of the two holds what is needed.
    drop(alone);
    durable::sync_dir(&store.packs_dir())?;
    if replaced {
        done.packs_replaced += 1;
        done.bytes_freed += len.saturating_sub(copy.len());
    } else {
        done.postponed = Some("a checkpoint that is being taken needs it".to_owned());
    }
    Ok(())
}

/// A file that is of no use if it has not got another name.
struct Temporary(std::path::PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // The next writer removes it if this fails.
        let _ = durable::remove(&self.0);
    }
}

/// Writes these objects of a pack, each of them checked, into a file of their own.
fn copy(
    store: &SandboxStore,
    pack: PackId,
    stays: &[(Digest, Location)],
    to: &Temporary,
    wanted: &Wanted<'_>,
) -> Result<PackFile, CollectError> {
    let path = store.pack_path(pack);
    let from = File::open(&path).map_err(FileError::of("open", &path))?;
    let mut copy = PackFile::create(to.0.clone())?;
    for (digest, location) in stays {
        wanted.go_on(store)?;
        let stored = pack::read_stored(&from, &path, *digest, *location)?;
        pack::unpack(stored.clone(), &path, *digest, *location).map_err(CollectError::Damaged)?;
        copy.append(*digest, location.raw_len, location.method(), &stored)?;
    }
    copy.finish()?;
    Ok(copy)
}

/// What a sandbox's packs take.
pub(crate) fn bytes_on_disk(store: &SandboxStore) -> Result<u64, FileError> {
    Ok(pack_files(store)?.iter().map(Metadata::len).sum())
}

/// The files of a sandbox's packs. Copies of a sandbox have the same ones.
fn pack_files(store: &SandboxStore) -> Result<Vec<Metadata>, FileError> {
    let mut files = Vec::new();
    for pack in packs(store)? {
        let path = store.pack_path(pack);
        match fs::metadata(&path) {
            Ok(metadata) => files.push(metadata),
            // Gone meanwhile.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(FileError::of("read", &path)(error)),
        }
    }
    Ok(files)
}

impl SandboxStore {
    /// How many bytes of its packs are those of other sandboxes, too: copies share them, and
    /// removing them here frees nothing.
    pub fn bytes_shared(&self) -> Result<u64, FileError> {
        let files = pack_files(self)?;
        let shared = files.iter().filter(|file| file.nlink() > 1);
        Ok(shared.map(Metadata::len).sum())
    }
}

impl Store {
    /// What the packs of these sandboxes take of the disk: what several have counts once, and
    /// what cannot be read not at all.
    pub fn bytes_of<'a>(&self, sandboxes: impl IntoIterator<Item = &'a SandboxId>) -> u64 {
        let mut files = BTreeMap::new();
        for id in sandboxes {
            let packs = pack_files(&self.at(id)).unwrap_or_default().into_iter();
            files.extend(packs.map(|file| ((file.dev(), file.ino()), file.len())));
        }
        files.into_values().sum()
    }
}
