// SPDX-License-Identifier: Apache-2.0

//! A host as users have it: crabd, containerd and Docker are units of systemd, cgroups are
//! systemd's, and Crab was put there by `scripts/install`. In the other test hosts there is
//! no systemd: `scripts/test` runs these in a machine of its own.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use crab_integration::{BUSYBOX, RunOptions, Sandbox, State, Testbed, Tool, poll, processes};
use crab_store::Class;

const LIMIT: Duration = Duration::from_secs(20);

fn here() -> Result<Testbed> {
    let testbed = Testbed::here()?;
    ensure!(
        Path::new("/run/systemd/system").is_dir(),
        "there is no systemd here: run this with scripts/testbed run --vm"
    );
    Ok(testbed)
}

fn systemctl(args: &[&str]) -> Result<String> {
    Tool::new("systemctl")
        .args(args.iter().copied())
        .run()?
        .text()
}

/// The process of crabd's unit; none if it does not run.
fn unit_pid() -> Result<Option<u32>> {
    let pid = systemctl(&["show", "-P", "MainPID", "crabd"])?.parse()?;
    Ok(Some(pid).filter(|pid| *pid != 0))
}

fn lives(sandbox: &Sandbox, pid: u32) -> Result<()> {
    ensure!(
        sandbox.state()? == State::Running,
        "{} does not run",
        sandbox.name()
    );
    ensure!(sandbox.pid()? == pid, "{} is another", sandbox.name());
    ensure!(sandbox.sh_ok("echo alive")? == "alive");
    Ok(())
}

#[test]
fn a_restart_of_crabds_unit_loses_no_count() -> Result<()> {
    let testbed = here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        let pid = sandbox.pid()?;
        crab.turn_of(&sandbox, Class::Files, "echo 1 >/root/f")?;
        let first = unit_pid()?.context("the unit does not run")?;
        systemctl(&["restart", "crabd"])?;
        let second = unit_pid()?.context("the unit does not run any more")?;
        ensure!(first != second);
        // Longer than anybody waits for a shim to say that it is still there.
        std::thread::sleep(Duration::from_secs(15));
        // A crabd that is slow to answer, here, has lost nothing.
        crab.wait_until_observed(&sandbox)?;
        fs::write(sandbox.root()?.join("root/f"), "from outside")?;
        crab.turn_of(&sandbox, Class::Files, "true")?;
        assert_eq!(unit_pid()?, Some(second));
        lives(&sandbox, pid)?;
    }
    Ok(())
}

/// Starts crabd's unit when it goes, if it does not run.
struct Started;

impl Drop for Started {
    fn drop(&mut self) {
        let _ = systemctl(&["start", "crabd"]);
    }
}

#[test]
fn a_stop_of_crabds_unit_costs_no_container_and_its_start_takes_over() -> Result<()> {
    let testbed = here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let sandboxes = testbed
        .clients()
        .map(|client| client.run(BUSYBOX, RunOptions::new()));
    let sandboxes = sandboxes.into_iter().collect::<Result<Vec<_>>>()?;
    let pids = sandboxes
        .iter()
        .map(Sandbox::pid)
        .collect::<Result<Vec<_>>>()?;
    for sandbox in &sandboxes {
        crab.turn_of(sandbox, Class::Files, "echo 1 >/root/f")?;
    }
    systemctl(&["stop", "crabd"])?;
    // Whatever comes: the tests after this one are about a host whose unit runs.
    let _started = Started;
    for (sandbox, pid) in sandboxes.iter().zip(&pids) {
        lives(sandbox, *pid)?;
        // Observed by whatever crabd a shim starts, or not: right.
        crab.turn_of(sandbox, Class::Files, "echo 2 >/root/f")?;
    }
    let shims = processes::crabd();
    systemctl(&["start", "crabd"])?;
    let unit = unit_pid()?.context("the unit does not run")?;
    assert_eq!(
        processes::named(processes::CRABD),
        [unit],
        "before it was {shims:?}"
    );
    for (sandbox, pid) in sandboxes.iter().zip(&pids) {
        crab.wait_until_observed(sandbox)?;
        lives(sandbox, *pid)?;
        crab.rollback(sandbox, 1)?;
        assert_eq!(sandbox.sh_ok("cat /root/f")?, "1");
    }
    assert_eq!(unit_pid()?, Some(unit));
    Ok(())
}

#[test]
fn a_killed_crabd_is_started_again() -> Result<()> {
    let testbed = here()?;
    let _alone = testbed.alone();
    let first = unit_pid()?.context("the unit does not run")?;
    processes::kill(first)?;
    poll("systemd has started another", LIMIT, || {
        let another = unit_pid()?.is_some_and(|pid| pid != first);
        let state = Tool::new("systemctl").args(["is-active", "crabd"]).run()?;
        Ok((another && state.status == 0).then_some(()))
    })
}

#[test]
fn the_cgroup_of_a_container_of_docker_is_a_scope_of_systemds() -> Result<()> {
    let testbed = here()?;
    let crab = testbed.crab();
    let docker = testbed.docker();
    let driver = docker
        .tool(["info", "-f", "{{.CgroupDriver}}"])
        .run()?
        .text()?;
    assert_eq!(driver, "systemd");
    let sandbox = docker.run(BUSYBOX, RunOptions::new())?;
    let scope = format!("docker-{}.scope", sandbox.id());
    let cgroup = |sandbox: &Sandbox| -> Result<String> {
        let path = format!("/proc/{}/cgroup", sandbox.pid()?);
        Ok(fs::read_to_string(path)?.trim().to_owned())
    };
    let expected = format!("0::/system.slice/{scope}");
    assert_eq!(cgroup(&sandbox)?, expected);
    crab.turn_of(&sandbox, Class::Files, "echo 1 >/root/f")?;
    // Another init, in a scope of the same name.
    crab.rollback_cold(&sandbox, 0)?;
    assert_eq!(cgroup(&sandbox)?, expected);
    let turn = crab.turn_of(&sandbox, Class::Files, "echo 2 >/root/f")?;
    ensure!(turn.record.unobserved.is_none(), "{turn:?}");
    sandbox.remove()?;
    poll("the scope is gone", LIMIT, || {
        let units = systemctl(&[
            "list-units",
            "--all",
            "--no-legend",
            "--plain",
            "docker-*.scope",
        ])?;
        Ok((!units.contains(&scope)).then_some(()))
    })
}

#[test]
fn shims_are_containerds_and_outlive_its_unit() -> Result<()> {
    let testbed = here()?;
    let _alone = testbed.alone();
    let sandboxes = testbed
        .clients()
        .map(|client| client.run(BUSYBOX, RunOptions::new()));
    let sandboxes = sandboxes.into_iter().collect::<Result<Vec<_>>>()?;
    let pids = sandboxes
        .iter()
        .map(Sandbox::pid)
        .collect::<Result<Vec<_>>>()?;
    for sandbox in &sandboxes {
        let cgroup = fs::read_to_string(format!("/proc/{}/cgroup", sandbox.shim()?))?;
        assert_eq!(cgroup.trim(), "0::/system.slice/containerd.service");
    }
    systemctl(&["restart", "containerd"])?;
    testbed.service("start", "dockerd")?;
    for (sandbox, pid) in sandboxes.iter().zip(&pids) {
        poll("its client knows it again", LIMIT, || {
            Ok((sandbox.state()? == State::Running).then_some(()))
        })?;
        lives(sandbox, *pid)?;
    }
    Ok(())
}
