// SPDX-License-Identifier: Apache-2.0

//! Recorded agents, played again and killed: what brings them back.

mod death;
mod drive;
mod judged;
mod keep;
mod kill;
mod marks;
mod record;
mod reference;
pub mod state;
mod timed;

pub use self::record::{Crash, Kept, Play, Point, Ratio, Record, Rule, VERSION};
pub use self::{
    death::{Dead, Slots, every_turn},
    drive::{Done, Driver, Hand, Part},
    judged::Judged,
    keep::{Variant, Way},
    kill::kill_daemons,
    marks::Marks,
    reference::{Reference, Tempo},
    timed::{Timed, TimedTurn},
};
