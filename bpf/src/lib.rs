// SPDX-License-Identifier: Apache-2.0
//! The inspector's kernel side: eBPF programs that count what sandboxes do,
//! and their loader.
//!
//! ```text
//!   Tracer --watch, effects--> maps (pinned) <--count-- programs (pinned links)
//!                              sandboxes  cgroup id -> counters     sys_exit
//!                              devices    dev_t     -> counters     sched_process_fork
//!                              members    cgroup id -> devices      sched_process_exec
//!                              lost_anywhere, attention, spared     sched_process_exit
//! ```
//!
//! The programs answer one question, with no false "no": *may this sandbox
//! have changed since I last looked?* And, while somebody wants to know, a second: *has
//! any of its processes gone on?* What did change is for user space to
//! find out, by comparing. Their rules are in `c/place.h` (whose event it is)
//! and `c/syscalls.h` (which calls count).
//!
//! Invariants:
//! - Programs and maps are loaded once per host. They outlive the [`Tracer`],
//!   and the next one takes them over without a gap.
//! - Counters only grow, and are never reset, within one [`Tracer::period`].
//!   Another period means that events may have passed uncounted.
//!
//! Known limits, which a reader of the counters must cover by other means:
//! - Counting happens at the *end* of a system call; one in flight shows later.
//! - A task outside of the sandbox that reaches into it by an absolute path
//!   through its own root, and changes a name (not a content), is not seen.
//! - A change through a superblock that is not watched (a mount the sandbox
//!   made itself, its upper directory from the host) is not seen; the mount
//!   counts, so watch again with the new device.
//! - A new period knows nothing of shared mappings and io_uring instances made
//!   before it.

#![deny(unsafe_code)]

mod bpffs;
mod counters;
mod ids;
mod memory;
mod pins;
mod probe;
mod refusal;
mod tracer;

pub use bpffs::MountError;
pub use counters::{Effects, Spared};
pub use ids::{CgroupId, Device};
pub use pins::{CloseError, OpenError};
pub use probe::{Unsupported, probe};
pub use tracer::{AttendError, EffectsError, LostError, MAX_DEVICES, Tracer, WatchError};

/// The set of programs that this crate loads, as it is named to users.
pub const PROGRAMS: &str = "tp_btf";
