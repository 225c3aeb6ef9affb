// SPDX-License-Identifier: Apache-2.0

//! Looking at every byte of a sandbox's history: is it as it was written?
//!
//! Every envelope, every record of the journal, every pack and every object in it is checked
//! against its checksum, and every checkpoint against what it refers to. Nothing is changed,
//! and a sandbox may run on meanwhile: what is being written is not taken for damage. What it
//! found is put right by repair.rs.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::{self, File},
    path::{Path, PathBuf},
    thread::sleep,
    time::Duration,
};

use serde::Serialize;

use crate::{
    digest::Digest,
    error::{FileError, ReadError},
    id::{PackId, SandboxId, TurnId},
    journal::{self, Soundness},
    locks::{self, Pace},
    manifest::{Manifest, packs_of},
    pack::{self, Location},
    reach,
    record::JournalRecord,
    rollback::{ROLLBACK, ROLLBACK_FILE, RollbackBegun},
    sandbox::{
        MANIFEST, META, META_FILE, RESTORE, RESTORE_FILE, RestoreRequest, SandboxMeta, SandboxStore,
    },
    spare::{SPARE, SPARE_FILE, Spare},
    tags::{TAG, Tag},
    writer::packs,
};

/// What kind of thing is not as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// The journal.
    Journal,
    /// The journal's end only, which never came to the disk: no damage, but worth telling. Whoever
    /// writes next cuts off what is there of it.
    JournalTail,
    /// A manifest, or something that it refers to is missing.
    Manifest,
    /// A pack as such.
    Pack,
    /// An object in a pack.
    Object,
    /// A tag, or the checkpoint that it names is missing.
    Tag,
    /// What is known of the sandbox as such.
    Meta,
    /// A wish to be restored.
    RestoreRequest,
    /// The note of a rollback that is not over.
    Rollback,
    /// The note that a copy is nobody's yet.
    Spare,
}

/// Something that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// What it is.
    pub part: Part,
    /// The file.
    pub path: PathBuf,
    /// What is wrong, in one line.
    pub why: String,
    /// The checkpoints that cannot be brought back, or not wholly, because of it.
    pub checkpoints: BTreeSet<TurnId>,
}

impl Damage {
    /// Whether nothing is lost by it that had come to the disk.
    pub fn is_note(&self) -> bool {
        self.part == Part::JournalTail
    }
}

/// What a look at a sandbox's history found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// Whose.
    pub sandbox: SandboxId,
    /// How many checkpoints there are, damaged ones counted.
    pub checkpoints: u64,
    /// How many records the journal has.
    pub records: u64,
    /// How many packs.
    pub packs: u64,
    /// How many objects were read.
    pub objects: u64,
    /// How many bytes all of it has.
    pub bytes: u64,
    /// Everything that is wrong.
    pub damage: Vec<Damage>,
    /// The checkpoints that cannot be brought back, or not wholly.
    pub lost: BTreeSet<TurnId>,
    /// The turns that are held by those.
    pub turns: BTreeSet<TurnId>,
}

impl Checked {
    /// Whether everything that has come to the disk is as it was written.
    pub fn is_whole(&self) -> bool {
        self.damage.iter().all(Damage::is_note)
    }
}

/// What a look found, and what repairing it needs to know.
pub(crate) struct Look {
    pub(crate) checked: Checked,
    /// The manifests that are sound in themselves.
    pub(crate) manifests: Vec<Manifest>,
    pub(crate) journal: Option<Soundness>,
    /// Something was written by a later version.
    pub(crate) newer: Option<ReadError>,
    /// Where each object is.
    objects: HashMap<Digest, Vec<(PackId, Location)>>,
    /// Those whose bytes have changed, each with the number of its damage.
    bad: HashMap<(PackId, Digest), usize>,
    /// Packs that are missing or have no sound index, likewise.
    unsound: BTreeMap<PackId, usize>,
}

