// SPDX-License-Identifier: Apache-2.0

//! The formats on disk, pinned. A test that fails here means that stores which
//! users have would be misread: raise the version, or change it back.

mod support;

use std::{fs, path::Path};

use crab_store::*;
use support::*;

/// The tree in the pinned pack.
const TREE: &str = "6837fc73eab31a6bfd27a095c172385d577019e7068bfaaa99c8c88871205312";

fn golden(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name)
}

fn expected() -> Manifest {
    let mut manifest = manifest(7, Digest([1; 32]), Digest([2; 32]));
    manifest.class = Class::Full;
    manifest.files.tmpfs = vec![TmpfsTree {
        mount: b"/dev/shm/\xff".to_vec(),
        tree: Digest([3; 32]),
    }];
    manifest.processes = Some(ProcessRef {
        turn: TurnId(5),
        digest: Digest([4; 32]),
    });
    manifest.degraded = Some("no criu".to_owned());
    manifest.packs = vec!["0123456789abcdef0123456789abcdef".parse().unwrap()];
    manifest.bytes_stored = 4096;
    manifest.bytes_raw = 8192;
    manifest
}

/// A store whose one sandbox has these files.
fn store_with(files: &[(&str, &str)]) -> (tempfile::TempDir, SandboxStore) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(dir.path()).unwrap();
    drop(store.writer(&id()).unwrap());
    for (name, to) in files {
        let to = dir.path().join("sandboxes/default/demo").join(to);
        fs::copy(golden(name), to).unwrap();
    }
    let sandbox = store.sandbox(&id()).unwrap();
    (dir, sandbox)
}

#[test]
fn a_manifest_of_version_1_is_read_for_ever() {
    let to = "manifests/00000000000000000007.json";
    let (_dir, sandbox) = store_with(&[("manifest-1.json", to)]);
    assert_eq!(sandbox.latest().unwrap(), Some(expected()));
}

/// The same sandbox with a manifest of this version and body.
fn with_manifest(version: u32, body: &str) -> (tempfile::TempDir, SandboxStore) {
    let (dir, sandbox) = store_with(&[]);
    let check = Digest::of(body.as_bytes());
    let text = format!(
        "{{\"magic\":\"crab-manifest\",\"version\":{version},\"blake3\":\"{check}\",\"body\":{body}}}\n"
    );
    let manifests = dir.path().join("sandboxes/default/demo/manifests");
    fs::write(manifests.join("00000000000000000007.json"), text).unwrap();
    (dir, sandbox)
}

fn body(manifest: &Manifest) -> serde_json::Value {
    serde_json::to_value(manifest).unwrap()
}

#[test]
fn what_a_later_version_adds_to_a_manifest_is_passed_over() {
    let mut newer = body(&expected());
    newer["teleport"] = serde_json::json!({"to": ["mars"]});
    newer["files"]["more"] = serde_json::json!(1);
    newer["machine"] = serde_json::json!({"crab": "0.9.0", "kernel": "7.1", "quantum": true});
    let (_dir, sandbox) = with_manifest(1, &newer.to_string());
    let read = sandbox.latest().unwrap().unwrap();
    let machine = Machine {
        crab: "0.9.0".to_owned(),
        kernel: "7.1".to_owned(),
        ..Machine::default()
    };
    let machine = Some(machine);
    assert_eq!(
        read,
        Manifest {
            machine,
            ..expected()
        }
    );
}

#[test]
fn what_an_earlier_version_did_not_write_may_be_missing() {
    let mut older = body(&expected());
    let fields = older.as_object_mut().unwrap();
    fields.remove("degraded");
    fields.remove("machine");
    fields["files"].as_object_mut().unwrap().remove("tmpfs");
    let (_dir, sandbox) = with_manifest(1, &older.to_string());
    let mut without = expected();
    without.degraded = None;
    without.files.tmpfs.clear();
    assert_eq!(sandbox.latest().unwrap(), Some(without));
}

