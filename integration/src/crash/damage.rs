// SPDX-License-Identifier: Apache-2.0

//! Bits flipped and files cut, of every kind that a store has.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use crab_store::{Class, DEFAULT_ROOT, RestoreRequest, SandboxId, Store, TurnId};

use super::state;
use crate::{
    client::RunOptions,
    proof::Chance,
    testbed::{BUSYBOX, Testbed},
};

/// What came of it.
#[derive(Debug, Default)]
pub struct Damaged {
    /// How often something was damaged.
    pub times: usize,
    /// The same by the kind of file.
    pub by: BTreeMap<String, usize>,
    /// What was not found, a line each.
    pub missed: Vec<String>,
}

/// What has no truth of its own: the lock is empty, and the catalog is what was read of the
/// rest, checked by whoever reads it.
const NOT_TRUTH: [&str; 2] = ["lock", "catalog.sqlite"];

/// Damages files of a store so often, one at a time, and puts each right again: those of a
/// sandbox that is gone, and the store's own.
pub fn damage(testbed: &Testbed, times: usize, seed: u64) -> Result<Damaged> {
    let sandbox = leave_a_history(testbed)?;
    let root = Path::new(DEFAULT_ROOT);
    let finds = || finds(root, &sandbox);
    ensure!(finds()?.is_none(), "it is damaged already");
    let kinds = kinds(root, &sandbox)?;
    let names: Vec<&String> = kinds.keys().collect();
    let mut chance = Chance::new(seed);
    let mut damaged = Damaged::default();
    while damaged.times < times {
        // Each kind as often as the others, however few there are.
        let kind = chance.of(&names);
        let files: Vec<&PathBuf> = kinds[kind].iter().collect();
        let path = chance.of(&files);
        let whole = fs::read(path).with_context(|| format!("read {}", path.display()))?;
        let (what, bytes) = changed(&whole, &mut chance);
        if bytes == whole {
            continue;
        }
        fs::write(path, &bytes)?;
        let found = finds();
        fs::write(path, &whole)?;
        damaged.times += 1;
        *damaged.by.entry(kind.clone()).or_default() += 1;
        if found?.is_none() {
            damaged.missed.push(format!("{}: {what}", path.display()));
        }
    }
    Ok(damaged)
}

/// That of a sandbox, with everything that one can have.
fn leave_a_history(testbed: &Testbed) -> Result<SandboxId> {
    let crab = testbed.crab();
    let sandbox = testbed.ctr().run(BUSYBOX, RunOptions::new())?;
    for number in 1..=4 {
        crab.turn_of(&sandbox, Class::Files, &state::script(number))?;
    }
    let id = sandbox.sandbox_id();
    crab.json(&["tag", &id, "2", "good"])?;
    drop(sandbox);
    let id: SandboxId = id.parse()?;
    Store::open(DEFAULT_ROOT)?
        .sandbox(&id)?
        .request_restore(RestoreRequest {
            turn: TurnId(3),
            checkpoint: TurnId(3),
            requested_ms: 1,
            fork: false,
        })?;
    Ok(id)
}

/// How a journal's record begins.
const RECORD: &[u8] = b"\xffCJ\xfe";

/// Cut, or with one bit flipped.
fn changed(whole: &[u8], chance: &mut Chance) -> (String, Vec<u8>) {
    let mut bytes = whole.to_vec();
    let mut at = chance.within(0..whole.len() as u64) as usize;
    if chance.once_in(3) {
        // Between records is where a journal ends whose writer has died.
        if whole[at..].starts_with(RECORD) {
            at += 1;
        }
        bytes.truncate(at);
        return (format!("cut at {at} of {}", whole.len()), bytes);
    }
    let bit = chance.within(0..8);
    bytes[at] ^= 1 << bit;
    (format!("bit {bit} of byte {at} of {}", whole.len()), bytes)
}

/// What of the store is damaged, in one line; nothing if all is whole.
fn finds(root: &Path, sandbox: &SandboxId) -> Result<Option<String>> {
    let store = match Store::open(root).and_then(|store| store.check().map(|()| store)) {
        Ok(store) => store,
        Err(error) => return Ok(Some(error.to_string())),
    };
    Ok(match store.sandbox(sandbox)?.check(&mut |_, _| {}) {
        Err(error) => Some(error.to_string()),
        // Also what looks like a record that was never written to its end.
        Ok(checked) if !checked.damage.is_empty() => Some(format!("{:?}", checked.damage)),
        Ok(_) => None,
    })
}

/// The files that hold something, by their kind: the directory that they are in, or their name.
fn kinds(root: &Path, sandbox: &SandboxId) -> Result<BTreeMap<String, Vec<PathBuf>>> {
    let mut found = BTreeMap::from([("FORMAT".to_owned(), vec![root.join("FORMAT")])]);
    let mut dirs = vec![root.join("sandboxes").join(sandbox.to_string())];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).with_context(|| format!("list {}", dir.display()))? {
            let path = entry?.path();
            let name = |path: &Path| {
                path.file_name()
                    .map(|name| name.to_string_lossy().into_owned())
            };
            if path.is_dir() {
                dirs.push(path);
                continue;
            }
            let own = name(&path).context("a file without a name")?;
            if NOT_TRUTH.contains(&own.as_str()) || fs::metadata(&path)?.len() == 0 {
                continue;
            }
            let above =
                name(&dir).filter(|dir| ["manifests", "packs", "tags"].contains(&dir.as_str()));
            found.entry(above.unwrap_or(own)).or_default().push(path);
        }
    }
    for kind in [
        "journal",
        "manifests",
        "meta.json",
        "packs",
        "restore",
        "tags",
    ] {
        ensure!(found.contains_key(kind), "there is nothing of {kind}");
    }
    Ok(found)
}
