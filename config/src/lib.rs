// SPDX-License-Identifier: Apache-2.0

//! Crab's configuration: one optional file, read once by each process.
//!
//! Every setting has a default, so that no file is needed. A file that says
//! something unknown or impossible is refused with the line and what to do,
//! never read halfway: a mistyped key would silently leave its default in
//! force. `samples/config.toml` shows every setting with its default; a test
//! keeps it so.
#![forbid(unsafe_code)]

mod load;
mod settings;

pub use load::{CONFIG_ENV, ConfigError, DEFAULT_PATH};
pub use settings::{Checkpoints, Config, LogLevel, Runtime};
