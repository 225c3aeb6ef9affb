// SPDX-License-Identifier: Apache-2.0
//! Calls that are completed count while there is attention; waking from a freeze and
//! going on waiting is none.

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crab_bpf::Programs;

use crate::world::{Seat, World, worlds};

const LONG: Duration = Duration::from_secs(60);

fn poll(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What this file says for each thread of a process.
fn threads(pid: u32, file: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks
        .map(|task| fs::read_to_string(task.unwrap().path().join(file)).unwrap())
        .collect()
}

/// Whether the host's system calls are counted.
fn is_attached(world: &World) -> bool {
    let sets = fs::read_dir(world.pin_dir()).unwrap();
    sets.map(|set| set.unwrap().path().join("link_sys_exit"))
        .any(|link| link.exists())
}

/// Until a thread of the process is blocked in one of these calls, and all are off the CPU.
pub(crate) fn waits_in(pid: u32, numbers: &[i64]) {
    let is_in = |text: &String| {
        let first = text.split(' ').next().unwrap_or_default();
        first
            .parse()
            .is_ok_and(|number: i64| numbers.contains(&number))
    };
    poll("it waits", || {
        let before = threads(pid, "schedstat");
        let waits = threads(pid, "syscall").iter().any(is_in);
        std::thread::sleep(Duration::from_millis(5));
        waits && threads(pid, "schedstat") == before
    });
}

/// Something to answer for an agent that listens in this directory.
fn request(directory: &Path) {
    let mut stream = UnixStream::connect(directory.join("socket")).unwrap();
    stream.write_all(b"x").unwrap();
}

#[test]
fn a_task_that_only_wakes_completes_no_call() {
    let waits: [(&str, &[i64]); 3] = [
        ("accept", &[libc::SYS_accept, libc::SYS_accept4]),
        ("epoll", &[libc::SYS_epoll_wait, libc::SYS_epoll_pwait]),
        ("handler", &[libc::SYS_pause]),
    ];
    for (name, numbers) in waits {
        for mut world in worlds() {
            let directory = world.tmpfs.path().to_path_buf();
            let mut agent = world.start(name, Seat::Inside, &directory);
            agent.go_on();
            let pid = world.pid(&agent);
            waits_in(pid, numbers);
            let act = || {
                if name == "handler" {
                    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
                    rustix::process::kill_process(pid, rustix::process::Signal::USR1).unwrap();
                } else {
                    request(&directory);
                }
            };

            act();
            waits_in(pid, numbers);
            assert_eq!(world.effects().calls, 0, "{name}: nobody wants to know");

            world.attend(LONG, &[]);
            for _ in 0..20 {
                let before = threads(pid, "schedstat");
                world.cgroup.freeze(true);
                world.cgroup.freeze(false);
                waits_in(pid, numbers);
                let after = threads(pid, "schedstat");
                let woke = before
                    .iter()
                    .zip(&after)
                    .all(|(before, after)| before != after);
                assert!(woke, "{name} did not wake: {before:?}, {after:?}");
            }
            assert_eq!(world.effects().calls, 0, "{name} only woke");

            let mut counted = 0;
            for _ in 0..20 {
                world.cgroup.freeze(true);
                act();
                world.cgroup.freeze(false);
                poll("it is seen", || world.effects().calls > counted);
                waits_in(pid, numbers);
                counted = world.effects().calls;
            }
        }
    }
}

#[test]
fn attention_ends_and_a_longer_one_is_not_cut_short() {
    for mut world in worlds() {
        let directory = world.tmpfs.path().to_path_buf();
        let calls = |world: &mut World| world.run("write", Seat::Inside, &directory).calls;
        assert_eq!(calls(&mut world), 0);
        world.attend(LONG, &[]);
        world.attend(Duration::ZERO, &[]);
        world.tracer().relax().unwrap();
        assert!(calls(&mut world) > 0);
        drop(world.tracer.take());
        world.open();
        world.tracer().relax().unwrap();
        assert!(calls(&mut world) > 0, "over a change of tracers");
    }
}

#[test]
fn attention_that_is_over_counts_nothing_and_can_be_had_again() {
    for mut world in worlds() {
        let directory = world.tmpfs.path().to_path_buf();
        let calls = |world: &mut World| world.run("write", Seat::Inside, &directory).calls;
        for _ in 0..2 {
            world.attend(Duration::ZERO, &[]);
            assert_eq!(calls(&mut world), 0);
            assert!(is_attached(&world));
            world.tracer().relax().unwrap();
            assert_eq!(calls(&mut world), 0);
            // By system calls, it is what counts all else, too.
            assert_eq!(is_attached(&world), world.programs == Programs::Syscalls);
        }
        world.attend(LONG, &[]);
        assert!(calls(&mut world) > 0);
    }
}

#[test]
fn the_calls_of_spared_processes_do_not_count() {
    for mut world in worlds() {
        let directory = world.tmpfs.path().to_path_buf();
        let mut agent = world.start("accept", Seat::Inside, &directory);
        agent.go_on();
        let pid = world.pid(&agent);
        let numbers = [libc::SYS_accept, libc::SYS_accept4];
        waits_in(pid, &numbers);
        let act = || {
            request(&directory);
            std::thread::sleep(Duration::from_millis(5));
            waits_in(pid, &numbers);
        };
        world.attend(LONG, &[1, pid]);
        act();
        assert_eq!(world.effects().calls, 0, "it is spared");
        assert!(
            world.run("write", Seat::Inside, &directory).calls > 0,
            "others are not"
        );
        let counted = world.effects().calls;
        world.attend(LONG, &[pid + 1]);
        act();
        assert!(world.effects().calls > counted, "no longer");
    }
}
