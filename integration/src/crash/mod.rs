// SPDX-License-Identifier: Apache-2.0

//! Death at any step and at any instant, for the tests and for the figures `crash_points`,
//! `random_kills` and `lost`; and damage of any kind, for `fsck_missed`.
//!
//! ```text
//! Subject    a sandbox of which it is known what each of its checkpoints has to hold
//!   steps      die at every step in the list of crab-fault, one after the other
//!   kills      SIGKILL to a shim, crabd, runc, CRIU or `crab gc` at random instants
//!   power      the whole machine loses its power at a step of a publication, or at a random instant
//!   full       the disk of the store fills up in the middle of anything
//! damage     bits flipped and files cut in copies of a store
//! ```
//! After each death the store is read past Crab's commands, `crab fsck` has to find nothing,
//! and the sandbox is brought back by `crab restore`: it has to be in the state that its
//! newest checkpoint was taken of, which `crab verify` has to say as well.

mod armed;
mod beside;
mod damage;
mod full;
mod kills;
mod power;
mod state;
mod steps;
mod subject;

pub use armed::Armed;
pub use damage::{Damaged, damage};
pub use full::{Filled, full};
pub use kills::{Killed, kills};
pub use power::{Cut, power};
pub use steps::{Extent, Stepped, steps};
pub use subject::{Kind, Subject};
