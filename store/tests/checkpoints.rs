// SPDX-License-Identifier: Apache-2.0

//! What goes into the store comes out of it, once.

mod support;

use std::{
    fs,
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
};

use std::time::Duration;

use crab_store::*;
use support::*;

#[test]
fn a_checkpoint_comes_back_as_it_was() {
    let (_dir, store) = store();
    let writer = store.writer(&id()).unwrap();
    let mut pack = writer.begin().unwrap();

    let bytes = noise(1, 3 * CHUNK + 77);
    let content = pack.put_stream(&mut bytes.as_slice()).unwrap();
    let mut tree = tree_with(content.clone());
    tree.entries.extend([
        entry(b"file-\xff\xfe", EntryKind::Fifo),
        entry(b"gone", EntryKind::CharDevice { rdev: 0 }),
        entry(
            b"hard",
            EntryKind::HardLink {
                to: b"file".to_vec(),
            },
        ),
        entry(
            b"link",
            EntryKind::Symlink {
                target: b"../..".to_vec(),
            },
        ),
        entry(b"loop0", EntryKind::BlockDevice { rdev: 7 << 8 }),
        entry(b"sock", EntryKind::Socket),
    ]);
    let upper = pack.put_tree(&tree).unwrap();
    let image = process_image(vec![ImageFile {
        name: "pages-1.img".to_owned(),
        size: content.size,
        content: content.segments.clone(),
    }]);
    let processes = pack.put_process_image(&image).unwrap();
    let spec = pack.put(b"{}").unwrap();
    let mut draft = manifest(3, upper, spec);
    draft.processes = Some(ProcessRef {
        turn: TurnId(3),
        digest: processes,
    });
    draft.files.tmpfs = vec![TmpfsTree {
        mount: b"/dev/shm\xff".to_vec(),
        tree: upper,
    }];
    let published = pack.publish(draft).unwrap();
    assert_eq!(published.packs.len(), 1);
    assert!(published.bytes_raw > published.bytes_stored / 2);
    drop(writer);

    let store = Store::open(store.root()).unwrap();
    let sandbox = store.sandbox(&id()).unwrap();
    let found = sandbox.latest().unwrap().unwrap();
    assert_eq!(found, published);
    let reader = sandbox.reader(&found).unwrap();
    assert_eq!(reader.tree(found.files.upper).unwrap(), tree);
    assert_eq!(
        reader
            .process_image(found.processes.unwrap().digest)
            .unwrap(),
        image
    );
    assert_eq!(reader.get(found.spec).unwrap(), b"{}");
    assert_eq!(support::content(&sandbox, &found).unwrap(), bytes);
    // One kind of object is not taken for another.
    assert!(reader.tree(processes).is_err());
    assert!(reader.get(Digest::of(b"never stored")).is_err());
}

#[test]
fn what_the_sandbox_has_is_not_stored_again() {
    let (dir, store) = store();
    let bytes = noise(1, 8 * CHUNK);
    let first = {
        let writer = store.writer(&id()).unwrap();
        checkpoint(&writer, 0, &bytes).unwrap()
    };
    // Also not by a writer that has to read from disk what there is.
    let writer = store.writer(&id()).unwrap();
    let same = checkpoint(&writer, 1, &bytes).unwrap();
    assert_eq!(same.packs, first.packs);
    assert_eq!(same.bytes_stored, 0);
    assert_eq!(same.bytes_raw, first.bytes_raw);
    assert_eq!(names(dir.path(), "packs").len(), 1);

    let mut changed = bytes.clone();
    changed[5 * CHUNK] ^= 1;
    let third = checkpoint(&writer, 2, &changed).unwrap();
    assert_eq!(third.packs.len(), 2);
    assert!(third.bytes_stored < 2 * CHUNK as u64, "{third:?}");
    for (manifest, bytes) in [(first, &bytes), (same, &bytes), (third, &changed)] {
        assert_eq!(&content(writer.store(), &manifest).unwrap(), bytes);
    }
}

