// SPDX-License-Identifier: Apache-2.0
//! `io.containerd.cgroups.v2.Metrics`.

use std::{fs, path::Path};

use containerd_shim_protos::{cgroups_v2::metrics as v2, protobuf::MessageField};

use super::read::{Keyed, field, huge_page_sizes, number, rdma};

pub(super) fn metrics(dir: &Path) -> v2::Metrics {
    let mut metrics = v2::Metrics::new();
    metrics.pids = MessageField::some(v2::PidsStat {
        current: number(dir, "pids.current"),
        limit: number(dir, "pids.max"),
        ..Default::default()
    });
    metrics.cpu = MessageField::some(cpu(dir));
    metrics.memory = MessageField::some(memory(dir));
    metrics.memory_events = memory_events(dir);
    metrics.io = MessageField::some(io(dir));
    metrics.rdma = MessageField::some(v2::RdmaStat {
        current: rdma_entries(dir, "rdma.current"),
        limit: rdma_entries(dir, "rdma.max"),
        ..Default::default()
    });
    metrics.hugetlb = huge_page_sizes()
        .into_iter()
        .map(|size| v2::HugeTlbStat {
            current: number(dir, &format!("hugetlb.{size}.current")),
            max: number(dir, &format!("hugetlb.{size}.max")),
            failcnt: Keyed::read(dir, &format!("hugetlb.{size}.events")).get("max"),
            pagesize: size,
            ..Default::default()
        })
        .collect();
    metrics
}

fn cpu(dir: &Path) -> v2::CPUStat {
    let stat = Keyed::read(dir, "cpu.stat");
    v2::CPUStat {
        usage_usec: stat.get("usage_usec"),
        user_usec: stat.get("user_usec"),
        system_usec: stat.get("system_usec"),
        nr_periods: stat.get("nr_periods"),
        nr_throttled: stat.get("nr_throttled"),
        throttled_usec: stat.get("throttled_usec"),
        nr_bursts: stat.get("nr_bursts"),
        burst_usec: stat.get("burst_usec"),
        psi: pressure(dir, "cpu.pressure"),
        ..Default::default()
    }
}

fn memory(dir: &Path) -> v2::MemoryStat {
    let stat = Keyed::read(dir, "memory.stat");
    v2::MemoryStat {
        anon: stat.get("anon"),
        file: stat.get("file"),
        kernel_stack: stat.get("kernel_stack"),
        slab: stat.get("slab"),
        sock: stat.get("sock"),
        shmem: stat.get("shmem"),
        file_mapped: stat.get("file_mapped"),
        file_dirty: stat.get("file_dirty"),
        file_writeback: stat.get("file_writeback"),
        anon_thp: stat.get("anon_thp"),
        inactive_anon: stat.get("inactive_anon"),
        active_anon: stat.get("active_anon"),
        inactive_file: stat.get("inactive_file"),
        active_file: stat.get("active_file"),
        unevictable: stat.get("unevictable"),
        slab_reclaimable: stat.get("slab_reclaimable"),
        slab_unreclaimable: stat.get("slab_unreclaimable"),
        pgfault: stat.get("pgfault"),
        pgmajfault: stat.get("pgmajfault"),
        workingset_refault: stat.get("workingset_refault"),
        workingset_activate: stat.get("workingset_activate"),
        workingset_nodereclaim: stat.get("workingset_nodereclaim"),
        pgrefill: stat.get("pgrefill"),
        pgscan: stat.get("pgscan"),
        pgsteal: stat.get("pgsteal"),
        pgactivate: stat.get("pgactivate"),
        pgdeactivate: stat.get("pgdeactivate"),
        pglazyfree: stat.get("pglazyfree"),
        pglazyfreed: stat.get("pglazyfreed"),
        thp_fault_alloc: stat.get("thp_fault_alloc"),
        thp_collapse_alloc: stat.get("thp_collapse_alloc"),
        usage: number(dir, "memory.current"),
        usage_limit: number(dir, "memory.max"),
        max_usage: number(dir, "memory.peak"),
        swap_usage: number(dir, "memory.swap.current"),
        swap_limit: number(dir, "memory.swap.max"),
        swap_max_usage: number(dir, "memory.swap.peak"),
        psi: pressure(dir, "memory.pressure"),
        ..Default::default()
    }
}

/// None where there is no memory controller.
fn memory_events(dir: &Path) -> MessageField<v2::MemoryEvents> {
    let events = Keyed::read(dir, "memory.events");
    if events.is_empty() {
        return MessageField::none();
    }
    MessageField::some(v2::MemoryEvents {
        low: events.get("low"),
        high: events.get("high"),
        max: events.get("max"),
        oom: events.get("oom"),
        oom_kill: events.get("oom_kill"),
        oom_group_kill: events.get("oom_group_kill"),
        ..Default::default()
    })
}

fn io(dir: &Path) -> v2::IOStat {
    let text = fs::read_to_string(dir.join("io.stat")).unwrap_or_default();
    let usage = text.lines().filter_map(|line| {
        let (major, minor) = line.split_whitespace().next()?.split_once(':')?;
        let count = |key| field(line, key).and_then(|v| v.parse().ok()).unwrap_or(0);
        Some(v2::IOEntry {
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
            rbytes: count("rbytes"),
            wbytes: count("wbytes"),
            rios: count("rios"),
            wios: count("wios"),
            ..Default::default()
        })
    });
    v2::IOStat {
        usage: usage.collect(),
        psi: pressure(dir, "io.pressure"),
        ..Default::default()
    }
}

fn rdma_entries(dir: &Path, file: &str) -> Vec<v2::RdmaEntry> {
    let entry = |line: super::read::RdmaLine| v2::RdmaEntry {
        device: line.device,
        hca_handles: line.handles,
        hca_objects: line.objects,
        ..Default::default()
    };
    rdma(dir, file).into_iter().map(entry).collect()
}

/// None where the kernel does not measure it.
fn pressure(dir: &Path, file: &str) -> MessageField<v2::PSIStats> {
    let Ok(text) = fs::read_to_string(dir.join(file)) else {
        return MessageField::none();
    };
    let data = |kind: &str| {
        let line = text.lines().find(|line| line.starts_with(kind));
        MessageField(line.map(|line| {
            let average = |key| field(line, key).and_then(|v| v.parse().ok()).unwrap_or(0.0);
            Box::new(v2::PSIData {
                avg10: average("avg10"),
                avg60: average("avg60"),
                avg300: average("avg300"),
                total: field(line, "total")
                    .and_then(|v| v.parse().ok())
                    .unwrap_or(0),
                ..Default::default()
            })
        }))
    };
    MessageField::some(v2::PSIStats {
        some: data("some"),
        full: data("full"),
        ..Default::default()
    })
}