#[test]
fn a_manifest_of_a_later_format_is_refused_with_who_wrote_it() {
    for (body, by) in [
        (
            r#"{"machine":{"crab":"0.9.0"},"other":1}"#,
            ", of crab 0.9.0",
        ),
        (r#"{"other":1}"#, ""),
        (r#"["nothing","like","it"]"#, ""),
    ] {
        let (_dir, sandbox) = with_manifest(2, body);
        let said = sandbox.latest().unwrap_err().to_string();
        let end = format!("has version 2{by}, this version of crab reads up to 1");
        assert!(said.ends_with(&end), "{said}");
    }
}

#[test]
fn a_journal_of_version_1_is_read_for_ever() {
    let (_dir, sandbox) = store_with(&[("journal-1", "journal")]);
    let journal = sandbox.journal().unwrap();
    assert_eq!(journal.damaged, 0);
    assert_eq!(journal.records, records());
}

#[test]
fn what_is_written_is_what_is_pinned() {
    // The packs differ by name in each run, so the manifest is compared by way
    // of its body.
    let pinned = fs::read_to_string(golden("manifest-1.json")).unwrap();
    let body = serde_json::to_string(&expected()).unwrap();
    assert!(pinned.contains(&format!("\"body\":{body}")), "{body}");

    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(dir.path()).unwrap();
    let writer = store.writer(&id()).unwrap();
    for record in records() {
        writer.append(record, Durability::Lazy).unwrap();
    }
    let written = fs::read(dir.path().join("sandboxes/default/demo/journal")).unwrap();
    if std::env::var_os("CRAB_UPDATE_GOLDEN").is_some() {
        fs::write(golden("journal-1"), &written).unwrap();
    }
    assert!(written == fs::read(golden("journal-1")).unwrap());
    let format = fs::read_to_string(dir.path().join("FORMAT")).unwrap();
    assert_eq!(format, "crab-store 1\n");
}

#[test]
fn packs_and_trees_of_version_1_are_read_for_ever() {
    let name = "0123456789abcdef0123456789abcdef.pack";
    let to = format!("packs/{name}");
    if std::env::var_os("CRAB_UPDATE_GOLDEN").is_some() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::create(dir.path()).unwrap();
        let published = checkpoint(&store.writer(&id()).unwrap(), 0, b"golden").unwrap();
        let packs = dir.path().join("sandboxes/default/demo/packs");
        let made = packs.join(format!("{}.pack", published.packs[0]));
        fs::copy(made, golden("pack-1")).unwrap();
        println!("{published:?}");
    }
    // A reader wants the manifest to be there, whatever is in it.
    let to_manifest = "manifests/00000000000000000000.json";
    let (dir, sandbox) = store_with(&[("manifest-1.json", to_manifest)]);
    let packs = dir.path().join("sandboxes/default/demo");
    fs::copy(golden("pack-1"), packs.join(to)).unwrap();
    let tree = TREE.parse().unwrap();
    let spec = Digest::of(b"{\"ociVersion\":\"1.2.0\"}");
    let mut manifest = manifest(0, tree, spec);
    manifest.packs = expected().packs;
    assert_eq!(content(&sandbox, &manifest).unwrap(), b"golden");
}

#[test]
fn removals_and_tags_of_version_1_are_read_for_ever() {
    let pinned = r#"{"record":"removed","at_ms":4,"turns":[1,2],"why":"one newer is kept"}"#;
    let removal = JournalRecord::Removed(RemovedRecord {
        at_ms: 4,
        turns: vec![TurnId(1), TurnId(2)],
        why: "one newer is kept".to_owned(),
    });
    assert_eq!(serde_json::to_string(&removal).unwrap(), pinned);
    let read: JournalRecord = serde_json::from_str(pinned).unwrap();
    assert_eq!(read, removal);

    let name: TagName = "good".parse().unwrap();
    let (dir, sandbox) = store_with(&[]);
    let at = dir.path().join("sandboxes/default/demo");
    let writer = Store::create(dir.path()).unwrap().writer(&id()).unwrap();
    checkpoint(&writer, 7, b"golden").unwrap();
    let tag = sandbox.set_tag(&name, TurnId(7), 5).unwrap();
    let written = fs::read(at.join("tags/good.json")).unwrap();
    if std::env::var_os("CRAB_UPDATE_GOLDEN").is_some() {
        fs::write(golden("tag-1.json"), &written).unwrap();
    }
    assert!(written == fs::read(golden("tag-1.json")).unwrap());
    assert_eq!(sandbox.tag(&name).unwrap(), Some(tag));
}

#[test]
fn beginnings_and_ends_of_version_1_are_read_for_ever() {
    let began = r#"{"record":"began","at_ms":4,"boot":"b","turn":3,"anew":true}"#;
    let ended = r#"{"record":"ended","at_ms":5,"exit":137}"#;
    let with_host = r#"{"record":"ended","at_ms":5,"exit":0,"with_host":true}"#;
    let end = |exit, with_host| {
        JournalRecord::Ended(EndedRecord {
            at_ms: 5,
            exit,
            with_host,
        })
    };
    let record = BeganRecord {
        at_ms: 4,
        boot: "b".to_owned(),
        turn: TurnId(3),
        anew: true,
    };
    for (pinned, record) in [
        (began, JournalRecord::Began(record)),
        (ended, end(137, false)),
        (with_host, end(0, true)),
    ] {
        assert_eq!(serde_json::to_string(&record).unwrap(), pinned);
        let read: JournalRecord = serde_json::from_str(pinned).unwrap();
        assert_eq!(read, record);
    }
}

fn records() -> Vec<JournalRecord> {
    let rollback = RollbackRecord {
        at_ms: 1,
        from: TurnId(2),
        asked: TurnId(1),
        checkpoint: TurnId(0),
        processes: true,
        took_us: 2,
        warm: false,
    };
    let mut turn = turn_record(2);
    turn.unobserved = Some("crabd is gone".to_owned());
    turn.degraded = Some("no criu".to_owned());
    vec![
        JournalRecord::Turn(turn_record(1)),
        JournalRecord::Turn(turn),
        JournalRecord::Rollback(rollback.clone()),
        JournalRecord::Restore(rollback),
        JournalRecord::CaptureFailed(CaptureFailed {
            at_ms: 4,
            turn: TurnId(4),
            reason: "no space left".to_owned(),
            kind: Default::default(),
        }),
    ]
}