#[test]
fn what_compresses_is_compressed() {
    let (_dir, store) = store();
    let writer = store.writer(&id()).unwrap();
    let text = "all work and no play makes crab a dull daemon\n".repeat(100_000);
    let manifest = checkpoint(&writer, 0, text.as_bytes()).unwrap();
    assert!(
        manifest.bytes_stored < manifest.bytes_raw / 20,
        "{manifest:?}"
    );
    assert_eq!(content(writer.store(), &manifest).unwrap(), text.as_bytes());
}

#[test]
fn holes_stay_holes_and_cost_nothing() {
    let (dir, store) = store();
    let writer = store.writer(&id()).unwrap();
    let sparse = fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(dir.path().join("sparse"))
        .unwrap();
    // Seen from inside a container, any size is possible.
    let size = 1 << 42;
    sparse.set_len(size).unwrap();
    sparse.write_all_at(b"one", 5 << 30).unwrap();
    sparse.write_all_at(b"two", (1 << 41) + 12_345).unwrap();
    // Zeros that occupy the disk.
    sparse.write_all_at(&vec![0; 4 * CHUNK], 1 << 20).unwrap();

    let mut pack = writer.begin().unwrap();
    let content = pack.put_file(&sparse).unwrap();
    assert_eq!(content.size, size);
    assert_eq!(content.segments.len(), 2, "{content:?}");
    let upper = pack.put_tree(&tree_with(content.clone())).unwrap();
    let spec = pack.put(b"{}").unwrap();
    let manifest = pack.publish(manifest(0, upper, spec)).unwrap();

    let restored = tempfile::tempfile_in(dir.path()).unwrap();
    restored.write_all_at(b"what was there before", 0).unwrap();
    let reader = writer.store().reader(&manifest).unwrap();
    reader
        .read_segments(&content.segments, size, &restored)
        .unwrap();
    let metadata = restored.metadata().unwrap();
    assert_eq!(metadata.len(), size);
    assert!(metadata.blocks() * 512 <= 64 << 10, "{}", metadata.blocks());
    let mut three = [0; 3];
    restored.read_exact_at(&mut three, 0).unwrap();
    assert_eq!(three, [0; 3]);
    restored.read_exact_at(&mut three, 5 << 30).unwrap();
    assert_eq!(&three, b"one");
    restored
        .read_exact_at(&mut three, (1 << 41) + 12_345)
        .unwrap();
    assert_eq!(&three, b"two");
}

#[test]
fn contents_of_every_awkward_length_come_back() {
    let (_dir, store) = store();
    let writer = store.writer(&id()).unwrap();
    let lengths = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK];
    for (turn, len) in lengths.into_iter().enumerate() {
        for zero in [false, true] {
            let turn = 2 * turn as u64 + u64::from(zero);
            let bytes = if zero { vec![0; len] } else { noise(turn, len) };
            let manifest = checkpoint(&writer, turn, &bytes).unwrap();
            assert_eq!(content(writer.store(), &manifest).unwrap(), bytes, "{len}");
        }
    }
}

#[test]
fn a_tree_larger_than_an_object_comes_back() {
    let (_dir, store) = store();
    let writer = store.writer(&id()).unwrap();
    let mut pack = writer.begin().unwrap();
    let mut tree = Tree::default();
    for number in 0..100_000u32 {
        let mut path = format!("{number:06}").into_bytes();
        path.resize(200, b'x');
        tree.entries.push(entry(&path, EntryKind::Fifo));
    }
    let upper = pack.put_tree(&tree).unwrap();
    let spec = pack.put(b"{}").unwrap();
    let manifest = pack.publish(manifest(0, upper, spec)).unwrap();
    let reader = writer.store().reader(&manifest).unwrap();
    assert_eq!(reader.tree(upper).unwrap(), tree);
}

#[test]
fn bad_values_are_refused_before_anything_is_written() {
    let (dir, store) = store();
    let writer = store.writer(&id()).unwrap();
    let mut pack = writer.begin().unwrap();
    let escaping = Tree {
        entries: vec![entry(b"../etc", EntryKind::Dir)],
    };
    assert!(matches!(pack.put_tree(&escaping), Err(WriteError::Tree(_))));
    let image = process_image(vec![ImageFile {
        name: "../evil".to_owned(),
        size: 0,
        content: Vec::new(),
    }]);
    assert!(pack.put_process_image(&image).is_err());
    let large = vec![0; MAX_OBJECT + 1];
    assert!(matches!(pack.put(&large), Err(WriteError::TooLarge { .. })));
    assert!(names(dir.path(), "packs").is_empty());
}

