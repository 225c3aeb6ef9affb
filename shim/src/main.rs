// SPDX-License-Identifier: Apache-2.0
//! `containerd-shim-crab-v1`: the containerd shim `io.containerd.crab.v1`.
//!
//! ```text
//! containerd --start-->  start    leaves a shim running, prints its address
//!            --ttrpc-->  serve    Task service (v2 and v3), Sandbox service
//!            --delete--> cleanup  after a shim that died
//! ```
//! [`task`] translates containerd's calls, [`sandbox`] carries them out, [`container`]
//! holds the states, [`turns`] the turns with their checkpoints ([`decide`],
//! [`capture`], [`publish`]) and [`rollback`].

mod args;
mod bootstrap;
mod bundle;
mod capture;
mod cleanup;
mod container;
mod containers;
mod control;
mod decide;
mod history;
mod log_driver;
mod overrides;
mod phase;
mod pipes;
mod pod;
mod programs;
mod publish;
mod publisher;
mod sandbox;
mod serve;
mod sink;
mod start;
mod stats;
mod stdio;
mod still;
mod task;
mod terminal;
mod tracer;
mod turns;
mod upper;

use std::{
    fs::File,
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context, Result};
use args::Action;
use bootstrap::{Caller, INPUT_LIMIT};
use crab_config::{Config, LogLevel};
use tracing_subscriber::filter::LevelFilter;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = %format!("{error:#}"), "the shim ends");
            eprintln!("containerd-shim-crab-v1: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let args = args::parse(std::env::args().skip(1))?;
    match args.action {
        Action::Version => {
            println!("containerd-shim-crab-v1 {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
        Action::Info => info(),
        Action::Start => {
            let mut input = Vec::new();
            io::stdin()
                .take(INPUT_LIMIT)
                .read_to_end(&mut input)
                .context("read what containerd sends")?;
            let caller = Caller::of(&input, &args);
            let address = start::start(&args, caller.socket_dir())?;
            write_out(&caller.answer(&address))
        }
        Action::Delete => write_out(&cleanup::delete(&args)?),
        Action::Serve => {
            // A container is worth more than its checkpoints' settings.
            let (config, fault) = Config::load_or_default();
            log_to_containerd(args.debug, config.log_level)?;
            let fault =
                fault.map(|fault| format!("the default configuration is in force: {fault}"));
            if let Some(fault) = &fault {
                tracing::error!("{fault}");
            }
            serve::serve(&args, config, fault)
        }
    }
}

fn write_out(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout();
    out.write_all(bytes)
        .and_then(|()| out.flush())
        .context("answer containerd")
}

/// The name and version, as containerd asks for it (`-info`).
fn info() -> Result<()> {
    use containerd_shim_protos::{
        protobuf::{Message, MessageField},
        types::introspection::{RuntimeInfo, RuntimeVersion},
    };
    let info = RuntimeInfo {
        name: "io.containerd.crab.v1".into(),
        version: MessageField::some(RuntimeVersion {
            version: env!("CARGO_PKG_VERSION").into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    write_out(&info.write_to_bytes()?)
}

/// containerd reads the FIFO `log` in the bundle. It may stop to: then lines are
/// lost, and nothing waits.
fn log_to_containerd(debug: bool, level: LogLevel) -> Result<()> {
    let log = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("log")
        .context("open the FIFO log in the bundle")?;
    let level = match level {
        LogLevel::Trace => LevelFilter::TRACE,
        LogLevel::Debug => LevelFilter::DEBUG,
        // containerd's own `--debug`.
        _ if debug => LevelFilter::DEBUG,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Error => LevelFilter::ERROR,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        .with_target(false)
        .with_writer(Arc::new(log))
        .init();
    Ok(())
}
