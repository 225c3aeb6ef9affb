// SPDX-License-Identifier: Apache-2.0
//! What programs say of themselves, and what is kept of it. In a process of its own: the reaper
//! waits for every child that there is.

use std::{
    fs::{self, File},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, MutexGuard},
    time::{Duration, SystemTime},
};

use crab_runtime::{
    criu::Criu,
    driver::{Driver, Program},
    reaper::{Limit, Reaper},
};

/// The reaper, and that nobody else forks: a script that is being written cannot be run.
fn alone() -> (MutexGuard<'static, ()>, Reaper) {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(|failed| failed.into_inner());
    (alone, Reaper::start().unwrap())
}

/// A program that does `first` when it is asked this word for the first time, and then what
/// the script says.
fn program(dir: &Path, word: &str, first: &str, script: &str) -> PathBuf {
    let path = dir.join("program");
    let text = format!(
        "#!/bin/sh\n\
         if [ \"$1\" = {word} ] && ! [ -e {dir}/asked ]; then touch {dir}/asked; {first}; fi\n\
         {script}\n",
        dir = dir.display()
    );
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

const SOUND: &str = "[ $1 = check ] || echo Version: 4.1";
const KILLED: &str = "kill -9 $$";

#[test]
fn a_check_that_failed_for_another_reason_than_the_kernel_is_made_again() {
    let (_alone, reaper) = alone();
    for (first, says) in [
        (KILLED, "its check was killed by signal 9"),
        ("exit 1", "gave no reason"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let criu = program(dir.path(), "check", first, SOUND);
        let probe = || Criu::probe(&criu, &dir.path().join("cache"), &reaper);
        let why = probe().unwrap_err();
        assert!(why.contains(says), "{why}");
        assert_eq!(probe().unwrap().version, "4.1", "after {first}");
        // It is not asked once more.
        fs::remove_file(dir.path().join("asked")).unwrap();
        assert_eq!(probe().unwrap().version, "4.1");
        assert!(!dir.path().join("asked").exists());
    }
}

#[test]
fn a_refusal_is_kept_for_a_minute() {
    let (_alone, reaper) = alone();
    let dir = tempfile::tempdir().unwrap();
    let refuses = "echo 'Error (criu/cr-check.c:7): cannot fork' >&2; exit 1";
    let criu = program(dir.path(), "check", refuses, SOUND);
    let cache = dir.path().join("cache");
    let probe = || Criu::probe(&criu, &cache, &reaper);
    for _ in 0..2 {
        let why = probe().unwrap_err();
        assert!(why.contains("cannot fork"), "{why}");
    }
    let kept = File::options().write(true).open(&cache).unwrap();
    let too_old = SystemTime::now() - Duration::from_secs(61);
    kept.set_modified(too_old).unwrap();
    assert_eq!(probe().unwrap().version, "4.1");
}

#[test]
fn a_runtime_that_could_not_say_what_it_is_is_asked_again() {
    let (_alone, reaper) = alone();
    for first in [KILLED, "exit 2"] {
        let dir = tempfile::tempdir().unwrap();
        let script = "[ $1 = --version ] && echo runc version 1.3.0 || echo '  checkpoint'";
        let runtime = Program::File(program(dir.path(), "--version", first, script));
        let unknown = Driver::of(&runtime, &reaper);
        let why = unknown.process_images().unwrap_err();
        assert!(why.contains("cannot be asked what it is"), "{why}");
        let runc = Driver::of(&runtime, &reaper);
        assert_eq!(runc.name, "runc 1.3.0", "after {first}");
        assert_eq!(runc.process_images(), Ok(()));
    }
}

#[test]
fn a_program_that_fails_with_a_large_code_has_answered() {
    let (_alone, reaper) = alone();
    let mut command = Command::new("sh");
    command.args(["-c", "echo no such word; exit 255"]);
    let limit = Limit::after(Duration::from_secs(60));
    let (status, said) = reaper.answer(&mut command, limit).unwrap();
    assert_eq!((status, &said[..]), (255, &b"no such word\n"[..]));
}

#[test]
fn what_was_killed_at_its_limit_has_not_answered() {
    let (_alone, reaper) = alone();
    let limit = Limit::after(Duration::from_millis(200));
    let mut command = Command::new("sh");
    let cut_off = reaper.answer(command.args(["-c", "echo half; sleep 60"]), limit);
    let why = cut_off.unwrap_err().to_string();
    assert!(why.contains("killed by signal 9"), "{why}");
    let limit = Limit::after(Duration::from_secs(60));
    let mut command = Command::new("sh");
    let failed = reaper.answer(command.args(["-c", "echo whole; exit 3"]), limit);
    assert_eq!(failed.unwrap(), (3, b"whole\n".to_vec()));
}
