// SPDX-License-Identifier: Apache-2.0
//! Resource use, as the metric types of containerd: v1's where the memory
//! controller is a v1 one, else v2's. What a hierarchy does not have is left out.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use containerd_shim_protos::{
    cgroups::metrics as v1,
    cgroups_v2::metrics as v2,
    protobuf::{Message, MessageField, well_known_types::any::Any},
};
use crab_runtime::cgroup::path_of;

/// Reads the use of the cgroup in which the process is.
pub(crate) fn of_process(pid: i32) -> Result<Any> {
    let table = fs::read_to_string(format!("/proc/{pid}/cgroup"))
        .with_context(|| format!("read the cgroups of process {pid}"))?;
    if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        let dir = dir_of(&table, "").context("the process is in no cgroup")?;
        any("io.containerd.cgroups.v2.Metrics", &unified(&dir))
    } else {
        any("io.containerd.cgroups.v1.Metrics", &hybrid(&table))
    }
}

fn any(type_url: &str, message: &impl Message) -> Result<Any> {
    Ok(Any {
        type_url: type_url.into(),
        value: message.write_to_bytes()?,
        ..Default::default()
    })
}

fn dir_of(table: &str, controller: &str) -> Option<PathBuf> {
    let path = path_of(table, controller)?;
    let root = Path::new("/sys/fs/cgroup").join(controller);
    Some(root.join(path.trim_start_matches('/')))
}

fn number(dir: &Path, file: &str) -> u64 {
    let text = fs::read_to_string(dir.join(file)).unwrap_or_default();
    match text.trim() {
        "max" => u64::MAX,
        text => text.parse().unwrap_or(0),
    }
}

/// A line `key value` of a flat file.
fn keyed(dir: &Path, file: &str, key: &str) -> u64 {
    fs::read_to_string(dir.join(file))
        .unwrap_or_default()
        .lines()
        .find_map(|line| line.strip_prefix(key)?.trim().parse().ok())
        .unwrap_or(0)
}

fn unified(dir: &Path) -> v2::Metrics {
    let mut metrics = v2::Metrics::new();
    metrics.pids = MessageField::some(v2::PidsStat {
        current: number(dir, "pids.current"),
        limit: number(dir, "pids.max"),
        ..Default::default()
    });
    metrics.cpu = MessageField::some(v2::CPUStat {
        usage_usec: keyed(dir, "cpu.stat", "usage_usec "),
        user_usec: keyed(dir, "cpu.stat", "user_usec "),
        system_usec: keyed(dir, "cpu.stat", "system_usec "),
        nr_periods: keyed(dir, "cpu.stat", "nr_periods "),
        nr_throttled: keyed(dir, "cpu.stat", "nr_throttled "),
        throttled_usec: keyed(dir, "cpu.stat", "throttled_usec "),
        ..Default::default()
    });
    metrics.memory = MessageField::some(v2::MemoryStat {
        usage: number(dir, "memory.current"),
        usage_limit: number(dir, "memory.max"),
        swap_usage: number(dir, "memory.swap.current"),
        anon: keyed(dir, "memory.stat", "anon "),
        file: keyed(dir, "memory.stat", "file "),
        inactive_file: keyed(dir, "memory.stat", "inactive_file "),
        ..Default::default()
    });
    metrics
}

fn hybrid(table: &str) -> v1::Metrics {
    let mut metrics = v1::Metrics::new();
    if let Some(dir) = dir_of(table, "pids") {
        metrics.pids = MessageField::some(v1::PidsStat {
            current: number(&dir, "pids.current"),
            limit: match number(&dir, "pids.max") {
                u64::MAX => 0,
                limit => limit,
            },
            ..Default::default()
        });
    }
    if let Some(dir) = dir_of(table, "cpuacct") {
        metrics.cpu = MessageField::some(v1::CPUStat {
            usage: MessageField::some(v1::CPUUsage {
                total: number(&dir, "cpuacct.usage"),
                user: number(&dir, "cpuacct.usage_user"),
                kernel: number(&dir, "cpuacct.usage_sys"),
                ..Default::default()
            }),
            // dockerd reads it without asking whether it is there, and dies if not.
            throttling: MessageField::some(throttling(table)),
            ..Default::default()
        });
    }
    if let Some(dir) = dir_of(table, "memory") {
        let stat = |key: &str| keyed(&dir, "memory.stat", key);
        metrics.memory = MessageField::some(v1::MemoryStat {
            cache: stat("cache "),
            rss: stat("rss "),
            total_inactive_file: stat("total_inactive_file "),
            usage: MessageField::some(v1::MemoryEntry {
                usage: number(&dir, "memory.usage_in_bytes"),
                max: number(&dir, "memory.max_usage_in_bytes"),
                limit: number(&dir, "memory.limit_in_bytes"),
                failcnt: number(&dir, "memory.failcnt"),
                ..Default::default()
            }),
            ..Default::default()
        });
    }
    metrics
}

/// All of it 0 where the cpu controller is not a v1 one.
fn throttling(table: &str) -> v1::Throttle {
    let dir = dir_of(table, "cpu");
    let stat = |key: &str| dir.as_ref().map_or(0, |dir| keyed(dir, "cpu.stat", key));
    v1::Throttle {
        periods: stat("nr_periods "),
        throttled_periods: stat("nr_throttled "),
        throttled_time: stat("throttled_time "),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_memory_use_is_not_nothing() {
        let stats = of_process(std::process::id() as i32).unwrap();
        assert!(stats.type_url.starts_with("io.containerd.cgroups.v"));
        assert!(!stats.value.is_empty());
    }
}
