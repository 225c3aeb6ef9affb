// SPDX-License-Identifier: Apache-2.0

//! What the store takes in, in a second of one processor: hashed, compressed, written and
//! synced.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result};
use crab_store::{
    Class, Content, EntryKind, FileImage, Manifest, SandboxId, Store, Time, Tree, TreeEntry, TurnId,
};

use super::{Measured, Plan};
use crate::series::median;

const DIR: &str = "/var/tmp/crab-bench-store";
const BYTES: u64 = 512 << 20;
const ROUNDS: usize = 5;

/// Removes the directory again.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(super) fn measure(plan: &Plan, measured: &mut Measured) -> Result<()> {
    let _ = fs::remove_dir_all(DIR);
    fs::create_dir(DIR).with_context(|| format!("make {DIR}"))?;
    let scratch = Scratch(DIR.into());
    let programs = scratch.0.join("programs");
    collect("/usr", &programs)?;
    let random = scratch.0.join("random");
    let mut source = File::open("/dev/urandom")?;
    io::copy(
        &mut io::Read::take(&mut source, BYTES),
        &mut File::create(&random)?,
    )?;
    let rates = |what: &Path| -> Result<f64> {
        let rates = (0..plan.rounds.min(ROUNDS)).map(|_| rate(&scratch.0, what));
        Ok(median(&rates.collect::<Result<Vec<f64>>>()?))
    };
    measured.enter("store_mb_s", rates(&programs)?);
    let random = rates(&random)?;
    measured.detail("store: bytes that do not compress, MB/s", random);
    Ok(())
}

/// Programs, libraries and scripts of this machine, one after the other.
fn collect(from: &str, into: &Path) -> Result<()> {
    let mut file = File::create(into)?;
    let mut left = BYTES;
    let mut pending = vec![PathBuf::from(from)];
    while let Some(dir) = pending.pop() {
        let mut entries: Vec<_> = fs::read_dir(&dir)?.collect::<io::Result<_>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let kind = entry.file_type()?;
            if kind.is_dir() {
                pending.push(entry.path());
            } else if kind.is_file() && left > 0 {
                let mut bytes = fs::read(entry.path())?;
                bytes.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                left -= bytes.len() as u64;
                file.write_all(&bytes)?;
            }
        }
    }
    Ok(file.sync_all()?)
}

/// Stores a file as a checkpoint of a new store.
fn rate(scratch: &Path, what: &Path) -> Result<f64> {
    let root = scratch.join("store");
    let store = Store::create(&root)?;
    let id = SandboxId::new("bench", "store")?;
    let writer = store.writer(&id)?;
    let file = File::open(what)?;
    // From the page cache.
    io::copy(&mut File::open(what)?, &mut io::sink())?;
    let start = Instant::now();
    let mut pack = writer.begin()?;
    let Content { size, segments } = pack.put_file(&file)?;
    let entry = TreeEntry {
        path: b"file".to_vec(),
        kind: EntryKind::File {
            size,
            content: segments,
        },
        mode: 0o644,
        uid: 0,
        gid: 0,
        mtime: Time::default(),
        xattrs: Vec::new(),
    };
    let upper = pack.put_tree(&Tree {
        entries: vec![entry],
    })?;
    let spec = pack.put(b"{}")?;
    pack.publish(Manifest {
        sandbox: id,
        turn: TurnId(0),
        class: Class::Files,
        created_ms: 0,
        parent: None,
        files: FileImage {
            turn: TurnId(0),
            upper,
            whole: false,
            tmpfs: Vec::new(),
        },
        processes: None,
        degraded: None,
        spec,
        packs: Vec::new(),
        bytes_stored: 0,
        bytes_raw: 0,
        machine: None,
    })?;
    let took = start.elapsed();
    drop(writer);
    fs::remove_dir_all(&root)?;
    Ok(size as f64 / 1e6 / took.as_secs_f64())
}
