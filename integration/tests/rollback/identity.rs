// SPDX-License-Identifier: Apache-2.0

//! What makes a sandbox the one that it is, apart from its files and the memory of its processes.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context, Result, ensure};
use crab_integration::{Client, RunOptions, Sandbox, Testbed, Tool, poll};

use crate::LIMIT;

/// What has to be the same before and after.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    id: String,
    namespaces: Vec<String>,
    hostname: String,
    pub(crate) addresses: String,
    cgroups: String,
    limits: Vec<String>,
    status: Vec<String>,
    mounts: Vec<String>,
    environment: BTreeSet<Vec<u8>>,
    inspected: String,
}

impl Identity {
    /// How it is now.
    pub(crate) fn of(sandbox: &Sandbox) -> Result<Self> {
        let pid = sandbox.pid()?;
        let read = |name: &str| {
            let path = format!("/proc/{pid}/{name}");
            fs::read_to_string(&path).with_context(|| format!("read {path}"))
        };
        let cgroups = read("cgroup")?;
        let mut limits: Vec<String> = read("limits")?.lines().map(str::to_owned).collect();
        limits.push(read("oom_score_adj")?);
        for line in cgroups.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next().unwrap_or(""), fields.next().unwrap_or(""));
            for name in [
                "pids.max",
                "memory.limit_in_bytes",
                "memory.max",
                "cpu.shares",
                "cpu.weight",
            ] {
                let first = controllers.split(',').next().unwrap_or("");
                let file = Path::new("/sys/fs/cgroup")
                    .join(first)
                    .join(&path[1..])
                    .join(name);
                if let Ok(value) = fs::read_to_string(&file) {
                    limits.push(format!("{name} {}", value.trim()));
                }
            }
        }
        let kept = [
            "Uid",
            "Gid",
            "Groups",
            "Seccomp",
            "NoNewPrivs",
            "CapEff",
            "CapBnd",
            "CapPrm",
        ];
        let status = read("status")?;
        let status = status.lines().filter(|line| {
            kept.iter()
                .any(|name| line.starts_with(&format!("{name}:")))
        });
        let mounts = read("mountinfo")?;
        let mut mounts: Vec<String> = mounts
            .lines()
            .map(|line| {
                let fields: Vec<&str> = line.split(' ').collect();
                let end = fields.iter().position(|f| *f == "-").unwrap_or(0);
                // Where, how, and what; not the numbers. What runc hides is hidden by
                // some /dev/null, after a restore by the host's.
                match fields[4].starts_with("/proc/") {
                    true => fields[4].to_owned(),
                    false => format!("{} {} {}", fields[4], fields[5], fields[end + 1]),
                }
            })
            .collect();
        mounts.sort();
        // Start is over before runc's own init has become the program.
        let environment = poll("the init runs its program", LIMIT, || {
            let environment = fs::read(format!("/proc/{pid}/environ"))?;
            let of_runc = environment.split(|b| *b == 0);
            let mut of_runc = of_runc.filter(|one| one.starts_with(b"_LIBCONTAINER_"));
            Ok(of_runc.next().is_none().then_some(environment))
        })?;
        let inspected = match sandbox.client() {
            Client::Docker => {
                let format = "{{.Id}} {{.State.StartedAt}} {{.State.Status}} {{.RestartCount}} \
                              {{.NetworkSettings.SandboxKey}}";
                sandbox
                    .client()
                    .tool(["inspect", "-f", format, sandbox.name()])
            }
            Client::Ctr { .. } => sandbox.client().tool(["container", "info", sandbox.id()]),
        };
        let within = |command: &[&str]| {
            Tool::new("nsenter")
                .args(["-t", &pid.to_string(), "-n", "-u"])
                .args(command.iter().copied())
                .run()?
                .text()
        };
        Ok(Self {
            id: sandbox.id().to_owned(),
            namespaces: vec![
                fs::read_link(format!("/proc/{pid}/ns/net"))?
                    .display()
                    .to_string(),
            ],
            hostname: within(&["hostname"])?,
            addresses: within(&["ip", "-o", "addr"])?,
            cgroups,
            limits,
            status: status.map(str::to_owned).collect(),
            mounts,
            environment: environment.split(|b| *b == 0).map(<[u8]>::to_vec).collect(),
            inspected: inspected.run()?.text()?,
        })
    }
}

/// Fails with what differs.
pub(crate) fn same(now: &Identity, before: &Identity) -> Result<()> {
    let lines = |identity: &Identity| -> BTreeSet<String> {
        format!("{identity:#?}")
            .lines()
            .map(str::to_owned)
            .collect()
    };
    let (now_lines, before_lines) = (lines(now), lines(before));
    ensure!(
        now == before,
        "it was {:?} and is {:?}",
        before_lines.difference(&now_lines).collect::<Vec<_>>(),
        now_lines.difference(&before_lines).collect::<Vec<_>>()
    );
    Ok(())
}

/// Options with which a sandbox is not like every other.
pub(crate) fn peculiar(testbed: &Testbed, client: Client) -> RunOptions {
    let mut options = RunOptions::without_bytecode().env("PECULIAR", "yes");
    if client == testbed.docker() {
        options = options.flags(["--hostname", "peculiar", "--ulimit", "nofile=1234:2345"]);
        options = options.flags(["--oom-score-adj", "500"]);
        for (controller, flags) in [
            ("pids", ["--pids-limit", "77"]),
            ("memory", ["--memory", "256m"]),
        ] {
            if testbed.has_controller(controller) {
                options = options.flags(flags);
            }
        }
    } else if testbed.has_controller("memory") {
        options = options.flags(["--memory-limit", "268435456"]);
    }
    options
}
