// SPDX-License-Identifier: Apache-2.0
//! `io.containerd.cgroups.v1.Metrics`.

use std::{collections::HashMap, fs, path::Path};

use containerd_shim_protos::{cgroups::metrics as v1, protobuf::MessageField};

use super::{
    Groups,
    read::{Keyed, RdmaLine, blkio, huge_page_sizes, number, rdma},
};

pub(super) fn metrics(groups: &Groups) -> v1::Metrics {
    let mut metrics = v1::Metrics::new();
    metrics.cpu = MessageField::some(cpu(groups));
    if let Some(dir) = groups.dir("pids") {
        metrics.pids = MessageField::some(v1::PidsStat {
            current: number(&dir, "pids.current"),
            limit: match number(&dir, "pids.max") {
                u64::MAX => 0,
                limit => limit,
            },
            ..Default::default()
        });
    }
    if let Some(dir) = groups.dir("memory") {
        metrics.memory = MessageField::some(memory(&dir));
        let oom = Keyed::read(&dir, "memory.oom_control");
        metrics.memory_oom_control = MessageField::some(v1::MemoryOomControl {
            oom_kill_disable: oom.get("oom_kill_disable"),
            under_oom: oom.get("under_oom"),
            oom_kill: oom.get("oom_kill"),
            ..Default::default()
        });
    }
    if let Some(dir) = groups.dir("blkio") {
        metrics.blkio = MessageField::some(block_io(&dir));
    }
    if let Some(dir) = groups.dir("hugetlb") {
        metrics.hugetlb = huge_page_sizes()
            .into_iter()
            .map(|size| v1::HugetlbStat {
                usage: number(&dir, &format!("hugetlb.{size}.usage_in_bytes")),
                max: number(&dir, &format!("hugetlb.{size}.max_usage_in_bytes")),
                failcnt: number(&dir, &format!("hugetlb.{size}.failcnt")),
                pagesize: size,
                ..Default::default()
            })
            .collect();
    }
    if let Some(dir) = groups.dir("rdma") {
        let entry = |line: RdmaLine| v1::RdmaEntry {
            device: line.device,
            hca_handles: line.handles,
            hca_objects: line.objects,
            ..Default::default()
        };
        let entries = |file| rdma(&dir, file).into_iter().map(entry).collect();
        metrics.rdma = MessageField::some(v1::RdmaStat {
            current: entries("rdma.current"),
            limit: entries("rdma.max"),
            ..Default::default()
        });
    }
    metrics
}

/// Whole even where there is neither controller: dockerd reads it without asking, and dies
/// if it is not there.
fn cpu(groups: &Groups) -> v1::CPUStat {
    let mut usage = v1::CPUUsage::new();
    if let Some(dir) = groups.dir("cpuacct") {
        usage.total = number(&dir, "cpuacct.usage");
        usage.user = number(&dir, "cpuacct.usage_user");
        usage.kernel = number(&dir, "cpuacct.usage_sys");
        let per_cpu = fs::read_to_string(dir.join("cpuacct.usage_percpu")).unwrap_or_default();
        let per_cpu = per_cpu.split_whitespace();
        usage.per_cpu = per_cpu.filter_map(|one| one.parse().ok()).collect();
    }
    let mut throttling = v1::Throttle::new();
    if let Some(dir) = groups.dir("cpu") {
        let stat = Keyed::read(&dir, "cpu.stat");
        throttling.periods = stat.get("nr_periods");
        throttling.throttled_periods = stat.get("nr_throttled");
        throttling.throttled_time = stat.get("throttled_time");
    }
    v1::CPUStat {
        usage: MessageField::some(usage),
        throttling: MessageField::some(throttling),
        ..Default::default()
    }
}

