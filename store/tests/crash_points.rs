// SPDX-License-Identifier: Apache-2.0

//! Death at each step between two changes of the disk: what was published reads whole, and
//! nothing is left that stays for ever.

mod support;

use std::{
    collections::BTreeSet,
    env,
    io::{BufRead, BufReader},
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Command, Stdio},
};

use crab_fault::{CRASH_AT, Part, Point};
use crab_store::*;
use support::*;

const ROOT: &str = "CRAB_TEST_ROOT";
const SIGKILL: i32 = 9;

/// The first half is that of three turns, so that a removal replaces packs.
fn bytes_of(turn: u64) -> Vec<u8> {
    let common = noise(1000 + turn / 3, CHUNK);
    [common, noise(turn + 1, CHUNK), noise(turn + 1, 100)].concat()
}

/// Not a test: what the tests below run in another process, which dies in it.
#[test]
#[ignore = "runs until it dies"]
fn publish_and_remove() {
    let Some(root) = env::var_os(ROOT) else {
        return;
    };
    let store = Store::create(root).unwrap();
    let writer = store.writer(&id()).unwrap();
    let name: TagName = "first".parse().unwrap();
    let begin = writer.store().next_turn().unwrap().0;
    for turn in begin..begin + 9 {
        checkpoint(&writer, turn, &bytes_of(turn)).unwrap();
        println!("published {turn}");
        let record = JournalRecord::Turn(turn_record(turn));
        writer.append(record, Durability::Lazy).unwrap();
        if turn == 0 {
            writer.store().set_tag(&name, TurnId(0), 1).unwrap();
            println!("tagged");
        }
        if turn > begin + 2 {
            writer.collect(&keep(1)).unwrap();
        }
    }
}

/// What a process that died had said.
struct Died {
    published: Option<u64>,
    tagged: bool,
    by_itself: bool,
}

fn die(root: &Path, at: &str) -> Died {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "publish_and_remove", "--ignored", "--nocapture"])
        .env(ROOT, root)
        .env(CRASH_AT, at)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut died = Died {
        published: None,
        tagged: false,
        by_itself: false,
    };
    for line in lines.map_while(Result::ok) {
        if let Some(turn) = line.strip_prefix("published ") {
            died.published = turn.parse().ok();
        }
        died.tagged |= line == "tagged";
    }
    let status = child.wait().unwrap();
    died.by_itself = status.signal() != Some(SIGKILL);
    assert!(status.success() || !died.by_itself, "{at}: {status}");
    died
}

/// Everything that is there is whole, the newest is, and what was tagged.
fn look(store: &Store, died: &Died, at: &str) {
    let sandbox = store.sandbox(&id()).unwrap();
    let checked = sandbox.check(&mut |_, _| {}).unwrap();
    assert_eq!(checked.damage, [], "{at}");
    let turns: BTreeSet<TurnId> = sandbox.checkpoints().unwrap();
    for (turn, manifest) in sandbox.manifests().unwrap() {
        let bytes = content(&sandbox, &manifest.unwrap()).unwrap();
        assert!(bytes == bytes_of(turn.0), "{at}: turn {turn}");
    }
    let newest = turns.last().map(|turn| turn.0);
    assert!(newest >= died.published, "{at}: {newest:?}");
    assert!(
        !died.tagged || turns.contains(&TurnId(0)),
        "{at}: {turns:?}"
    );
    // What is not there any more is not promised.
    for record in sandbox.journal().unwrap().records {
        if let JournalRecord::Turn(record) = record
            && !turns.contains(&record.turn)
        {
            let error = sandbox.checkpoint_of(record.turn).unwrap_err();
            assert!(error.to_string().contains("was removed"), "{at}: {error}");
        }
    }
}

/// Nothing that no checkpoint needs outlives the next writer and its next removal.
fn tidy(root: &Path, store: &Store, at: &str) {
    let writer = store.writer(&id()).unwrap();
    writer.collect(&keep(1)).unwrap();
    let again = writer.collect(&keep(1)).unwrap();
    assert_eq!((again.bytes_freed, again.postponed), (0, None), "{at}");
    let manifests = writer.store().manifests().unwrap().into_iter();
    let named: BTreeSet<String> = manifests
        .flat_map(|(_, manifest)| manifest.unwrap().packs)
        .map(|pack| format!("{pack}.pack"))
        .collect();
    let there: BTreeSet<String> = names(root, "packs").into_iter().collect();
    assert_eq!(there, named, "{at}");
    let turns = writer.store().checkpoints().unwrap().len();
    assert_eq!(names(root, "manifests").len(), turns, "{at}");
}

/// The steps of what runs here. Those of a repair are in fsck.rs.
fn points() -> impl Iterator<Item = Point> {
    let all = Point::ALL.iter().copied();
    all.filter(|point| matches!(point.part(), Part::Publish | Part::Collect))
        // Of the shim.
        .filter(|point| *point != Point::PublishBegun)
}

#[test]
fn death_at_each_step_of_publishing_and_removing_loses_nothing() {
    for point in points() {
        // The first time it comes there, and later, among what was there before.
        for time in [1, 2] {
            let dir = tempfile::tempdir().unwrap();
            let root = dir.path().join("store");
            let at = format!("{}:{time}", point.name());
            let died = die(&root, &at);
            assert!(!died.by_itself, "{at} is never reached");
            let store = Store::open(&root).unwrap();
            look(&store, &died, &at);
            tidy(&root, &store, &at);
            look(&store, &died, &at);
            // And history goes on.
            let died = die(&root, "");
            assert!(died.by_itself, "{at}");
            look(&store, &died, &at);
        }
    }
}
