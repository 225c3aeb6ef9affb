// SPDX-License-Identifier: Apache-2.0

//! Histories that begin as a copy of another.

mod support;

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use crab_store::*;
use support::*;

fn copy_id(name: &str) -> SandboxId {
    SandboxId::new("default", name).unwrap()
}

fn fork(store: &Store, parent: &SandboxStore, turn: u64, name: &str) -> SandboxStore {
    let manifest = parent.manifest(TurnId(turn)).unwrap().unwrap();
    let fork = Fork {
        parent,
        turn: TurnId(turn),
        manifest: &manifest,
        upper: Some("/upper"),
        now_ms: 1_700_000_001_000,
    };
    store.fork(&copy_id(name), &fork).unwrap()
}

fn head(sandbox: &SandboxStore) -> Vec<u8> {
    let manifest = sandbox.head().unwrap().unwrap();
    content(sandbox, &manifest).unwrap()
}

fn packs_of(root: &Path, name: &str) -> Vec<u64> {
    let dir = root.join("sandboxes/default").join(name).join("packs");
    let files = fs::read_dir(dir).unwrap();
    files
        .map(|it| it.unwrap().metadata().unwrap().ino())
        .collect()
}

#[test]
fn a_copy_is_whole_shares_its_packs_and_says_of_whom_it_is() {
    let (dir, store) = store();
    let writer = store.writer(&id()).unwrap();
    for turn in 0..3 {
        checkpoint(&writer, turn, &noise(turn, 100_000)).unwrap();
    }
    let copy = fork(&store, writer.store(), 1, "copy");
    assert_eq!(head(&copy), noise(1, 100_000));
    let shared = packs_of(dir.path(), "copy");
    let all = packs_of(dir.path(), "demo");
    assert!((1..all.len()).contains(&shared.len()));
    assert!(shared.iter().all(|pack| all.contains(pack)));

    let records = copy.journal().unwrap().records;
    let [JournalRecord::Fork(origin), JournalRecord::Turn(start)] = &records[..] else {
        panic!("{records:?}");
    };
    assert_eq!((&origin.from, origin.turn), (&id(), TurnId(1)));
    assert_eq!((start.turn, start.checkpoint), (TurnId(0), Some(TurnId(0))));
    assert_eq!(copy.next_turn().unwrap(), TurnId(1));
    let wish = copy.restore_request().unwrap().unwrap();
    assert!(wish.fork && wish.checkpoint == TurnId(0));
    assert_eq!(copy.meta().unwrap().unwrap().snapshot[UPPER], "/upper");
    assert!(
        store
            .writer(&copy_id("copy"))
            .unwrap()
            .store()
            .check(&mut |_, _| {})
            .unwrap()
            .damage
            .is_empty()
    );
}

#[test]
fn neither_removals_nor_the_end_of_the_parent_touch_a_copy() {
    let (_dir, store) = store();
    let writer = store.writer(&id()).unwrap();
    for turn in 0..3 {
        checkpoint(&writer, turn, &noise(turn, 100_000)).unwrap();
        writer
            .append(JournalRecord::Turn(turn_record(turn)), Durability::Lazy)
            .unwrap();
    }
    let copy = fork(&store, writer.store(), 1, "copy");
    let below = fork(&store, &copy, 0, "below");
    let removed = writer.collect(&keep(0)).unwrap();
    assert!(removed.removed.contains_key(&TurnId(1)));
    // All of it is the copy's as well: nothing is free.
    assert_eq!(removed.bytes_freed, 0);
    assert_eq!(removed.packs_replaced, 0);
    drop(writer);
    assert_eq!(head(&copy), noise(1, 100_000));
    store.remove(&id()).unwrap();
    store.remove(copy.id()).unwrap();
    assert_eq!(head(&below), noise(1, 100_000));
    // And its own writer goes on from there.
    let writer = store.writer(below.id()).unwrap();
    let mut pack = writer.begin().unwrap();
    let content = pack.put_stream(&mut &noise(1, 100_000)[..]).unwrap();
    let upper = pack.put_tree(&tree_with(content)).unwrap();
    let spec = pack.put(b"{}").unwrap();
    let mut next = manifest(1, upper, spec);
    next.sandbox = below.id().clone();
    // What it has from its parent is not stored again.
    assert!(pack.publish(next).unwrap().bytes_stored < 50_000);
}