impl SandboxStore {
    /// Looks at everything. `progress` is told so many bytes of so many.
    pub fn check(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Checked, ReadError> {
        let look = Look::at(self, &mut Pace::steady(), progress)?;
        match look.newer {
            Some(newer) => Err(newer),
            None => Ok(look.checked),
        }
    }
}

impl Look {
    /// Looks at everything, for as long as `pace` says.
    pub(crate) fn at(
        store: &SandboxStore,
        pace: &mut Pace<'_>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, ReadError> {
        let _reading = locks::reading(store)?;
        let mut look = Self {
            checked: Checked {
                sandbox: store.id().clone(),
                checkpoints: 0,
                records: 0,
                packs: 0,
                objects: 0,
                bytes: 0,
                damage: Vec::new(),
                lost: BTreeSet::new(),
                turns: BTreeSet::new(),
            },
            manifests: Vec::new(),
            journal: None,
            newer: None,
            objects: HashMap::new(),
            bad: HashMap::new(),
            unsound: BTreeMap::new(),
        };
        look.small::<SandboxMeta>(store, Part::Meta, META_FILE, &META);
        // Before the packs: whatever these name is written to its end.
        look.manifests(store)?;
        look.packs(store, pace, progress)?;
        look.journal(store)?;
        look.checkpoints(store, pace)?;
        look.promises(store)?;
        let removed = |damage: &Damage| damage.part == Part::Manifest && !damage.path.exists();
        // By somebody else, while this was looked at.
        look.checked.damage.retain(|damage| !removed(damage));
        look.sum_up();
        Ok(look)
    }

    /// Tells of damage, and gives its number.
    fn report(&mut self, part: Part, path: &Path, why: impl ToString) -> usize {
        self.checked.damage.push(Damage {
            part,
            path: path.to_owned(),
            why: why.to_string(),
            checkpoints: BTreeSet::new(),
        });
        self.checked.damage.len() - 1
    }

    /// Takes an error of reading a file for what it is.
    fn error(&mut self, part: Part, path: &Path, error: ReadError) -> Option<usize> {
        match error {
            ReadError::NewerFormat { .. } => {
                self.newer.get_or_insert(error);
                None
            }
            // The path is told anyway.
            ReadError::Damaged { why, .. } => Some(self.report(part, path, why)),
            error => Some(self.report(part, path, error)),
        }
    }

    /// This checkpoint cannot be brought back because of that damage.
    fn hit(&mut self, damage: usize, turn: TurnId) {
        self.checked.damage[damage].checkpoints.insert(turn);
    }

    fn small<T: serde::de::DeserializeOwned>(
        &mut self,
        store: &SandboxStore,
        part: Part,
        name: &str,
        envelope: &crate::envelope::Envelope,
    ) -> Option<T> {
        let path = store.dir().join(name);
        self.checked.bytes += length(&path);
        match envelope.load_checked(&path) {
            Ok(found) => found,
            Err(error) => {
                self.error(part, &path, error);
                None
            }
        }
    }

    fn manifests(&mut self, store: &SandboxStore) -> Result<(), ReadError> {
        for turn in store.checkpoints()? {
            let path = store.manifest_path(turn);
            self.checked.bytes += length(&path);
            let loaded = MANIFEST
                .load_checked(&path)
                .and_then(|manifest| store.own(turn, manifest));
            match loaded {
                Ok(Some(manifest)) => self.manifests.push(manifest),
                Ok(None) => continue,
                Err(error) => {
                    if let Some(damage) = self.error(Part::Manifest, &path, error) {
                        self.hit(damage, turn);
                    }
                }
            }
            self.checked.checkpoints += 1;
        }
        Ok(())
    }

    fn packs(
        &mut self,
        store: &SandboxStore,
        pace: &mut Pace<'_>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), ReadError> {
        let named = self.named();
        let there: BTreeSet<PackId> = packs(store)?.into_iter().collect();
        let total: u64 = there
            .iter()
            .map(|pack| length(&store.pack_path(*pack)))
            .sum();
        let mut done = 0;
        for pack in &there {
            pace.go_on()?;
            let path = store.pack_path(*pack);
            let len = length(&path);
            match pack::read_index(&path) {
                Ok(objects) => {
                    let progress = &mut |bytes| progress(done + bytes, total);
                    self.pack(*pack, &path, &objects, pace, progress)?;
                }
                // Perhaps it is just being written; nobody relies on it.
                Err(_) if !named.contains(pack) => continue,
                Err(error) => self.unsound(*pack, &path, error),
            }
            done += len;
            self.checked.packs += 1;
            self.checked.bytes += len;
            progress(done, total);
        }
        for pack in named.difference(&there) {
            let damage = self.report(Part::Pack, &store.pack_path(*pack), "it is missing");
            self.unsound.insert(*pack, damage);
        }
        Ok(())
    }

