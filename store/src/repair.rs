// SPDX-License-Identifier: Apache-2.0

//! Putting a damaged history right: what is left of it is whole, and nothing is deleted.
//!
//! ```text
//! damaged/<n>/    what was put aside by the nth repair, under its name
//! ```
//!
//! 1. A pack of which the index or some objects are damaged is built anew from the objects
//!    that are sound, under its own name: each object is preceded by a header of its own. So
//!    damage to an index costs no checkpoint.
//! 2. Checkpoints that then still lack something are put aside, with the packs that only they
//!    need.
//! 3. So are damaged tags, and whatever names a checkpoint that is not there.
//! 4. The journal is written anew from its whole records.
//!
//! Each file is copied or moved aside before anything takes its place, so that a crash in
//! between costs nothing and the next repair goes on.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    path::{Path, PathBuf},
    time::Duration,
};

use crab_fault::Point;
use serde::Serialize;

use crate::{
    check::{Checked, Look, Part},
    digest::Digest,
    durable,
    error::{FileError, OpenError, ReadError},
    id::TurnId,
    journal::{self, JournalWriter},
    locks::{self, Pace},
    manifest::packs_of,
    pack::{self, Location},
    pack_file::PackFile,
    record::RemovedRecord,
    sandbox::SandboxStore,
    store::Store,
    writer::{self, packs},
};

/// For how long readers are waited for, and how often it is looked.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// What a repair did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Repaired {
    /// What was wrong.
    pub found: Checked,
    /// What is there now.
    pub now: Checked,
    /// Where the damaged things are; nothing if there were none.
    pub aside: Option<PathBuf>,
    /// The checkpoints that were put aside.
    pub lost: BTreeSet<TurnId>,
}

impl Store {
    /// Puts a sandbox's history right, if nobody writes to it. It ends early where a container is
    /// about to begin, and the next one goes on with it.
    pub fn repair(
        &self,
        sandbox: &SandboxStore,
        now_ms: u64,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Repaired, OpenError> {
        let _lock = writer::lock(sandbox)?;
        let mut repair = Repair {
            store: sandbox,
            aside: None,
            pace: Pace::yielding(sandbox),
        };
        let look = look(sandbox, progress)?;
        let found = look.checked.clone();
        if !found.is_whole() {
            let _alone = without_readers(sandbox)?;
            repair.packs(&found)?;
        }
        // What is lost is told by what is there now.
        let look = look_again(sandbox, look)?;
        let lost = look.checked.lost.clone();
        if !lost.is_empty() {
            let _alone = without_readers(sandbox)?;
            repair.checkpoints(&look)?;
        }
        repair.rest(&look.checked)?;
        let look = look_again(sandbox, look)?;
        repair.promises(&look.checked)?;
        repair.journal(&look, &lost, now_ms)?;
        crab_fault::at(Point::Repaired);
        // Nothing was changed where nothing was wrong.
        let now = match found.damage.is_empty() {
            true => found.clone(),
            false => self::look(sandbox, progress)?.checked,
        };
        Ok(Repaired {
            found,
            now,
            aside: repair.aside,
            lost,
        })
    }
}

fn look(store: &SandboxStore, progress: &mut dyn FnMut(u64, u64)) -> Result<Look, ReadError> {
    let look = Look::at(store, &mut Pace::yielding(store), progress)?;
    match look.newer {
        // What a later version wrote is not this one's to judge.
        Some(newer) => Err(newer),
        None => Ok(look),
    }
}

/// The right to change packs. Whoever looks at them takes a lock of its own, so this is held
/// for no look.
fn without_readers(store: &SandboxStore) -> Result<locks::Held, OpenError> {
    let held = locks::sweeping_within(store, PATIENCE, PAUSE)?;
    held.ok_or_else(|| OpenError::Locked(store.id().clone()))
}

/// The same again, unless nothing was changed.
fn look_again(store: &SandboxStore, before: Look) -> Result<Look, ReadError> {
    if before.checked.damage.is_empty() {
        return Ok(before);
    }
    look(store, &mut |_, _| {})
}

struct Repair<'a> {
    store: &'a SandboxStore,
    /// Made when there is something to put into it.
    aside: Option<PathBuf>,
    pace: Pace<'a>,
}