#[test]
fn a_history_of_an_earlier_sandbox_of_that_name_is_put_aside() {
    let (_dir, store) = store();
    let writer = store.writer(&id()).unwrap();
    checkpoint(&writer, 0, b"parent").unwrap();
    drop(store.writer(&copy_id("copy")).unwrap());
    let copy = fork(&store, writer.store(), 0, "copy");
    assert_eq!(head(&copy), b"parent");
    assert_eq!(store.sandboxes().unwrap().len(), 3);
    // One that somebody writes to is not.
    let _busy = store.writer(copy.id()).unwrap();
    let manifest = writer.store().manifest(TurnId(0)).unwrap().unwrap();
    let again = Fork {
        parent: writer.store(),
        turn: TurnId(0),
        manifest: &manifest,
        upper: None,
        now_ms: 1,
    };
    let refused = store.fork(copy.id(), &again);
    assert!(matches!(
        refused,
        Err(ForkError::Open(OpenError::Locked(_)))
    ));
    assert_eq!(store.sandboxes().unwrap().len(), 3);
}

#[test]
fn nothing_is_left_of_a_copy_that_cannot_be_made() {
    let (dir, store) = store();
    let writer = store.writer(&id()).unwrap();
    let gone = checkpoint(&writer, 0, b"parent").unwrap();
    let namespace = dir.path().join("sandboxes/default");
    fs::remove_file(
        namespace
            .join("demo/manifests")
            .join(format!("{:020}.json", 0)),
    )
    .unwrap();
    let fork = Fork {
        parent: writer.store(),
        turn: TurnId(0),
        manifest: &gone,
        upper: None,
        now_ms: 1,
    };
    let refused = store.fork(&copy_id("copy"), &fork);
    assert!(matches!(
        refused,
        Err(ForkError::Read(ReadError::NoCheckpoint { .. }))
    ));
    assert_eq!(fs::read_dir(namespace).unwrap().count(), 1);
}

#[test]
fn what_killed_processes_left_goes_and_what_is_being_made_stays() {
    use rustix::fs::{FlockOperation, flock};
    let (dir, store) = store();
    let writer = store.writer(&id()).unwrap();
    let bytes = noise(1, 100_000);
    checkpoint(&writer, 0, &bytes).unwrap();
    let namespace = dir.path().join("sandboxes/default");
    let left = |name: &str| {
        let packs = namespace.join(name).join("packs");
        fs::create_dir_all(&packs).unwrap();
        fs::write(packs.join("a.pack"), &bytes).unwrap();
        namespace.join(name)
    };
    // By a process that is gone, by one whose number another has by now, and half removed.
    let gone = left("copy~fork.4194305");
    let again = left(&format!("other~fork.{}", std::process::id()));
    let removed = left("old~17");
    let made = left("made~fork.1");
    let making = fs::File::open(&made).unwrap();
    flock(&making, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert!(matches!(store.sweep(), (3, None)));
    assert!(!gone.exists() && !again.exists() && !removed.exists());
    assert!(made.join("packs/a.pack").exists());
    assert_eq!(store.sandboxes().unwrap(), [id()]);

    // The next fork does so by itself, and its own directory is locked by nobody.
    flock(&making, FlockOperation::Unlock).unwrap();
    let copy = fork(&store, writer.store(), 0, "copy");
    assert!(!made.exists());
    assert_eq!(head(&copy), bytes);
    let dir = fs::File::open(namespace.join("copy")).unwrap();
    flock(&dir, FlockOperation::NonBlockingLockExclusive).unwrap();
}
