// SPDX-License-Identifier: Apache-2.0
//! The built-in OCI runtime: a command line on libcontainer, for hosts without runc.
//!
//! ```text
//! shim --/proc/self/exe oci-runtime create ...-->  a process of its own
//! ```
//! libcontainer forks, which a threaded process must not do: so the shim runs its own
//! program again, with one thread, and drives it like any other OCI runtime. It takes
//! the options of runc that [`crate::oci`] uses, and logs as runc does.
//!
//! It holds a container's life and its files. It has no process images: libcontainer can
//! restore none. What it would do wrongly it refuses before anything is made (see
//! [`refuse`]), and what libcontainer leaves out it adds: the seccomp profile of execs
//! ([`workload`]), the cgroup v2 membership on hybrid hosts ([`hierarchies`]), device
//! rules on cgroup v2 ([`devices`]), and a program that the container cannot write to
//! ([`own_program`]).

mod devices;
mod hierarchies;
mod options;
mod own_program;
mod refuse;
mod verbs;
mod workload;

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use libcontainer::{error::LibcontainerError, oci_spec::OciSpecError};
use serde_json::json;
use thiserror::Error;

use self::options::Options;

/// The first argument that makes a program of Crab's the built-in runtime.
pub(crate) const COMMAND: &str = "oci-runtime";

/// Why a verb failed.
#[derive(Debug, Error)]
enum Failure {
    #[error("{0}")]
    Usage(String),
    /// Something that this runtime would do wrongly, and so does not begin.
    #[error("the built-in runtime has no {0}; runc and crun have")]
    Refused(&'static str),
    #[error("container does not exist")]
    NotFound,
    #[error("{verb} {}: {source}", path.display())]
    Io {
        verb: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("parse {}: {source}", path.display())]
    Parse {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("{}", chain(.0))]
    Spec(#[from] OciSpecError),
    #[error("{}", chain(.0))]
    Container(#[from] LibcontainerError),
    #[error("{0}")]
    Cgroup(String),
}

fn io_failure<'a>(
    verb: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> Failure + use<'a> {
    move |source| Failure::Io {
        verb,
        path: path.to_path_buf(),
        source,
    }
}

/// An error with its causes; libcontainer's outer ones say little.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// Whether this process is to be the built-in runtime: then it is, and ends with the
/// status. Before a program does anything else, while it has one thread.
pub fn run_if_asked() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    if args.next()? != COMMAND {
        return None;
    }
    Some(run(args.collect()))
}

fn run(args: Vec<OsString>) -> ExitCode {
    let mut log = None;
    let done = Options::parse(args).and_then(|options| {
        log.clone_from(&options.log);
        verbs::run(&options)
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let logged = log.as_deref().is_some_and(|log| write_log(log, &failure));
            if !logged {
                eprintln!("{failure}");
            }
            ExitCode::FAILURE
        }
    }
}

/// As runc with `--log-format json`.
fn write_log(path: &Path, failure: &Failure) -> bool {
    let line = json!({"level": "error", "msg": failure.to_string()});
    let written = File::options()
        .create(true)
        .append(true)
        .open(path)
        .and_then(|mut file| writeln!(file, "{line}"));
    written.is_ok()
}
