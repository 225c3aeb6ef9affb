// SPDX-License-Identifier: Apache-2.0

//! Its processes, what they use, and their limits.

use std::fs;

use anyhow::{Context, Result};
use crab_integration::{BUSYBOX, CgroupMode, Client, RunOptions, Testbed, skip, sleeper};

#[test]
fn the_processes_of_a_container_are_listed() -> Result<()> {
    let testbed = Testbed::here()?;
    for client in testbed.clients() {
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        sandbox.sh_ok(&sleeper(1000))?;
        let mut inside = sandbox.processes()?;
        assert_eq!(inside.len(), 2);
        let said = match client {
            Client::Docker => client.tool(["top", sandbox.name(), "-o", "pid"]),
            Client::Ctr { .. } => client.tool(["task", "ps", sandbox.id()]),
        };
        let said = said.run()?.ok()?.stdout;
        let mut listed: Vec<u32> = said
            .lines()
            .filter_map(|line| line.split_whitespace().next()?.parse().ok())
            .collect();
        listed.sort_unstable();
        inside.sort_unstable();
        assert_eq!(listed, inside, "{said}");
    }
    Ok(())
}

#[test]
fn metrics_have_numbers_in_them() -> Result<()> {
    let testbed = Testbed::here()?;
    let client = testbed.ctr();
    let sandbox = client.run(BUSYBOX, RunOptions::new())?;
    sandbox.sh_ok(&sleeper(1000))?;
    let said = client.tool(["task", "metrics", sandbox.id()]).run()?.ok()?;
    let number = |name: &str| -> Option<u64> {
        let line = said
            .stdout
            .lines()
            .find(|line| line.split_whitespace().next() == Some(name))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    // A controller that there is none of says nothing but 0.
    if testbed.has_controller("pids") {
        assert_eq!(number("pids.current"), Some(2), "{}", said.stdout);
    }
    let (memory, cpu) = match testbed.cgroup() {
        CgroupMode::V1 => ("memory.usage_in_bytes", "cpuacct.usage"),
        CgroupMode::V2 => ("memory.usage", "cpu.usage_usec"),
    };
    if testbed.has_controller("memory") {
        let memory = number(memory).with_context(|| format!("no {memory}"))?;
        assert!(memory > 4096, "{}", said.stdout);
    }
    let cpu = number(cpu).with_context(|| format!("no {cpu}"))?;
    assert!(cpu > 0, "{}", said.stdout);
    Ok(())
}

/// What a file of a process's cgroup says.
fn cgroup_file(mode: CgroupMode, pid: u32, controller: &str, name: &str) -> Result<String> {
    let memberships = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let (owner, mount) = match mode {
        CgroupMode::V1 => (controller, format!("/sys/fs/cgroup/{controller}")),
        CgroupMode::V2 => ("", "/sys/fs/cgroup".to_owned()),
    };
    let path = memberships
        .lines()
        .map(|line| line.splitn(3, ':').collect::<Vec<_>>())
        .find(|line| line[1].split(',').any(|one| one == owner))
        .with_context(|| format!("process {pid} is in no cgroup of {owner:?}"))?[2]
        .to_owned();
    let file = format!("{mount}{path}/{name}");
    let text = fs::read_to_string(&file).with_context(|| format!("read {file}"))?;
    Ok(text.trim().to_owned())
}

#[test]
fn limits_can_be_updated_while_it_runs() -> Result<()> {
    let testbed = Testbed::here()?;
    let mode = testbed.cgroup();
    let client = testbed.docker();
    let sandbox = client.run(BUSYBOX, RunOptions::new())?;
    let pid = sandbox.pid()?;
    if testbed.has_controller("pids") {
        let args = ["update", "--pids-limit", "37", sandbox.name()];
        client.tool(args).run()?.ok()?;
        assert_eq!(cgroup_file(mode, pid, "pids", "pids.max")?, "37");
    } else {
        skip("containers get no pids controller here")?;
    }
    if testbed.has_controller("memory") {
        let args = [
            "update",
            "--memory",
            "64m",
            "--memory-swap",
            "-1",
            sandbox.name(),
        ];
        client.tool(args).run()?.ok()?;
        let file = match mode {
            CgroupMode::V1 => "memory.limit_in_bytes",
            CgroupMode::V2 => "memory.max",
        };
        let limit = cgroup_file(mode, pid, "memory", file)?;
        assert_eq!(limit, (64 << 20).to_string());
    } else {
        skip("containers get no memory controller here")?;
    }
    assert_eq!(sandbox.sh_ok("echo alive")?, "alive");
    Ok(())
}
