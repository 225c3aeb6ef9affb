// SPDX-License-Identifier: Apache-2.0

//! A process that sleeps, and to which one thing is done from outside.

use std::{
    fs::{self, File, OpenOptions},
    io::{Seek, SeekFrom, Write},
    os::unix::fs::FileExt,
    process::{Command, Stdio},
};

use crab_runtime::procs::ContentError;
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::Subject;

const SLEEP: &[i64] = &[libc::SYS_clock_nanosleep, libc::SYS_restart_syscall];

fn sleep(name: &str, stdin: impl Into<Stdio>) -> Subject {
    let mut command = Command::new("sleep");
    let subject = Subject::start(name, command.arg("1000").stdin(stdin));
    subject.wait_for(SLEEP);
    subject
}

/// The mapping of this name, and the stack pointer.
fn place(subject: &Subject, name: &str) -> (u64, u64) {
    let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
    let maps = fs::read_to_string(format!("/proc/{}/maps", subject.pid())).unwrap();
    let line = maps.lines().find(|line| line.ends_with(name)).unwrap();
    let call = fs::read_to_string(format!("/proc/{}/syscall", subject.pid())).unwrap();
    let stack = call.split(' ').nth_back(1).unwrap();
    (hex(line.split('-').next().unwrap()), hex(stack))
}

fn poke(subject: &Subject, address: u64) {
    let path = format!("/proc/{}/mem", subject.pid());
    let memory = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    memory.read_exact_at(&mut byte, address).unwrap();
    memory.write_all_at(&[byte[0] ^ 1], address).unwrap();
}

#[test]
fn what_sleeps_is_as_it_was_however_often_it_is_looked_at() {
    let subject = sleep("still", Stdio::null());
    let before = subject.look();
    for _ in 0..5 {
        assert_eq!(subject.change_since(&before), "nothing");
    }
}

#[test]
fn one_byte_of_memory_is_seen_and_what_is_below_the_stack_is_not() {
    let subject = sleep("poke", Stdio::null());
    let (heap, stack) = place(&subject, "[heap]");
    let before = subject.look();
    poke(&subject, stack - 256);
    assert_eq!(subject.change_since(&before), "nothing");
    poke(&subject, stack - 64);
    assert!(subject.change_since(&before).starts_with("memory of"));
    poke(&subject, stack - 64);
    assert_eq!(subject.change_since(&before), "nothing");
    poke(&subject, heap + 0x18);
    assert!(subject.change_since(&before).starts_with("memory of"));
}

#[test]
fn the_place_in_an_open_file_is_seen() {
    let file = File::open("/proc/self/exe").unwrap();
    let subject = sleep("place", file.try_clone().unwrap());
    let before = subject.look();
    (&file).seek(SeekFrom::Start(7)).unwrap();
    assert!(subject.change_since(&before).starts_with("open files of"));
    (&file).seek(SeekFrom::Start(0)).unwrap();
    assert_eq!(subject.change_since(&before), "nothing");
}

#[test]
fn what_is_in_a_removed_file_is_seen() {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[7; 10_000]).unwrap();
    let subject = sleep("removed", file.try_clone().unwrap());
    let before = subject.look();
    assert_eq!(subject.change_since(&before), "nothing");
    file.write_all_at(b"x", 9_000).unwrap();
    let change = subject.change_since(&before);
    assert_eq!(change, "memory or files without a name changed");
}

#[test]
fn what_waits_in_a_pipe_cannot_be_compared() {
    let mut subject = sleep("pipe", Stdio::piped());
    let before = subject.look();
    assert_eq!(subject.change_since(&before), "nothing");
    subject.say("x");
    let error = subject
        .look_within(None, crate::harness::LIMIT)
        .unwrap_err();
    assert!(
        matches!(error, ContentError::Waiting { fd: 0, .. }),
        "{error}"
    );
}

#[test]
fn what_holds_more_than_the_limit_is_not_read() {
    let subject = sleep("limit", Stdio::null());
    let error = subject.look_within(None, 4096).unwrap_err();
    assert_eq!(error.to_string(), "they hold more than 4096 bytes");
}

#[test]
fn limits_and_priorities_are_seen() {
    let subject = sleep("state", Stdio::null());
    let pid = subject.pid().to_string();
    let run = |program: &str, args: &[&str]| {
        let status = Command::new(program)
            .args(args)
            .output()
            .map(|said| said.status)
            .unwrap();
        assert!(status.success(), "{program}");
    };
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let files = (files.current.unwrap(), files.maximum.unwrap());
    let before = subject.look();
    run(
        "prlimit",
        &["--pid", &pid, &format!("--nofile=100:{}", files.1)],
    );
    assert!(subject.change_since(&before).starts_with("state of"));
    run(
        "prlimit",
        &["--pid", &pid, &format!("--nofile={}:{}", files.0, files.1)],
    );
    assert_eq!(subject.change_since(&before), "nothing");
    run("renice", &["-n", "5", "-p", &pid]);
    assert!(subject.change_since(&before).starts_with("state of"));
}

#[test]
fn what_is_stopped_is_not_compared_and_does_not_hang_who_looks() {
    let subject = sleep("stopped", Stdio::null());
    kill_process(Pid::from_child(&subject.child), Signal::STOP).unwrap();
    subject.wait_for_state('T');
    let error = subject
        .look_within(None, crate::harness::LIMIT)
        .unwrap_err();
    let is_it = matches!(error, ContentError::Stopped { .. } | ContentError::Hung);
    assert!(is_it, "{error}");
    kill_process(Pid::from_child(&subject.child), Signal::CONT).unwrap();
    subject.wait_for(SLEEP);
    subject.look();
}
