// SPDX-License-Identifier: Apache-2.0

//! Whatever changes on disk is found, exactly, and put right without losing more.

mod support;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use crab_store::*;
use support::*;

struct Fixture {
    _dir: tempfile::TempDir,
    store: Store,
    /// The sandbox's directory.
    at: PathBuf,
}

/// Three checkpoints: each leans on the specification that came with 0, and 2 has a process
/// image and the files of 1.
fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(dir.path()).unwrap();
    let writer = store.writer(&id()).unwrap();
    writer
        .set_meta(&SandboxMeta {
            client: Client::Containerd,
            name: None,
            image: None,
            bundle: "/b".to_owned(),
            created_ms: 1,
            snapshot: Default::default(),
            layers: None,
            config_faults: Vec::new(),
            limits: Limits::default(),
        })
        .unwrap();
    checkpoint(&writer, 0, &bytes_of(0)).unwrap();
    let files = checkpoint(&writer, 1, &bytes_of(1)).unwrap().files;
    let mut pack = writer.begin().unwrap();
    let memory = pack.put_stream(&mut noise(9, 900).as_slice()).unwrap();
    let image = process_image(vec![ImageFile {
        name: "pages-1.img".to_owned(),
        size: memory.size,
        content: memory.segments,
    }]);
    let digest = pack.put_process_image(&image).unwrap();
    let spec = pack.put(b"{\"ociVersion\":\"1.2.0\"}").unwrap();
    let mut full = manifest(2, files.upper, spec);
    full.processes = Some(ProcessRef {
        turn: TurnId(2),
        digest,
    });
    pack.publish(full).unwrap();
    for turn in 0..3 {
        let record = JournalRecord::Turn(turn_record(turn));
        writer.append(record, Durability::Lazy).unwrap();
    }
    let mut nothing = turn_record(3);
    nothing.checkpoint = Some(TurnId(2));
    let record = JournalRecord::Turn(nothing);
    writer.append(record, Durability::Lazy).unwrap();
    let name: TagName = "good".parse().unwrap();
    writer.store().set_tag(&name, TurnId(1), 1).unwrap();
    drop(writer);
    Fixture {
        at: dir.path().join("sandboxes/default/demo"),
        _dir: dir,
        store,
    }
}

fn bytes_of(turn: u64) -> Vec<u8> {
    noise(turn, 700)
}

impl Fixture {
    fn sandbox(&self) -> SandboxStore {
        self.store.sandbox(&id()).unwrap()
    }

    fn check(&self) -> Checked {
        self.sandbox().check(&mut |_, _| {}).unwrap()
    }

    fn repair(&self) -> Repaired {
        self.store
            .repair(&self.sandbox(), 77, &mut |_, _| {})
            .unwrap()
    }

    /// Every file of the sandbox's that holds something.
    fn files(&self) -> Vec<PathBuf> {
        fn below(dir: &Path, found: &mut Vec<PathBuf>) {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => below(&path, found),
                    false if fs::metadata(&path).unwrap().len() > 0 => found.push(path),
                    false => {}
                }
            }
        }
        let mut found = Vec::new();
        below(&self.at, &mut found);
        found.sort();
        found
    }

    fn manifest(&self, turn: u64) -> PathBuf {
        self.at.join(format!("manifests/{turn:020}.json"))
    }

    /// The pack that a checkpoint added.
    fn pack_of(&self, turn: u64) -> PathBuf {
        let packs = |turn: u64| -> BTreeSet<PackId> {
            let manifest = self.sandbox().manifest(TurnId(turn)).unwrap().unwrap();
            manifest.packs.into_iter().collect()
        };
        let mut own = packs(turn);
        for older in 0..turn {
            own = own.difference(&packs(older)).copied().collect();
        }
        let own: Vec<PackId> = own.into_iter().collect();
        assert_eq!(own.len(), 1);
        self.at.join(format!("packs/{}.pack", own[0]))
    }

    /// What of the checkpoints can be read whole.
    fn readable(&self) -> Vec<u64> {
        let sandbox = self.sandbox();
        let whole = |manifest: &Manifest| -> Result<(), ReadError> {
            let reader = sandbox.reader(manifest)?;
            content(&sandbox, manifest)?;
            if let Some(processes) = manifest.processes {
                for segment in reader.process_image(processes.digest)?.segments() {
                    reader.get(segment.digest)?;
                }
            }
            Ok(())
        };
        let manifests = sandbox.manifests().unwrap().into_iter();
        let whole = manifests.filter(|(_, m)| m.as_ref().is_ok_and(|m| whole(m).is_ok()));
        whole.map(|(turn, _)| turn.0).collect()
    }
}

