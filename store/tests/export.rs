// SPDX-License-Identifier: Apache-2.0

//! A checkpoint leaves a store as a file, and comes into another; a file that is not as it was
//! written, or was never written by an export, leaves nothing there.

mod support;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{Read, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
};

use crab_store::*;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use support::{checkpoint, entry, id, noise, store};

const SPEC: &[u8] = br#"{"ociVersion":"1.2.0","annotations":{"a":"b"}}"#;

fn plain(path: &[u8], kind: EntryKind) -> TreeEntry {
    TreeEntry {
        xattrs: Vec::new(),
        ..entry(path, kind)
    }
}

/// Content at these places.
fn content(pack: &mut PackWriter, size: u64, at: &[(u64, Vec<u8>)]) -> EntryKind {
    let content = at.iter().map(|(offset, bytes)| Segment {
        offset: *offset,
        len: bytes.len() as u32,
        digest: pack.put(bytes).unwrap(),
    });
    EntryKind::File {
        size,
        content: content.collect(),
    }
}

/// Of every kind, with names and lengths as a container makes them.
fn upper(pack: &mut PackWriter) -> Tree {
    let deep = [b"dir/".to_vec(), vec![b'n'; 250]].concat();
    let mut runs = Vec::new();
    for run in 0..60 {
        runs.push((run * 1_000_000, noise(run, 3000)));
    }
    let mut tree = Tree {
        entries: vec![
            plain(b"", EntryKind::Dir),
            plain(b".wh.real", content(pack, 4, &[(0, b"name".to_vec())])),
            plain(
                b"a",
                content(
                    pack,
                    300_000,
                    &[
                        (0, noise(1, 131_072)),
                        (131_072, noise(2, 131_072)),
                        (262_144, noise(3, 37_856)),
                    ],
                ),
            ),
            entry(b"dir", EntryKind::Dir),
            plain(&deep, content(pack, 2, &[(0, b"ok".to_vec())])),
            plain(
                b"dir/empty",
                EntryKind::File {
                    size: 0,
                    content: Vec::new(),
                },
            ),
            plain(b"dir/gone", EntryKind::CharDevice { rdev: 0 }),
            plain(
                b"dir/link",
                EntryKind::Symlink {
                    target: vec![b'x'; 300],
                },
            ),
            plain(b"fifo", EntryKind::Fifo),
            plain(b"hard", EntryKind::HardLink { to: b"a".to_vec() }),
            plain(
                b"huge",
                content(pack, 1 << 60, &[(1 << 50, noise(9, 4096))]),
            ),
            plain(b"null", EntryKind::CharDevice { rdev: 0x103 }),
            plain(b"real", EntryKind::CharDevice { rdev: 0 }),
            plain(b"runs", content(pack, 100_000_000, &runs)),
            plain(b"socket", EntryKind::Socket),
            plain(b"\xff\n", content(pack, 1, &[(0, b"!".to_vec())])),
        ],
    };
    tree.entries[2].xattrs = vec![(b"user.a=b%".to_vec(), noise(5, 2000))];
    tree.sort();
    tree
}

/// An image whose memory has a page that lies over an earlier one.
fn processes(pack: &mut PackWriter) -> ProcessImage {
    let window = |pack: &mut PackWriter, offset, seed| Segment {
        offset,
        len: 131_072,
        digest: pack.put(&noise(seed, 131_072)).unwrap(),
    };
    let pages = |content| ImageFile {
        name: "pages-1.img".into(),
        size: 3 * 131_072,
        content,
    };
    ProcessImage {
        turn: TurnId(3),
        files: vec![
            ImageFile {
                name: "core-1.img".into(),
                size: 500,
                content: vec![Segment {
                    offset: 0,
                    len: 500,
                    digest: pack.put(&noise(20, 500)).unwrap(),
                }],
            },
            pages(vec![window(pack, 0, 30), window(pack, 262_144, 31)]),
            pages(vec![Segment {
                offset: 262_144 + 8192,
                len: 4096,
                digest: pack.put(&noise(40, 4096)).unwrap(),
            }]),
        ],
        tmpfs_images: Vec::new(),
        processes: vec![ProcessEntry {
            pid: 1,
            comm: "init".into(),
            cmdline: "init".into(),
        }],
        boot_id: "boot".into(),
        criu_version: "4.1".into(),
        runtime: "runc".into(),
        extra: BTreeMap::from([("pipes".into(), "[]".into())]),
    }
}

