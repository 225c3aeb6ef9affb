// SPDX-License-Identifier: Apache-2.0

//! The numbers of a container, field by field as containerd's own shim gives them.

use anyhow::{Context, Result, ensure};
use containerd_shim_protos::{
    cgroups::metrics as v1,
    cgroups_v2::metrics as v2,
    protobuf::{Message, MessageDyn, MessageFull, reflect::ReflectFieldRef},
};
use crab_integration::{BUSYBOX, CgroupMode, RunOptions, Runtime, Testbed, poll};

use crate::{
    LIMIT,
    calls::{Calls, denied},
    under_both,
};

/// Which fields a message has at all, its own messages included; lists by their first entry.
fn shape(message: &dyn MessageDyn, prefix: &str, all: &mut Vec<String>) {
    for field in message.descriptor_dyn().fields() {
        let name = format!("{prefix}{}", field.name());
        match field.get_reflect(message) {
            ReflectFieldRef::Optional(value) => {
                let Some(value) = value.value() else { continue };
                match value.to_message() {
                    Some(inner) => {
                        all.push(name.clone());
                        shape(&*inner, &format!("{name}."), all);
                    }
                    // A number may be 0 in one and not yet in the other.
                    None => continue,
                }
            }
            ReflectFieldRef::Repeated(list) => all.push(format!("{name}[{}]", list.len())),
            ReflectFieldRef::Map(_) => {}
        }
    }
}

fn shape_of<M: MessageFull>(bytes: &[u8]) -> Result<Vec<String>> {
    let mut all = Vec::new();
    shape(&M::parse_from_bytes(bytes)?, "", &mut all);
    Ok(all)
}

#[test]
fn metrics_have_the_fields_of_containerds_own() -> Result<()> {
    let testbed = Testbed::here()?;
    let mut shapes = Vec::new();
    under_both(|_, sandbox, calls| {
        sandbox.sh_ok(
            "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; cat /bin/busybox >/dev/null",
        )?;
        let stats = calls.stats()?.map_err(denied)?.stats;
        let kind = stats
            .type_url
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .to_owned();
        let shape = match testbed.cgroup() {
            CgroupMode::V1 => shape_of::<v1::Metrics>(&stats.value)?,
            CgroupMode::V2 => shape_of::<v2::Metrics>(&stats.value)?,
        };
        shapes.push((kind, shape));
        Ok(())
    })?;
    ensure!(shapes[0].1.len() > 3, "{shapes:?}");
    // containerd 1.7 knows no pressure, and the kernel lists I/O of devices by chance.
    for (_, shape) in &mut shapes {
        shape.retain(|field| !field.contains("psi") && !field.contains("io"));
    }
    let (stock, crab) = (&shapes[0], &shapes[1]);
    assert_eq!(stock.0, crab.0);
    let missing: Vec<_> = stock.1.iter().filter(|f| !crab.1.contains(f)).collect();
    assert!(missing.is_empty(), "{missing:?} of {shapes:?}");
    Ok(())
}

#[test]
fn numbers_are_those_of_the_kernel() -> Result<()> {
    let testbed = Testbed::here()?;
    let sandbox = testbed.ctr().run(BUSYBOX, RunOptions::new())?;
    let work = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
    let calls = Calls::of(&sandbox)?;
    // Total, user and system time in nanoseconds, processes, memory in use and its limit.
    let read = || -> Result<[u64; 6]> {
        let stats = calls.stats()?.map_err(denied)?.stats;
        Ok(match testbed.cgroup() {
            CgroupMode::V1 => {
                let all = v1::Metrics::parse_from_bytes(&stats.value)?;
                let cpu = &all.cpu.usage;
                ensure!(cpu.per_cpu.iter().sum::<u64>() > 0, "no use per processor");
                ensure!(all.cpu.throttling.is_some(), "no throttling");
                let memory = &all.memory.usage;
                let (total, user, kernel) = (cpu.total, cpu.user, cpu.kernel);
                [
                    total,
                    user,
                    kernel,
                    all.pids.current,
                    memory.usage,
                    memory.limit,
                ]
            }
            CgroupMode::V2 => {
                let all = v2::Metrics::parse_from_bytes(&stats.value)?;
                let (cpu, memory) = (&all.cpu, &all.memory);
                let [total, user, kernel] =
                    [cpu.usage_usec, cpu.user_usec, cpu.system_usec].map(|usec| usec * 1000);
                [
                    total,
                    user,
                    kernel,
                    all.pids.current,
                    memory.usage,
                    memory.usage_limit,
                ]
            }
        })
    };
    let before = read()?;
    sandbox.sh_ok(work)?;
    let after = read()?;
    assert!(after[0] > before[0], "{before:?} {after:?}");
    assert!(after[1] > before[1], "{before:?} {after:?}");
    // As much as its parts, but for what was measured meanwhile.
    assert!(after[1] + after[2] <= after[0] + 100_000_000, "{after:?}");
    if testbed.has_controller("pids") {
        assert_eq!(after[3], 1);
    }
    if testbed.has_controller("memory") {
        assert!(after[4] > 4096 && after[5] > after[4], "{after:?}");
    }
    Ok(())
}

#[test]
fn docker_stats_shows_what_is_used() -> Result<()> {
    let testbed = Testbed::here()?;
    let docker = testbed.docker();
    let options = RunOptions::new().args(["sh", "-c", "while :; do :; done"]);
    let sandbox = docker.run(BUSYBOX, options.runtime(Runtime::Crab))?;
    let format = "{{.CPUPerc}} {{.MemUsage}} {{.PIDs}}";
    poll("docker stats has numbers", LIMIT, || {
        let stats = ["stats", "--no-stream", "--format", format];
        let said = docker.tool(stats).args([sandbox.name()]).run()?.text()?;
        let cpu = said.split('%').next().context("no CPU")?.parse::<f64>()?;
        let pids_right = !testbed.has_controller("pids") || said.ends_with(" 1");
        let memory_right = !testbed.has_controller("memory") || !said.contains(" 0B /");
        Ok((cpu > 1.0 && pids_right && memory_right).then_some(()))
    })
}
