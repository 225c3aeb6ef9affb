// SPDX-License-Identifier: Apache-2.0
//! crabd, one per host: counts what sandboxes do, for the shims to ask, and says whose capture
//! comes when.
//!
//! ```text
//!   shim --Watch, Effects-->  service --> state { counting, registry }
//!                                            ^
//!   shims' deaths, idleness, signals --> daemon
//!                                            v
//!   shim --Ask, End-->  desk_service --> desk { scheduler, who waits for it }
//!   shim <--a sealed copy of its runtime-- programs
//!   shims, the store <--what is too much for the host goes-- retention
//!   who scrapes <--HTTP, if that is asked for-- metrics <--journals of the store, state, desk
//! ```
//!
//! It is started by the first shim that finds none, or by systemd. A lock
//! leaves one winner; that of systemd takes over from that of a shim. The programs in the kernel outlive it: its successor
//! takes them over and nothing passes uncounted. A container's life never
//! hangs on it, so it holds nothing that shims could not tell it again.

#![forbid(unsafe_code)]

mod arguments;
mod cgroups;
mod check;
mod daemon;
mod desk;
mod desk_service;
mod endpoint;
mod holder;
mod metrics;
mod mounts;
mod programs;
mod readiness;
mod registry;
mod retention;
mod service;
mod shim;
mod state;

use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use crab_config::{Config, LogFormat};
use crab_log::JsonLines;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{error, warn};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::arguments::Arguments;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("crabd: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if arguments.check {
        println!("{}", check::check()?);
        return Ok(());
    }
    // Counting is worth more than a setting, as with the shims.
    let (config, fault) = Config::load_or_default();
    let filter = EnvFilter::try_new(arguments.log(&config)).context("read the log filter")?;
    match config.log.format {
        LogFormat::Text => tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .init(),
        LogFormat::Json => tracing_subscriber::registry()
            .with(filter)
            .with(JsonLines::new(std::io::stderr))
            .init(),
    }
    if let Some(fault) = fault {
        error!("the default configuration is in force: {fault}");
    }
    if let Err(error) = take_all_descriptors() {
        warn!("no more descriptors than a service is given: {error}");
    }
    // The starter's directory may be on a file system that wants unmounting.
    std::env::set_current_dir("/").context("change to /")?;
    // One thread: each answer is a few map lookups, and nothing blocks.
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")?
        .block_on(daemon::run(arguments, &config))
}

/// There are some for each sandbox. Of the 1024 that a service has by default none are left at
/// some hundreds; nothing is started from here that would have the same limit.
fn take_all_descriptors() -> rustix::io::Result<()> {
    let most = getrlimit(Resource::Nofile).maximum;
    let all = Rlimit {
        current: most,
        maximum: most,
    };
    setrlimit(Resource::Nofile, all)
}
