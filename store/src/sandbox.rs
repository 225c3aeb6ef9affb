// SPDX-License-Identifier: Apache-2.0

//! One sandbox's history, for reading. Changes nothing but the restore request.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{
    durable,
    envelope::Envelope,
    error::{Around, ReadError, WriteError},
    id::{PackId, SandboxId, TurnId},
    journal::{self, Journal},
    layers::ImageLayers,
    life::{self, Life},
    lineage::{self, Holder},
    locks,
    manifest::Manifest,
    reader::ObjectReader,
    record::JournalRecord,
    retention::Limits,
};

pub(crate) const MANIFEST: Envelope = Envelope {
    magic: "crab-manifest",
    version: 1,
};
pub(crate) const META: Envelope = Envelope {
    magic: "crab-sandbox",
    version: 1,
};
pub(crate) const RESTORE: Envelope = Envelope {
    magic: "crab-restore",
    version: 1,
};

const JOURNAL_FILE: &str = "journal";
const MANIFESTS_DIR: &str = "manifests";
const MANIFEST_SUFFIX: &str = ".json";
const PACKS_DIR: &str = "packs";
pub(crate) const PACK_SUFFIX: &str = ".pack";
pub(crate) const META_FILE: &str = "meta.json";
pub(crate) const RESTORE_FILE: &str = "restore";
const ASIDE_DIR: &str = "damaged";
pub(crate) const LOCK_FILE: &str = "lock";
pub(crate) const RESTORING_FILE: &str = "restoring";

/// Who asked containerd for the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Client {
    /// dockerd.
    Docker,
    /// A client of containerd's own API.
    Containerd,
    /// The CRI: a container of a pod.
    Kubernetes,
}

impl Client {
    /// The word that users see.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Containerd => "containerd",
            Self::Kubernetes => "kubernetes",
        }
    }
}

/// What is known of a sandbox as such.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxMeta {
    /// Whose sandbox it is.
    pub client: Client,
    /// What its client calls it, where the shim learned it; for people to read.
    #[serde(default)]
    pub name: Option<String>,
    /// The image's name, where the shim learned it.
    #[serde(default)]
    pub image: Option<String>,
    /// The shim's bundle directory.
    pub bundle: String,
    /// When it was created, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// What the shim knows of the root file system's snapshot.
    #[serde(default)]
    pub snapshot: BTreeMap<String, String>,
    /// Where its image lies, where the shim could tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<ImageLayers>,
    /// What of its configuration was not followed, and why, a line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub config_faults: Vec<String>,
    /// How much of its history it wants kept itself, where that is less than the host keeps.
    #[serde(default, skip_serializing_if = "Limits::is_none")]
    pub limits: Limits,
}

/// A wish that the sandbox's next start restores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreRequest {
    /// To the state at the end of this turn.
    pub turn: TurnId,
    /// The checkpoint that holds it.
    pub checkpoint: TurnId,
    /// When it was asked for, in milliseconds since the Unix epoch.
    pub requested_ms: u64,
    /// It has never run: it begins so, as a copy of another.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fork: bool,
}

/// Checkpoints, oldest first, with the reason for each that is damaged.
pub type Manifests = Vec<(TurnId, Result<Manifest, ReadError>)>;

/// One sandbox of a store.
#[derive(Clone, Debug)]
pub struct SandboxStore {
    id: SandboxId,
    dir: PathBuf,
}

impl SandboxStore {
    pub(crate) fn at(id: SandboxId, dir: PathBuf) -> Self {
        Self { id, dir }
    }

