// SPDX-License-Identifier: Apache-2.0

//! `crab`: an agent sandbox's turns, checkpoints, rollback and restore.
//!
//! `ps`, `turns` and `show` read the store and need no daemon; what lives is
//! asked of the sandbox's own shim. Nothing here changes a sandbox by itself:
//! the shim does, and for `restore` the containerd client that made it. `fork` has
//! containerd or Docker make containers, and their shims make copies of them.
//!
//! Whatever happens ends in one place (but events, which are printed as they come): text on standard output and exit code 0,
//! or one line on standard error and the code that `--help` documents. Only a
//! doctor that finds faults ends with both, its text and a code.
#![forbid(unsafe_code)]

mod args;
mod catalog;
mod checkpoint;
mod containerd;
mod context;
mod diff;
mod docker;
mod doctor;
mod du;
mod effects;
mod error;
mod events;
mod export;
mod fork;
mod fsck;
mod gc;
mod history;
mod image;
mod import;
mod interrupt;
mod jobs;
mod live;
mod named;
mod output;
mod progress;
mod ps;
mod resolve;
mod restore;
mod rollback;
mod show;
mod starter;
mod stoppable;
mod tag;
mod tree;
mod turn;
mod turns;
mod units;
mod verify;
mod waterfall;

use std::{
    io::{ErrorKind, Write},
    process::ExitCode,
};

use args::{Args, Command};
use context::Context;
use crab_store::Limits;
use error::{CliError, Code};

fn main() -> ExitCode {
    let args = match Args::read() {
        Ok(args) => args,
        Err(finished) => return finished,
    };
    let done = run(args).and_then(|(text, end)| print(&text).map(|()| end));
    match done {
        Ok(end) => end,
        Err(error) => {
            eprintln!("{error}");
            error.code.into()
        }
    }
}

/// The text to print, and how to end after it.
fn run(args: Args) -> Result<(String, ExitCode), CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|cause| CliError::failed("cannot start", cause, "see the system's limits"))?;
    // Not for the doctor: the configuration is one of the things it looks at.
    let context = || Context::new(args.json, args.store.clone());
    runtime.block_on(async {
        let text = match args.command {
            Command::Ps => ps::run(&context()?).await?,
            Command::Jobs => jobs::run(&context()?).await?,
            Command::Turns { sandbox } => turns::run(&context()?, &sandbox).await?,
            Command::Events {
                sandbox,
                follow,
                since,
                format,
            } => {
                let format = match (format, args.json) {
                    (None, true) => events::Format::Json,
                    (None, false) => events::Format::Text,
                    (Some(format), _) => format,
                };
                let wish = events::Wish {
                    sandbox,
                    follow,
                    since,
                    format,
                };
                events::run(&context()?, &wish)?;
                String::new()
            }
            Command::Show { sandbox, turn } => show::run(&context()?, &sandbox, &turn)?,
            Command::Diff {
                sandbox,
                a,
                b,
                unified,
                exit_code,
            } => {
                let (text, differ) = diff::run(&context()?, &sandbox, (&a, &b), unified)?;
                return Ok(unless_same((text, !(differ && exit_code))));
            }
            Command::Turn(hint) => turn::run(&context()?, hint).await?,
            Command::Checkpoint { sandbox, dry_run } => {
                let context = context()?;
                if dry_run {
                    checkpoint::dry_run(&context, &sandbox).await?
                } else {
                    checkpoint::run(&context, &sandbox).await?
                }
            }
            Command::Rollback {
                sandbox,
                turn,
                verify,
                cold,
            } => {
                let wish = rollback::Wish { turn, verify, cold };
                let done = rollback::run(&context()?, &sandbox, wish).await?;
                return Ok(unless_same(done));
            }
            Command::Verify { sandbox, turn } => {
                return Ok(unless_same(
                    verify::run(&context()?, &sandbox, turn.as_ref()).await?,
                ));
            }
            Command::Restore {
                sandbox,
                turn,
                all: _,
                dry_run,
            } => {
                let context = context()?;
                let Some(sandbox) = sandbox else {
                    let (text, whole) = restore::all(&context, dry_run).await?;
                    return Ok((text, end(whole)));
                };
                restore::run(&context, &sandbox, turn.as_ref()).await?
            }
            Command::Fork {
                point,
                count,
                name,
                warm,
            } => {
                let count = warm.unwrap_or(count);
                let wish = fork::Wish { point, count, name };
                let (text, whole) = match warm {
                    Some(_) => fork::warm(&context()?, wish).await?,
                    None => fork::run(&context()?, wish).await?,
                };
                return Ok((text, end(whole)));
            }
            Command::Tree { sandbox } => tree::run(&context()?, &sandbox)?,
            Command::Export {
                sandbox,
                turn,
                output,
            } => export::run(&context()?, &sandbox, turn.as_ref(), &output).await?,
            Command::Import { file, id } => import::run(&context()?, &file, id.as_deref()).await?,
            Command::Tag {
                sandbox,
                turn,
                name,
                delete,
            } => tag::run(&context()?, &sandbox, turn.zip(name), delete)?,
            Command::Du { sandbox } => du::run(&context()?, sandbox.as_deref())?,
            Command::Gc {
                sandbox,
                dry_run,
                keep,
                max_age,
                max_bytes,
            } => {
                let said = gc::Said {
                    limits: Limits {
                        count: keep,
                        age_ms: max_age,
                        bytes: max_bytes,
                    },
                    dry_run,
                };
                let (text, well) = gc::run(&context()?, sandbox.as_deref(), &said).await?;
                return Ok((text, end(well)));
            }
            Command::Fsck { sandbox, repair } => {
                let (text, end) = fsck::run(&context()?, sandbox.as_deref(), repair)?;
                let end = match end {
                    fsck::End::Whole => ExitCode::SUCCESS,
                    fsck::End::Damaged => Code::Damaged.into(),
                    fsck::End::Failed => Code::Failed.into(),
                };
                return Ok((text, end));
            }
            Command::Doctor => {
                let (text, well) = doctor::run(args.json, args.store.clone()).await;
                return Ok((text, end(well)));
            }
        };
        Ok((text, ExitCode::SUCCESS))
    })
}

/// What was compared ends with a code of its own where it differs.
fn unless_same((text, same): (String, bool)) -> (String, ExitCode) {
    let end = if same {
        ExitCode::SUCCESS
    } else {
        Code::Differ.into()
    };
    (text, end)
}

/// How to end after a text that tells of several things.
fn end(well: bool) -> ExitCode {
    if well {
        ExitCode::SUCCESS
    } else {
        Code::Failed.into()
    }
}

fn print(text: &str) -> Result<(), CliError> {
    let mut stdout = std::io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        // The reader has seen enough: `crab turns S | head -3`.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|cause| {
            CliError::failed("cannot write the output", cause, "see where it goes to")
        }),
    }
}
