// SPDX-License-Identifier: Apache-2.0

//! SIGKILL at any instant: what was published is there.

mod support;

use std::{
    collections::BTreeSet,
    env,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    thread::sleep,
    time::Duration,
};

use crab_store::*;
use support::*;

const ROOT: &str = "CRAB_TEST_ROOT";

fn bytes_of(turn: u64) -> Vec<u8> {
    [noise(0, CHUNK), noise(turn, 2 * CHUNK)].concat()
}

/// Not a test: what the test below runs in another process, and kills.
#[test]
#[ignore = "runs until it is killed"]
fn publish_for_ever() {
    let Some(root) = env::var_os(ROOT) else {
        return;
    };
    let store = Store::create(root).unwrap();
    let writer = store.writer(&id()).unwrap();
    let mut turn = writer.store().next_turn().unwrap().0;
    loop {
        checkpoint(&writer, turn, &bytes_of(turn)).unwrap();
        println!("published {turn}");
        let record = JournalRecord::Turn(turn_record(turn));
        writer.append(record, Durability::Lazy).unwrap();
        println!("recorded {turn}");
        if turn % 4 == 3 {
            let limits = Limits {
                count: Some(5),
                ..Limits::default()
            };
            let wanted = Wanted {
                limits,
                ..Wanted::default()
            };
            writer.collect(&wanted).unwrap();
        }
        turn += 1;
    }
}

#[test]
fn a_writer_killed_at_any_instant_loses_nothing_that_it_published_and_keeps() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    let (mut published, mut recorded) = (None, None);
    for round in 0..50u64 {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "publish_for_ever", "--ignored", "--nocapture"])
            .env(ROOT, &root)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut lines = stdout.lines().map_while(Result::ok);
        let number = |line: &str, word: &str| line.strip_prefix(word)?.parse::<u64>().ok();
        // Every other time from the first publication on: how far it comes from its start
        // is up to the machine.
        if round % 2 == 1 {
            let first = lines.find_map(|line| number(&line, "published "));
            published = Some(first.expect("it publishes"));
        }
        // Spread over start, writing and publishing.
        let after = u64::from(noise(round, 1)[0]) * 400 + round % 7 * 1000;
        sleep(Duration::from_micros(after));
        child.kill().unwrap();
        for line in lines {
            published = number(&line, "published ").or(published);
            recorded = number(&line, "recorded ").or(recorded);
        }
        child.wait().unwrap();

        // A reader sees everything at once, before any writer tidies up.
        let Ok(store) = Store::open(&root) else {
            assert_eq!(published, None);
            continue;
        };
        let Ok(sandbox) = store.sandbox(&id()) else {
            assert_eq!(published, None);
            continue;
        };
        let latest = sandbox.latest().unwrap();
        let turn = latest.as_ref().map(|manifest| manifest.turn.0);
        assert!(turn >= published, "{turn:?} instead of {published:?}");
        if let Some(manifest) = &latest {
            let bytes = content(&sandbox, manifest).unwrap();
            assert_eq!(bytes, bytes_of(manifest.turn.0));
        }
        let records = sandbox.journal().unwrap().records;
        let said = records.iter().filter_map(JournalRecord::turn).max();
        assert!(said.map(|turn| turn.0) >= recorded);
        if round % 10 == 9 {
            for (_, manifest) in sandbox.manifests().unwrap() {
                let manifest = manifest.unwrap();
                let bytes = content(&sandbox, &manifest).unwrap();
                assert_eq!(bytes, bytes_of(manifest.turn.0));
            }
        }
        let checked = sandbox.check(&mut |_, _| {}).unwrap();
        let torn = |damage: &Damage| damage.part == Part::JournalTail;
        assert!(checked.damage.iter().all(torn), "{checked:?}");
        // The lock died with its holder, and leftovers go.
        let writer = store.writer(&id()).unwrap();
        let manifests = writer.store().manifests().unwrap();
        assert_eq!(names(&root, "manifests").len(), manifests.len());
        let named: BTreeSet<String> = manifests
            .into_iter()
            .flat_map(|(_, manifest)| manifest.unwrap().packs)
            .map(|pack| format!("{pack}.pack"))
            .collect();
        assert_eq!(names(&root, "packs"), Vec::from_iter(named));
    }
    assert!(published > Some(10), "only {published:?} were published");
}