    fn unsound(&mut self, pack: PackId, path: &Path, error: ReadError) {
        if let Some(damage) = self.error(Part::Pack, path, error) {
            self.unsound.insert(pack, damage);
        }
    }

    /// Reads a pack whose index is sound.
    fn pack(
        &mut self,
        pack: PackId,
        path: &Path,
        objects: &[(Digest, Location)],
        pace: &mut Pace<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), ReadError> {
        if let Err(error) = pack::check_layout(path, objects) {
            self.error(Part::Pack, path, error);
        }
        let file = match File::open(path).map_err(FileError::of("open", path)) {
            Ok(file) => file,
            Err(error) => {
                self.unsound(pack, path, error.into());
                return Ok(());
            }
        };
        for (digest, location) in objects {
            pace.go_on()?;
            let read = pack::read_stored(&file, path, *digest, *location).and_then(|stored| {
                let is_as_written = location.is_as_written(&stored);
                pack::unpack(stored, path, *digest, *location).map(|_| is_as_written)
            });
            match read {
                Ok(true) => {}
                // Nothing is lost, and yet the disk has changed it.
                Ok(false) => {
                    let why =
                        format!("object {digest}: its bytes have changed, what they hold has not");
                    self.report(Part::Object, path, why);
                }
                Err(error) => {
                    if let Some(damage) = self.error(Part::Object, path, error) {
                        self.bad.insert((pack, *digest), damage);
                    }
                }
            }
            let places = self.objects.entry(*digest).or_default();
            places.push((pack, *location));
            self.checked.objects += 1;
            progress(location.at + u64::from(location.stored_len));
        }
        Ok(())
    }

    fn journal(&mut self, store: &SandboxStore) -> Result<(), ReadError> {
        let path = store.journal_path();
        let mut checked = journal::check(&path);
        // A record that is just being written, by one call, is not torn for long.
        for pause in [1, 2, 4] {
            if !matches!(&checked, Ok(sound) if sound.is_torn) {
                break;
            }
            sleep(Duration::from_millis(pause));
            checked = journal::check(&path);
        }
        self.checked.bytes += length(&path);
        match checked {
            Ok(sound) => {
                self.checked.records = sound.journal.records.len() as u64;
                let part = match sound.is_torn {
                    true => Part::JournalTail,
                    false => Part::Journal,
                };
                for fault in &sound.faults {
                    self.report(part, &path, fault);
                }
                let said = sound.journal.records.iter();
                let said = said.filter_map(JournalRecord::turn).max();
                let newer = |manifest: &&Manifest| said.is_none_or(|said| manifest.turn > said);
                let unsaid = self.manifests.iter().filter(newer).count();
                // The record of a checkpoint follows it.
                if unsaid > 1 && (sound.is_torn || sound.faults.is_empty()) {
                    let why = format!("{unsaid} checkpoints are newer than its last record");
                    self.report(Part::JournalTail, &path, why);
                }
                self.journal = Some(sound);
            }
            Err(error) => {
                self.error(Part::Journal, &path, error);
            }
        }
        Ok(())
    }

    /// Whether each checkpoint has what it refers to.
    fn checkpoints(&mut self, store: &SandboxStore, pace: &mut Pace<'_>) -> Result<(), ReadError> {
        let manifests = std::mem::take(&mut self.manifests);
        for manifest in &manifests {
            pace.go_on()?;
            let needs = Needs::of(self, store, manifest);
            for damage in needs.damage {
                self.hit(damage, manifest.turn);
            }
            if let Some(why) = needs.why {
                let path = store.manifest_path(manifest.turn);
                let damage = self.report(Part::Manifest, &path, why);
                self.hit(damage, manifest.turn);
            }
        }
        self.manifests = manifests;
        Ok(())
    }

