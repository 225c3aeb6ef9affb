// SPDX-License-Identifier: Apache-2.0

//! Turns, ways back and restores, in one history.

use std::fs;

use anyhow::{Result, ensure};
use crab_integration::{Crab, RunOptions, Sandbox, State, Testbed, Tool};
use crab_store::Class;

use crate::place::{Place, directory};

/// A process that waits to be told something, and writes it down.
const LISTENER: &str = "mkfifo /tmp/in; setsid cat <>/tmp/in >/tmp/out 2>/dev/null & \
                        echo $! >/tmp/pid; until grep -qs '^0 ' /proc/$!/syscall; do :; done";
const TELL: &str = "echo told >/tmp/in; until grep -q told /tmp/out; do :; done; \
                    until grep -qs '^0 ' /proc/$(cat /tmp/pid)/syscall; do :; done";

fn verified(crab: &Crab, sandbox: &Sandbox, turn: Option<u64>) -> Result<()> {
    let found = crab.verify(sandbox, turn)?;
    ensure!(found["same"] == true, "{found}");
    Ok(())
}

/// Everything that a sandbox can do, whatever its root is.
pub(crate) fn there_and_back(testbed: &Testbed, place: Place<'_>) -> Result<()> {
    let crab = testbed.crab();
    let events = testbed.events()?;
    // busybox's sleep would not survive a dump.
    let options = RunOptions::new().args(["tail", "-f", "/dev/null"]);
    let sandbox = place.run(testbed, options)?;
    crab.wait_until_observed(&sandbox)?;
    crab.turn_of(
        &sandbox,
        Class::None,
        "cat /bin/busybox >/dev/null; ls /root",
    )?;
    crab.turn_of(&sandbox, Class::None, "echo x >/root/x; rm /root/x")?;
    let one = crab.turn_of(
        &sandbox,
        Class::Files,
        "echo one >/root/f; mkdir -p /opt/a/b; ln /root/f /opt/a/g; rm /bin/vi; \
         echo x >/dev/shm/x; mknod /opt/null c 0 0; chmod 4711 /opt/a",
    )?;
    let changed = one.record.changed.iter().map(|it| it.path.as_str());
    let mut changed: Vec<&str> = changed.collect();
    changed.sort_unstable();
    let expected = [
        "/bin/vi",
        "/dev/shm/x",
        "/opt",
        "/opt/a",
        "/opt/a/b",
        "/opt/a/g",
        "/opt/null",
        "/root/f",
    ];
    ensure!(changed == expected, "{changed:?}");
    verified(&crab, &sandbox, Some(one.number()))?;
    let two = crab.turn_of(
        &sandbox,
        Class::Files,
        "echo two >/root/f; rm -r /opt; cp /bin/busybox /bin/vi; rm /dev/shm/x; echo y >/root/y",
    )?;
    let look = "cat /root/f /opt/a/g /dev/shm/x; stat -c '%a %h %n' /root/f /opt/a /opt/a/b; \
                stat -c '%F %t,%T' /opt/null; ls /root; ls /bin/vi 2>/dev/null | wc -l";
    let as_one = "one\none\nx\n644 2 /root/f\n4711 3 /opt/a\n755 2 /opt/a/b\n\
                  character special file 0,0\nf\n0";
    let looks_as_one = |sandbox: &Sandbox| -> Result<()> {
        let seen = sandbox.sh_ok(look)?;
        ensure!(
            without_links_of_directories(&seen) == without_links_of_directories(as_one),
            "{seen}"
        );
        Ok(())
    };

    // Under the process that is there, as far as that goes; else with another.
    let done = crab.rollback_verified(&sandbox, one.number())?;
    looks_as_one(&sandbox)?;
    crab.turn_of(&sandbox, Class::Files, "echo three >/root/three")?;
    let warm = crab.rollback_verified(&sandbox, one.number())?;
    ensure!(warm["warm"] == true, "{warm}");
    looks_as_one(&sandbox)?;
    crab.turn_of(&sandbox, Class::Files, "rm -r /root /opt; rm /bin/ls")?;
    crab.rollback_cold(&sandbox, one.number())?;
    looks_as_one(&sandbox)?;
    verified(&crab, &sandbox, Some(one.number()))?;
    ensure!(
        events.exits_of_init(&sandbox)? == 0,
        "containerd saw an exit: {done}"
    );
    let again = crab.turn_of(&sandbox, Class::None, "true")?;
    ensure!(again.record.unobserved.is_none(), "{again:?}");

    let diff = crab.run(&[
        "diff",
        &sandbox.sandbox_id(),
        &one.number().to_string(),
        &two.number().to_string(),
    ])?;
    ensure!(diff.stdout.contains("/root/y"), "{diff:?}");
    ensure!(!diff.stdout.contains("layers"), "{diff:?}");

    // A process, which goes back with its files.
    let listening = crab.turn_of(&sandbox, Class::Full, LISTENER)?;
    ensure!(listening.is_whole(), "{listening:?}");
    let listening = listening.number();
    crab.turn_of(&sandbox, Class::Files, "echo beside >/root/beside")?;
    crab.turn(&sandbox, &["sh", "-c", TELL])?.0.ok()?;
    crab.rollback(&sandbox, listening)?;
    let there = "cat /tmp/out; ls /root; kill -0 $(cat /tmp/pid) && echo alive";
    ensure!(sandbox.sh_ok(there)? == "f\nalive");

    sandbox.crash()?;
    let restored = crab.restore(&sandbox, Some(listening))?;
    ensure!(restored["processes"] == true, "{restored}");
    ensure!(sandbox.sh_ok(there)? == "f\nalive");
    sandbox.crash()?;
    crab.restore(&sandbox, Some(one.number()))?;
    ensure!(sandbox.state()? == State::Running);
    looks_as_one(&sandbox)?;
    verified(&crab, &sandbox, Some(one.number()))?;
    crab.turn_of(&sandbox, Class::Files, "echo on >/root/on")?;
    Ok(())
}

