// SPDX-License-Identifier: Apache-2.0

//! `tag`, `du`, `gc`, `fsck`: what is kept of history, and whether it is whole.

mod support;

use std::fs;

use crab_store::{Fork, SandboxId, Store};
use support::*;

#[test]
fn a_tag_does_wherever_a_turn_is_named() {
    let host = Host::with_history("default/demo");
    let said = host.crab(&["tag", "demo", "3", "good"]).ok();
    assert_eq!(said, "turn 3 of default/demo is good: checkpoint 3 stays\n");
    for args in [
        &["show", "demo", "good"][..],
        &["diff", "demo", "good", "good"],
    ] {
        host.crab(args).ok();
    }
    let shown = host.crab(&["show", "demo", "good", "--json"]).json();
    assert_eq!(shown["turn"], 3);
    let json = host.crab(&["tag", "demo", "--json"]).json();
    assert_eq!(json["tags"][0]["name"], "good");
    assert_eq!(json["tags"][0]["turn"], 3);
    assert!(host.crab(&["turns", "demo"]).ok().contains("tag good"));

    let error = host.crab(&["tag", "demo", "2", "good"]).error(4);
    assert!(error.contains("good is turn 3 already"), "{error}");
    let error = host.crab(&["tag", "demo", "4", "lost"]).error(3);
    assert!(error.contains("no checkpoint holds turn 4"), "{error}");
    let error = host.crab(&["show", "demo", "better"]).error(3);
    assert!(error.contains("no turn has that name"), "{error}");
    host.crab(&["tag", "demo", "2", "9lives"]).error(2);
    host.crab(&["tag", "demo", "2"]).error(2);

    host.crab(&["tag", "demo", "--delete", "good"]).ok();
    host.crab(&["tag", "demo", "--delete", "good"]).error(3);
    assert_eq!(host.crab(&["tag", "demo"]).ok().lines().count(), 1);
}

#[test]
fn gc_keeps_what_must_stay_and_history_tells_what_went() {
    let host = Host::with_history("default/demo");
    host.crab(&["tag", "demo", "3", "good"]).ok();
    // By default everything is kept.
    let json = host.crab(&["gc", "--json"]).json();
    assert_eq!(json["sandboxes"][0]["kept"], 3);
    let dry = host
        .crab(&["gc", "demo", "--keep", "0", "--dry-run", "--json"])
        .json();
    let wet = host.crab(&["gc", "demo", "--keep", "0", "--json"]).json();
    assert_eq!(dry["bytes_freed"], wet["bytes_freed"]);
    assert_eq!(
        dry["sandboxes"][0]["removed"],
        wet["sandboxes"][0]["removed"]
    );
    assert!(wet["bytes_freed"].as_u64().unwrap() > 0, "{wet}");
    // 2 is the newest state (a rollback went there), 3 has a name.
    let removed = wet["sandboxes"][0]["removed"].as_object().unwrap();
    assert_eq!(removed.keys().collect::<Vec<_>>(), ["0"]);

    let turns = host.crab(&["turns", "demo"]).ok();
    assert!(
        turns.contains("checkpoint removed: only what must stay is kept"),
        "{turns}"
    );
    let error = host.crab(&["diff", "demo", "0", "2"]).error(3);
    assert!(
        error.contains("checkpoint 0 was removed (only what must stay is kept)"),
        "{error}"
    );
    assert!(
        error.contains("the next one after it is that of turn 2"),
        "{error}"
    );
    assert_eq!(host.crab(&["fsck", "demo", "--json"]).json()["whole"], true);
}

