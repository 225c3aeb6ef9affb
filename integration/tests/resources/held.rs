// SPDX-License-Identifier: Apache-2.0

//! Held before a checkpoint, and after it was gone back to.

use std::fs;

use anyhow::{Result, ensure};
use crab_integration::{DEBIAN, Driver, RunOptions, Sandbox, Testbed, skip};

use crate::holder::{ask, dumps_inet_sockets, start};

/// Pipes and sockets with something on its way in them, locks, files without a name, watches,
/// events, signals, timers, threads, a zombie, shared memory of every kind, a name, a terminal.
const ALL: [&str; 15] = [
    "Pipe", "Stream", "Datagram", "Named", "Locks", "Nameless", "Inotify", "Events", "Timers",
    "Threads", "Zombie", "SystemV", "Posix", "Name", "Terminal",
];

/// Goes on from one turn again and again, and finds what it holds as it was then.
fn comes_back(testbed: &Testbed, sandbox: &Sandbox, names: &[&str]) -> Result<()> {
    let crab = testbed.crab();
    let started = start(&crab, sandbox, names)?;
    ensure!(started.is_whole(), "{started:?}");
    let (count, one) = ask(&crab, sandbox)?;
    ensure!(count == 1 && one.is_whole(), "{count}: {one:?}");
    assert_eq!(ask(&crab, sandbox)?.0, 2);
    // In the live sandbox, twice: what came back is dumped, and comes back, as well.
    crab.rollback(sandbox, one.number())?;
    let (count, two) = ask(&crab, sandbox)?;
    ensure!(count == 2 && two.is_whole(), "{count}: {two:?}");
    crab.rollback(sandbox, two.number())?;
    assert_eq!(ask(&crab, sandbox)?.0, 3);
    // After everything was killed.
    sandbox.crash()?;
    crab.restore(sandbox, Some(one.number()))?;
    assert_eq!(ask(&crab, sandbox)?.0, 2);
    Ok(())
}

/// How often a shim has had the runtime ask CRIU, where it would rather have done so itself.
fn detours() -> Result<usize> {
    let log = fs::read_to_string("/var/log/containerd.log")?;
    Ok(log.matches("CRIU is asked through the runtime").count())
}

#[test]
fn what_a_program_holds_it_holds_when_it_comes_back() -> Result<()> {
    let testbed = Testbed::here()?;
    if !testbed.driver().keeps_processes() {
        return skip("the runtime keeps no processes");
    }
    let _alone = testbed.alone();
    let before = detours()?;
    let sandbox = testbed.ctr().run(DEBIAN, RunOptions::new())?;
    comes_back(&testbed, &sandbox, &ALL)?;
    let direct = detours()? == before;
    ensure!(
        direct == (testbed.driver() == Driver::Runc),
        "asked directly: {direct}"
    );
    Ok(())
}

#[test]
fn connections_come_back_or_their_loss_is_said() -> Result<()> {
    let testbed = Testbed::here()?;
    if !testbed.driver().keeps_processes() {
        return skip("the runtime keeps no processes");
    }
    let sandbox = testbed.ctr().run(DEBIAN, RunOptions::new())?;
    if dumps_inet_sockets()? {
        return comes_back(&testbed, &sandbox, &["Tcp", "Pipe"]);
    }
    let crab = testbed.crab();
    start(&crab, &sandbox, &["Tcp"])?;
    let (count, turn) = ask(&crab, &sandbox)?;
    assert_eq!(count, 1);
    let why = turn.record.degraded.as_deref().unwrap_or_default();
    ensure!(
        why.starts_with("files only: process ") && why.contains("(python3) holds an internet"),
        "{turn:?}"
    );
    let possible = crab.json(&["checkpoint", "--dry-run", &sandbox.sandbox_id()])?;
    assert_eq!(possible["class"], "files");
    let obstacle = possible["obstacles"][0].as_str().unwrap_or_default();
    ensure!(why.ends_with(obstacle), "{possible}");
    // Nor does it harm the program.
    assert_eq!(ask(&crab, &sandbox)?.0, 2);
    Ok(())
}
