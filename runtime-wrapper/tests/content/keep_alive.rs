// SPDX-License-Identifier: Apache-2.0

//! An init that only holds its container open, and looks at it that come to nothing.

#![allow(unsafe_code)] // ptrace has no safe wrapper

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    ptr, thread,
    time::{Duration, Instant},
};

use crab_runtime::procs::{Doubt, KeepAlive, Set};

use crate::harness::Subject;

const PATIENCE: Duration = Duration::from_secs(30);

const SLEEP: [&str; 2] = ["sleep", "1000"];

fn sleeper(name: &str) -> Subject {
    Subject::start(name, Command::new(SLEEP[0]).arg(SLEEP[1]))
}

/// Its rule, which has seen it at rest.
fn rule_of(subject: &Subject) -> KeepAlive {
    let args = SLEEP.map(str::to_owned);
    let mut rule = KeepAlive::for_command(subject.pid(), &args).unwrap();
    rule.settle(&subject.cgroup, PATIENCE).unwrap();
    rule
}

fn look(subject: &Subject, rule: &mut KeepAlive) -> Result<(), Doubt> {
    let all = Set::of(&subject.cgroup, None).unwrap();
    rule.look(&subject.cgroup, &all)
}

fn signal(subject: &Subject, signal: i32) {
    // SAFETY: it takes numbers only.
    let sent = unsafe { libc::kill(subject.pid(), signal) };
    assert_eq!(sent, 0);
}

/// Wakes it, for nothing.
fn wake(subject: &Subject) {
    signal(subject, libc::SIGSTOP);
    subject.wait_for_state('T');
    signal(subject, libc::SIGCONT);
    subject.wait_for_state('S');
}

#[test]
fn one_that_another_traces_is_looked_at_when_it_no_longer_does() {
    let subject = sleeper("traced");
    let mut rule = rule_of(&subject);
    wake(&subject);
    let pid = subject.pid();
    let traced = thread::scope(|scope| {
        let tracing = scope.spawn(|| {
            let null = ptr::null_mut::<libc::c_void>();
            // SAFETY: this request takes no pointers.
            let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, null, null) };
            assert_eq!(seized, 0);
            thread::scope(|inner| inner.spawn(|| look(&subject, &mut rule)).join().unwrap())
        });
        tracing.join().unwrap()
    });
    let Err(Doubt::Unknown(why)) = traced else {
        panic!("{traced:?}");
    };
    assert!(why.starts_with("stop thread"), "{why}");
    assert!(rule.is_settled());
    // It is let go by the end of the thread.
    assert_eq!(look(&subject, &mut rule), Ok(()));
}

#[test]
fn what_did_more_than_wait_is_another_for_good() {
    let subject = sleeper("changed");
    let mut rule = rule_of(&subject);
    wake(&subject);
    // The limits are of what is compared.
    let limit = libc::rlimit {
        rlim_cur: 77,
        rlim_max: 77,
    };
    // SAFETY: the new limit is read, and the old one not asked for.
    let set = unsafe {
        libc::prlimit(
            subject.pid(),
            libc::RLIMIT_NOFILE,
            &raw const limit,
            ptr::null_mut(),
        )
    };
    assert_eq!(set, 0);
    let changed = look(&subject, &mut rule);
    assert!(matches!(changed, Err(Doubt::Changed(_))), "{changed:?}");
}

/// A cgroup of the controller of processors, by itself as in v1.
struct Processors(PathBuf);

impl Processors {
    /// Nothing where the host has none.
    fn make() -> Option<Self> {
        let name = format!("cpu/crab-starved-{}", std::process::id());
        let dir = Path::new("/sys/fs/cgroup").join(name);
        fs::create_dir(&dir).ok()?;
        Some(Self(dir))
    }

    fn write(&self, file: &str, what: impl ToString) {
        fs::write(self.0.join(file), what.to_string()).unwrap();
    }
}

impl Drop for Processors {
    fn drop(&mut self) {
        let start = Instant::now();
        while fs::remove_dir(&self.0).is_err() && start.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn one_that_gets_next_to_no_processor_is_not_taken_for_another() {
    let Some(processors) = Processors::make() else {
        println!("skipped: no cgroups of version 1 limit processors here");
        return;
    };
    let subject = sleeper("starved");
    processors.write("cgroup.procs", subject.pid());
    let mut rule = rule_of(&subject);
    let busy = Subject::start(
        "busy",
        Command::new("sh").args(["-c", "while :; do :; done"]),
    );
    processors.write("cgroup.procs", busy.pid());
    wake(&subject);
    // Five milliseconds in each second, and somebody else takes them first.
    processors.write("cpu.cfs_period_us", 1_000_000);
    processors.write("cpu.cfs_quota_us", 5_000);
    let start = Instant::now();
    loop {
        match look(&subject, &mut rule) {
            Ok(()) => break,
            Err(Doubt::Unknown(why)) => assert!(start.elapsed() < PATIENCE, "{why}"),
            changed => panic!("{changed:?}"),
        }
    }
    drop((busy, subject));
}
