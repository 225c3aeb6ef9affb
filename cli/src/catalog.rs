// SPDX-License-Identifier: Apache-2.0

//! What was read of sandboxes' histories, remembered, so that `crab ps` and `crab du` need
//! not read every journal and every manifest of a host each time.
//!
//! ```text
//! catalog.sqlite    <namespace>/<id> -> { stamp, summary, usage }, and the digest of that
//! ```
//!
//! The store is the truth. A row is believed only if its own bytes are as they were written,
//! and the sandbox's [`Stamp`] is still the one that is in it; anything else is read anew. The
//! file can be deleted at any time, and is made anew where it cannot be used.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    time::Duration,
};

use crab_store::{Digest, SandboxId, SandboxStore, Stamp, Store, Usage};
use rusqlite::{Connection, ErrorCode, OptionalExtension, params};
use serde::{Deserialize, Serialize};

use crate::ps::Summary;

const FILE: &str = "catalog.sqlite";
/// Another one is of another version of Crab, and of no use.
const VERSION: i32 = 1;
/// For how long another `crab` that writes is waited for.
const PATIENCE: Duration = Duration::from_millis(200);

/// What is remembered of a sandbox.
#[derive(Default, Serialize, Deserialize)]
struct Row {
    stamp: Option<Stamp>,
    summary: Option<Summary>,
    usage: Option<Usage>,
}

/// The catalog, for one command.
pub(crate) struct Catalog {
    database: Option<Connection>,
    /// What was read anew.
    new: BTreeMap<SandboxId, Row>,
}

impl Catalog {
    /// That of a store. Whatever is wrong with it, there is one, if only an empty one.
    pub(crate) fn of(store: &Store) -> Self {
        let path = store.root().join(FILE);
        Self {
            database: open(&path),
            new: BTreeMap::new(),
        }
    }

    /// One that remembers nothing.
    pub(crate) fn none() -> Self {
        Self {
            database: None,
            new: BTreeMap::new(),
        }
    }

    /// What the store says of a sandbox, remembered or read by `read`.
    pub(crate) fn summary<E>(
        &mut self,
        sandbox: &SandboxStore,
        read: impl FnOnce(&SandboxStore) -> Result<Summary, E>,
    ) -> Result<Summary, E> {
        self.get(sandbox, |row| &mut row.summary, read)
    }

    /// What a sandbox takes of the disk, likewise.
    pub(crate) fn usage<E>(
        &mut self,
        sandbox: &SandboxStore,
        read: impl FnOnce(&SandboxStore) -> Result<Usage, E>,
    ) -> Result<Usage, E> {
        self.get(sandbox, |row| &mut row.usage, read)
    }

    fn get<T: Clone, E>(
        &mut self,
        sandbox: &SandboxStore,
        part: impl Fn(&mut Row) -> &mut Option<T>,
        read: impl FnOnce(&SandboxStore) -> Result<T, E>,
    ) -> Result<T, E> {
        // Before it is read: what changes meanwhile makes the row a stale one.
        let stamp = sandbox.stamp();
        let mut row = self.row(sandbox.id()).unwrap_or_default();
        if stamp.is_none() || row.stamp != stamp {
            row = Row {
                stamp: stamp.clone(),
                ..Row::default()
            };
        }
        if let Some(known) = part(&mut row) {
            return Ok(known.clone());
        }
        let found = read(sandbox)?;
        if stamp.is_some() {
            *part(&mut row) = Some(found.clone());
            self.new.insert(sandbox.id().clone(), row);
        }
        Ok(found)
    }

    fn row(&self, id: &SandboxId) -> Option<Row> {
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let (digest, bytes): ([u8; 32], Vec<u8>) = self
            .database
            .as_ref()?
            .prepare("SELECT digest, row FROM sandboxes WHERE id = ?1")
            .and_then(|mut query| query.query_row([id.to_string()], read).optional())
            .ok()??;
        let is_whole = Digest::of(&bytes).0 == digest;
        is_whole.then(|| serde_json::from_slice(&bytes).ok())?
    }

    /// Keeps what was read anew, and forgets the sandboxes that are not in the store.
    pub(crate) fn keep(mut self, known: &[SandboxId]) {
        if !self.new.is_empty() {
            // What cannot be remembered is read again.
            let _ = self.write(known);
        }
    }

    fn write(&mut self, known: &[SandboxId]) -> rusqlite::Result<()> {
        let Some(database) = &mut self.database else {
            return Ok(());
        };
        let known: BTreeSet<String> = known.iter().map(SandboxId::to_string).collect();
        let writing = database.transaction()?;
        {
            let mut query = writing.prepare("SELECT id FROM sandboxes")?;
            let there = query.query_map([], |row| row.get::<_, String>(0))?;
            let gone: Vec<String> = there
                .filter_map(Result::ok)
                .filter(|id| !known.contains(id))
                .collect();
            let mut delete = writing.prepare("DELETE FROM sandboxes WHERE id = ?1")?;
            for id in gone {
                delete.execute([id])?;
            }
            let mut insert =
                writing.prepare("INSERT OR REPLACE INTO sandboxes VALUES (?1, ?2, ?3)")?;
            for (id, row) in &self.new {
                if let Ok(bytes) = serde_json::to_vec(row) {
                    insert.execute(params![id.to_string(), Digest::of(&bytes).0, bytes])?;
                }
            }
        }
        writing.commit()
    }
}

/// Removes the catalog of a store, which the next command makes anew.
pub(crate) fn forget(store: &Store) {
    let _ = fs::remove_file(store.root().join(FILE));
}

fn open(path: &Path) -> Option<Connection> {
    match connect(path) {
        Ok(database) => Some(database),
        // By another `crab`, or not for this user.
        Err(error) if !is_unusable(&error) => None,
        Err(_) => {
            fs::remove_file(path).ok()?;
            connect(path).ok()
        }
    }
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let database = Connection::open(path)?;
    database.busy_timeout(PATIENCE)?;
    // It is only remembered: after a power cut it may be read anew.
    database.pragma_update(None, "synchronous", "OFF")?;
    let version: i32 = database.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if version != VERSION {
        database.execute_batch(&format!(
            "BEGIN IMMEDIATE;
             DROP TABLE IF EXISTS sandboxes;
             CREATE TABLE sandboxes (id TEXT PRIMARY KEY, digest BLOB, row BLOB) WITHOUT ROWID;
             PRAGMA user_version = {VERSION};
             COMMIT;"
        ))?;
    }
    // Reads every page.
    let found: String = database.pragma_query_value(None, "quick_check", |row| row.get(0))?;
    if found == "ok" {
        Ok(database)
    } else {
        let corrupt = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
        Err(rusqlite::Error::SqliteFailure(corrupt, Some(found)))
    }
}

/// Whether it is the file's own fault.
fn is_unusable(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
    )
}