#[test]
fn gc_follows_the_configuration_and_the_sandboxs_own_wish() {
    let host = Host::with_history("default/demo");
    let text = fs::read_to_string(host.path("config.toml")).unwrap();
    let with = |more: &str| fs::write(host.path("config.toml"), format!("{text}{more}")).unwrap();
    with("[retention]\nkeep = 1\n");
    let json = host.crab(&["gc", "--json", "--dry-run"]).json();
    // Beside the newest state and the newest of all.
    assert_eq!(json["sandboxes"][0]["kept"], 3);
    {
        let writer = host.writer("default/demo");
        let mut meta = writer.store().meta().unwrap().unwrap();
        meta.limits.count = Some(0);
        writer.set_meta(&meta).unwrap();
    }
    let json = host.crab(&["gc", "--json", "--dry-run"]).json();
    assert_eq!(json["sandboxes"][0]["kept"], 2);
    with("[retention]\nkeep = -1\n");
    host.crab(&["gc"]).error(1);
    with("[retention]\nhost_max_bytes = 1\n");
    let json = host.crab(&["gc", "--json"]).json();
    assert_eq!(json["sandboxes"][0]["kept"], 2);
}

#[test]
fn what_copies_share_counts_once_against_the_limit_of_the_host() {
    let host = Host::with_history("default/demo");
    let store = Store::open(host.path("store")).unwrap();
    let taken = {
        let writer = host.writer("default/demo");
        let manifest = writer.store().latest().unwrap().unwrap();
        for copy in ["one", "two", "three"] {
            let fork = Fork {
                parent: writer.store(),
                turn: manifest.turn,
                manifest: &manifest,
                upper: None,
                now_ms: 1,
            };
            let id = SandboxId::new("default", copy).unwrap();
            store.fork(&id, &fork).unwrap();
        }
        store.bytes_of([writer.store().id()])
    };
    let text = fs::read_to_string(host.path("config.toml")).unwrap();
    let limit = |bytes: u64| {
        let text = format!("{text}[retention]\nhost_max_bytes = {bytes}\n");
        fs::write(host.path("config.toml"), text).unwrap();
    };
    let removed = || {
        let json = host.crab(&["gc", "--json", "--dry-run"]).json();
        let rows = json["sandboxes"].as_array().unwrap().clone();
        rows.iter()
            .map(|row| row["removed"].as_object().map_or(0, |all| all.len()))
            .sum::<usize>()
    };
    limit(taken);
    assert_eq!(removed(), 0);
    // What copies have as well is not removed for nothing.
    limit(taken / 2);
    assert_eq!(removed(), 0);
    for copy in ["one", "two", "three"] {
        fs::remove_dir_all(host.path("store/sandboxes/default").join(copy)).unwrap();
    }
    assert!(removed() > 0);
}

#[test]
fn gc_asks_for_what_only_the_shim_can_do() {
    let host = Host::with_history("default/demo");
    let writer = host.writer("default/demo");
    // A question needs nobody.
    host.crab(&["gc", "demo", "--dry-run"]).ok();
    let error = host.crab(&["gc", "demo"]).error(4);
    assert!(error.contains("in use by another process"), "{error}");
    drop(writer);
    host.crab(&["gc", "demo"]).ok();
}

#[test]
fn du_tells_what_is_taken_by_whom() {
    let host = Host::with_history("default/demo");
    host.crab(&["tag", "demo", "2", "good"]).ok();
    let json = host.crab(&["du", "--json"]).json();
    let demo = &json["sandboxes"][0];
    assert_eq!(demo["sandbox"], "default/demo");
    let number = |name: &str| demo[name].as_u64().unwrap();
    assert!(number("total") > number("packs") && number("packs") > 0);
    assert!(number("files") > 0 && number("processes") > 0, "{demo}");
    assert_eq!(json["total"], demo["total"]);
    let text = host.crab(&["du", "demo"]).ok();
    assert!(text.contains("UNIQUE") && text.contains("good"), "{text}");
    assert_eq!(Host::new().crab(&["du", "--json"]).json()["total"], 0);
}