impl Repair<'_> {
    /// Where a file is put aside.
    fn place(&mut self, path: &Path) -> Result<PathBuf, FileError> {
        let dir = match &self.aside {
            Some(dir) => dir.clone(),
            None => {
                let all = self.store.aside_dir();
                let used = durable::names(&all)?;
                let last = used
                    .iter()
                    .filter_map(|name| name.parse::<u64>().ok())
                    .max();
                let dir = all.join(last.map_or(1, |last| last + 1).to_string());
                self.aside.insert(dir).clone()
            }
        };
        let own = path.strip_prefix(self.store.dir()).unwrap_or(path);
        let place = dir.join(own);
        let parent = place.parent().unwrap_or(&dir);
        if !parent.is_dir() {
            durable::create_dir(parent)?;
            // Up to the sandbox's own: what is moved there must not be lost with its directory.
            let above = parent.ancestors().skip(1);
            for dir in above.take_while(|dir| dir.starts_with(self.store.dir())) {
                durable::sync_dir(dir)?;
            }
        }
        Ok(place)
    }

    /// Moves a file aside, if it is there.
    fn put_aside(&mut self, path: &Path) -> Result<(), FileError> {
        if !path.exists() {
            return Ok(());
        }
        let place = self.place(path)?;
        if place.exists() {
            // As it was before it was built anew from what in it is sound.
            durable::remove(path)?;
            return durable::sync_dir(path.parent().unwrap_or(path));
        }
        fs::rename(path, &place).map_err(FileError::of("put aside", path))?;
        for dir in [place.parent(), path.parent()].into_iter().flatten() {
            durable::sync_dir(dir)?;
        }
        Ok(())
    }

    /// Has a file aside that stays where it is, too, until another takes its place.
    fn keep_aside(&mut self, path: &Path) -> Result<(), FileError> {
        let place = self.place(path)?;
        fs::hard_link(path, &place).map_err(FileError::of("put aside", path))?;
        durable::sync_dir(place.parent().unwrap_or(path))
    }

    /// Builds damaged packs anew from what in them is sound.
    fn packs(&mut self, found: &Checked) -> Result<(), OpenError> {
        let damaged = found.damage.iter();
        let damaged: BTreeSet<&PathBuf> = damaged
            .filter(|damage| matches!(damage.part, Part::Pack | Part::Object))
            .map(|damage| &damage.path)
            .filter(|path| path.exists())
            .collect();
        for path in damaged {
            let sound = match pack::read_index(path) {
                Ok(objects) => sound_objects(path, objects, &mut self.pace)?,
                Err(_) => pack::salvage(path)?,
            };
            if sound.is_empty() {
                self.put_aside(path)?;
                continue;
            }
            self.keep_aside(path)?;
            crab_fault::at(Point::RepairPackAside);
            let from = File::open(path).map_err(FileError::of("open", path))?;
            let temporary = durable::temporary(path)?;
            let mut anew = PackFile::create(temporary.clone())?;
            for (digest, location) in &sound {
                self.pace.go_on()?;
                let Ok(stored) = pack::read_stored(&from, path, *digest, *location) else {
                    continue;
                };
                anew.append(*digest, location.raw_len, location.method(), &stored)?;
            }
            anew.finish()?;
            crab_fault::at(Point::RepairPackCopied);
            fs::rename(&temporary, path).map_err(FileError::of("publish", path))?;
            crab_fault::at(Point::RepairPackReplaced);
            durable::sync_dir(&self.store.packs_dir())?;
        }
        Ok(())
    }

    /// Puts aside what cannot be brought back, and the packs that only it needs.
    fn checkpoints(&mut self, look: &Look) -> Result<(), FileError> {
        let lost = &look.checked.lost;
        // First the packs: one without a manifest would be taken for a leftover by the next
        // writer, and removed.
        let kept = look.manifests.iter().filter(|m| !lost.contains(&m.turn));
        let needed = packs_of(kept);
        for pack in packs(self.store)? {
            if !needed.contains(&pack) {
                self.put_aside(&self.store.pack_path(pack))?;
            }
        }
        crab_fault::at(Point::RepairPacksAside);
        for turn in lost {
            self.put_aside(&self.store.manifest_path(*turn))?;
            crab_fault::at(Point::RepairManifestAside);
        }
        Ok(())
    }

    /// What is neither pack nor manifest nor journal, and damaged in itself.
    fn rest(&mut self, found: &Checked) -> Result<(), FileError> {
        self.all_of(found, &[Part::Meta])
    }

    /// Tags and wishes, now that it is known which checkpoints are left.
    fn promises(&mut self, found: &Checked) -> Result<(), FileError> {
        let parts = [Part::Tag, Part::RestoreRequest, Part::Rollback, Part::Spare];
        self.all_of(found, &parts)
    }

    fn all_of(&mut self, found: &Checked, parts: &[Part]) -> Result<(), FileError> {
        for damage in &found.damage {
            if parts.contains(&damage.part) {
                self.put_aside(&damage.path)?;
                crab_fault::at(Point::RepairSmallAside);
            }
        }
        Ok(())
    }

    /// Writes the journal anew where it is damaged, and has it say what was put aside.
    fn journal(
        &mut self,
        look: &Look,
        lost: &BTreeSet<TurnId>,
        now_ms: u64,
    ) -> Result<(), OpenError> {
        let path = self.store.journal_path();
        if let Some(sound) = &look.journal
            && !sound.faults.is_empty()
        {
            self.keep_aside(&path)?;
            crab_fault::at(Point::RepairJournalAside);
            durable::replace(&path, &sound.whole)?;
            crab_fault::at(Point::RepairJournalReplaced);
        }
        if lost.is_empty() {
            return Ok(());
        }
        let mut writer = JournalWriter::open(&path)?;
        let turns: Vec<TurnId> = lost.iter().copied().collect();
        let why = "it was damaged, and put aside by crab fsck";
        for record in RemovedRecord::all(&turns, why, now_ms) {
            // The journal tells it to people; what is left is whole without.
            if writer.append(record, journal::Durability::Synced).is_err() {
                break;
            }
        }
        Ok(())
    }
}

/// Those objects whose bytes have their digest.
fn sound_objects(
    path: &Path,
    objects: Vec<(Digest, Location)>,
    pace: &mut Pace<'_>,
) -> Result<Vec<(Digest, Location)>, ReadError> {
    let file = File::open(path).map_err(FileError::of("open", path))?;
    let mut sound = Vec::new();
    for (digest, location) in objects {
        pace.go_on()?;
        if pack::read_object(&file, path, digest, location).is_ok() {
            sound.push((digest, location));
        }
    }
    Ok(sound)
}
