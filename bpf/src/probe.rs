// SPDX-License-Identifier: Apache-2.0
//! Whether this host can trace at all, asked once, with a reason where not.

use std::fs;
use std::io;
use std::path::Path;

use thiserror::Error;

const BTF: &str = "/sys/kernel/btf/vmlinux";

/// Why this host cannot trace.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Unsupported {
    /// The kernel was built without type information, or sysfs is missing.
    #[error("the kernel has no BTF ({BTF} is missing): it needs CONFIG_DEBUG_INFO_BTF")]
    NoBtf,
    /// Programs may not be loaded by this process.
    #[error("loading BPF programs needs root, or the capabilities {0}")]
    NotPermitted(&'static str),
    /// Programs could not outlive the daemon.
    #[error("the kernel has no BPF file system (CONFIG_BPF_SYSCALL)")]
    NoBpffs,
    /// /proc did not answer.
    #[error("read {path}: {kind}")]
    Unreadable {
        /// The file.
        path: &'static str,
        /// Why not.
        kind: io::ErrorKind,
    },
}

/// Whether programs can be loaded and pinned here.
///
/// # Errors
/// The first reason that stands against it.
pub fn probe() -> Result<(), Unsupported> {
    if !Path::new(BTF).exists() {
        return Err(Unsupported::NoBtf);
    }
    permitted(effective_capabilities(&read("/proc/self/status")?))?;
    if !knows_bpffs(&read("/proc/filesystems")?) {
        return Err(Unsupported::NoBpffs);
    }
    Ok(())
}

fn read(path: &'static str) -> Result<String, Unsupported> {
    fs::read_to_string(path).map_err(|error| Unsupported::Unreadable {
        path,
        kind: error.kind(),
    })
}

fn effective_capabilities(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0)
}

/// CAP_SYS_ADMIN stands for all that was split from it in Linux 5.8. Mounting
/// a bpffs and reading kernel memory need it or the others.
fn permitted(capabilities: u64) -> Result<(), Unsupported> {
    const SYS_ADMIN: u64 = 1 << 21;
    const PERFMON: u64 = 1 << 38;
    const BPF: u64 = 1 << 39;
    if capabilities & SYS_ADMIN != 0 || capabilities & (BPF | PERFMON) == BPF | PERFMON {
        return Ok(());
    }
    Err(Unsupported::NotPermitted("CAP_BPF and CAP_PERFMON"))
}

fn knows_bpffs(filesystems: &str) -> bool {
    filesystems
        .lines()
        .any(|line| line.split_whitespace().last() == Some("bpf"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_from_the_status_file() {
        let status = "Name:\tx\nCapPrm:\t0\nCapEff:\t000001fffeffffff\nCapBnd:\t0\n";
        assert_eq!(effective_capabilities(status), 0x1ff_feff_ffff);
        assert_eq!(effective_capabilities(""), 0);
    }

    #[test]
    fn either_sys_admin_or_its_two_parts_will_do() {
        assert_eq!(permitted(1 << 21), Ok(()));
        assert_eq!(permitted(1 << 38 | 1 << 39), Ok(()));
        assert!(permitted(1 << 39).is_err());
        assert!(permitted(0).is_err());
    }

    #[test]
    fn bpffs_is_found_by_its_whole_name() {
        assert!(knows_bpffs("nodev\tbpf\n\text4\n"));
        assert!(!knows_bpffs("nodev\tbpfx\n\text4\n"));
    }
}