fn turns(turns: &BTreeSet<TurnId>) -> Vec<u64> {
    turns.iter().map(|turn| turn.0).collect()
}

#[test]
fn what_is_whole_is_said_to_be_with_what_was_looked_at() {
    let fixture = fixture();
    let mut told = Vec::new();
    let sandbox = fixture.sandbox();
    let checked = sandbox.check(&mut |done, total| told.push((done, total)));
    let checked = checked.unwrap();
    assert_eq!(checked.damage, []);
    assert_eq!(
        (checked.checkpoints, checked.records, checked.packs),
        (3, 4, 3)
    );
    assert!(checked.objects > 6 && checked.bytes > 3000, "{checked:?}");
    assert!(told.is_sorted());
    let (done, total) = told.last().unwrap();
    assert_eq!(done, total);
    // A repair of what is whole changes nothing.
    let before: Vec<_> = fixture
        .files()
        .iter()
        .map(|f| fs::read(f).unwrap())
        .collect();
    let repaired = fixture.repair();
    assert_eq!((repaired.aside, repaired.lost.len()), (None, 0));
    let after: Vec<_> = fixture
        .files()
        .iter()
        .map(|f| fs::read(f).unwrap())
        .collect();
    assert!(before == after);
}

#[test]
fn a_bit_flipped_at_any_byte_of_any_file_is_found_in_that_file() {
    let fixture = fixture();
    let files = fixture.files();
    // FORMAT aside, these are all kinds of files that there are.
    let kinds = ["journal", "manifests", "meta.json", "packs", "tags"];
    for kind in kinds {
        let has = |file: &&PathBuf| file.strip_prefix(&fixture.at).unwrap().starts_with(kind);
        assert!(files.iter().any(|file| has(&file)), "{kind}");
    }
    let (mut flips, mut missed) = (0, Vec::new());
    for file in &files {
        let whole = fs::read(file).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            // Another bit at each byte.
            bytes[at] ^= 1 << (at % 8);
            fs::write(file, &bytes).unwrap();
            flips += 1;
            match fixture.sandbox().check(&mut |_, _| {}) {
                // A version number that became higher.
                Err(ReadError::NewerFormat { path, .. }) => assert_eq!(&path, file),
                Err(error) => panic!("{}: byte {at}: {error}", file.display()),
                Ok(checked) => {
                    let is_it = |damage: &Damage| damage.path == *file;
                    if !checked.damage.iter().any(is_it) {
                        missed.push((file.clone(), at));
                    }
                    // Nothing else is accused, but of lacking what is damaged.
                    for damage in checked.damage.iter().filter(|damage| !is_it(damage)) {
                        let lacks =
                            damage.why.contains("missing") || damage.why.contains("not there");
                        assert!(lacks, "{}: byte {at}: {damage:?}", file.display());
                    }
                }
            }
        }
        fs::write(file, &whole).unwrap();
    }
    assert!(flips > 5000, "{flips}");
    assert_eq!(missed, [], "of {flips}");
    assert!(fixture.check().is_whole());
}

#[test]
fn a_file_that_was_cut_or_is_gone_is_found() {
    let fixture = fixture();
    for file in fixture.files() {
        let whole = fs::read(&file).unwrap();
        let journal = file.ends_with("journal");
        // Of what is long, some, and all of its end.
        let step = whole.len().div_ceil(200);
        let some = (0..whole.len()).step_by(step);
        for len in some.chain(whole.len() - 64..whole.len()) {
            fs::write(&file, &whole[..len]).unwrap();
            let checked = fixture.check();
            let found = checked.damage.iter().any(|damage| damage.path == file);
            // A journal that ends with a record is whole. Nobody can know that there were more.
            let may_end = journal && checked.damage.is_empty() && checked.records < 4;
            assert!(found || may_end, "{} of {len} bytes", file.display());
        }
        fs::remove_file(&file).unwrap();
        let name = file.strip_prefix(&fixture.at).unwrap();
        let checked = fixture.check();
        if name.starts_with("packs") {
            assert_eq!(checked.damage[0].path, file);
            assert_eq!(checked.damage[0].why, "it is missing");
        }
        fs::write(&file, &whole).unwrap();
    }
}

