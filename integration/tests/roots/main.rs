// SPDX-License-Identifier: Apache-2.0

//! Roots that are no overlay: snapshots of containerd's native and btrfs snapshotters, and plain
//! directories. Nobody can count what happens to them, and they are not exchanged as a whole; all
//! else has to be as with any other.

mod on_btrfs;
mod place;
mod same_as_any;
mod written_beside;
