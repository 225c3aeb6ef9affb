// SPDX-License-Identifier: Apache-2.0
//! When each sandbox of a host is captured and published: events and a clock in, decisions
//! out.
//!
//! ```text
//! enter --> queued --Capture--> capturing --captured--> publishing --Publish--> durable
//!             |                     |                        |
//!             +--GiveUp: a gate was held for too long        +--> void | failed
//! ```
//! Nothing here reads a clock, a file or a socket, and nothing is left to chance: the same events
//! at the same times give the same decisions. crabd feeds it with what shims say, tests with
//! recorded waits and a clock of their own ([`simulation`]).
//!
//! What it guards:
//! * **Budgets** ([`Budgets`]): no decision exceeds one, whoever waits.
//! * **No starvation**: a sandbox that keeps asking is granted a capture within
//!   [`Settings::starvation_bound`].
//! * **Every job ends**, also if whoever it is of never says another word.
//!
//! What it does not do: take the place of a shim's own judgement. A shim that gets no answer goes
//! ahead, and says so when it can ([`Stage`]).

#![forbid(unsafe_code)]

mod backoff;
mod budget;
mod cost;
mod decide;
mod job;
mod order;
mod scheduler;
mod share;
pub mod simulation;
mod time;
mod waits;

pub use backoff::{Hundredths, cpu_pressure};
pub use budget::{Budgets, TokenBucket};
pub use crab_config::Policy;
pub use job::{Class, End, Ended, JobId, JobView, Request, Stage, State};
pub use scheduler::{Counts, Decision, Scheduler, Settings};
pub use share::WHOLE;
pub use time::Time;
pub use waits::Waits;