fn memory() -> Vec<u8> {
    let mut bytes = [noise(30, 131_072), vec![0; 131_072], noise(31, 131_072)].concat();
    bytes[262_144 + 8192..262_144 + 12_288].copy_from_slice(&noise(40, 4096));
    bytes
}

fn turn(number: u64, checkpoint: u64) -> JournalRecord {
    JournalRecord::Turn(TurnRecord {
        command: format!("make {number}"),
        began_ms: 1,
        ended_ms: 2,
        exit: Some(0),
        class: Class::Full,
        checkpoint: Some(TurnId(checkpoint)),
        ..TurnRecord::new(TurnId(number), Trigger::Exec)
    })
}

/// A sandbox with one checkpoint, of turn 3, which also holds turn 4.
fn sandbox(store: &Store) -> (SandboxWriter, Tree, Tree) {
    let writer = store.writer(&id()).unwrap();
    let mut pack = writer.begin().unwrap();
    let upper = upper(&mut pack);
    let shm = Tree {
        entries: vec![
            plain(b"", EntryKind::Dir),
            plain(
                b"m",
                content(&mut pack, 70_000, &[(65_536, noise(50, 1000))]),
            ),
        ],
    };
    let image = processes(&mut pack);
    let mut manifest =
        support::manifest(3, pack.put_tree(&upper).unwrap(), pack.put(SPEC).unwrap());
    manifest.files.tmpfs = vec![TmpfsTree {
        mount: b"/dev/shm".to_vec(),
        tree: pack.put_tree(&shm).unwrap(),
    }];
    manifest.processes = Some(ProcessRef {
        turn: TurnId(3),
        digest: pack.put_process_image(&image).unwrap(),
    });
    pack.publish(manifest).unwrap();
    writer.append(turn(3, 3), Durability::Synced).unwrap();
    writer.append(turn(4, 3), Durability::Synced).unwrap();
    (writer, upper, shm)
}

fn exporting(turn: u64) -> Exporting {
    Exporting {
        turn: Some(TurnId(turn)),
        image: Some(ImageName {
            name: "docker.io/library/debian:13".into(),
            digest: Some("sha256:abc".into()),
        }),
        time: |_| "2026-11-30T12:00:00Z".into(),
    }
}

fn export(writer: &SandboxWriter, to: &Path) {
    let mut last = (0, 0);
    let (exported, len) = writer
        .store()
        .export(exporting(4), to, &mut |done, total| {
            assert!(done >= last.0 && done <= total);
            last = (done, total);
            true
        })
        .unwrap();
    assert_eq!(
        (exported.turn, exported.manifest.turn),
        (TurnId(4), TurnId(3))
    );
    assert_eq!(len, fs::metadata(to).unwrap().len());
    assert_eq!(last.0, last.1, "it is told to the end how far it is");
}

fn import(store: &Store, from: &Path) -> Result<Imported, ImportError> {
    import_as(store, from, &id())
}

fn import_as(store: &Store, from: &Path, id: &SandboxId) -> Result<Imported, ImportError> {
    store.import(Archive::open(from)?, id.clone(), 5, &mut |_, _| true)
}

