// SPDX-License-Identifier: Apache-2.0

//! `ps`, `turns`, `show`: what they print with no daemon anywhere.

mod support;

use std::{fs, os::unix::process::CommandExt, process::Stdio};

use crab_store::*;
use support::*;

/// The words of each line.
fn words(text: &str) -> Vec<Vec<&str>> {
    text.lines()
        .map(|line| line.split_whitespace().collect())
        .collect()
}

#[test]
fn a_fresh_host_has_no_sandboxes() {
    let host = Host::new();
    assert_eq!(words(&host.crab(&["ps"]).ok()).len(), 1);
    let json = host.crab(&["ps", "--json"]).json();
    assert_eq!(json, serde_json::json!({"sandboxes": []}));
    let error = host.crab(&["turns", "demo"]).error(3);
    assert!(error.contains("no store at"), "{error}");
    // A store that was named has to be there.
    host.crab(&["ps", "--store", "/nowhere"]).error(3);
}

#[test]
fn ps_lists_what_is_gone_with_its_newest_state() {
    let host = Host::with_history("default/demo");
    let docker = format!("moby/{}", "0a1b".repeat(16));
    host.writer(&docker);
    let text = host.crab(&["ps"]).ok();
    let lines = words(&text);
    assert_eq!(
        lines[1][..5],
        ["default/demo", "team/agent/main", "gone", "5", "2"],
        "{text}"
    );
    assert!(text.contains("example.test/agent:1"), "{text}");
    assert_eq!(lines[2][..5], ["moby/0a1b0a1b0a1b", "-", "gone", "-", "-"]);

    let json = host.crab(&["--json", "ps"]).json();
    let demo = &json["sandboxes"][0];
    assert_eq!(demo["sandbox"], "default/demo");
    assert_eq!(demo["state"], "gone");
    assert_eq!(demo["checkpoint"], 2);
    assert_eq!(demo["checkpoints"], 3);
    assert_eq!(json["sandboxes"][1]["sandbox"], docker.as_str());
}

#[test]
fn what_of_a_configuration_is_not_followed_is_seen_with_its_sandbox() {
    let host = Host::with_history("default/demo");
    let fault = "dev.crab.x is ignored: no such setting";
    for args in [&["ps"][..], &["turns", "demo"], &["show", "demo", "1"]] {
        let text = host.crab(args).ok();
        assert!(text.contains(fault), "{args:?}: {text}");
        let args = [&["--json"][..], args].concat();
        let json = host.crab(&args).json();
        let of = json.pointer("/sandboxes/0").unwrap_or(&json);
        assert_eq!(of["config_faults"][0], fault, "{args:?}: {json}");
    }
}

#[test]
fn turns_tells_history_with_failures_and_rollbacks() {
    let host = Host::with_history("default/demo");
    let text = host.crab(&["turns", "demo"]).ok();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        words(&text)[0].join(" "),
        "TURN TRIGGER COMMAND EXIT CLASS CHECKPOINT FILES BYTES CAPTURE FROZEN NOTE"
    );
    let has = |line: usize, parts: &[&str]| {
        for part in parts {
            assert!(lines[line].contains(part), "{part:?} is not in:\n{text}");
        }
    };
    has(1, &["0  start     sleep infinity ", " - ", "files"]);
    has(2, &["1  exec      ls /", "none", " -        -       -"]);
    has(3, &["sh -c 'echo hi > a'", "12 ms", "newest checkpoint"]);
    has(4, &["./server &", "full", "left by a rollback"]);
    has(
        5,
        &[
            "files           -",
            "no checkpoint: no space left, left by a rollback",
        ],
    );
    has(6, &["rollback", "back to turn 2", "files, in 85 ms"]);
    // A command cannot drive the terminal.
    has(7, &[r"printf '\u{1b}[2J'"]);
    has(8, &["note: dev.crab.x is ignored"]);
    assert_eq!(lines.len(), 9);

    let json = host.crab(&["turns", "demo", "--json"]).json();
    assert_eq!(json["head"], 2);
    assert_eq!(json["open"], serde_json::Value::Null);
    let turns = json["turns"].as_array().unwrap();
    assert_eq!(turns.len(), 6);
    assert_eq!(turns[3]["class"], "full");
    assert_eq!(turns[3]["left"], true);
    assert_eq!(turns[4]["failed"], "no space left");
    assert_eq!(turns[4]["published"], false);
    assert_eq!(turns[5]["checkpoint"], 2);
    assert_eq!(turns[5]["command"], "printf '\u{1b}[2J'");
    assert_eq!(json["events"][1]["record"], "rollback");
}

#[test]
fn a_checkpoint_that_lacks_something_says_so_in_both_views() {
    let host = Host::new();
    let writer = host.writer("default/demo");
    let mut record = turn_record(3, "./server &", Class::Processes);
    record.degraded = Some("files only: no criu".to_owned());
    append(&writer, JournalRecord::Turn(record));
    let text = host.crab(&["turns", "demo"]).ok();
    assert!(text.contains("files only: no criu"), "{text}");
    let text = host.crab(&["show", "demo", "3"]).ok();
    assert!(text.contains("files only: no criu"), "{text}");
}