    /// Whose history it is.
    pub fn id(&self) -> &SandboxId {
        &self.id
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn journal_path(&self) -> PathBuf {
        self.dir.join(JOURNAL_FILE)
    }

    pub(crate) fn manifests_dir(&self) -> PathBuf {
        self.dir.join(MANIFESTS_DIR)
    }

    pub(crate) fn packs_dir(&self) -> PathBuf {
        self.dir.join(PACKS_DIR)
    }

    pub(crate) fn meta_path(&self) -> PathBuf {
        self.dir.join(META_FILE)
    }

    /// Where a repair puts what is damaged.
    pub(crate) fn aside_dir(&self) -> PathBuf {
        self.dir.join(ASIDE_DIR)
    }

    pub(crate) fn pack_path(&self, pack: PackId) -> PathBuf {
        self.packs_dir().join(format!("{pack}{PACK_SUFFIX}"))
    }

    pub(crate) fn manifest_path(&self, turn: TurnId) -> PathBuf {
        // 20 digits hold any turn, so that names sort as numbers.
        self.manifests_dir()
            .join(format!("{:020}{MANIFEST_SUFFIX}", turn.0))
    }

    /// The journal.
    pub fn journal(&self) -> Result<Journal, ReadError> {
        journal::read(&self.journal_path())
    }

    /// The turns that have a checkpoint of their own.
    pub fn checkpoints(&self) -> Result<BTreeSet<TurnId>, ReadError> {
        let names = durable::names(&self.manifests_dir())?;
        let turn = |name: &String| name.strip_suffix(MANIFEST_SUFFIX)?.parse().ok();
        Ok(names.iter().filter_map(turn).collect())
    }

    /// The checkpoint of exactly this turn; nothing if there is none.
    pub fn manifest(&self, turn: TurnId) -> Result<Option<Manifest>, ReadError> {
        let path = self.manifest_path(turn);
        self.own(turn, MANIFEST.load(&path)?)
    }

    /// A manifest, if it is that of this turn and this sandbox.
    pub(crate) fn own(
        &self,
        turn: TurnId,
        manifest: Option<Manifest>,
    ) -> Result<Option<Manifest>, ReadError> {
        match &manifest {
            Some(found) if found.turn != turn || !self.id.is_or_was(&found.sandbox) => {
                Err(ReadError::Damaged {
                    path: self.manifest_path(turn),
                    why: format!("it is that of turn {} of {}", found.turn, found.sandbox),
                })
            }
            _ => Ok(manifest),
        }
    }

    /// All checkpoints, oldest first, with the reason for each that is damaged.
    pub fn manifests(&self) -> Result<Manifests, ReadError> {
        let turns = self.checkpoints()?;
        let load = |turn| (turn, self.manifest(turn).transpose());
        let found = turns.into_iter().map(load);
        Ok(found
            .filter_map(|(turn, manifest)| Some((turn, manifest?)))
            .collect())
    }

    /// The newest checkpoint by number, also of a branch that was left. See
    /// [`SandboxStore::head`] for the state that the sandbox was last in.
    pub fn latest(&self) -> Result<Option<Manifest>, ReadError> {
        self.newest_at_or_before(TurnId(u64::MAX))
    }

    /// The newest checkpoint by number at or before a turn, also of a branch
    /// that was left. See [`SandboxStore::checkpoint_of`] for a turn's state.
    pub fn newest_at_or_before(&self, turn: TurnId) -> Result<Option<Manifest>, ReadError> {
        match self.checkpoints()?.range(..=turn).next_back() {
            Some(turn) => self.manifest(*turn),
            None => Ok(None),
        }
    }

    /// The checkpoint that holds the state which the sandbox was last in, as
    /// far as it was published: rollbacks counted.
    pub fn head(&self) -> Result<Option<Manifest>, ReadError> {
        match lineage::head(&self.journal()?.records, &self.checkpoints()?) {
            Some(turn) => self.manifest(turn),
            None => Ok(None),
        }
    }

    /// The checkpoint that holds the state at the end of `turn`, rollbacks
    /// counted.
    pub fn checkpoint_of(&self, turn: TurnId) -> Result<Manifest, ReadError> {
        let journal = self.journal()?;
        let published = self.checkpoints()?;
        let missing = |why, before, after| ReadError::NoCheckpoint {
            sandbox: self.id.clone(),
            turn,
            why,
            left: Box::new(Around { before, after }),
        };
        match lineage::holder(&journal.records, &published, turn) {
            Holder::Checkpoint(checkpoint) => self
                .manifest(checkpoint)?
                .ok_or_else(|| missing("it has just been removed".to_owned(), None, None)),
            Holder::Missing { why, before, after } => Err(missing(why, before, after)),
            Holder::NoTurn => Err(ReadError::NoTurn {
                sandbox: self.id.clone(),
                turn,
                newest: newest(&journal, &published),
            }),
        }
    }

    /// Whether anything of a history is there, other than what a killed import has left.
    pub(crate) fn is_begun(&self) -> bool {
        let has_checkpoint = || !self.checkpoints().is_ok_and(|it| it.is_empty());
        match self.journal() {
            Ok(Journal {
                records,
                damaged: 0,
            }) => match &records[..] {
                // Its turn comes last. A fork is there with its turn, or not at all. What somebody
                // has named or wants to have back is none of these: its journal was cut.
                [JournalRecord::Fork(_)] => {
                    let is_named = || !self.tags().is_ok_and(|tags| tags.is_empty());
                    let is_wanted = || !matches!(self.restore_request(), Ok(None));
                    is_named() || is_wanted() || self.aside_dir().exists()
                }
                // Of earlier versions, the checkpoint came last.
                [] | [JournalRecord::Fork(_), _] => has_checkpoint(),
                _ => true,
            },
            _ => true,
        }
    }

    /// That there is no checkpoint at all.
    pub(crate) fn no_checkpoint(&self) -> ReadError {
        ReadError::NoCheckpoint {
            sandbox: self.id.clone(),
            turn: TurnId(0),
            why: "it has none".to_owned(),
            left: Box::default(),
        }
    }

    /// Whether it ended or was lost, as far as the journal says.
    ///
    /// # Errors
    /// When the journal cannot be read. One of which a part is damaged may lack the end.
    pub fn life(&self) -> Result<Life, ReadError> {
        let journal = self.journal()?;
        if journal.damaged > 0 {
            return Err(ReadError::Damaged {
                path: self.journal_path(),
                why: "some of its records are gone".to_owned(),
            });
        }
        Ok(life::life(&journal.records, &self.checkpoints()?))
    }

    /// The number for the next turn: never one that was used before.
    pub fn next_turn(&self) -> Result<TurnId, ReadError> {
        let newest = newest(&self.journal()?, &self.checkpoints()?);
        Ok(newest.map_or(TurnId(0), TurnId::next))
    }

    /// Reads the objects of a checkpoint.
    pub fn reader(&self, manifest: &Manifest) -> Result<ObjectReader, ReadError> {
        ObjectReader::new(self.clone(), manifest)
    }

    /// What is known of the sandbox; nothing if no shim wrote it down yet.
    pub fn meta(&self) -> Result<Option<SandboxMeta>, ReadError> {
        META.load(&self.meta_path())
    }

    pub(crate) fn write_meta(&self, meta: &SandboxMeta) -> Result<(), WriteError> {
        self.write_small(META_FILE, &META, meta)
    }

    /// Asks that the next start of the sandbox restores it.
    pub fn request_restore(&self, request: RestoreRequest) -> Result<(), WriteError> {
        let _none_goes = locks::checkpoints(self)?;
        self.write_small(RESTORE_FILE, &RESTORE, &request)
    }

    /// The wish that is open, if any.
    pub fn restore_request(&self) -> Result<Option<RestoreRequest>, ReadError> {
        RESTORE.load(&self.dir.join(RESTORE_FILE))
    }

    /// Takes the wish back. Whether there was one.
    pub fn cancel_restore(&self) -> Result<bool, WriteError> {
        let path = self.dir.join(RESTORE_FILE);
        let was_there = path.exists();
        durable::remove(&path)?;
        Ok(was_there)
    }

    /// Takes the wish, so that it is granted at most once, even if it turns
    /// out to be unreadable.
    pub fn take_restore_request(&self) -> Result<Option<RestoreRequest>, ReadError> {
        let request = self.restore_request();
        durable::remove(&self.dir.join(RESTORE_FILE))?;
        request
    }

    pub(crate) fn write_small<T: Serialize>(
        &self,
        name: &str,
        envelope: &Envelope,
        body: &T,
    ) -> Result<(), WriteError> {
        let bytes = envelope.seal(body).map_err(|error| WriteError::Value {
            what: "record of the sandbox",
            why: error.to_string(),
        })?;
        Ok(durable::replace(&self.dir.join(name), &bytes)?)
    }
}

fn newest(journal: &Journal, published: &BTreeSet<TurnId>) -> Option<TurnId> {
    let said = journal.records.iter().filter_map(JournalRecord::turn);
    said.chain(published.last().copied()).max()
}