    /// In which of its packs a checkpoint finds an object, as a reader does.
    fn place(&self, manifest: &Manifest, digest: &Digest) -> Option<(PackId, Location)> {
        let there = self.objects.get(digest)?;
        let mut packs = manifest.packs.iter();
        packs.find_map(|pack| there.iter().find(|(found, _)| found == pack).copied())
    }

    /// Tags, the wish to be restored, and the way back of a rollback: is there what they promise?
    fn promises(&mut self, store: &SandboxStore) -> Result<(), ReadError> {
        let there = store.checkpoints()?;
        let promise = |look: &mut Self, part, path: &Path, checkpoint: TurnId| {
            if !there.contains(&checkpoint) {
                let why = format!("checkpoint {checkpoint}, which it names, is not there");
                look.report(part, path, why);
            }
        };
        for (name, _) in store.tags()? {
            let path = store.tag_path(&name);
            self.checked.bytes += length(&path);
            match TAG.load_checked::<Tag>(&path) {
                Ok(Some(tag)) => promise(self, Part::Tag, &path, tag.checkpoint),
                Ok(None) => {}
                Err(error) => {
                    self.error(Part::Tag, &path, error);
                }
            }
        }
        let part = Part::RestoreRequest;
        let wish: Option<RestoreRequest> = self.small(store, part, RESTORE_FILE, &RESTORE);
        if let Some(wish) = wish {
            promise(self, part, &store.dir().join(RESTORE_FILE), wish.checkpoint);
        }
        let part = Part::Rollback;
        let note: Option<Option<RollbackBegun>> = self.small(store, part, ROLLBACK_FILE, &ROLLBACK);
        if let Some(note) = note.flatten() {
            promise(self, part, &store.dir().join(ROLLBACK_FILE), note.before);
        }
        // What it names is another sandbox's, which may be gone.
        let _: Option<Spare> = self.small(store, Part::Spare, SPARE_FILE, &SPARE);
        Ok(())
    }

    fn sum_up(&mut self) {
        let checked = &mut self.checked;
        checked.lost = checked
            .damage
            .iter()
            .flat_map(|damage| &damage.checkpoints)
            .copied()
            .collect();
        let records = self.journal.iter().flat_map(|sound| &sound.journal.records);
        checked.turns = records
            .filter_map(|record| match record {
                JournalRecord::Turn(record) => Some((record.turn, record.checkpoint?)),
                _ => None,
            })
            .filter(|(_, checkpoint)| checked.lost.contains(checkpoint))
            .map(|(turn, _)| turn)
            .chain(checked.lost.iter().copied())
            .collect();
    }

    /// The packs that a sound manifest names.
    pub(crate) fn named(&self) -> BTreeSet<PackId> {
        packs_of(&self.manifests)
    }
}

/// What a checkpoint needs and has not got.
#[derive(Default)]
struct Needs {
    /// The damage that is the reason.
    damage: BTreeSet<usize>,
    /// Where there is no such damage, what is wrong with the manifest.
    why: Option<String>,
}

impl Needs {
    fn of(look: &Look, store: &SandboxStore, manifest: &Manifest) -> Self {
        let needs = RefCell::new(Self::default());
        needs.borrow_mut().damage = manifest
            .packs
            .iter()
            .filter_map(|pack| look.unsound.get(pack).copied())
            .collect();
        let find = |digest: Digest| {
            let place = look.place(manifest, &digest);
            let bad = place.and_then(|(pack, _)| look.bad.get(&(pack, digest)));
            needs.borrow_mut().damage.extend(bad);
            place.ok_or(ReadError::NoObject(digest))
        };
        let read = |digest: Digest| {
            let (pack, location) = find(digest)?;
            let path = store.pack_path(pack);
            let file = File::open(&path).map_err(FileError::of("open", &path))?;
            pack::read_object(&file, &path, digest, location)
        };
        for root in reach::roots(manifest) {
            // To its end, to tell all that is damaged, so far as the root itself can be read.
            let mut missing = None;
            let followed = root.follow(read, |digest| {
                if let Err(error) = find(digest) {
                    missing.get_or_insert(error);
                }
                Ok(())
            });
            if let Some(error) = followed.err().or(missing) {
                let mut needs = needs.borrow_mut();
                if needs.damage.is_empty() {
                    needs.why.get_or_insert(error.to_string());
                }
            }
        }
        needs.into_inner()
    }
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}
