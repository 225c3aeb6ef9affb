// SPDX-License-Identifier: Apache-2.0

//! Damage is noticed, named, and costs nothing else.

mod support;

use std::{fs, path::PathBuf};

use crab_store::*;
use support::*;

struct Fixture {
    dir: tempfile::TempDir,
    store: Store,
    pack: PathBuf,
    manifest: PathBuf,
}

/// A store with one checkpoint.
fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(dir.path()).unwrap();
    let published = checkpoint(&store.writer(&id()).unwrap(), 0, &noise(0, 3000)).unwrap();
    let sandbox = dir.path().join("sandboxes/default/demo");
    Fixture {
        pack: sandbox.join(format!("packs/{}.pack", published.packs[0])),
        manifest: sandbox.join("manifests/00000000000000000000.json"),
        dir,
        store,
    }
}

impl Fixture {
    fn read(&self) -> Result<Vec<u8>, ReadError> {
        let sandbox = self.store.sandbox(&id()).unwrap();
        let manifest = sandbox.latest()?.unwrap();
        content(&sandbox, &manifest)
    }
}

#[test]
fn a_bit_flipped_anywhere_in_a_pack_never_yields_other_bytes() {
    let fixture = fixture();
    let whole = fs::read(&fixture.pack).unwrap();
    let good = fixture.read().unwrap();
    let mut noticed = 0;
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 4;
        fs::write(&fixture.pack, &bytes).unwrap();
        match fixture.read() {
            // In the objects' own headers, which repeat the index.
            Ok(bytes) => assert_eq!(bytes, good),
            Err(_) => noticed += 1,
        }
    }
    assert!(
        noticed > whole.len() * 9 / 10,
        "{noticed} of {}",
        whole.len()
    );
}

#[test]
fn a_truncated_pack_is_not_believed() {
    let fixture = fixture();
    let whole = fs::read(&fixture.pack).unwrap();
    for len in 0..whole.len() {
        fs::write(&fixture.pack, &whole[..len]).unwrap();
        assert!(matches!(fixture.read(), Err(ReadError::Damaged { .. })));
    }
    fs::remove_file(&fixture.pack).unwrap();
    assert!(matches!(fixture.read(), Err(ReadError::NoPack { .. })));
}

#[test]
fn what_a_damaged_pack_held_is_stored_anew() {
    let fixture = fixture();
    fs::write(&fixture.pack, b"").unwrap();
    let writer = fixture.store.writer(&id()).unwrap();
    let again = checkpoint(&writer, 1, &noise(0, 3000)).unwrap();
    assert_eq!(content(writer.store(), &again).unwrap(), noise(0, 3000));
}

#[test]
fn a_damaged_manifest_is_named_and_keeps_every_pack() {
    let fixture = fixture();
    let whole = fs::read(&fixture.manifest).unwrap();
    for len in 0..whole.len() - 1 {
        fs::write(&fixture.manifest, &whole[..len]).unwrap();
        let error = fixture.read().unwrap_err();
        assert!(error.to_string().contains(".json is damaged"), "{error}");
    }
    let mut flipped = whole.clone();
    let at = whole.windows(5).position(|w| w == b"17000").unwrap();
    flipped[at + 1] ^= 1;
    fs::write(&fixture.manifest, &flipped).unwrap();
    let error = fixture.read().unwrap_err();
    assert!(error.to_string().contains("checksum"), "{error}");
    let listed = fixture.store.sandbox(&id()).unwrap().manifests().unwrap();
    assert!(matches!(listed[..], [(TurnId(0), Err(_))]));

    // Nor is its pack taken for a leftover.
    drop(fixture.store.writer(&id()).unwrap());
    fs::write(&fixture.manifest, &whole).unwrap();
    assert_eq!(fixture.read().unwrap(), noise(0, 3000));

    // A manifest under another turn's name is not that turn's.
    let other = fixture.manifest.with_file_name("00000000000000000007.json");
    fs::copy(&fixture.manifest, other).unwrap();
    assert!(fixture.read().is_err());
}

#[test]
fn what_killed_writers_left_is_removed_and_nothing_else() {
    let fixture = fixture();
    let sandbox = fixture.dir.path().join("sandboxes/default/demo");
    let stray = format!("packs/{}.pack", "ab".repeat(16));
    fs::write(sandbox.join(&stray), b"half a pack").unwrap();
    let temporary = "manifests/00000000000000000001.json.77.0.tmp";
    fs::write(sandbox.join(temporary), b"{").unwrap();
    fs::write(sandbox.join("meta.json.77.1.tmp"), b"{").unwrap();
    fs::write(sandbox.join("packs/README"), b"somebody's note").unwrap();
    assert_eq!(fixture.read().unwrap(), noise(0, 3000));
    drop(fixture.store.writer(&id()).unwrap());
    assert!(!sandbox.join(&stray).exists());
    assert_eq!(names(fixture.dir.path(), "manifests").len(), 1);
    assert_eq!(names(fixture.dir.path(), "packs").len(), 2);
    assert_eq!(
        names(fixture.dir.path(), ""),
        ["journal", "lock", "manifests", "packs"]
    );
    assert_eq!(fixture.read().unwrap(), noise(0, 3000));
}
