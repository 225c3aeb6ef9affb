// SPDX-License-Identifier: Apache-2.0

//! An independent look at a sandbox: its files, its processes, what it listens at, and the
//! memory of processes that were planted for this. Two looks tell whether what came back after
//! a crash is what a run without one had at the same turn.
//!
//! ```text
//! Witness::look(init) ──> State ──┬── tree       the root and each tmpfs, by digests
//!   by /proc/<init>, no           ├── links      which paths are one file
//!   link is followed,             ├── processes  the init's and all below, by their place
//!   nothing is stopped            └── sockets    what is listened at
//!
//! State::differences(of another run)   by the rules: what two runs cannot have alike is left out
//! State::changed_since(a moment ago)   exact: times, pids, every byte
//! ```
//! It shares no code with what it judges. The sandbox is hostile: a name, a size or a moment
//! that was chosen against this may cost a line of error, never a wrong verdict or a blocked
//! look. What is passed over between two runs, and why, is in [`rules()`], one table that the
//! comparison itself goes by.
//!
//! The size, the times and the number of links of a directory do not count, as any temporary
//! file moves them. Nothing of an overlay's layers shows: the same file may be in another one.

mod content;
mod kept;
mod maps;
mod net;
mod node;
mod probe;
mod processes;
mod rules;
mod tree;

use std::sync::Arc;

use anyhow::{Context, Result};

use self::{
    kept::{Kept, Seen},
    processes::Processes,
    rules::Window,
    tree::Trees,
};
pub use self::{probe::Probe, rules::rules};

/// A BLAKE3 digest.
type Digest = [u8; 32];

/// By what two states are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// Between two runs, by the rules.
    Normal,
    /// In one run.
    Exact,
}

/// Looks at sandboxes from outside, and remembers digests of contents between looks. It has to
/// be made before the runs that it shall compare: what is older than it is of the image, which no
/// rule is for, and a time in a file is passed over only if it is younger.
#[derive(Debug)]
pub struct Witness {
    kept: Kept,
}

/// A sandbox at one moment.
#[derive(Clone, Debug)]
pub struct State {
    trees: Trees,
    processes: Arc<Processes>,
    sockets: Arc<Vec<String>>,
}

impl Default for Witness {
    fn default() -> Self {
        Self::new()
    }
}

impl Witness {
    /// One that knows nothing yet.
    pub fn new() -> Self {
        Self { kept: Kept::new() }
    }

    /// Looks at the sandbox of an init, by its pid on the host. What begins or ends meanwhile is
    /// seen or not. Fails if the init is gone, or something is larger or deeper than any sandbox
    /// under test is.
    pub fn look(&mut self, init: u32) -> Result<State> {
        let window = Window::since(self.kept.began(), self.kept.sums());
        let mut look = || {
            let processes = Processes::of(init, &window)?;
            let sockets = net::listening(init, &processes)?;
            let mapped = maps::written(processes.pids());
            let trees = Seen::new(&mut self.kept, window.clone(), mapped).trees(init)?;
            anyhow::Ok(State {
                trees,
                processes: Arc::new(processes),
                sockets: Arc::new(sockets),
            })
        };
        look().with_context(|| format!("look at the sandbox of process {init}"))
    }
}

impl State {
    /// How it differs from the same moment of another run, by the rules: a line each, sorted;
    /// nothing if they are alike.
    pub fn differences(&self, reference: &Self) -> Vec<String> {
        self.unlike(reference, How::Normal)
    }

    /// What is otherwise than at an earlier moment of the same life of the container: a line
    /// each, sorted. With times, pids and whatever the rules pass over.
    pub fn changed_since(&self, before: &Self) -> Vec<String> {
        self.unlike(before, How::Exact)
    }

    fn unlike(&self, then: &Self, how: How) -> Vec<String> {
        let mut lines = self.trees.unlike(&then.trees, how);
        lines.extend(self.processes.unlike(&then.processes, how));
        lines.extend(apart(&self.sockets, &then.sockets, "listening at"));
        lines.sort();
        lines
    }

    /// Of everything that two runs are compared by, in hex: alike in states without differences.
    pub fn digest(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        self.trees.add_to(&mut hasher);
        self.processes.add_to(&mut hasher);
        add(&mut hasher, b"sockets");
        for socket in &*self.sockets {
            add(&mut hasher, socket.as_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }
}

/// What only one of two sorted lists has.
fn apart(now: &[String], then: &[String], what: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let only = |these: &[String], those: &[String]| {
        let mut those = those.to_vec();
        let mut only = Vec::new();
        for this in these {
            match those.iter().position(|that| that == this) {
                Some(at) => drop(those.swap_remove(at)),
                None => only.push(this.clone()),
            }
        }
        only
    };
    lines.extend(only(now, then).iter().map(|it| format!("{what} {it}")));
    let gone = only(then, now);
    lines.extend(gone.iter().map(|it| format!("no longer {what} {it}")));
    lines
}

/// Adds to a digest so that no two lists of parts are the same bytes.
fn add(hasher: &mut blake3::Hasher, part: &[u8]) {
    hasher.update(&(part.len() as u64).to_le_bytes());
    hasher.update(part);
}

/// Bytes of a sandbox's choice, for a line.
fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).escape_debug().to_string()
}
