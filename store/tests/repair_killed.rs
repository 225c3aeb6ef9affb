// SPDX-License-Identifier: Apache-2.0

//! A repair that dies at any of its steps: the next one ends as if it had not.

mod support;

use std::{
    collections::BTreeSet,
    env, fs,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
};

use crab_fault::{CRASH_AT, Part as Step, Point};
use crab_store::*;
use support::*;

const ROOT: &str = "CRAB_TEST_ROOT";
const SIGKILL: i32 = 9;
/// Checkpoints of which the damage takes 1 and 2.
const CHECKPOINTS: u64 = 5;

/// Something of everything is damaged that a repair deals with by itself.
fn damaged_store() -> (tempfile::TempDir, Store) {
    let (dir, store) = store();
    let writer = store.writer(&id()).unwrap();
    for turn in 0..CHECKPOINTS {
        checkpoint(&writer, turn, &noise(turn, 700)).unwrap();
        let record = JournalRecord::Turn(turn_record(turn));
        writer.append(record, Durability::Lazy).unwrap();
    }
    let name: TagName = "good".parse().unwrap();
    writer.store().set_tag(&name, TurnId(3), 1).unwrap();
    drop(writer);
    let at = dir.path().join("sandboxes/default/demo");
    // The first object of a pack, whose others are sound.
    flip(&pack_of(&store, 1), 80);
    fs::write(at.join("manifests/00000000000000000002.json"), b"{").unwrap();
    flip(&at.join("tags/good.json"), 50);
    flip(&at.join("journal"), 60);
    (dir, store)
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

/// The pack that a checkpoint added.
fn pack_of(store: &Store, turn: u64) -> PathBuf {
    let sandbox = store.sandbox(&id()).unwrap();
    let packs = |turn| sandbox.manifest(TurnId(turn)).unwrap().unwrap().packs;
    let older: BTreeSet<PackId> = (0..turn).flat_map(packs).collect();
    let own: Vec<PackId> = packs(turn)
        .into_iter()
        .filter(|p| !older.contains(p))
        .collect();
    let dir = store.root().join("sandboxes/default/demo/packs");
    dir.join(format!("{}.pack", own[0]))
}

/// Not a test: what the test below runs in another process, which dies in it.
#[test]
#[ignore = "runs until it dies"]
fn repair_it() {
    let Some(root) = env::var_os(ROOT) else {
        return;
    };
    let store = Store::open(root).unwrap();
    let sandbox = store.sandbox(&id()).unwrap();
    store.repair(&sandbox, 1, &mut |_, _| {}).unwrap();
}

fn repair(root: &Path, at: &str) -> ExitStatus {
    let program = env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args(["--exact", "repair_it", "--ignored"]);
    command.env(ROOT, root).env(CRASH_AT, at);
    command.output().unwrap().status
}

/// The content of each checkpoint that is there, and the names of what was put aside.
fn what_is_left(store: &Store) -> (Vec<(u64, Vec<u8>)>, BTreeSet<String>) {
    let sandbox = store.sandbox(&id()).unwrap();
    let left = sandbox.manifests().unwrap().into_iter();
    let left = left.map(|(turn, manifest)| {
        let bytes = content(&sandbox, &manifest.unwrap()).unwrap();
        (turn.0, bytes)
    });
    let mut aside = BTreeSet::new();
    let all = store.root().join("sandboxes/default/demo/damaged");
    let mut dirs = vec![(all, String::new())];
    while let Some((dir, above)) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            // By which of the repairs is no matter.
            let own = match above.is_empty() {
                true => ".".to_owned(),
                false => format!("{above}/{name}"),
            };
            match entry.path().is_dir() {
                true => dirs.push((entry.path(), own)),
                false => drop(aside.insert(own)),
            }
        }
    }
    // The names of packs are by chance.
    let aside = aside.into_iter();
    let aside = aside.map(|name| match name.contains("/packs/") {
        true => "a pack".to_owned(),
        false => name,
    });
    (left.collect(), aside.collect())
}

#[test]
fn a_repair_that_dies_at_any_step_is_ended_by_the_next() {
    let (dir, store) = damaged_store();
    assert!(repair(dir.path(), "").success());
    let expected = what_is_left(&store);
    let turns: Vec<u64> = expected.0.iter().map(|(turn, _)| *turn).collect();
    assert_eq!(turns, [0, 3, 4]);
    let all = Point::ALL.iter().copied();
    for point in all.filter(|point| point.part() == Step::Repair) {
        let (dir, store) = damaged_store();
        let status = repair(dir.path(), point.name());
        assert_eq!(status.signal(), Some(SIGKILL), "{point} is never reached");
        // Whoever writes next must not remove what is to be put aside.
        drop(store.writer(&id()).unwrap());
        assert!(repair(dir.path(), "").success(), "{point}");
        let sandbox = store.sandbox(&id()).unwrap();
        assert_eq!(sandbox.check(&mut |_, _| {}).unwrap().damage, [], "{point}");
        assert!(what_is_left(&store) == expected, "{point}");
        assert_eq!(sandbox.journal().unwrap().damaged, 0);
        let writer = store.writer(&id()).unwrap();
        checkpoint(&writer, CHECKPOINTS, &noise(9, 700)).unwrap();
    }
}
