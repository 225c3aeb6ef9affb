// SPDX-License-Identifier: Apache-2.0
//! `containerd-shim-crab-v1`: the containerd shim `io.containerd.crab.v1`.
//!
//! ```text
//! containerd --start-->  start    leaves a shim running, prints its address
//!            --ttrpc-->  serve    Task service (v2 and v3), Sandbox service
//!            --delete--> cleanup  after a shim that died
//! ```
//! Run by itself, it is the built-in OCI runtime ([`crab_runtime::builtin`]).
//!
//! [`task`] translates containerd's calls, [`sandbox`] carries them out, [`container`]
//! holds the states, [`turns`] the turns with their checkpoints ([`decide`],
//! [`capture`], [`publish`]) and [`rollback`].

mod activity;
mod args;
mod background;
mod bootstrap;
mod bundle;
mod capture;
mod cleanup;
mod container;
mod containers;
mod control;
mod criu_work;
mod decide;
mod directories;
mod drift;
mod dry_run;
mod exit_note;
mod fault;
mod history;
mod host_end;
mod idle;
mod info;

mod log_driver;
mod oom;
mod options;
mod overrides;
mod phase;
mod pipes;
mod pod;
mod programs;
mod publish;
mod publisher;
mod relay;
mod relevance;
mod sandbox;
mod schedule;
mod serve;
mod shim_cgroup;
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
mod whole_root;

use std::{
    fs::File,
    io::{self, IsTerminal, Read, Write},
    os::unix::fs::OpenOptionsExt,
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context, Result};
use args::Action;
use bootstrap::{Caller, INPUT_LIMIT};
use containerd_shim_protos::protobuf::Message;
use crab_config::{Config, LogFormat, LogLevel};
use crab_log::JsonLines;
use options::RuntimeOptions;
use tracing_subscriber::{filter::LevelFilter, layer::SubscriberExt, util::SubscriberInitExt};

fn main() -> ExitCode {
    if let Some(status) = crab_runtime::builtin::run_if_asked() {
        return status;
    }
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
        Action::Info => {
            let (config, _) = Config::load_or_default();
            let info = info::info(&read_input()?, config.runtime.binary.as_deref());
            write_out(&info.write_to_bytes()?)
        }
        Action::Start => {
            let input = read_input()?;
            let caller = Caller::of(&input, &args);
            // What is wrong with them, Create says.
            let options = RuntimeOptions::of_request(caller.options()).unwrap_or_default();
            let address = start::start(&args, caller.socket_dir(), &options.shim_cgroup)?;
            write_out(&caller.answer(&address))
        }
        Action::Delete => write_out(&cleanup::delete(&args)?),
        Action::Serve => {
            // A container is worth more than its checkpoints' settings.
            let (config, fault) = Config::load_or_default();
            log_to_containerd(args.debug, &config)?;
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

/// What containerd sends.
fn read_input() -> Result<Vec<u8>> {
    let mut input = Vec::new();
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        stdin
            .take(INPUT_LIMIT)
            .read_to_end(&mut input)
            .context("read what containerd sends")?;
    }
    Ok(input)
}

/// containerd reads the FIFO `log` in the bundle. It may stop to: then lines are
/// lost, and nothing waits.
fn log_to_containerd(debug: bool, config: &Config) -> Result<()> {
    let log = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("log")
        .context("open the FIFO log in the bundle")?;
    let level = match config.log_level {
        LogLevel::Trace => LevelFilter::TRACE,
        LogLevel::Debug => LevelFilter::DEBUG,
        // containerd's own `--debug`.
        _ if debug => LevelFilter::DEBUG,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Error => LevelFilter::ERROR,
    };
    match config.log.format {
        LogFormat::Text => tracing_subscriber::fmt()
            .with_max_level(level)
            .with_ansi(false)
            .with_target(false)
            .with_writer(Arc::new(log))
            .init(),
        LogFormat::Json => tracing_subscriber::registry()
            .with(level)
            .with(JsonLines::new(Arc::new(log)))
            .init(),
    }
    Ok(())
}