#[test]
fn a_manifest_with_a_dangling_reference_is_not_published() {
    let (dir, store) = store();
    let writer = store.writer(&id()).unwrap();
    let mut pack = writer.begin().unwrap();
    let spec = pack.put(b"{}").unwrap();
    let tree = tree_with(Content {
        size: 1,
        segments: vec![Segment {
            offset: 0,
            len: 1,
            digest: Digest::of(b"?"),
        }],
    });
    let upper = pack.put_tree(&tree).unwrap();
    let error = pack.publish(manifest(0, upper, spec)).unwrap_err();
    assert!(matches!(
        error,
        WriteError::Incomplete(ReadError::NoObject(_))
    ));
    assert!(names(dir.path(), "packs").is_empty());
    assert!(names(dir.path(), "manifests").is_empty());
}

#[test]
fn a_turn_is_published_once() {
    let (dir, store) = store();
    let writer = store.writer(&id()).unwrap();
    checkpoint(&writer, 1, b"one").unwrap();
    let again = checkpoint(&writer, 1, b"another");
    assert!(matches!(again, Err(WriteError::TurnExists(TurnId(1)))));
    assert_eq!(names(dir.path(), "packs").len(), 1);
    let manifest = writer.store().latest().unwrap().unwrap();
    assert_eq!(content(writer.store(), &manifest).unwrap(), b"one");
}

#[test]
fn checkpoints_in_flight_do_not_disturb_each_other() {
    let (_dir, store) = store();
    let writer = store.writer(&id()).unwrap();
    let shared = noise(0, 4 * CHUNK);
    std::thread::scope(|scope| {
        for turn in 0..4 {
            let (writer, shared) = (&writer, &shared);
            scope.spawn(move || {
                let bytes = [shared.clone(), noise(turn, CHUNK)].concat();
                checkpoint(writer, turn, &bytes).unwrap();
            });
        }
    });
    for turn in 0..4 {
        let manifest = writer.store().manifest(TurnId(turn)).unwrap().unwrap();
        let bytes = content(writer.store(), &manifest).unwrap();
        assert_eq!(bytes, [shared.clone(), noise(turn, CHUNK)].concat());
    }
}

#[test]
fn a_sandbox_has_one_writer_and_any_readers() {
    let (_dir, store) = store();
    let writer = store.writer(&id()).unwrap();
    assert!(matches!(store.writer(&id()), Err(OpenError::Locked(_))));
    assert!(matches!(store.remove(&id()), Err(OpenError::Locked(_))));
    assert!(store.sandbox(&id()).unwrap().latest().unwrap().is_none());
    // A checkpoint in flight holds the lock as well.
    let pack = writer.begin().unwrap();
    drop(writer);
    assert!(matches!(store.writer(&id()), Err(OpenError::Locked(_))));
    drop(pack);
    store.writer(&id()).unwrap();
    assert_eq!(store.sandboxes().unwrap(), [id()]);
    store.remove(&id()).unwrap();
    assert_eq!(store.sandboxes().unwrap(), []);
    assert!(matches!(store.sandbox(&id()), Err(OpenError::NoSandbox(_))));
}

#[test]
fn a_retired_history_makes_room_and_stays_readable() {
    let (_dir, store) = store();
    for expected in ["default/demo.0", "default/demo.1"] {
        let writer = store.writer(&id()).unwrap();
        assert_eq!(writer.store().next_turn().unwrap(), TurnId(0));
        checkpoint(&writer, 0, expected.as_bytes()).unwrap();
        assert!(matches!(
            store.retire_within(&id(), Duration::ZERO),
            Err(OpenError::Locked(_))
        ));
        drop(writer);
        let retired = store.retire_within(&id(), Duration::ZERO).unwrap();
        assert_eq!(retired.to_string(), expected);
        let sandbox = store.sandbox(&retired).unwrap();
        let manifest = sandbox.latest().unwrap().unwrap();
        let bytes = content(&sandbox, &manifest).unwrap();
        assert_eq!(bytes, expected.as_bytes());
        assert!(matches!(store.sandbox(&id()), Err(OpenError::NoSandbox(_))));
    }
}

