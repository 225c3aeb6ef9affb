// SPDX-License-Identifier: Apache-2.0
//! File images against real overlays and tmpfs mounts. Needs root.

mod changes;
mod disks;
mod harness;
mod hostile;
mod in_use;
mod narrow;
mod overlay;
mod round_trip;
mod tmpfs;
