// SPDX-License-Identifier: Apache-2.0

//! The harness itself: what it says has to be so, or no other test means much.

use anyhow::Result;
use crab_integration::{
    BUSYBOX, Census, CgroupMode, DEBIAN, ExecOptions, RunOptions, Runtime, State, Testbed, Tool,
    processes, sleeper,
};
use crab_store::Class;

#[test]
fn a_container_comes_and_goes_with_its_guard() -> Result<()> {
    let testbed = Testbed::here()?;
    for client in testbed.clients() {
        for runtime in [Runtime::Crab, Runtime::Stock] {
            let before = Census::take()?;
            let sandbox = client.run(BUSYBOX, RunOptions::new().runtime(runtime))?;
            assert_eq!(sandbox.state()?, State::Running);
            assert!(sandbox.processes()?.contains(&sandbox.pid()?));
            assert!(processes::is_alive(sandbox.shim()?));
            assert!(sandbox.upper_dir()?.is_dir());
            assert!(!Census::take()?.since(&before).is_empty());

            let said = sandbox.sh("echo out; echo err >&2; exit 3")?;
            assert_eq!((said.stdout.as_str(), said.status), ("out\n", 3));
            // The runtime may have said something there before.
            assert!(said.stderr.ends_with("err\n"), "{}", said.stderr);
            let said = sandbox.exec_with(&["cat"], &ExecOptions::new().stdin("in"))?;
            assert_eq!(said.ok()?.stdout, "in");

            sandbox.stop()?;
            sandbox.start_again()?;
            assert_eq!(sandbox.sh_ok("echo again")?, "again");
            drop(sandbox);
            before.wait_for_nothing_left()?;
        }
    }
    Ok(())
}

#[test]
fn a_turn_is_waited_for_until_it_is_published() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::new())?;
        let turn = crab.turn_of(&sandbox, Class::Files, "echo x >/root/x")?;
        assert_eq!(turn.number(), 1);
        assert!(turn.published);
        let turn = crab.turn_of(&sandbox, Class::None, "cat /root/x")?;
        assert_eq!(turn.number(), 2);
        assert_eq!(crab.ps_of(&sandbox)?.state, "running");
        let refusal = crab.rollback_refusal(&sandbox, 77)?;
        assert_eq!(refusal.code, 3, "{}", refusal.line);
    }
    Ok(())
}

#[test]
fn the_end_of_an_init_is_seen_and_that_of_an_exec_is_not_taken_for_it() -> Result<()> {
    let testbed = Testbed::here()?;
    let events = testbed.events()?;
    for client in testbed.clients() {
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        sandbox.sh_ok("true")?;
        assert_eq!(events.exits_of_init(&sandbox)?, 0);
        sandbox.stop()?;
        assert_eq!(events.exits_of_init(&sandbox)?, 1);
    }
    Ok(())
}

#[test]
fn a_crash_takes_the_shim_and_everything_inside() -> Result<()> {
    let testbed = Testbed::here()?;
    for client in testbed.clients() {
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        sandbox.sh_ok(&sleeper(1000))?;
        let (shim, inside) = (sandbox.shim()?, sandbox.processes()?);
        assert_eq!(inside.len(), 2);
        sandbox.crash()?;
        assert!(!processes::is_alive(shim));
        assert!(inside.iter().all(|pid| !processes::is_alive(*pid)));
        assert!(processes::crabd().is_some());
    }
    Ok(())
}

#[test]
fn the_census_sees_each_kind_of_thing_that_can_be_left() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let shell = |script: &str| Tool::new("sh").args(["-c", script]).run()?.ok();
    let cgroup = match testbed.cgroup() {
        CgroupMode::V1 => "/sys/fs/cgroup/pids/left-behind",
        CgroupMode::V2 => "/sys/fs/cgroup/left-behind",
    };
    let before = Census::take()?;
    let orphan = "setsid -f sleep 4321 >/dev/null 2>&1 </dev/null; \
                  until pgrep -xf 'sleep 4321'; do :; done";
    let kinds = [
        ("mkfifo /run/left", "rm /run/left", "FIFO /run/left"),
        ("mkdir /run/left", "rmdir /run/left", "directory /run/left"),
        (
            "ip netns add left",
            "ip netns del left",
            "mount nsfs /run/netns/left",
        ),
        (
            "mkdir /run/left; mount -t tmpfs left /run/left",
            "umount /run/left; rmdir /run/left",
            "mount tmpfs /run/left",
        ),
        (
            &format!("mkdir {cgroup}"),
            &format!("rmdir {cgroup}"),
            &format!("cgroup {cgroup}"),
        ),
        (orphan, "pkill -xf 'sleep 4321'", "process sleep "),
    ];
    for (make, take_away, line) in kinds {
        shell(make)?;
        let left = Census::take()?.since(&before);
        shell(take_away)?;
        assert!(
            left.iter().any(|left| left.starts_with(line)),
            "{line}: {left:?}"
        );
    }
    // Its directory stays once it was used.
    shell("umount /run/netns 2>/dev/null; rmdir /run/netns 2>/dev/null; true")?;
    before.wait_for_nothing_left()
}