#[test]
fn history_survives_its_writer() {
    let (_dir, store) = store();
    let meta = SandboxMeta {
        layers: None,
        client: Client::Docker,
        name: None,
        image: Some("busybox".to_owned()),
        bundle: "/run/b".to_owned(),
        created_ms: 5,
        snapshot: [("upperdir".to_owned(), "/u".to_owned())].into(),
        config_faults: vec!["one".to_owned()],
        limits: Limits::default(),
    };
    let writer = store.writer(&id()).unwrap();
    assert_eq!(writer.store().next_turn().unwrap(), TurnId(0));
    assert_eq!(writer.store().meta().unwrap(), None);
    writer.set_meta(&meta).unwrap();
    for turn in 0..3 {
        checkpoint(&writer, turn, &[turn as u8]).unwrap();
        let record = JournalRecord::Turn(turn_record(turn));
        writer.append(record, Durability::Synced).unwrap();
    }
    let back = RollbackRecord {
        at_ms: 9,
        from: TurnId(2),
        asked: TurnId(1),
        checkpoint: TurnId(1),
        processes: false,
        took_us: 4,
        warm: false,
    };
    writer
        .append(JournalRecord::Rollback(back), Durability::Lazy)
        .unwrap();
    drop(writer);

    let sandbox = store.sandbox(&id()).unwrap();
    assert_eq!(sandbox.meta().unwrap(), Some(meta));
    assert_eq!(sandbox.journal().unwrap().records.len(), 4);
    assert_eq!(sandbox.next_turn().unwrap(), TurnId(3));
    assert_eq!(sandbox.head().unwrap().unwrap().turn, TurnId(1));
    assert_eq!(sandbox.latest().unwrap().unwrap().turn, TurnId(2));
    assert_eq!(sandbox.checkpoint_of(TurnId(2)).unwrap().turn, TurnId(2));
    let error = sandbox.checkpoint_of(TurnId(9)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "default/demo has no turn 9, its newest is 2"
    );
}

#[test]
fn a_restore_request_is_granted_once() {
    let (_dir, store) = store();
    let writer = store.writer(&id()).unwrap();
    let sandbox = store.sandbox(&id()).unwrap();
    let request = RestoreRequest {
        turn: TurnId(4),
        checkpoint: TurnId(3),
        requested_ms: 1,
        fork: false,
    };
    assert_eq!(writer.store().take_restore_request().unwrap(), None);
    sandbox.request_restore(request).unwrap();
    assert_eq!(sandbox.restore_request().unwrap(), Some(request));
    assert_eq!(
        writer.store().take_restore_request().unwrap(),
        Some(request)
    );
    assert_eq!(writer.store().take_restore_request().unwrap(), None);
    sandbox.request_restore(request).unwrap();
    assert!(sandbox.cancel_restore().unwrap());
    assert!(!sandbox.cancel_restore().unwrap());
}

#[test]
fn the_store_is_for_root_alone_and_takes_no_foreign_directory() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(
        Store::open(dir.path()),
        Err(OpenError::NoStore(_))
    ));
    let root = dir.path().join("a/b");
    fs::create_dir_all(&root).unwrap();
    let store = Store::create(&root).unwrap();
    let writer = store.writer(&id()).unwrap();
    checkpoint(&writer, 0, b"secret").unwrap();
    let mut left = vec![root.clone()];
    while let Some(path) = left.pop() {
        let metadata = fs::symlink_metadata(&path).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o077, 0, "{path:?}");
        if metadata.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
        }
    }

    assert!(matches!(
        Store::create(dir.path()),
        Err(OpenError::NotAStore(_))
    ));
    fs::write(root.join("FORMAT"), "crab-store 2\n").unwrap();
    for opened in [Store::open(&root), Store::create(&root)] {
        assert!(matches!(
            opened,
            Err(OpenError::NewerFormat { found: 2, .. })
        ));
    }
}