fn memory(dir: &Path) -> v1::MemoryStat {
    let stat = Keyed::read(dir, "memory.stat");
    let entry = |prefix: &str| {
        MessageField::some(v1::MemoryEntry {
            usage: number(dir, &format!("{prefix}.usage_in_bytes")),
            max: number(dir, &format!("{prefix}.max_usage_in_bytes")),
            limit: number(dir, &format!("{prefix}.limit_in_bytes")),
            failcnt: number(dir, &format!("{prefix}.failcnt")),
            ..Default::default()
        })
    };
    v1::MemoryStat {
        cache: stat.get("cache"),
        rss: stat.get("rss"),
        rss_huge: stat.get("rss_huge"),
        mapped_file: stat.get("mapped_file"),
        dirty: stat.get("dirty"),
        writeback: stat.get("writeback"),
        pg_pg_in: stat.get("pgpgin"),
        pg_pg_out: stat.get("pgpgout"),
        pg_fault: stat.get("pgfault"),
        pg_maj_fault: stat.get("pgmajfault"),
        inactive_anon: stat.get("inactive_anon"),
        active_anon: stat.get("active_anon"),
        inactive_file: stat.get("inactive_file"),
        active_file: stat.get("active_file"),
        unevictable: stat.get("unevictable"),
        hierarchical_memory_limit: stat.get("hierarchical_memory_limit"),
        hierarchical_swap_limit: stat.get("hierarchical_memsw_limit"),
        total_cache: stat.get("total_cache"),
        total_rss: stat.get("total_rss"),
        total_rss_huge: stat.get("total_rss_huge"),
        total_mapped_file: stat.get("total_mapped_file"),
        total_dirty: stat.get("total_dirty"),
        total_writeback: stat.get("total_writeback"),
        total_pg_pg_in: stat.get("total_pgpgin"),
        total_pg_pg_out: stat.get("total_pgpgout"),
        total_pg_fault: stat.get("total_pgfault"),
        total_pg_maj_fault: stat.get("total_pgmajfault"),
        total_inactive_anon: stat.get("total_inactive_anon"),
        total_active_anon: stat.get("total_active_anon"),
        total_inactive_file: stat.get("total_inactive_file"),
        total_active_file: stat.get("total_active_file"),
        total_unevictable: stat.get("total_unevictable"),
        usage: entry("memory"),
        swap: entry("memory.memsw"),
        kernel: entry("memory.kmem"),
        kernel_tcp: entry("memory.kmem.tcp"),
        ..Default::default()
    }
}

/// The recursive counts of an I/O scheduler where there are any, else those of the
/// throttle, which every device has.
fn block_io(dir: &Path) -> v1::BlkIOStat {
    let devices = devices();
    let entries = |name: &str| -> Vec<v1::BlkIOEntry> {
        let text = fs::read_to_string(dir.join(format!("blkio.{name}"))).unwrap_or_default();
        let entry = |line: super::read::BlkioLine<'_>| v1::BlkIOEntry {
            op: line.op.to_owned(),
            device: devices
                .get(&(line.major, line.minor))
                .cloned()
                .unwrap_or_default(),
            major: line.major,
            minor: line.minor,
            value: line.value,
            ..Default::default()
        };
        blkio(&text).map(entry).collect()
    };
    let mut stat = v1::BlkIOStat {
        sectors_recursive: entries("sectors_recursive"),
        io_service_bytes_recursive: entries("io_service_bytes_recursive"),
        io_serviced_recursive: entries("io_serviced_recursive"),
        io_queued_recursive: entries("io_queued_recursive"),
        io_service_time_recursive: entries("io_service_time_recursive"),
        io_wait_time_recursive: entries("io_wait_time_recursive"),
        io_merged_recursive: entries("io_merged_recursive"),
        io_time_recursive: entries("time_recursive"),
        ..Default::default()
    };
    let lists = [
        &stat.sectors_recursive,
        &stat.io_service_bytes_recursive,
        &stat.io_serviced_recursive,
        &stat.io_queued_recursive,
        &stat.io_service_time_recursive,
        &stat.io_wait_time_recursive,
        &stat.io_merged_recursive,
        &stat.io_time_recursive,
    ];
    if lists.iter().all(|list| list.is_empty()) {
        stat.io_serviced_recursive = entries("throttle.io_serviced");
        stat.io_service_bytes_recursive = entries("throttle.io_service_bytes");
    }
    stat
}

/// What block devices are called.
fn devices() -> HashMap<(u64, u64), String> {
    let text = fs::read_to_string("/proc/partitions").unwrap_or_default();
    let lines = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let key = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some((key, format!("/dev/{}", words.nth(1)?)))
    });
    lines.collect()
}
