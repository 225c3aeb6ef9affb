// SPDX-License-Identifier: Apache-2.0
//! Watches one cgroup and the superblocks of some directories, and prints what
//! was counted since the last line at each line on stdin. To see what a
//! workload, or a container runtime, does to a sandbox. Needs root.
//!
//! `watch CGROUP_DIRECTORY [DIRECTORY...]`

use std::error::Error;
use std::fs;
use std::os::unix::fs::MetadataExt;

use crab_bpf::{CgroupId, Device, Tracer};

fn main() -> Result<(), Box<dyn Error>> {
    let mut paths = std::env::args_os().skip(1);
    let cgroup = paths.next().ok_or("usage: watch CGROUP [DIRECTORY...]")?;
    let cgroup = CgroupId(fs::metadata(cgroup)?.ino());
    let devices = paths
        .map(|path| Ok(Device::from_st_dev(fs::metadata(path)?.dev())))
        .collect::<Result<Vec<_>, std::io::Error>>()?;
    let pins = std::env::temp_dir().join(format!("crab-watch-{}", std::process::id()));
    let mut tracer = Tracer::open(&pins)?;
    tracer.watch(cgroup, &devices)?;
    println!("cgroup {cgroup}, {} devices", devices.len());
    let mut last = tracer.effects(cgroup)?;
    for label in std::io::stdin().lines() {
        let now = tracer.effects(cgroup)?;
        println!(
            "{:<30} files {} processes {} mounts {} unseen {} lost {}",
            label?,
            now.files - last.files,
            now.processes - last.processes,
            now.mounts - last.mounts,
            now.unseen - last.unseen,
            now.lost - last.lost,
        );
        last = now;
    }
    tracer.close_and_unpin()?;
    Ok(())
}
