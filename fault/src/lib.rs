// SPDX-License-Identifier: Apache-2.0

//! The named steps at which a test can have Crab die or fail: each lies between two changes of
//! something that lasts, a file on the disk or a sandbox.
//!
//! All of them are in one list (points.rs), which tests walk through: a step that is not in it
//! cannot be asked for, and one that no test reaches is a failure of that test.
//!
//! | who asks | how |
//! | --- | --- |
//! | who starts the process | `CRAB_CRASH_AT=<point>` in its environment: it dies there, by SIGKILL, as the kernel would have it; `<point>:<n>` when it comes there for the nth time |
//! | whoever can write a file to which it listens ([`listen`]) | a line each: `<point>` has the step fail, `die <point>` has the process die there, `hold <point>` has it stand still, by SIGSTOP. What was met is taken out |
//!
//! Where nobody asks, a point costs two loads.
#![forbid(unsafe_code)]

mod file;
mod points;

use std::{
    env,
    path::PathBuf,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::process::{Signal, getpid, kill_process};
use thiserror::Error;

pub use points::{Part, Point};

/// The variable of the environment that asks for a death.
pub const CRASH_AT: &str = "CRAB_CRASH_AT";

/// That a step failed because it was asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("failed on purpose at {0}")]
pub struct Failed(pub Point);

/// To which file this process listens.
static FILE: OnceLock<PathBuf> = OnceLock::new();

/// From now on, a file is looked at whenever this process comes to a point. The first one counts.
pub fn listen(path: PathBuf) {
    let _ = FILE.set(path);
}

/// A step that may be made to fail, or to be the last.
pub fn pass(point: Point) -> Result<(), Failed> {
    if is_last(point) {
        signal(Signal::KILL);
    }
    match FILE.get().and_then(|path| file::asked(path, point)) {
        None => Ok(()),
        Some(file::Asked::Fail) => Err(Failed(point)),
        Some(file::Asked::Die) => {
            signal(Signal::KILL);
            Ok(())
        }
        Some(file::Asked::Hold) => {
            signal(Signal::STOP);
            Ok(())
        }
    }
}

/// A step that cannot fail: where it is asked to, it does not.
pub fn at(point: Point) {
    let _ = pass(point);
}

/// Whether the environment wants this to be the last step.
fn is_last(point: Point) -> bool {
    static ASKED: OnceLock<Option<(String, u64)>> = OnceLock::new();
    static TIMES: AtomicU64 = AtomicU64::new(0);
    let asked = ASKED.get_or_init(|| {
        let text = env::var(CRASH_AT).ok()?;
        match text.split_once(':') {
            Some((name, time)) => Some((name.to_owned(), time.parse().ok()?)),
            None => Some((text, 1)),
        }
    });
    let Some((name, time)) = asked else {
        return false;
    };
    name == point.name() && TIMES.fetch_add(1, Ordering::Relaxed) + 1 == *time
}

/// To this process.
fn signal(signal: Signal) {
    let _ = kill_process(getpid(), signal);
}
