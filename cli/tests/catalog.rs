// SPDX-License-Identifier: Apache-2.0

//! What `crab` remembers of the store: never more than the store says.

mod support;

use std::{
    fs::{self, File},
    path::PathBuf,
    time::{Duration, SystemTime},
};

use crab_store::*;
use support::*;

const DEMO: &str = "store/sandboxes/default/demo";

/// A host whose one sandbox nobody has written to for an hour.
fn settled() -> Host {
    let host = Host::with_history("default/demo");
    settle(&host);
    host
}

fn settle(host: &Host) {
    let then = SystemTime::now() - Duration::from_secs(3600);
    for name in ["journal", "meta.json", "manifests", "packs"] {
        let file = File::open(host.path(DEMO).join(name)).unwrap();
        file.set_modified(then).unwrap();
    }
}

fn demo(host: &Host) -> serde_json::Value {
    host.crab(&["ps", "--json"]).json()["sandboxes"][0].clone()
}

fn catalog(host: &Host) -> PathBuf {
    host.path("store/catalog.sqlite")
}

/// Damages a manifest in a way that changes no time, as a disk would.
fn lose_a_manifest(host: &Host) {
    let manifest = host.path(DEMO).join("manifests/00000000000000000003.json");
    fs::write(manifest, b"{").unwrap();
}

#[test]
fn what_is_remembered_is_not_read_again_and_can_be_forgotten() {
    let host = settled();
    let first = demo(&host);
    assert_eq!(first["checkpoints"], 3);
    assert!(catalog(&host).exists());
    // Read again it would be found.
    lose_a_manifest(&host);
    assert_eq!(demo(&host), first);
    fs::remove_file(catalog(&host)).unwrap();
    let now = demo(&host);
    assert_eq!(now["checkpoints"], 2);
    assert_eq!(now["note"], "1 damaged checkpoints");
    // What is wrong was looked for.
    assert_eq!(host.crab(&["fsck"]).code, 6);
}

#[test]
fn what_was_written_since_is_seen_at_once() {
    let host = settled();
    assert_eq!(demo(&host)["turn"], 5);
    let writer = host.writer("default/demo");
    append(
        &writer,
        JournalRecord::Turn(turn_record(6, "ls", Class::None)),
    );
    assert_eq!(demo(&host)["turn"], 6);
    // Also while it is too young to be remembered.
    append(
        &writer,
        JournalRecord::Turn(turn_record(7, "ls", Class::None)),
    );
    assert_eq!(demo(&host)["turn"], 7);
    drop(writer);
    settle(&host);
    let before = demo(&host)["checkpoints"].clone();
    host.crab(&["gc", "demo", "--keep", "0"]).ok();
    assert_ne!(demo(&host)["checkpoints"], before);
}

#[test]
fn usage_is_remembered_beside_it() {
    let host = settled();
    demo(&host);
    let first = host.crab(&["du", "--json"]).json();
    lose_a_manifest(&host);
    assert_eq!(host.crab(&["du", "--json"]).json(), first);
    // Of one sandbox it is always read.
    host.crab(&["du", "demo"]).error(1);
    // A repair begins anew.
    assert_eq!(host.crab(&["fsck", "--repair"]).code, 6);
    assert_eq!(demo(&host)["checkpoints"], 2);
}

#[test]
fn one_that_cannot_be_used_is_made_anew() {
    let host = settled();
    let first = demo(&host);
    let whole = fs::read(catalog(&host)).unwrap();
    // A bit of the row itself.
    let mut flipped = whole.clone();
    let at = whole
        .windows(11)
        .position(|w| w == b"\"checkpoint")
        .unwrap();
    flipped[at + 15] ^= 1;
    for rubbish in [
        &b"rubbish that is long enough for a header"[..],
        &[1; 8192],
        &whole[..whole.len() / 2],
        &flipped,
    ] {
        fs::write(catalog(&host), rubbish).unwrap();
        assert_eq!(demo(&host), first);
        assert_eq!(demo(&host), first);
        assert!(fs::read(catalog(&host)).unwrap() != rubbish);
    }
    // What is no file is left alone.
    fs::remove_file(catalog(&host)).unwrap();
    fs::create_dir(catalog(&host)).unwrap();
    assert_eq!(demo(&host), first);
}
