// SPDX-License-Identifier: Apache-2.0

//! The root of the store: what format it has and which sandboxes are in it.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};

use crate::{
    durable,
    error::{FileError, OpenError},
    id::SandboxId,
    locks,
    sandbox::SandboxStore,
    version,
    writer::{self, SandboxWriter},
};

const FORMAT_FILE: &str = "FORMAT";
const FORMAT_MAGIC: &str = "crab-store ";
const FORMAT_VERSION: u32 = 1;
/// How often a lock is tried.
const PAUSE: Duration = Duration::from_millis(20);
const SANDBOXES_DIR: &str = "sandboxes";

/// Where the store is if nobody says otherwise.
pub const DEFAULT_ROOT: &str = "/var/lib/crab";

/// A store on disk.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
}

impl Store {
    /// Opens a store for reading. Changes nothing.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, OpenError> {
        let root = root.into();
        match check_format(&root)? {
            true => Ok(Self { root }),
            false => Err(OpenError::NoStore(root)),
        }
    }

    /// Opens a store, and makes it if the directory is missing or empty. It is
    /// for root alone: memory images hold secrets.
    pub fn create(root: impl Into<PathBuf>) -> Result<Self, OpenError> {
        let root = root.into();
        durable::create_dir(&root)?;
        if !check_format(&root)? {
            // Another process may be doing the same just now.
            let foreign = |name: &String| !name.starts_with(FORMAT_FILE) && name != SANDBOXES_DIR;
            if durable::names(&root)?.iter().any(foreign) {
                return Err(OpenError::NotAStore(root));
            }
            let format = format!("{FORMAT_MAGIC}{FORMAT_VERSION}\n");
            durable::replace(&root.join(FORMAT_FILE), format.as_bytes())?;
        }
        fs::set_permissions(&root, Permissions::from_mode(0o700))
            .map_err(FileError::of("protect", &root))?;
        Ok(Self { root })
    }

    /// Whether the file that says what format it has is as it was written, to the byte. Its
    /// sandboxes are checked one by one ([`SandboxStore::check`]).
    pub fn check(&self) -> Result<(), OpenError> {
        let path = self.root.join(FORMAT_FILE);
        let written = format!("{FORMAT_MAGIC}{FORMAT_VERSION}\n");
        match durable::read(&path, 4096)? {
            Some(bytes) if bytes == written.as_bytes() => Ok(()),
            _ => Err(OpenError::FormatChanged { path, written }),
        }
    }

    /// Its directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The directory of the directories of namespaces, in which those of sandboxes are.
    pub fn sandboxes_dir(&self) -> PathBuf {
        self.root.join(SANDBOXES_DIR)
    }

    pub(crate) fn at(&self, id: &SandboxId) -> SandboxStore {
        let dir = self.root.join(SANDBOXES_DIR);
        let dir = dir.join(id.namespace()).join(id.id());
        SandboxStore::at(id.clone(), dir)
    }

    /// The directories that sandboxes are in.
    pub(crate) fn namespaces(&self) -> Result<Vec<PathBuf>, FileError> {
        let root = self.root.join(SANDBOXES_DIR);
        let names = durable::names(&root)?.into_iter();
        let dirs = names.map(|name| root.join(name));
        Ok(dirs.filter(|dir| dir.is_dir()).collect())
    }

    /// Every sandbox in it, sorted.
    pub fn sandboxes(&self) -> Result<Vec<SandboxId>, OpenError> {
        let mut found = Vec::new();
        for dir in self.namespaces()? {
            let namespace = dir.file_name().and_then(|name| name.to_str());
            let namespace = namespace.unwrap_or_default();
            // What is no identifier is not ours, or half removed.
            let ids = durable::names(&dir)?;
            found.extend(
                ids.iter()
                    .filter_map(|id| SandboxId::new(namespace, id).ok()),
            );
        }
        found.sort_unstable();
        Ok(found)
    }

    /// A sandbox's history, for reading.
    pub fn sandbox(&self, id: &SandboxId) -> Result<SandboxStore, OpenError> {
        let store = self.at(id);
        if store.dir().is_dir() {
            Ok(store)
        } else {
            Err(OpenError::NoSandbox(id.clone()))
        }
    }

    /// The writer of a sandbox's history, which it makes if there is none.
    pub fn writer(&self, id: &SandboxId) -> Result<SandboxWriter, OpenError> {
        SandboxWriter::open(self.at(id))
    }

    /// The same, and waits so long if somebody else writes to it.
    pub fn writer_within(
        &self,
        id: &SandboxId,
        patience: Duration,
    ) -> Result<SandboxWriter, OpenError> {
        self.within(id, patience, || self.writer(id))
    }

    /// Tries until nobody else writes to it, or patience ends. A removal or a repair that is
    /// under way there ends early.
    fn within<T>(
        &self,
        id: &SandboxId,
        patience: Duration,
        open: impl Fn() -> Result<T, OpenError>,
    ) -> Result<T, OpenError> {
        let began = Instant::now();
        let mut waiting = None;
        loop {
            match open() {
                Err(OpenError::Locked(_)) if began.elapsed() < patience => {}
                opened => return opened,
            }
            if waiting.is_none() {
                waiting = Some(locks::wanted(&self.at(id))?);
            }
            sleep(PAUSE);
        }
    }

    /// Keeps a sandbox's history under a name of its own (`<id>.<when>`), so that
    /// another sandbox can have the name. Tells which. Waits so long if somebody writes to it.
    pub fn retire_within(
        &self,
        id: &SandboxId,
        patience: Duration,
    ) -> Result<SandboxId, OpenError> {
        self.within(id, patience, || {
            writer::retire(&self.sandbox(id)?, |retired| self.at(retired))
        })
    }

    /// Removes a sandbox's history, if nobody writes to it.
    pub fn remove(&self, id: &SandboxId) -> Result<(), OpenError> {
        writer::remove(&self.sandbox(id)?)
    }
}

/// Whether there is a store that this version can use.
fn check_format(root: &Path) -> Result<bool, OpenError> {
    let path = root.join(FORMAT_FILE);
    let Some(bytes) = durable::read(&path, 4096)? else {
        return Ok(false);
    };
    let found = str::from_utf8(&bytes)
        .ok()
        .and_then(|text| text.strip_prefix(FORMAT_MAGIC))
        .and_then(|text| text.trim_end().parse::<u32>().ok());
    match found {
        Some(found) if found > FORMAT_VERSION && version::is_one(found) => {
            Err(OpenError::NewerFormat {
                path,
                found,
                known: FORMAT_VERSION,
            })
        }
        Some(1..=FORMAT_VERSION) => Ok(true),
        Some(_) => Err(OpenError::FormatChanged {
            path,
            written: format!("{FORMAT_MAGIC}{FORMAT_VERSION}"),
        }),
        None => Err(OpenError::NotAStore(root.to_owned())),
    }
}
