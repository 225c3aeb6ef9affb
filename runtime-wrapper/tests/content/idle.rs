// SPDX-License-Identifier: Apache-2.0

//! What wakes, finds nothing to do and waits again.

use std::process::{Command, Stdio};

use crate::harness::Subject;

const WAITS: &[i64] = &[
    libc::SYS_poll,
    libc::SYS_restart_syscall,
    libc::SYS_clock_nanosleep,
    libc::SYS_pselect6,
    libc::SYS_select,
    libc::SYS_futex,
    libc::SYS_epoll_wait,
];

fn stays_the_same(name: &str, program: &str, args: &[&str]) {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped());
    let subject = Subject::start(name, &mut command);
    subject.wait_for(WAITS);
    // An interpreter that watches its program to make it faster does so for a while.
    subject.let_it_run(200, WAITS);
    // One that is caught on its way from one wait to the next is another. If the wait itself
    // left anything behind, every look would say so.
    let mut wrong = Vec::new();
    let mut before = subject.look();
    let mut same = 0;
    while same < 5 {
        subject.let_it_run(3, WAITS);
        match subject.change_since(&before).as_str() {
            "nothing" => same += 1,
            change => {
                wrong.push(change.to_owned());
                before = subject.look();
            }
        }
        assert!(wrong.len() < 20, "{name}: {same} times the same: {wrong:?}");
    }
}

fn python(name: &str, script: &str) {
    stays_the_same(name, "python3", &["-S", "-c", script]);
}

#[test]
fn a_poll_with_a_limit() {
    python(
        "poll",
        "import select\np = select.poll()\np.register(0)\nwhile not p.poll(10): pass",
    );
}

#[test]
fn a_sleep() {
    python("sleep", "import time\nwhile True: time.sleep(0.01)");
}

#[test]
fn an_epoll() {
    python(
        "epoll",
        "import select\np = select.epoll()\np.register(0)\nwhile not p.poll(0.01): pass",
    );
}

#[test]
fn a_select() {
    let script = "while (1) { select(undef, undef, undef, 0.01) }";
    stays_the_same("select", "perl", &["-e", script]);
}
