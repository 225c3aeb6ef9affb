// SPDX-License-Identifier: Apache-2.0

//! Recorded agents, played again and killed: what brings them back.

mod record;
pub mod state;

pub use self::record::{Crash, Kept, Play, Point, Ratio, Record, Rule, VERSION};
