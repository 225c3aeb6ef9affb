// SPDX-License-Identifier: Apache-2.0

//! Checkpoints to test with.

// Each test binary uses its own part of this.
#![allow(dead_code)]

use std::{collections::BTreeMap, path::Path};

use crab_store::*;

pub(crate) fn id() -> SandboxId {
    SandboxId::new("default", "demo").unwrap()
}

pub(crate) fn store() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(dir.path()).unwrap();
    (dir, store)
}

/// Bytes that do not compress, the same for the same seed.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    let mut bytes = vec![0; len];
    hasher.finalize_xof().fill(&mut bytes);
    bytes
}

pub(crate) fn entry(path: &[u8], kind: EntryKind) -> TreeEntry {
    TreeEntry {
        path: path.to_vec(),
        kind,
        mode: 0o4755,
        uid: 7,
        gid: 8,
        mtime: Time {
            sec: -1,
            nsec: 999_999_999,
        },
        xattrs: vec![(b"trusted.overlay.opaque".to_vec(), b"y".to_vec())],
    }
}

/// A tree with a file of this content.
pub(crate) fn tree_with(content: Content) -> Tree {
    let Content { size, segments } = content;
    Tree {
        entries: vec![
            entry(b"", EntryKind::Dir),
            entry(
                b"file",
                EntryKind::File {
                    size,
                    content: segments,
                },
            ),
        ],
    }
}

pub(crate) fn manifest(turn: u64, upper: Digest, spec: Digest) -> Manifest {
    Manifest {
        sandbox: id(),
        turn: TurnId(turn),
        class: Class::Files,
        created_ms: 1_700_000_000_000 + turn,
        parent: turn.checked_sub(1).map(TurnId),
        files: FileImage {
            turn: TurnId(turn),
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
    }
}

/// Publishes a checkpoint with one file.
pub(crate) fn checkpoint(
    writer: &SandboxWriter,
    turn: u64,
    mut content: &[u8],
) -> Result<Manifest, WriteError> {
    let mut pack = writer.begin()?;
    let content = pack.put_stream(&mut content)?;
    let upper = pack.put_tree(&tree_with(content))?;
    let spec = pack.put(b"{\"ociVersion\":\"1.2.0\"}")?;
    pack.publish(manifest(turn, upper, spec))
}

/// So many checkpoints are wanted beside those that stay anyway.
pub(crate) fn keep(count: u64) -> Wanted<'static> {
    Wanted {
        limits: Limits {
            count: Some(count),
            ..Limits::default()
        },
        ..Wanted::default()
    }
}

/// The content of the file in a checkpoint made by [`checkpoint`].
pub(crate) fn content(store: &SandboxStore, manifest: &Manifest) -> Result<Vec<u8>, ReadError> {
    let reader = store.reader(manifest)?;
    reader.get(manifest.spec)?;
    let tree = reader.tree(manifest.files.upper)?;
    let EntryKind::File { size, content } = &tree.get(b"file").unwrap().kind else {
        panic!("no file: {tree:?}");
    };
    let file = tempfile::tempfile().unwrap();
    reader.read_segments(content, *size, &file)?;
    let mut bytes = vec![0; *size as usize];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).unwrap();
    Ok(bytes)
}

pub(crate) fn turn_record(turn: u64) -> TurnRecord {
    TurnRecord {
        command: command_line(&["sh", "-c", "date > now"]),
        began_ms: 1_700_000_000_000,
        ended_ms: 1_700_000_000_250,
        exit: Some(0),
        class: Class::Files,
        reason: "1 file changed".to_owned(),
        checkpoint: Some(TurnId(turn)),
        files_changed: 1,
        changed: vec![ChangedPath {
            change: Change::Added,
            path: "now".to_owned(),
            kind: None,
            size: None,
            before: None,
        }],
        ..TurnRecord::new(TurnId(turn), Trigger::Exec)
    }
}

pub(crate) fn process_image(files: Vec<ImageFile>) -> ProcessImage {
    ProcessImage {
        turn: TurnId(3),
        files,
        tmpfs_images: vec![TmpfsImage {
            mount: b"/dev/shm".to_vec(),
            image: "tmpfs-dev-1.tar.gz.img".to_owned(),
        }],
        processes: vec![ProcessEntry {
            pid: 1,
            comm: "sh".to_owned(),
            cmdline: "sh".to_owned(),
        }],
        boot_id: "b".to_owned(),
        criu_version: "4.1.1".to_owned(),
        runtime: "runc".to_owned(),
        extra: BTreeMap::from([("stdin".to_owned(), "pipe:[1]".to_owned())]),
    }
}

/// Names in a directory of the sandbox.
pub(crate) fn names(root: &Path, dir: &str) -> Vec<String> {
    let dir = root.join("sandboxes/default/demo").join(dir);
    let names = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
