// SPDX-License-Identifier: Apache-2.0

//! The harness of the end-to-end tests, the demo and the benchmarks.
//!
//! It drives real clients (`ctr`, `docker`, `nerdctl`, `crictl`, `crab`) on the host that
//! `scripts/testbed` makes, the way a user does: by their command lines. Nothing
//! of Crab, containerd, runc, CRIU or the kernel is replaced or reached into.
//!
//! ```text
//! Testbed ── ctr() / docker() ──> Client ── run() ──> Sandbox   removed when dropped
//!    ├── nerdctl() ──> Nerdctl ── run() ──> NerdctlContainer
//!    ├── cri() ──> Cri ── pod() ──> Pod ── run() ──> PodContainer, by `crictl`
//!    ├── critest() ──> critest::Report
//!    ├── crab() ──> Crab     what `crab --json` says, typed
//!    └── events() ──> Events what containerd published
//!    └── ShimClient: calls of containerd's Task API, past containerd
//! processes, Census: what runs, is mounted and is left
//! ```
//!
//! Everything is synchronous, and every command has a time limit. Whoever makes
//! something on the host gets a guard for it that takes it away again, and only it.

#![forbid(unsafe_code)]

mod census;
mod checkpoints;
mod client;
mod command;
pub mod counter;
mod crab;
pub mod crash;
mod cri;
pub mod critest;
mod cycles;
mod deaf;
mod driver;
mod events;
mod forks;
pub mod hostile;
pub mod journal;
mod mounted;
mod nerdctl;
mod on_host;
pub mod processes;
pub mod proof;
pub mod replay;
mod sandbox;
mod session;
mod shim_client;
pub mod styles;
mod swap;
mod terminal;
mod testbed;
pub mod traces;

pub use census::{Census, Descriptors, descriptors, forget_fifos};
pub use checkpoints::{CheckpointImage, Imposter};
pub use client::{Client, RunOptions, Runtime, unique};
pub use command::{Output, Running, Tool};
pub use counter::Counter;
pub use crab::{Crab, PsRow, Refusal, Turn, Turns};
pub use cri::{ContainerOptions, Cri, Pod, PodContainer, PodOptions};
pub use cycles::Cycles;
pub use deaf::Deaf;
pub use driver::{Driver, EACH_EXEC_A_TURN};
pub use events::{Event, Events};
pub use forks::Forks;
pub use mounted::{Mounted, SmallDisk};
pub use nerdctl::{Nerdctl, NerdctlContainer};
pub use sandbox::{ExecOptions, Sandbox, State, sleeper};
pub use session::Session;
pub use shim_client::{Denied, ShimClient};
pub use swap::Swapped;
pub use terminal::Terminal;
pub use testbed::{BUSYBOX, CgroupMode, DEBIAN, Testbed, catch, poll, skip};