#[test]
fn damage_says_which_turns_it_hits_and_no_others() {
    let fixture = fixture();
    // The file's content in turn 1: an object of its own in that pack.
    let pack = fixture.pack_of(1);
    let whole = fs::read(&pack).unwrap();
    let needle = bytes_of(1);
    let at = whole
        .windows(100)
        .position(|window| window == &needle[..100])
        .unwrap();
    let mut bytes = whole.clone();
    bytes[at] ^= 1;
    fs::write(&pack, &bytes).unwrap();
    let checked = fixture.check();
    assert_eq!(checked.damage.len(), 1, "{checked:?}");
    assert_eq!(checked.damage[0].part, Part::Object);
    assert_eq!(turns(&checked.damage[0].checkpoints), [1, 2]);
    assert_eq!(turns(&checked.lost), [1, 2]);
    // Turn 3 changed nothing: it is held by checkpoint 2.
    assert_eq!(turns(&checked.turns), [1, 2, 3]);
    assert_eq!(fixture.readable(), [0]);

    let repaired = fixture.repair();
    assert_eq!(turns(&repaired.lost), [1, 2]);
    assert_eq!(repaired.now.damage, []);
    assert!(fixture.check().is_whole());
    assert_eq!(fixture.readable(), [0]);
    let aside = repaired.aside.unwrap();
    let name = pack.file_name().unwrap();
    assert_eq!(fs::read(aside.join("packs").join(name)).unwrap(), bytes);
    assert!(aside.join("manifests/00000000000000000002.json").exists());
    // The tag was on turn 1.
    assert!(aside.join("tags/good.json").exists());
    let error = fixture.sandbox().checkpoint_of(TurnId(3)).unwrap_err();
    assert!(
        error.to_string().contains("put aside by crab fsck"),
        "{error}"
    );
    // A writer takes nothing of what is aside for a leftover, and history goes on.
    let writer = fixture.store.writer(&id()).unwrap();
    assert!(aside.join("packs").join(name).exists());
    checkpoint(&writer, 4, &bytes_of(1)).unwrap();
    assert_eq!(fixture.readable(), [0, 4]);
    // What was put aside is enough to bring all of it back, once the disk is.
    fs::write(&pack, &whole).unwrap();
    fs::copy(
        aside.join("manifests/00000000000000000001.json"),
        fixture.manifest(1),
    )
    .unwrap();
    assert_eq!(fixture.readable(), [0, 1, 4]);
}

#[test]
fn a_pack_whose_index_is_lost_is_built_anew_and_loses_nothing() {
    for damage in ["cut", "flip", "head"] {
        let fixture = fixture();
        let pack = fixture.pack_of(1);
        let whole = fs::read(&pack).unwrap();
        let mut bytes = whole.clone();
        match damage {
            "cut" => bytes.truncate(whole.len() - 60),
            "flip" => bytes[whole.len() - 1] ^= 1,
            _ => bytes[0] ^= 1,
        }
        fs::write(&pack, &bytes).unwrap();
        let checked = fixture.check();
        assert_eq!(turns(&checked.lost), [1, 2], "{damage}");
        assert_eq!(fixture.readable(), [0]);
        let repaired = fixture.repair();
        assert_eq!(repaired.lost.len(), 0, "{damage}: {repaired:?}");
        assert_eq!(repaired.now.damage, []);
        assert_eq!(fixture.readable(), [0, 1, 2], "{damage}");
        assert!(fs::read(&pack).unwrap() == whole);
        let aside = repaired.aside.unwrap();
        let aside = aside.join("packs").join(pack.file_name().unwrap());
        assert_eq!(fs::read(aside).unwrap(), bytes);
    }
}

