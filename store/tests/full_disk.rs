// SPDX-License-Identifier: Apache-2.0

//! A full disk stops new checkpoints and harms nothing else.

mod support;

use std::{fs, io, path::Path};

use crab_store::*;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use support::*;

/// A small file system, gone with the test.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new(bytes: u64) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: mounting a small disk needs root");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let options = std::ffi::CString::new(format!("size={bytes},mode=700")).unwrap();
        mount("tmpfs", dir.path(), "tmpfs", MountFlags::empty(), &*options).unwrap();
        Some(Self(dir))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Fills what is left of it, but for so many pages.
    fn fill(&self, leave: usize) {
        let mut kept = 0;
        for number in 0.. {
            match fs::write(self.path().join(format!("filler-{number}")), [1; 4096]) {
                Ok(()) => kept = number,
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
                    break;
                }
            }
        }
        let first = kept + 2 - (leave + 1).min(kept + 1);
        for number in first..=kept + 1 {
            let _ = fs::remove_file(self.path().join(format!("filler-{number}")));
        }
    }

    fn empty(&self) {
        for entry in fs::read_dir(self.path()).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name().to_string_lossy().starts_with("filler") {
                fs::remove_file(entry.path()).unwrap();
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if let Err(error) = unmount(self.path(), UnmountFlags::DETACH) {
            eprintln!("cannot unmount {}: {error}", self.path().display());
        }
    }
}

#[test]
fn a_full_disk_at_any_step_leaves_the_older_checkpoint_and_no_rubbish() {
    let Some(disk) = SmallDisk::new(8 << 20) else {
        return;
    };
    let root = disk.path().join("store");
    let store = Store::create(&root).unwrap();
    let writer = store.writer(&id()).unwrap();
    let first = noise(0, 1 << 20);
    checkpoint(&writer, 0, &first).unwrap();
    let packs = names(&root, "packs");
    let manifests = names(&root, "manifests");

    let (mut failed, mut turn) = (0, 1);
    for leave in 0..48 {
        disk.fill(leave);
        // About 35 pages: pack, manifest.
        match checkpoint(&writer, turn, &noise(turn, CHUNK)) {
            Ok(_) => turn += 1,
            Err(error) => {
                failed += 1;
                assert!(error.is_no_space(), "{error}");
                if turn == 1 {
                    assert_eq!(names(&root, "packs"), packs, "leaving {leave}");
                    assert_eq!(names(&root, "manifests"), manifests);
                }
            }
        }
        let manifest = writer.store().manifest(TurnId(0)).unwrap().unwrap();
        assert_eq!(content(writer.store(), &manifest).unwrap(), first);
        disk.empty();
    }
    assert!(failed > 20, "{failed} failed");
    assert!(turn > 2, "{turn} published");
    let last = writer.store().latest().unwrap().unwrap();
    assert_eq!(last.turn, TurnId(turn - 1));
    let bytes = content(writer.store(), &last).unwrap();
    assert_eq!(bytes, noise(turn - 1, CHUNK));
}

#[test]
fn a_checkpoint_that_met_a_full_disk_gives_the_space_back_at_once() {
    let Some(disk) = SmallDisk::new(4 << 20) else {
        return;
    };
    let root = disk.path().join("store");
    let store = Store::create(&root).unwrap();
    let writer = store.writer(&id()).unwrap();
    let mut pack = writer.begin().unwrap();
    let error = pack
        .put_stream(&mut noise(1, 8 << 20).as_slice())
        .unwrap_err();
    assert!(matches!(error, WriteError::NoSpace(_)), "{error}");
    assert!(error.to_string().starts_with("no space left: cannot write"));
    // Before it is dropped: the shim may hold it for a while.
    assert!(names(&root, "packs").is_empty());
    assert!(matches!(pack.put(b"more"), Err(WriteError::GivenUp)));
    checkpoint(&writer, 0, &noise(2, 1 << 20)).unwrap();
}

#[test]
fn a_journal_on_a_full_disk_stays_whole() {
    let Some(disk) = SmallDisk::new(1 << 20) else {
        return;
    };
    let root = disk.path().join("store");
    let store = Store::create(&root).unwrap();
    let writer = store.writer(&id()).unwrap();
    disk.fill(1);
    let mut kept = 0;
    let error = loop {
        let mut record = turn_record(kept);
        record.command = "x".repeat(1000);
        match writer.append(JournalRecord::Turn(record), Durability::Synced) {
            Ok(()) => kept += 1,
            Err(error) => break error,
        }
    };
    assert!(error.is_no_space(), "{error}");
    disk.empty();
    writer
        .append(JournalRecord::Turn(turn_record(kept)), Durability::Synced)
        .unwrap();
    let journal = writer.store().journal().unwrap();
    assert_eq!(journal.records.len() as u64, kept + 1);
    assert_eq!(journal.damaged, 0);
}