fn bytes_of(reader: &ObjectReader, size: u64, content: &[Segment]) -> Vec<u8> {
    let file = tempfile::tempfile().unwrap();
    reader.read_segments(content, size, &file).unwrap();
    let mut bytes = vec![0; size as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn a_checkpoint_comes_into_another_store_as_it_was() {
    let (dir, one) = store();
    let (writer, upper, shm) = sandbox(&one);
    let file = dir.path().join("file.tar");
    export(&writer, &file);
    // Neither the file nor its memory is as long as what is in it.
    assert!(fs::metadata(&file).unwrap().len() < 3 << 20);
    let (_elsewhere, two) = store();
    let other = SandboxId::new("moby", "other").unwrap();
    let imported = import_as(&two, &file, &other).unwrap();
    let sandbox = two.sandbox(&other).unwrap();
    let manifest = sandbox.checkpoint_of(TurnId(0)).unwrap();
    assert_eq!(manifest, imported.manifest);
    assert_eq!(sandbox.head().unwrap().unwrap(), manifest);
    assert_eq!(sandbox.next_turn().unwrap(), TurnId(1));
    let records = sandbox.journal().unwrap().records;
    let JournalRecord::Fork(origin) = &records[0] else {
        panic!("{records:?}");
    };
    assert_eq!((&origin.from, origin.turn), (&id(), TurnId(4)));
    let meta = sandbox.meta().unwrap().unwrap();
    assert_eq!(meta.image.as_deref(), Some("docker.io/library/debian:13"));
    let reader = sandbox.reader(&manifest).unwrap();
    assert_eq!(reader.get(manifest.spec).unwrap(), SPEC);
    assert_eq!(reader.tree(manifest.files.upper).unwrap(), upper);
    let tmpfs = manifest.files.tmpfs_at(b"/dev/shm").unwrap();
    assert_eq!(reader.tree(tmpfs).unwrap(), shm);
    for segment in upper.segments().chain(shm.segments()) {
        reader.get(segment.digest).unwrap();
    }
    let image = reader
        .process_image(manifest.processes.unwrap().digest)
        .unwrap();
    let [core, pages] = image.files.as_slice() else {
        panic!("{:?}", image.files);
    };
    assert_eq!(bytes_of(&reader, core.size, &core.content), noise(20, 500));
    assert_eq!(bytes_of(&reader, pages.size, &pages.content), memory());
    assert_eq!(image.extra, BTreeMap::from([("pipes".into(), "[]".into())]));
    let checked = sandbox.check(&mut |_, _| {}).unwrap();
    assert!(checked.is_whole(), "{checked:?}");
    // From there it goes on, and goes out as well.
    let again = two.writer(&other).unwrap();
    let second = dir.path().join("second.tar");
    let exporting = Exporting {
        turn: None,
        ..exporting(0)
    };
    again
        .store()
        .export(exporting, &second, &mut |_, _| true)
        .unwrap();
    drop(again);
    let (_third, three) = store();
    import(&three, &second).unwrap();
    // There already.
    assert!(matches!(
        import_as(&two, &file, &other),
        Err(ImportError::Exists(_))
    ));
}

#[test]
fn an_archive_is_an_oci_layout_and_its_layers_are_what_tar_reads() {
    let (dir, one) = store();
    let (writer, ..) = sandbox(&one);
    let file = dir.path().join("file.tar");
    export(&writer, &file);
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    let tar = |args: &[&str]| {
        let done = Command::new("tar").args(args).output().unwrap();
        let error = String::from_utf8_lossy(&done.stderr);
        assert!(
            done.status.success() && error.is_empty(),
            "{args:?}: {error}"
        );
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    tar(&["-xf", file.to_str().unwrap(), "-C", out.to_str().unwrap()]);
    let json =
        |path: PathBuf| -> Value { serde_json::from_slice(&fs::read(path).unwrap()).unwrap() };
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().unwrap();
        let path = out
            .join("blobs/sha256")
            .join(digest.strip_prefix("sha256:").unwrap());
        let bytes = fs::read(&path).unwrap();
        assert_eq!(digest, sha256(&bytes));
        assert_eq!(descriptor["size"], bytes.len());
        path
    };
    assert_eq!(
        json(out.join("oci-layout")),
        json!({"imageLayoutVersion": "1.0.0"})
    );
    let index = json(out.join("index.json"));
    assert_eq!(
        index["manifests"][0]["annotations"]["io.kubernetes.cri-o.annotations.checkpoint.name"],
        "demo"
    );
    let manifest = json(blob(&index["manifests"][0]));
    blob(&manifest["config"]);
    let mut criu = None;
    let mut layers = Vec::new();
    for layer in manifest["layers"].as_array().unwrap() {
        let path = blob(layer);
        match layer["mediaType"].as_str().unwrap() {
            "application/vnd.oci.image.layer.v1.tar+zstd" => {
                let packed = fs::read(path).unwrap();
                let unpacked = dir.path().join(format!("layer-{}", layers.len()));
                fs::write(&unpacked, zstd::decode_all(&packed[..]).unwrap()).unwrap();
                layers.push(unpacked);
            }
            "application/vnd.containerd.container.criu.checkpoint.criu.tar" => criu = Some(path),
            _ => {}
        }
    }
    let list = tar(&["-tf", layers[0].to_str().unwrap(), "--quoting-style=escape"]);
    for name in [
        "./dir/.wh.gone",
        "./dir/.wh..wh..opq",
        "./.wh.real",
        "./huge",
    ] {
        assert_eq!(
            list.lines().filter(|line| *line == name).count(),
            1,
            "{name}: {list}"
        );
    }
    assert!(!list.contains("socket") && !list.lines().any(|line| line == "./dir/gone"));
    assert_eq!(
        tar(&["-tf", layers[1].to_str().unwrap()]),
        "./dev/shm/\n./dev/shm/m\n"
    );
    tar(&[
        "-xf",
        criu.unwrap().to_str().unwrap(),
        "-C",
        dir.path().to_str().unwrap(),
    ]);
    assert_eq!(fs::read(dir.path().join("pages-1.img")).unwrap(), memory());
    // What checkpointctl reads.
    assert_eq!(
        fs::read(out.join("checkpoint/pages-1.img")).unwrap(),
        memory()
    );
    assert_eq!(
        json(out.join("config.dump"))["checkpointedTime"],
        "2026-11-30T12:00:00Z"
    );
    let spec = json(out.join("spec.dump"));
    assert_eq!(spec["annotations"]["a"], "b");
}

#[test]
fn an_export_that_ends_early_leaves_no_file() {
    let (dir, one) = store();
    let (writer, ..) = sandbox(&one);
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    for stop_at in [0, 1, 3, 9] {
        let mut calls = 0;
        let file = out.join("file.tar");
        let stopped = writer.store().export(exporting(3), &file, &mut |_, _| {
            calls += 1;
            calls <= stop_at
        });
        assert!(matches!(stopped, Err(ExportError::Stopped)), "{stopped:?}");
        assert_eq!(fs::read_dir(&out).unwrap().count(), 0);
    }
    // What was there stays.
    fs::write(out.join("file.tar"), "old").unwrap();
    let stopped = writer
        .store()
        .export(exporting(3), &out.join("file.tar"), &mut |_, _| false);
    assert!(stopped.is_err());
    assert_eq!(fs::read(out.join("file.tar")).unwrap(), b"old");
    assert_eq!(fs::read_dir(&out).unwrap().count(), 1);
    let refused = writer
        .store()
        .export(exporting(3), Path::new("/dev/null"), &mut |_, _| true);
    assert!(
        matches!(refused, Err(ExportError::NoFile(_))),
        "{refused:?}"
    );
    let missing = writer
        .store()
        .export(exporting(9), &out.join("x"), &mut |_, _| true);
    assert!(matches!(
        missing,
        Err(ExportError::Read(ReadError::NoTurn { .. }))
    ));
    assert!(!out.join("x").exists());
}

/// What an import writes first.
fn begun_import(store: &Store) -> SandboxWriter {
    let writer = store.writer(&id()).unwrap();
    let origin = ForkRecord {
        at_ms: 1,
        from: id(),
        turn: TurnId(4),
        checkpoint: TurnId(3),
    };
    writer
        .append(JournalRecord::Fork(origin), Durability::Synced)
        .unwrap();
    writer
}

#[test]
fn an_import_that_ends_early_leaves_nothing() {
    let (dir, one) = store();
    let (writer, ..) = sandbox(&one);
    let file = dir.path().join("file.tar");
    export(&writer, &file);
    let (_elsewhere, two) = store();
    for stop_at in [0, 2, 7] {
        let mut calls = 0;
        let archive = Archive::open(&file).unwrap();
        let stopped = two.import(archive, id(), 5, &mut |_, _| {
            calls += 1;
            calls <= stop_at
        });
        assert!(matches!(stopped, Err(ImportError::Stopped)), "{stopped:?}");
        assert_eq!(two.sandboxes().unwrap(), []);
    }
    // One that was killed before all was there is no sandbox.
    drop(begun_import(&two));
    import(&two, &file).unwrap();
    assert_eq!(
        two.sandbox(&id()).unwrap().journal().unwrap().records.len(),
        2
    );
}

#[test]
fn an_import_that_was_killed_when_it_had_published_is_done_again() {
    let (dir, one) = store();
    let (writer, ..) = sandbox(&one);
    let file = dir.path().join("file.tar");
    export(&writer, &file);
    let (_elsewhere, two) = store();
    // As it is without the last thing that an import writes.
    let writer = begun_import(&two);
    checkpoint(&writer, 0, &noise(9, 1000)).unwrap();
    drop(writer);
    let imported = import(&two, &file).unwrap();
    let sandbox = two.sandbox(&id()).unwrap();
    assert_eq!(sandbox.head().unwrap().unwrap(), imported.manifest);
    let records = sandbox.journal().unwrap().records;
    assert!(
        matches!(
            records[..],
            [JournalRecord::Fork(_), JournalRecord::Turn(_)]
        ),
        "{records:?}"
    );
    // And what is whole stays.
    let again = import(&two, &file);
    assert!(matches!(again, Err(ImportError::Exists(_))), "{again:?}");
}

#[test]
fn an_export_has_no_name_before_it_is_whole() {
    let (dir, one) = store();
    let (writer, ..) = sandbox(&one);
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR;
    let probe = rustix::fs::open(&out, flags, rustix::fs::Mode::RUSR);
    if let Err(error) = probe {
        eprintln!(
            "skipped: no files without a name in {}: {error}",
            out.display()
        );
        return;
    }
    let names = || fs::read_dir(&out).unwrap().count();
    let file = out.join("file.tar");
    for there in [0, 1] {
        let mut calls = 0;
        let done = writer.store().export(exporting(3), &file, &mut |_, _| {
            calls += 1;
            assert_eq!(names(), there);
            true
        });
        done.unwrap();
        assert!(calls > 0);
        assert_eq!(names(), 1);
        assert!(Archive::open(&file).is_ok());
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}

/// Nothing of the file comes into a store.
fn refuse(file: &Path) -> String {
    let (_dir, store) = store();
    let refused = import(&store, file).map(|imported| imported.manifest);
    let told = match refused {
        Err(error @ (ImportError::Refused { .. } | ImportError::Write(_))) => error.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(store.sandboxes().unwrap(), []);
    assert!(!told.contains('\n'), "{told}");
    told
}

#[test]
fn a_damaged_archive_is_refused_wherever_the_damage_is() {
    let (dir, one) = store();
    let (writer, ..) = sandbox(&one);
    let file = dir.path().join("file.tar");
    export(&writer, &file);
    let whole = fs::read(&file).unwrap();
    let damaged = dir.path().join("damaged.tar");
    // Where the part for checkpointctl ends, which is not read.
    let begin = first_blob(&whole);
    for cut in [
        0,
        100,
        512,
        begin,
        begin + 600,
        whole.len() / 2,
        whole.len() - 1024 - 512,
    ] {
        fs::write(&damaged, &whole[..cut]).unwrap();
        refuse(&damaged);
    }
    let mut at = begin;
    let mut refused = 0;
    while at < whole.len() - 2048 {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x40;
        fs::write(&damaged, &bytes).unwrap();
        let (_elsewhere, two) = store();
        match import(&two, &damaged) {
            // In a header, what is not looked at, or padding: then all is as it was.
            Ok(imported) => {
                let sandbox = two.sandbox(&id()).unwrap();
                let reader = sandbox.reader(&imported.manifest).unwrap();
                assert_eq!(
                    reader
                        .tree(imported.manifest.files.upper)
                        .unwrap()
                        .entries
                        .len(),
                    16
                );
                assert!(sandbox.check(&mut |_, _| {}).unwrap().is_whole());
            }
            Err(error) => {
                refused += 1;
                assert_eq!(two.sandboxes().unwrap(), [], "{error}");
            }
        }
        at += whole.len() / 97;
    }
    assert!(refused > 50, "{refused}");
    fs::write(&damaged, noise(1, 100_000)).unwrap();
    refuse(&damaged);
    assert!(refuse(Path::new("/dev/null")).contains("no regular file"));
}

fn first_blob(bytes: &[u8]) -> usize {
    let mut archive = tar::Archive::new(bytes);
    let mut entries = archive.entries().unwrap().map(Result::unwrap);
    let first = entries.find(|it| it.path().unwrap().starts_with("blobs"));
    first.unwrap().raw_header_position() as usize
}

fn sha256(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// An archive as somebody else makes it.
struct Forged {
    manifest: Value,
    blobs: BTreeMap<String, Vec<u8>>,
    more: Vec<(String, Vec<u8>)>,
}

impl Forged {
    fn of(file: &Path) -> Self {
        let mut archive = tar::Archive::new(File::open(file).unwrap());
        let mut files = BTreeMap::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().display().to_string();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            files.insert(path, bytes);
        }
        let index: Value = serde_json::from_slice(&files["index.json"]).unwrap();
        let blobs: BTreeMap<String, Vec<u8>> = files
            .into_iter()
            .filter_map(|(path, bytes)| {
                let hex = path.strip_prefix("blobs/sha256/")?;
                Some((format!("sha256:{hex}"), bytes))
            })
            .collect();
        let digest = index["manifests"][0]["digest"].as_str().unwrap();
        Self {
            manifest: serde_json::from_slice(&blobs[digest]).unwrap(),
            blobs,
            more: Vec::new(),
        }
    }

    /// Puts something else in the place of the first layer of this kind.
    fn layer(mut self, kind: &str, change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> Self {
        let layers = self.manifest["layers"].as_array_mut().unwrap();
        let layer = layers
            .iter_mut()
            .find(|layer| layer["mediaType"].as_str().unwrap().contains(kind))
            .unwrap();
        let bytes = change(self.blobs[layer["digest"].as_str().unwrap()].clone());
        let digest = sha256(&bytes);
        layer["digest"] = digest.clone().into();
        layer["size"] = bytes.len().into();
        self.blobs.insert(digest, bytes);
        self
    }

    fn config(mut self, change: impl FnOnce(&mut Value)) -> Self {
        let digest = self.manifest["config"]["digest"]
            .as_str()
            .unwrap()
            .to_owned();
        let mut config: Value = serde_json::from_slice(&self.blobs[&digest]).unwrap();
        change(&mut config);
        let bytes = serde_json::to_vec(&config).unwrap();
        self.manifest["config"]["digest"] = sha256(&bytes).into();
        self.manifest["config"]["size"] = bytes.len().into();
        self.blobs.insert(sha256(&bytes), bytes);
        self
    }

    fn write(mut self, to: &Path) -> PathBuf {
        let manifest = serde_json::to_vec(&self.manifest).unwrap();
        let index = json!({
            "schemaVersion": 2,
            "manifests": [{
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "artifactType": "application/vnd.crab.checkpoint.v1",
                "digest": sha256(&manifest),
                "size": manifest.len(),
            }],
        });
        self.blobs.insert(sha256(&manifest), manifest);
        let mut archive = tar::Builder::new(File::create(to).unwrap());
        let mut add = |name: &str, bytes: &[u8]| {
            let mut header = tar::Header::new_gnu();
            // As it stands, also where a sound archive has no such name.
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            header.set_cksum();
            archive.append(&header, bytes).unwrap();
        };
        add("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#);
        add("index.json", &serde_json::to_vec(&index).unwrap());
        for (digest, bytes) in &self.blobs {
            add(&digest.replace("sha256:", "blobs/sha256/"), bytes);
        }
        for (name, bytes) in &self.more {
            add(name, bytes);
        }
        archive.into_inner().unwrap();
        to.to_owned()
    }
}

/// A layer of so many zeros, packed: a bomb.
fn zeros(count: u64) -> Vec<u8> {
    let mut packer = zstd::Encoder::new(Vec::new(), 1).unwrap();
    std::io::copy(&mut std::io::repeat(0).take(count), &mut packer).unwrap();
    packer.finish().unwrap()
}

/// The most memory that this process has had, in bytes.
fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.unwrap().split_whitespace().nth(1).unwrap();
    kib.parse::<u64>().unwrap() * 1024
}

/// A member of any kind.
fn member(name: &[u8], kind: u8, size: u64) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.set_entry_type(tar::EntryType::new(kind));
    header.set_size(size);
    header.set_cksum();
    header.as_bytes().to_vec()
}

fn packed(parts: &[&[u8]]) -> Vec<u8> {
    let mut packer = zstd::Encoder::new(Vec::new(), 1).unwrap();
    for part in parts {
        packer.write_all(part).unwrap();
    }
    packer.finish().unwrap()
}

#[test]
fn what_no_export_writes_is_refused_in_one_line() {
    let (dir, one) = store();
    let (writer, ..) = sandbox(&one);
    let file = dir.path().join("file.tar");
    export(&writer, &file);
    let to = dir.path().join("forged.tar");
    let forged = || Forged::of(&file);
    // As it is, it comes in; so does one with members that lead elsewhere, which are let be.
    let mut odd = forged();
    odd.more.push(("../../outside".into(), b"x".to_vec()));
    odd.more.push(("/tmp/crab-outside".into(), b"x".to_vec()));
    let (_elsewhere, two) = store();
    import(&two, &odd.write(&to)).unwrap();
    assert!(!dir.path().join("../outside").exists() && !Path::new("/tmp/crab-outside").exists());

    let layer = "image.layer";
    let told = |forged: Forged| refuse(&forged.write(&to));
    // More than there is to tell: nothing, a name, attributes, headers, a map of holes.
    let gigabyte = 1 << 30;
    let whole = |more: &[u8]| packed(&[more]);
    told(forged().layer(layer, |_| zeros(1 << 22)));
    let name = member(b"././@LongLink", b'L', gigabyte);
    let attributes = member(b"x", b'x', gigabyte);
    for (bomb, refusal) in [
        (&name, "a name in a layer is too long"),
        (&attributes, "more of its files"),
    ] {
        let why = told(forged().layer(layer, |_| whole(bomb)));
        assert!(why.contains(refusal), "{why}");
    }
    let many = member(b"./dir/", b'5', 0).repeat(20_000);
    assert!(told(forged().layer(layer, |_| whole(&many))).contains("more of its files"));
    let mut sparse = member(b"./huge", b'S', 4096);
    sparse[482] = 1;
    let mut header = tar::Header::from_byte_slice(&sparse).clone();
    header.as_gnu_mut().unwrap().set_real_size(1 << 60);
    header.set_cksum();
    let mut block = [0u8; 512];
    block[504] = 1;
    let sparse = [header.as_bytes().to_vec(), block.repeat(100_000)].concat();
    assert!(told(forged().layer(layer, |_| whole(&sparse))).contains("more of its files"));
    // Contents that the record does not have, or not so.
    let strange = [member(b"./strange", b'0', 512), vec![1; 512]].concat();
    assert!(told(forged().layer(layer, |_| whole(&strange))).contains("should not be"));
    let longer = [member(b"./dir/empty", b'0', 512), vec![1; 512]].concat();
    assert!(told(forged().layer(layer, |_| whole(&longer))).contains("another length"));
    let up = [member(b"./../../etc/passwd", b'0', 5), vec![1; 512]].concat();
    assert!(told(forged().layer(layer, |_| whole(&up))).contains("should not be"));
    assert!(told(forged().layer(layer, |_| whole(&[0; 1024]))).contains("is missing"));
    let changed = forged().layer(layer, |bytes| {
        let mut bytes = zstd::decode_all(&bytes[..]).unwrap();
        let at = bytes.windows(4).position(|it| it == b"name").unwrap();
        bytes[at] = b'N';
        packed(&[&bytes])
    });
    assert!(told(changed).contains("another content"));
    // A record that is much longer than it is packed, and one that would be much larger in memory: a
    // million entries of eight bytes.
    let most = 128 << 20;
    assert!(told(forged().layer("record", |_| zeros(most))).contains("larger than any"));
    let before = peak_memory();
    let entry = [0u8; 8];
    let entries = entry.repeat(1 << 20);
    let many = packed(&[&[0x80, 0x80, 0x80, 0x04], &entries, &[0; 8]]);
    assert!(many.len() < 4096, "{}", many.len());
    assert!(told(forged().layer("record", |_| many)).contains("larger than any"));
    // Of attributes, which are smaller still.
    let [one, root, length] = [[1u8], [0; 1], [0x80]];
    let head = [&one[..], &root, &[0; 6], &length.repeat(3), &[0x04]].concat();
    let many = packed(&[&head, &[0; 16 << 20]]);
    assert!(told(forged().layer("record", |_| many)).contains("larger than any"));
    let grown = peak_memory() - before;
    assert!(grown < 300 << 20, "{grown}");
    told(forged().layer("record", |_| packed(&[&[255; 100]])));
    let trees = [
        (b"..".to_vec(), EntryKind::Dir),
        (b"a/../../b".to_vec(), EntryKind::Fifo),
    ];
    for (path, kind) in trees {
        let entries = vec![plain(b"", EntryKind::Dir), plain(&path, kind)];
        let record = (
            Tree { entries },
            Vec::<(Vec<u8>, Tree)>::new(),
            None::<ProcessImage>,
        );
        let bytes = postcard::to_allocvec(&record).unwrap();
        assert!(told(forged().layer("record", |_| packed(&[&bytes]))).contains("relative path"));
    }
    // A configuration of something else.
    told(forged().config(|config| config["manifest"] = json!(null)));
    // Blobs that are not there, are there twice, or are something else.
    let mut twice = forged();
    let (digest, bytes) = twice.blobs.first_key_value().unwrap();
    twice
        .more
        .push((digest.replace("sha256:", "blobs/sha256/"), bytes.clone()));
    assert!(told(twice).contains("twice"));
    let mut none = forged();
    none.manifest["layers"] = json!([]);
    told(none);
    let mut lies = forged();
    lies.manifest["config"]["size"] = (1u64 << 62).into();
    told(lies);
}