#[test]
fn a_damaged_manifest_goes_aside_with_the_packs_that_only_it_may_need() {
    let fixture = fixture();
    let own = fixture.pack_of(2);
    fs::write(fixture.manifest(2), b"{").unwrap();
    let repaired = fixture.repair();
    assert_eq!(turns(&repaired.lost), [2]);
    let aside = repaired.aside.unwrap();
    assert!(!own.exists());
    assert!(aside.join("packs").join(own.file_name().unwrap()).exists());
    assert_eq!(fixture.readable(), [0, 1]);
    assert!(fixture.check().is_whole());
}

#[test]
fn a_damaged_journal_is_written_anew_from_its_whole_records() {
    let fixture = fixture();
    let journal = fixture.at.join("journal");
    let whole = fs::read(&journal).unwrap();
    let records = fixture.sandbox().journal().unwrap().records;
    let begins: Vec<usize> = (0..whole.len())
        .filter(|at| whole[*at..].starts_with(&[0xff, b'C', b'J', 0xfe]))
        .collect();
    for (damage, part, kept) in [
        ("tail", Part::JournalTail, vec![0, 1, 2]),
        ("middle", Part::Journal, vec![0, 2, 3]),
        ("header", Part::Journal, vec![0, 1, 2, 3]),
    ] {
        let mut bytes = whole.clone();
        match damage {
            "tail" => bytes.truncate(whole.len() - 5),
            "middle" => bytes[begins[1] + 40] ^= 1,
            _ => bytes[13] ^= 1,
        }
        fs::write(&journal, &bytes).unwrap();
        let checked = fixture.check();
        assert_eq!(checked.damage.len(), 1, "{damage}: {checked:?}");
        assert_eq!(checked.damage[0].part, part, "{damage}");
        let repaired = fixture.repair();
        assert_eq!(repaired.now.damage, [], "{damage}");
        assert_eq!(repaired.lost.len(), 0);
        let left = fixture.sandbox().journal().unwrap();
        let kept: Vec<_> = kept.iter().map(|at| records[*at].clone()).collect();
        assert_eq!(left.records, kept, "{damage}");
        assert_eq!(left.damaged, 0);
        let aside = repaired.aside.unwrap().join("journal");
        assert_eq!(fs::read(aside).unwrap(), bytes);
        fs::write(&journal, &whole).unwrap();
    }
}

#[test]
fn damaged_small_things_go_aside_and_cost_nothing_else() {
    let fixture = fixture();
    for (name, part) in [("meta.json", Part::Meta), ("tags/good.json", Part::Tag)] {
        let path = fixture.at.join(name);
        fs::write(&path, b"{\"magic\"").unwrap();
        let checked = fixture.check();
        assert_eq!(checked.damage.len(), 1, "{checked:?}");
        assert_eq!((checked.damage[0].part, checked.lost.len()), (part, 0));
        let repaired = fixture.repair();
        assert!(!path.exists() && repaired.aside.unwrap().join(name).exists());
        assert!(fixture.check().is_whole());
    }
    assert_eq!(fixture.readable(), [0, 1, 2]);
    // A wish for a checkpoint that is not there.
    let wish = RestoreRequest {
        turn: TurnId(9),
        checkpoint: TurnId(9),
        requested_ms: 1,
        fork: false,
    };
    fixture.sandbox().request_restore(wish).unwrap();
    assert_eq!(fixture.check().damage[0].part, Part::RestoreRequest);
    fixture.repair();
    assert_eq!(fixture.sandbox().restore_request().unwrap(), None);
}

#[test]
fn what_a_later_version_wrote_is_neither_judged_nor_touched() {
    let fixture = fixture();
    let path = fixture.manifest(1);
    let text = fs::read_to_string(&path).unwrap();
    let newer = text.replace("\"version\":1", "\"version\":2");
    fs::write(&path, &newer).unwrap();
    assert!(fixture.sandbox().check(&mut |_, _| {}).is_err());
    let sandbox = fixture.sandbox();
    assert!(fixture.store.repair(&sandbox, 1, &mut |_, _| {}).is_err());
    assert_eq!(fs::read_to_string(&path).unwrap(), newer);
}