#[test]
fn show_tells_what_a_turn_did_and_what_holds_it() {
    let host = Host::with_history("default/demo");
    let text = host.crab(&["show", "demo", "3"]).ok();
    for part in [
        "command     ./server &\n",
        "began       2023-11-14 22:13:23Z, took 250 ms\n",
        "class       full: because of a test\n",
        "checkpoint  that of turn 3, taken",
        "files       turn 3: 1 file (17 B), 1 path removed\n",
        "processes   turn 3: 1 process (17 B), by criu 4.1.1\n",
        "     7 server: ./server --port 1\n",
        "history     left by a rollback\n",
        "changed     1 path\n",
        "+ a (17 B)\n",
    ] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    // Held by an older one.
    let text = host.crab(&["show", "demo", "5"]).ok();
    assert!(text.contains("checkpoint  that of turn 2"), "{text}");
    let text = host.crab(&["show", "demo", "4"]).ok();
    assert!(text.contains("checkpoint  none: no space left"), "{text}");

    let json = host.crab(&["show", "demo", "3", "--json"]).json();
    assert_eq!(json["record"]["command"], "./server &");
    assert_eq!(json["checkpoint"]["manifest"]["class"], "full");
    assert_eq!(json["checkpoint"]["contents"]["processes"][0]["pid"], 7);
}

#[test]
fn what_does_not_exist_is_code_3_with_a_hint() {
    let host = Host::with_history("default/demo");
    assert_eq!(
        host.crab(&["show", "demo", "9"]).error(3),
        "crab: cannot show turn 9 of default/demo: default/demo has no turn 9, its newest is 5; \
         `crab turns default/demo` lists the turns"
    );
    assert_eq!(
        host.crab(&["turns", "other"]).error(3),
        "crab: no sandbox other: the store has none of that id or name; `crab ps` lists the sandboxes"
    );
    host.history("other/demo", Client::Containerd);
    let error = host.crab(&["turns", "demo"]).error(3);
    assert!(error.contains("default/demo, other/demo"), "{error}");
    host.crab(&["turns", "other/de"]).ok();
}

#[test]
fn wrong_usage_is_one_line_and_code_2() {
    let host = Host::new();
    for args in [
        &[][..],
        &["frobnicate"],
        &["rollback", "demo"],
        &["rollback", "demo", "--turn", "1x"],
        &["show", "demo"],
        &["ps", "--nonsense"],
    ] {
        let error = host.crab(args).error(2);
        assert!(error.ends_with("; see crab --help"), "{error}");
    }
}

#[test]
fn help_and_version_are_answers() {
    let host = Host::new();
    let help = host.crab(&["--help"]).ok();
    for part in [
        "A first walk:",
        "Exit codes:",
        "io.containerd.crab.v1",
        "rollback",
        "--json",
    ] {
        assert!(help.contains(part), "{part:?} is not in:\n{help}");
    }
    assert!(
        help.lines().all(|line| line.chars().count() <= 90),
        "{help}"
    );
    host.crab(&["help", "rollback"]).ok();
    let version = host.crab(&["--version"]).ok();
    assert_eq!(version, format!("crab {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn damage_is_named_and_hides_nothing_else() {
    let host = Host::with_history("default/demo");
    let sandbox = host.path("store/sandboxes/default/demo");
    let manifest = sandbox.join("manifests/00000000000000000003.json");
    let mut bytes = fs::read(&manifest).unwrap();
    bytes.truncate(bytes.len() / 2);
    fs::write(&manifest, bytes).unwrap();
    let text = host.crab(&["ps"]).ok();
    assert!(text.contains("1 damaged checkpoints"), "{text}");
    let text = host.crab(&["show", "demo", "3"]).ok();
    assert!(
        text.contains("00000000000000000003.json is damaged"),
        "{text}"
    );

    fs::write(sandbox.join("journal"), "rubbish").unwrap();
    let error = host.crab(&["turns", "demo"]).error(1);
    assert!(error.contains("journal is damaged"), "{error}");
    let text = host.crab(&["ps"]).ok();
    assert!(text.contains("journal is damaged"), "{text}");

    fs::write(host.path("store/FORMAT"), "crab-store 2\n").unwrap();
    let error = host.crab(&["ps"]).error(1);
    assert!(error.contains("update crab"), "{error}");
}

#[test]
fn a_bad_configuration_is_named_with_its_line() {
    let host = Host::new();
    fs::write(host.path("config.toml"), "\n\nstorage = '/a'\n").unwrap();
    let error = host.crab(&["ps"]).error(1);
    assert!(
        error.contains("config.toml:3: there is no setting"),
        "{error}"
    );
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let host = Host::with_history("default/demo");
    let mut child = host
        .command(&["turns", "demo"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let ran = child.wait_with_output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(ran.stderr, b"");
}

#[test]
fn other_users_are_told_to_be_root() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: becoming another user needs root");
        return;
    }
    let host = Host::with_history("default/demo");
    // So that this user can run the binary and read the configuration.
    let binary = host.path("crab");
    // By another process: a test beside this one that forks while the copy is open for
    // writing would keep it from being run (ETXTBSY).
    let copy = std::process::Command::new("cp")
        .arg(env!("CARGO_BIN_EXE_crab"))
        .arg(&binary)
        .status();
    assert!(copy.unwrap().success());
    for (path, mode) in [(host.path(""), 0o755), (binary.clone(), 0o755)] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(path, mode).unwrap();
    }
    for args in [&["ps"][..], &["rollback", "demo", "--turn", "0"]] {
        let ran: Ran = std::process::Command::new(&binary)
            .args(args)
            .env("CRAB_CONFIG", host.path("config.toml"))
            .uid(65_534)
            .gid(65_534)
            .output()
            .unwrap()
            .into();
        let error = ran.error(4);
        assert!(error.ends_with("; run crab as root"), "{error}");
    }
}
