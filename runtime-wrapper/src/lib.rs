// SPDX-License-Identifier: Apache-2.0
//! What Crab does to a container: driving its OCI runtime, freezing it, and
//! reading and writing the two halves of a checkpoint.
//!
//! * [`oci`] runs the OCI runtime, which may be [`builtin`]; [`driver`] tells which one
//!   that is and what it can do, [`sealed`] spares it to copy itself, [`reaper`] collects
//!   the exits of everything below this process, [`descriptors`] keeps its own limit from it,
//!   [`orphans`] ends what a dead one left.
//! * [`hooks`] runs what belongs to a container's real end.
//! * [`cgroup`] finds and freezes a container, [`procs`] tells which of its
//!   processes matter and whether they ran, [`waits`] whether they wait to be told more.
//! * [`system_v`] lists what lives on in a container with neither file nor process.
//! * [`files`] holds the file half of a checkpoint, [`rootfs`] and [`overlay`] tell what a
//!   container's root is, [`criu`] holds the process half.
//! * [`foreign`] reads what may be anything.
//! * [`netns`] and [`mount`] keep what must outlive the container's processes.
//!
//! Nothing here decides when to checkpoint: that is the shim's.

pub mod builtin;
mod call;
pub mod cgroup;
mod checkpoint_options;
pub mod criu;
mod deadline;
pub mod descriptors;
pub mod driver;
pub mod files;
pub mod foreign;
pub mod hooks;
mod in_root;
pub mod mount;
pub mod netns;
pub mod oci;
pub mod orphans;
pub mod overlay;
pub mod procs;
mod program;
pub mod reaper;
pub mod rootfs;
pub mod sealed;
mod stat;
pub mod system_v;
pub mod waits;
