// SPDX-License-Identifier: Apache-2.0

//! A crabd that cannot run or cannot be reached: turns are unobserved, and right.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use crab_integration::{BUSYBOX, Mounted, RunOptions, Sandbox, Swapped, Testbed, processes};
use crab_store::Class;

use crate::{lines_of_turns, lives};

/// Ends crabd and what it has pinned: as on a host where it never ran.
fn forget_crabd() -> Result<()> {
    if processes::crabd().is_some() {
        processes::kill_crabd()?;
    }
    let pins = Path::new("/sys/fs/bpf/crab");
    if pins.exists() {
        fs::remove_dir_all(pins).context("remove the pins")?;
    }
    Ok(())
}

/// New and old sandboxes are right without anything being counted, and say why not.
fn unobserved_and_right(testbed: &Testbed, old: &Sandbox, words: &[&str]) -> Result<()> {
    let crab = testbed.crab();
    let new = testbed.ctr().run(BUSYBOX, RunOptions::new())?;
    for sandbox in [&new, old] {
        for (class, script) in [
            (Class::None, "ls /"),
            (Class::Files, "date +%N >/root/f"),
            (Class::None, "cat /root/f"),
        ] {
            let turn = crab.turn_of(sandbox, class, script)?;
            let why = turn.record.unobserved.context("it was observed")?;
            for word in words {
                ensure!(why.contains(word), "{word:?} is not in: {why}");
            }
            ensure!(!why.contains('\n'), "{why}");
        }
        let lines = lines_of_turns(&crab, sandbox, "unobserved: ")?;
        ensure!(lines.len() >= 3, "crab turns does not say it: {lines:?}");
        lives(sandbox)?;
    }
    Ok(())
}

#[test]
fn a_crabd_that_cannot_run_leaves_turns_unobserved_and_right() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    // Those of before know a good one. A start does not wait until it has come up.
    let old = testbed.ctr().run(BUSYBOX, RunOptions::new())?;
    crab.wait_until_observed(&old)?;
    let crabd = Swapped::with(
        processes::CRABD_PATH,
        "#!/bin/sh\necho broken >&2\nexit 3\n",
    )?;
    forget_crabd()?;
    unobserved_and_right(&testbed, &old, &["crabd ended with 3", "see its log"])?;
    drop(crabd);

    // On a host without BTF: of another sandbox, as the shims wait before they try again.
    let other = testbed.docker().run(BUSYBOX, RunOptions::new())?;
    crab.wait_until_observed(&other)?;
    let btf = Mounted::new(&["--bind", "/dev/null"], "/sys/kernel/btf/vmlinux")?;
    forget_crabd()?;
    unobserved_and_right(&testbed, &other, &["BTF"])?;
    drop(btf);
    forget_crabd()?;

    // Where programs cannot be pinned.
    let another = testbed.docker().run(BUSYBOX, RunOptions::new())?;
    crab.wait_until_observed(&another)?;
    let crabd = Swapped::wrapped(processes::CRABD_PATH, |real| {
        let real = real.display();
        format!("#!/bin/bash\nexec -a crabd {real} --pin-dir /proc/crab \"$@\"\n")
    })?;
    forget_crabd()?;
    unobserved_and_right(&testbed, &another, &["/proc/crab"])?;
    drop(crabd);
    forget_crabd()?;

    for sandbox in [&old, &other, &another] {
        crab.wait_until_observed(sandbox)?;
    }
    Ok(())
}

#[test]
fn a_crabd_that_comes_late_watches_those_who_gave_up_waiting() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    // For longer than a turn waits for it.
    let crabd = Swapped::wrapped(processes::CRABD_PATH, |real| {
        let real = real.display();
        format!("#!/bin/bash\nsleep 5\nexec -a crabd {real} \"$@\"\n")
    })?;
    forget_crabd()?;
    let sandbox = testbed.ctr().run(BUSYBOX, RunOptions::new())?;
    let turn = crab.turn_of(&sandbox, Class::None, "true")?;
    ensure!(turn.record.unobserved.is_some(), "crabd was there at once");
    crab.wait_until_watched(&sandbox)?;
    crab.turn_of(&sandbox, Class::None, "true")?;
    let turn = crab.turn_of(&sandbox, Class::None, "true")?;
    assert_eq!(turn.record.unobserved, None);
    drop(crabd);
    forget_crabd()?;
    crab.wait_until_observed(&sandbox)
}

#[test]
fn a_missing_socket_of_crabd_harms_nobody() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let old = testbed.ctr().run(BUSYBOX, RunOptions::new())?;
    crab.turn_of(&old, Class::None, "true")?;
    fs::remove_file("/run/crab/crabd.sock").context("remove the socket")?;
    // One that is connected stays so; to a new one there is no way.
    let turn = crab.turn_of(&old, Class::Files, "echo 1 >/root/f")?;
    assert_eq!(turn.record.unobserved, None);
    let new = testbed.ctr().run(BUSYBOX, RunOptions::new())?;
    let turn = crab.turn_of(&new, Class::Files, "echo 1 >/root/f")?;
    let why = turn.record.unobserved.context("it was observed")?;
    assert!(why.contains("crabd") && !why.contains('\n'), "{why}");
    let turn = crab.turn_of(&new, Class::None, "cat /root/f")?;
    assert!(turn.record.unobserved.is_some());
    // Until that crabd is gone.
    processes::kill_crabd()?;
    for sandbox in [&old, &new] {
        crab.wait_until_observed(sandbox)?;
        lives(sandbox)?;
    }
    Ok(())
}
