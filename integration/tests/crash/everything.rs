// SPDX-License-Identifier: Apache-2.0

//! Shim, runtime and all inside are killed at once, or containerd is.

use std::{fs, process::Command};

use anyhow::{Result, ensure};
use crab_integration::{BUSYBOX, Counter, DEBIAN, ExecOptions, RunOptions, State, Testbed, poll};
use crab_store::Class;

use crate::{LIMIT, changed};

#[test]
fn everything_killed_at_once_comes_back_with_its_processes() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let events = testbed.events()?;
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::new())?;
        let files = crab.turn_of(
            &sandbox,
            Class::Files,
            "echo kept >/root/kept; echo x >/dev/shm/x",
        )?;
        let counter = Counter::start(&crab, &sandbox, 1)?;
        let (answer, one) = counter.ask()?;
        assert_eq!(answer, 1);
        assert_eq!(counter.ask()?.0, 2);

        sandbox.crash()?;
        let restored = crab.restore(&sandbox, None)?;
        assert_eq!(restored["processes"], true);
        assert_eq!(sandbox.state()?, State::Running);
        assert_eq!(
            sandbox.sh_ok("cat /root/kept /root/count /dev/shm/x")?,
            "kept\n2\nx"
        );
        assert_eq!(counter.ask()?.0, 3);

        sandbox.crash()?;
        crab.restore(&sandbox, Some(one.number()))?;
        assert_eq!(counter.in_file()?, 1);
        assert_eq!(counter.ask()?.0, 2);

        sandbox.crash()?;
        let restored = crab.restore(&sandbox, Some(files.number()))?;
        assert_eq!(restored["processes"], false);
        let script = "cat /root/kept /dev/shm/x; ls /root; pgrep -c python3";
        assert_eq!(sandbox.sh(script)?.stdout, "kept\nx\nkept\n0\n");

        // History goes on, and what was left can be gone back to.
        let next = crab.turn_of(&sandbox, Class::Files, "echo on >/root/on")?;
        assert!(next.record.unobserved.is_none(), "{next:?}");
        crab.rollback(&sandbox, one.number())?;
        assert_eq!(counter.ask()?.0, 2);
        let ends = events.exits_of_init(&sandbox)?;
        sandbox.stop()?;
        assert_eq!(events.exits_of_init(&sandbox)?, ends + 1);
    }
    Ok(())
}

#[test]
fn everything_killed_at_once_comes_back_without_processes() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        for n in 1..=3 {
            let script = format!("echo {n} >/root/n; echo {n} >>/root/all");
            crab.turn_of(&sandbox, Class::Files, &script)?;
        }
        // What is not over is not saved.
        let lost = ["sh", "-c", "echo 4 >/root/n; sleep 1000"];
        let exec = sandbox.exec_start(&lost, &ExecOptions::new())?;
        poll("the turn has begun", LIMIT, || {
            Ok((fs::read_to_string(sandbox.upper_dir()?.join("root/n"))? == "4\n").then_some(()))
        })?;
        sandbox.crash()?;
        drop(exec);
        crab.restore(&sandbox, None)?;
        assert_eq!(sandbox.state()?, State::Running);
        assert_eq!(sandbox.sh_ok("cat /root/n /root/all")?, "3\n1\n2\n3");

        sandbox.crash()?;
        crab.restore(&sandbox, Some(1))?;
        assert_eq!(sandbox.sh_ok("cat /root/n /root/all")?, "1\n1");
        let turn = crab.turn_of(&sandbox, Class::Files, "rm /root/all")?;
        assert_eq!(changed(&turn), ["/root/all"]);

        // And where the client itself has stopped it.
        sandbox.stop()?;
        crab.restore(&sandbox, Some(2))?;
        assert_eq!(sandbox.sh_ok("cat /root/n /root/all")?, "2\n1\n2");
    }
    Ok(())
}

#[test]
fn what_is_left_in_its_cgroup_is_no_part_of_a_sandbox_that_comes_back() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::new())?;
        let counter = Counter::start(&crab, &sandbox, 1)?;
        assert_eq!(counter.ask()?.0, 1);
        let cgroup = sandbox.cgroup()?;
        // As a CRIU that was killed in the middle of a restore: later than whoever cleaned up.
        sandbox.wait_until_cleaned_up(&sandbox.crash()?)?;
        let mut left = Command::new("sleep").arg("1000").spawn()?;
        fs::create_dir_all(&cgroup)?;
        fs::write(cgroup.join("cgroup.procs"), left.id().to_string())?;
        let restored = crab.restore(&sandbox, None);
        let ended = left.try_wait()?.is_some();
        left.kill()?;
        left.wait()?;
        assert_eq!(restored?["processes"], true);
        ensure!(ended, "it lives on, as a process of {}", client.name());
        let verified = crab.verify(&sandbox, None)?;
        ensure!(verified["same"] == true, "{verified}");
        assert_eq!(counter.ask()?.0, 2);
    }
    Ok(())
}

#[test]
fn a_restarted_containerd_finds_its_containers_as_they_were() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let sandbox = testbed.ctr().run(DEBIAN, RunOptions::new())?;
    let in_docker = testbed.docker().run(DEBIAN, RunOptions::new())?;
    for (sandbox, verb) in [(&sandbox, "restart"), (&in_docker, "kill")] {
        let counter = Counter::start(&crab, sandbox, 1)?;
        let (shim, pid) = (sandbox.shim()?, sandbox.pid()?);
        testbed.service(verb, "containerd")?;
        testbed.service("start", "containerd")?;
        // dockerd needs a moment to find it again.
        poll("an exec works", LIMIT, || {
            Ok((sandbox.sh("true")?.status == 0).then_some(()))
        })?;
        assert_eq!(sandbox.state()?, State::Running);
        assert_eq!((sandbox.shim()?, sandbox.pid()?), (shim, pid));
        assert_eq!(sandbox.sh("exit 7")?.status, 7);
        let (answer, turn) = counter.ask()?;
        assert_eq!(answer, 1);
        assert!(
            turn.published && turn.record.unobserved.is_none(),
            "{turn:?}"
        );
        crab.rollback(sandbox, turn.number())?;
        assert_eq!(counter.ask()?.0, 2);
        let events = testbed.events()?;
        sandbox.stop()?;
        assert_eq!(events.exits_of_init(sandbox)?, 1);
    }
    Ok(())
}
