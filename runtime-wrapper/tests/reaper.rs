// SPDX-License-Identifier: Apache-2.0
//! The reaper takes every child of its process: its test has one of its own.

use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use crab_runtime::reaper::{Limit, Reaper};

// One test: the reaper takes every child of the test process.
#[test]
fn every_exit_reaches_whoever_asked_before_or_after() {
    let begin = Instant::now();
    let reaper = Reaper::start().unwrap();
    let (status, text) = reaper
        .output(Command::new("sh").args(["-c", "echo no >&2; exit 3"]), None)
        .unwrap();
    assert_eq!((status, text.as_slice()), (3, b"no\n".as_slice()));

    let (child, exit) = reaper
        .spawn(Command::new("sh").args(["-c", "kill -9 $$"]))
        .unwrap();
    assert!(child.id() > 0);
    assert_eq!(exit.blocking_recv().unwrap().status, 137);

    // An orphan is reparented to us, and asked for only when it is gone.
    let dir = tempfile::tempdir().unwrap();
    let pid_file = dir.path().join("pid");
    let script = format!("(exit 7) & echo $! > {}; exit 0", pid_file.display());
    let (status, _) = reaper
        .output(Command::new("sh").args(["-c", &script]), None)
        .unwrap();
    assert_eq!(status, 0);
    let (_, exit) = reaper
        .spawn(Command::new("sh").args([
            "-c",
            &format!("(sleep 0.2; exit 9) & echo $! > {}", pid_file.display()),
        ]))
        .unwrap();
    exit.blocking_recv().unwrap();
    let orphan: i32 = std::fs::read_to_string(&pid_file)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let exit = reaper.exit_of(orphan, begin).blocking_recv();
    assert_eq!(exit.unwrap().status, 9);

    // What a failed command has left may finish within its limit, and no longer.
    let done = dir.path().join("done");
    let finishes = format!(
        "(exec 2>/dev/null; sleep 0.2; touch {}) & kill -9 $$",
        done.display()
    );
    let limit = Some(Limit::after(Duration::from_secs(60)));
    let (status, _) = reaper
        .output(Command::new("sh").args(["-c", &finishes]), limit)
        .unwrap();
    assert_eq!(status, 137);
    assert!(done.exists(), "it was not let finish");

    let stays = format!(
        "sleep 600 2>/dev/null & echo $! > {}; exit 1",
        pid_file.display()
    );
    let limit = Some(Limit::after(Duration::from_secs(3)));
    let (status, _) = reaper
        .output(Command::new("sh").args(["-c", &stays]), limit)
        .unwrap();
    assert_eq!(status, 1);
    let left = std::fs::read_to_string(&pid_file).unwrap();
    assert!(!Path::new("/proc").join(left.trim()).exists());
}
