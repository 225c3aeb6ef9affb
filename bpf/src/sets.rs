// SPDX-License-Identifier: Apache-2.0
//! The sets of programs: all answer the same question, at different cost, and not
//! every kernel takes each.

use std::collections::BTreeSet;

use aya::include_bytes_aligned;

use crate::pins::CHANGES;

/// Which set of programs counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Programs {
    /// At the inodes that change (Linux 6.13): costs the changes of files only, and
    /// nothing per system call. Mounts are not counted, see [`Programs::counts_mounts`];
    /// and who compares must read the times of all files, see `c/inodes.bpf.c`.
    Inodes,
    /// At the end of each system call that can change something: kernels that let their
    /// text be patched (no lockdown). The other calls cost nothing.
    Exits,
    /// At the end of each system call of the host: every kernel with BTF.
    Syscalls,
}

/// What is loaded for a set.
pub(crate) struct Set {
    pub(crate) object: &'static [u8],
    /// Maps that the other sets have not.
    pub(crate) own_maps: &'static [&'static str],
    /// Attached for good; each has the name of its tracepoint.
    pub(crate) tracepoints: &'static [&'static str],
    /// The same where the kernel has them.
    pub(crate) optional: &'static [&'static str],
    /// Those whose events an interrupt may bring: while the same program runs on that
    /// processor, the kernel drops them. Of the network's, none that counts.
    pub(crate) may_miss: &'static [&'static str],
    /// Attached only while there is attention.
    pub(crate) on_demand: Option<&'static str>,
    /// At functions of the kernel, attached for good, in this order. All may miss events:
    /// a program that is preempted is not run for who runs meanwhile.
    pub(crate) functions: &'static [Function],
    /// The same at the functions of system calls, whose names the programs have.
    pub(crate) calls: &'static [&'static str],
}

/// A program at a function of the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function {
    pub(crate) program: &'static str,
    pub(crate) function: &'static str,
    /// A kernel without this symbol has nothing that the program would count.
    pub(crate) unless_without: Option<&'static str>,
}

impl Function {
    /// Whether a kernel with these symbols has something that the program would count.
    pub(crate) fn is_needed(&self, symbols: &BTreeSet<&str>) -> bool {
        self.unless_without
            .is_none_or(|symbol| symbols.contains(symbol))
    }
}

impl Set {
    /// Whether some of its programs are at functions of the kernel.
    pub(crate) fn is_at_functions(&self) -> bool {
        !self.functions.is_empty()
    }

    pub(crate) fn functions(&self) -> impl Iterator<Item = Function> {
        let calls = self.calls.iter().map(|call| Function {
            program: call,
            function: call,
            unless_without: Some(call),
        });
        self.functions.iter().copied().chain(calls)
    }
}

static INODES: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/inodes.bpf.o"));
static EXITS: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/exits.bpf.o"));
static SYSCALLS: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/syscalls.bpf.o"));

/// Those of `c/rules.h` with a program in `c/exits.bpf.c`.
static CALLS: &[&str] = include!(concat!(env!("OUT_DIR"), "/calls.rs"));

const PROCESSES: &[&str] = &[
    "sched_process_fork",
    "sched_process_exec",
    "sched_process_exit",
];

/// For what no rollback undoes; a kernel without them counts none of it.
const NETWORK: &[&str] = &["inet_sock_set_state", "sock_send_length"];

impl Programs {
    /// The cheapest first.
    pub const BY_COST: [Self; 3] = [Self::Inodes, Self::Exits, Self::Syscalls];

    /// As it is named to users.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Inodes => "tp_btf:inodes",
            Self::Exits => "fexit:syscalls",
            Self::Syscalls => "tp_btf:syscalls",
        }
    }

    /// Whether mounts are counted by the kernel side. Where not, whoever watches asks
    /// the sandbox's mount namespace, and tells [`crate::Tracer::mounted`].
    #[must_use]
    pub fn counts_mounts(self) -> bool {
        match self {
            Self::Inodes => false,
            Self::Exits | Self::Syscalls => true,
        }
    }

    pub(crate) fn set(self) -> Set {
        match self {
            Self::Inodes => Set {
                object: INODES,
                own_maps: &[CHANGES],
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
                functions: &[],
                calls: &[],
            },
            Self::Exits => Set {
                object: EXITS,
                own_maps: &[],
                tracepoints: PROCESSES,
                optional: NETWORK,
                may_miss: &[],
                on_demand: Some("sys_exit"),
                functions: &[
                    // First: what it tells begins before there is anything to tell it of.
                    Function {
                        program: "patch_begins",
                        function: "bpf_arch_text_poke",
                        unless_without: None,
                    },
                    Function {
                        program: "patch_ends",
                        function: "bpf_arch_text_poke",
                        unless_without: None,
                    },
                    Function {
                        program: "ia32_sys_call",
                        function: "ia32_sys_call",
                        unless_without: Some("__ia32_sys_write"),
                    },
                    Function {
                        program: "x32_sys_call",
                        function: "x32_sys_call",
                        unless_without: Some("__x64_compat_sys_ioctl"),
                    },
                ],
                calls: CALLS,
            },
            Self::Syscalls => Set {
                object: SYSCALLS,
                own_maps: &[],
                tracepoints: &[
                    "sys_exit",
                    "sched_process_fork",
                    "sched_process_exec",
                    "sched_process_exit",
                ],
                optional: NETWORK,
                may_miss: &[],
                on_demand: None,
                functions: &[],
                calls: &[],
            },
        }
    }
}

impl std::fmt::Display for Programs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_64_bit_call_of_the_rules_has_a_program() {
        let rules = include_str!("../c/rules.h").lines();
        let calls: BTreeSet<String> = rules
            .filter_map(|line| line.trim_start().strip_prefix("call("))
            .map(|line| format!("__x64_sys_{}", line.split(", ").nth(1).unwrap()))
            .collect();
        assert!(calls.len() > 60, "{calls:?}");
        let programs: BTreeSet<String> = CALLS.iter().map(ToString::to_string).collect();
        assert_eq!(programs, calls);
    }

    #[test]
    fn only_a_call_that_the_kernel_has_not_needs_no_program() {
        let needed = |symbols: &[&'static str]| -> Vec<&str> {
            let symbols = symbols.iter().copied().collect();
            let all = Programs::Exits.set().functions().collect::<Vec<_>>();
            let needed = all.iter().filter(|f| f.is_needed(&symbols));
            needed.map(|f| f.program).collect()
        };
        let always = ["patch_begins", "patch_ends"];
        assert_eq!(needed(&[]), always);
        assert_eq!(
            needed(&["__x64_sys_write", "__ia32_sys_write"]),
            [&always[..], &["ia32_sys_call", "__x64_sys_write"]].concat()
        );
    }
}