/// How many links a directory has, each file system counts its own way.
fn without_links_of_directories(text: &str) -> String {
    let lines = text.lines().map(|line| match line.split_once(' ') {
        Some((mode, rest)) if rest.ends_with("/opt/a") || rest.ends_with("/opt/a/b") => {
            mode.to_owned()
        }
        _ => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_snapshot_of_the_native_snapshotter_goes_there_and_back() -> Result<()> {
    there_and_back(&Testbed::here()?, Place::Snapshotter("native"))
}

#[test]
fn a_plain_directory_goes_there_and_back_and_stays_where_it_is() -> Result<()> {
    let testbed = Testbed::here()?;
    let dir = directory()?;
    let inode = || rustix::fs::stat(dir.path()).map(|stat| stat.st_ino);
    let before = inode()?;
    there_and_back(&testbed, Place::Directory(dir.path()))?;
    ensure!(inode()? == before, "it is another directory");
    ensure!(fs::read_to_string(dir.path().join("root/on"))? == "on\n");
    Ok(())
}

#[test]
fn copies_of_a_snapshot_are_made_and_of_a_directory_refused() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let sandbox = Place::Snapshotter("native").run(&testbed, RunOptions::new())?;
    crab.turn_of(&sandbox, Class::Files, "echo one >/root/f; rm /bin/vi")?;
    let forks = crab.fork(testbed.ctr(), &sandbox.sandbox_id(), &["--count", "2"])?;
    for copy in &forks.made {
        ensure!(copy.sh_ok("cat /root/f; ls /bin/vi 2>/dev/null | wc -l")? == "one\n0");
        crab.turn_of(copy, Class::Files, "echo two >/root/f")?;
    }
    ensure!(sandbox.sh_ok("cat /root/f")? == "one");

    let dir = directory()?;
    let sandbox = Place::Directory(dir.path()).run(&testbed, RunOptions::new())?;
    let refusal = crab.refusal(&["fork", &sandbox.sandbox_id()])?;
    ensure!(
        refusal
            .line
            .contains("its root is no snapshot of containerd's"),
        "{refusal:?}"
    );
    Ok(())
}

#[test]
fn a_read_only_root_has_no_checkpoints_and_runs() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let dir = directory()?;
    let mount = |options: &[&str]| Tool::new("mount").args(options.iter().copied()).run();
    let path = dir.path().display().to_string();
    mount(&["--bind", &path, &path])?.ok()?;
    mount(&["-o", "remount,ro,bind", &path])?.ok()?;
    let run = || -> Result<()> {
        let sandbox = Place::Directory(dir.path()).run(&testbed, RunOptions::new())?;
        let why = crab.ps_of(&sandbox)?.note.unwrap_or_default();
        ensure!(why.contains("is mounted read-only"), "{why}");
        sandbox.sh_ok("ls /bin/busybox").map(drop)
    };
    let ran = run();
    Tool::new("umount").args([&path]).run()?.ok()?;
    ran
}
