// SPDX-License-Identifier: Apache-2.0

//! Crab's configuration: one optional file, read once by each process, and what
//! a sandbox's annotations may change of it.
//!
//! Every setting has a default, so that no file is needed. A file that says
//! something unknown, impossible or contradictory is refused with the lines and
//! what to do, never read halfway: a mistyped key would silently leave its default
//! in force. An annotation that does so is passed over and told: its author is
//! not the host's admin, and the container is worth more.
//!
//! ```text
//! SETTINGS: name, kind, range, purpose, who may say it   (schema)
//!    |- file ------> Config, or every fault with its line (load, contradictions)
//!    |- annotations > Config of one sandbox, and faults   (overrides)
//!    '- docs/configuration.md, samples/config.toml        kept in step by tests
//! ```
#![forbid(unsafe_code)]

mod contradictions;
mod fault;
mod load;
mod overrides;
mod patterns;
mod schema;
mod settings;
mod value;

pub use fault::{ConfigError, Fault};
pub use load::{CONFIG_ENV, DEFAULT_PATH};
pub use overrides::{ANNOTATIONS, Ignored};
pub use patterns::{Patterns, PatternsOf};
pub use schema::{PerSandbox, SETTINGS, Setting};
pub use settings::{
    BUILT_IN, Checkpoints, Config, Durability, Ignore, Inspector, Log, LogFormat, LogLevel,
    Metrics, Policy, Retention, Runtime, Schedule, Turns,
};
pub use value::{Kind, LOOPBACK, loopback};