#[test]
fn what_is_being_written_is_no_damage_and_cannot_be_repaired_meanwhile() {
    let fixture = fixture();
    let writer = fixture.store.writer(&id()).unwrap();
    let mut pack = writer.begin().unwrap();
    pack.put(&noise(5, 3 << 20)).unwrap();
    assert!(fixture.check().is_whole());
    let sandbox = fixture.sandbox();
    let error = fixture
        .store
        .repair(&sandbox, 1, &mut |_, _| {})
        .unwrap_err();
    assert!(matches!(error, OpenError::Locked(_)), "{error}");
}

#[test]
fn a_repair_gives_way_within_a_pack() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(dir.path()).unwrap();
    {
        let writer = store.writer(&id()).unwrap();
        let mut pack = writer.begin().unwrap();
        let objects: Vec<Digest> = (0..200)
            .map(|number| pack.put(&noise(number, 1000)).unwrap())
            .collect();
        let segments = objects.into_iter().enumerate().map(|(at, digest)| Segment {
            offset: at as u64 * 1000,
            len: 1000,
            digest,
        });
        let content = Content {
            size: 200_000,
            segments: segments.collect(),
        };
        let upper = pack.put_tree(&tree_with(content)).unwrap();
        let spec = pack.put(b"{}").unwrap();
        pack.publish(manifest(0, upper, spec)).unwrap();
        let record = JournalRecord::Turn(turn_record(0));
        writer.append(record, Durability::Synced).unwrap();
    }
    let (store, sandbox) = (&store, store.sandbox(&id()).unwrap());
    std::thread::scope(|scope| {
        let mut begins = None;
        let mut calls = 0;
        let repaired = store.repair(&sandbox, 1, &mut |_, _| {
            calls += 1;
            begins.get_or_insert_with(|| {
                let patience = std::time::Duration::from_secs(60);
                let begins = scope.spawn(move || store.writer_within(&id(), patience).map(drop));
                // Until it waits, and longer than is passed over.
                std::thread::sleep(std::time::Duration::from_secs(2));
                begins
            });
        });
        assert!(
            matches!(repaired, Err(OpenError::Read(ReadError::Wanted(_)))),
            "{repaired:?}"
        );
        assert!(calls < 10, "{calls}");
        begins.unwrap().join().unwrap().unwrap();
    });
}

#[test]
fn a_bit_that_means_nothing_to_a_decompressor_is_found_and_costs_no_checkpoint() {
    let fixture = fixture();
    let writer = fixture.store.writer(&id()).unwrap();
    let mut pack = writer.begin().unwrap();
    let files = fixture
        .sandbox()
        .manifest(TurnId(1))
        .unwrap()
        .unwrap()
        .files;
    let text: String = (0..60).map(|n| format!("line {n} of a text\n")).collect();
    let spec = pack.put(text.as_bytes()).unwrap();
    pack.publish(manifest(3, files.upper, spec)).unwrap();
    drop(writer);
    let path = fixture.pack_of(3);
    let whole = fs::read(&path).unwrap();
    // Past the headers of the pack and of its first object, as far as its index.
    let objects = 60..whole.len() - 200;
    assert!(objects.len() < 400, "it is not compressed: {objects:?}");
    let mut passed_over = Vec::new();
    for bit in objects.start * 8..objects.end * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, &bytes).unwrap();
        let damage = fixture.check().damage;
        assert_ne!(damage, [], "bit {bit} is not found");
        if damage.iter().all(|damage| damage.checkpoints.is_empty()) {
            passed_over.push(bit);
        }
    }
    // Such as the padding of the last byte of a stream.
    let bit = *passed_over.last().expect("each bit means something to it");
    let mut bytes = whole.clone();
    bytes[bit / 8] ^= 1 << (bit % 8);
    fs::write(&path, &bytes).unwrap();
    assert!(fixture.readable().contains(&3));
    let repaired = fixture.repair();
    assert!(repaired.found.lost.is_empty(), "{repaired:?}");
    assert_eq!(fixture.check().damage, []);
    assert!(fixture.readable().contains(&3));
}
