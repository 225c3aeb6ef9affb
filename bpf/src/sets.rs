// SPDX-License-Identifier: Apache-2.0
//! The sets of programs: all answer the same question, at different cost, and not
//! every kernel takes each.

use aya::include_bytes_aligned;

/// Which set of programs counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Programs {
    /// At the inodes that change (Linux 6.13): costs the changes of files only, and
    /// nothing per system call. Mounts are not counted, see [`Programs::counts_mounts`];
    /// and who compares must read the times of all files, see `c/inodes.bpf.c`.
    Inodes,
    /// At the end of each system call of the host: every kernel with BTF.
    Syscalls,
}

/// What is loaded for a set.
pub(crate) struct Set {
    pub(crate) object: &'static [u8],
    /// Attached for good; each has the name of its tracepoint.
    pub(crate) tracepoints: &'static [&'static str],
    /// The same where the kernel has them.
    pub(crate) optional: &'static [&'static str],
    /// Those whose events an interrupt may bring: while the same program runs on that
    /// processor, the kernel drops them. Of the network's, none that counts.
    pub(crate) may_miss: &'static [&'static str],
    /// Attached only while there is attention.
    pub(crate) on_demand: Option<&'static str>,
}

static INODES: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/inodes.bpf.o"));
static SYSCALLS: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/syscalls.bpf.o"));

/// For what no rollback undoes; a kernel without them counts none of it.
const NETWORK: &[&str] = &["inet_sock_set_state", "sock_send_length"];

impl Programs {
    /// The cheapest first.
    pub const BY_COST: [Self; 2] = [Self::Inodes, Self::Syscalls];

    /// As it is named to users.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Inodes => "tp_btf:inodes",
            Self::Syscalls => "tp_btf:syscalls",
        }
    }

    /// Whether mounts are counted by the kernel side. Where not, whoever watches asks
    /// the sandbox's mount namespace, and tells [`crate::Tracer::mounted`].
    #[must_use]
    pub fn counts_mounts(self) -> bool {
        match self {
            Self::Inodes => false,
            Self::Syscalls => true,
        }
    }

    pub(crate) fn set(self) -> Set {
        match self {
            Self::Inodes => Set {
                object: INODES,
                tracepoints: &[
                    "ctime_ns_xchg",
                    "ctime_xchg_skip",
                    "inode_set_ctime_to_ts",
                    "mm_filemap_fault",
                    "mm_filemap_map_pages",
                    "rss_stat",
                    "sched_process_fork",
                    "sched_process_exec",
                    "sched_process_exit",
                ],
                optional: NETWORK,
                may_miss: &["ctime_ns_xchg", "ctime_xchg_skip", "inode_set_ctime_to_ts"],
                on_demand: Some("sys_exit"),
            },
            Self::Syscalls => Set {
                object: SYSCALLS,
                tracepoints: &[
                    "sys_exit",
                    "sched_process_fork",
                    "sched_process_exec",
                    "sched_process_exit",
                ],
                optional: NETWORK,
                may_miss: &[],
                on_demand: None,
            },
        }
    }
}

impl std::fmt::Display for Programs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