#[test]
fn fsck_names_the_damage_and_what_it_costs_and_repairs_it() {
    let host = Host::with_history("default/demo");
    let text = host.crab(&["fsck"]).ok();
    assert!(text.ends_with(": whole\n"), "{text}");
    let manifest = host.path("store/sandboxes/default/demo/manifests/00000000000000000003.json");
    let mut bytes = fs::read(&manifest).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    fs::write(&manifest, &bytes).unwrap();

    let ran = host.crab(&["fsck", "demo"]);
    assert_eq!((ran.code, ran.err.as_str()), (6, ""), "{}", ran.out);
    for part in [
        "1 thing is damaged",
        "manifest: ",
        "00000000000000000003.json",
        "(hits 1 checkpoint: 3)",
        "cannot be brought back: the ends of turns 3\n",
    ] {
        assert!(ran.out.contains(part), "{part:?} is not in {}", ran.out);
    }
    let error = host.crab(&["gc", "demo", "--keep", "0"]).error(1);
    assert!(error.contains("crab fsck"), "{error}");
    // All of them tell the same, in one JSON object.
    let ran = host.crab(&["gc", "--json"]);
    assert_eq!(ran.code, 1);
    let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert!(json["sandboxes"][0]["failed"].is_string(), "{json}");

    let ran = host.crab(&["fsck", "demo", "--repair"]);
    assert_eq!(ran.code, 6, "{}", ran.out);
    assert!(
        ran.out.contains("1 checkpoint was put aside (3)"),
        "{}",
        ran.out
    );
    assert!(ran.out.contains("default/demo/damaged/1"), "{}", ran.out);
    assert_eq!(host.crab(&["fsck", "--json"]).json()["whole"], true);
    let turns = host.crab(&["turns", "demo"]).ok();
    assert!(turns.contains("put aside by crab fsck"), "{turns}");
    let du = host.crab(&["du"]).ok();
    assert!(du.contains("put aside by crab fsck"), "{du}");

    let writer = host.writer("default/demo");
    host.crab(&["fsck", "demo"]).ok();
    let error = host.crab(&["fsck", "demo", "--repair"]).error(4);
    assert!(error.contains("in use"), "{error}");
    drop(writer);
}

#[test]
fn a_checkpoint_goes_from_host_to_host_as_a_file() {
    let one = Host::with_history("default/demo");
    let file = one.path("demo.tar").display().to_string();
    let said = one
        .crab(&["export", "demo", "--turn", "1", "-o", &file])
        .ok();
    assert!(
        said.contains("turn 1 of default/demo (checkpoint 0"),
        "{said}"
    );
    let json = one.crab(&["export", "demo", "-o", &file, "--json"]).json();
    assert_eq!(json["checkpoint"], 2);
    assert_eq!(json["bytes"], fs::metadata(&file).unwrap().len());

    // A host on which Crab has not run yet.
    let two = Host::new();
    let said = two.crab(&["import", &file]).ok();
    assert!(
        said.starts_with("default/demo is as default/demo was at turn 2"),
        "{said}"
    );
    assert!(said.contains("crab restore default/demo"), "{said}");
    assert_eq!(two.crab(&["show", "demo", "0", "--json"]).json()["turn"], 0);
    two.crab(&["fsck"]).ok();
    let error = two.crab(&["import", &file]).error(4);
    assert!(error.contains("--id"), "{error}");
    let json = two
        .crab(&["import", &file, "--id", "copy", "--json"])
        .json();
    assert_eq!(json["sandbox_id"], "default/copy");
    assert_eq!(json["from"], "default/demo");
    two.crab(&["import", &file, "--id", "a/../b"]).error(2);

    fs::write(&file, "no archive").unwrap();
    let error = two.crab(&["import", &file, "--id", "other"]).error(1);
    assert!(error.contains("is no archive of a checkpoint"), "{error}");
    two.crab(&["import", "/nowhere"]).error(1);
    one.crab(&["export", "demo", "-o", "/dev/null"]).error(4);
    one.crab(&["export", "demo", "--turn", "99", "-o", &file])
        .error(3);
    one.crab(&["export", "demo", "-o", "/nowhere/x"]).error(1);
    assert_eq!(fs::read(&file).unwrap(), b"no archive");
}
