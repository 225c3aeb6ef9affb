// SPDX-License-Identifier: Apache-2.0
//! The inspector's kernel side: eBPF programs that count what sandboxes do,
//! and their loader.
//!
//! ```text
//!   Tracer --watch, effects--> maps (pinned) <--count-- programs (pinned links)
//!                              sandboxes  cgroup id -> counters     a set of them,
//!                              devices    dev_t     -> counters     see Programs
//!                              members    cgroup id -> devices
//!                              lost_anywhere, attention, spared, patches
//! ```
//!
//! The programs answer one question, with no false "no": *may this sandbox
//! have changed since I last looked?* And, while somebody wants to know, a second: *has
//! any of its processes gone on?* What did change is for user space to
//! find out, by comparing. The rules of each set are in its source in `c/`.
//!
//! Invariants:
//! - Programs and maps are loaded once per host. They outlive the [`Tracer`],
//!   and the next one takes them over without a gap.
//! - Counters only grow, and are never reset, within one [`Tracer::period`].
//!   Another period means that events may have passed uncounted.
//! - What [`Tracer::changes`] tells is all that [`Tracer::effects`] has counted for that superblock
//!   before, since the mark; or it tells nothing.
//!
//! Known limits, which a reader of the counters must cover by other means:
//! - A change that is under way is counted when it ends, or (tmpfs, by inodes) has been
//!   counted when it began. Either way: no task running, or a freeze.
//! - At system calls alone: a task outside of the sandbox that reaches into it by an
//!   absolute path through its own root, and changes a name (not a content), is not seen.
//! - A change through a superblock that is not watched (a mount the sandbox
//!   made itself, its upper directory from the host) is not seen; the mount
//!   counts, so watch again with the new device.
//! - A new period knows nothing of shared mappings and io_uring instances made
//!   before it, nor need it know of the end of a call that began before it.

#![deny(unsafe_code)]

mod bpffs;
mod changes;
mod counters;
mod ftrace;
mod ids;
mod load;
mod memory;
mod misses;
mod pins;
mod probe;
mod refusal;
mod sets;
mod symbols;
mod tracer;

pub use bpffs::MountError;
pub use changes::{Changed, Changes};
pub use counters::{Effects, Spared};
pub use ids::{CgroupId, Device};
pub use pins::{CloseError, OpenError};
pub use probe::{Unsupported, probe};
pub use sets::Programs;
pub use tracer::{AttendError, EffectsError, LostError, MAX_DEVICES, Tracer, WatchError};
