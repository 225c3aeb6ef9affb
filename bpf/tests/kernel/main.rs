// SPDX-License-Identifier: Apache-2.0
//! The programs on the real kernel: system calls made by a process in a
//! cgroup of its own, on a tmpfs of its own, and what was counted for them.
//! Needs root and BTF.

mod agent;
mod attention;
mod calls;
mod changes;
mod files;
mod others;
mod takeover;
mod world;
