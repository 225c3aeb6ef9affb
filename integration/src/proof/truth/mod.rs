// SPDX-License-Identifier: Apache-2.0

//! What is really in a sandbox: read from outside, whole and byte by byte, with nothing of
//! the inspector's own. Two of these tell what a turn has changed.
//!
//! What counts as a change is what a rollback would have to bring back. Of files: type,
//! content, mode, owner, device number, extended attributes, hard links, and the time of
//! the last modification. Not the times of a directory, which every temporary file in it
//! moves, and no change or access time. Of processes: which there are, their memory, where
//! they stand, and what the kernel holds for them. An init that only holds the container
//! open, and processes that have ended, are none.

mod processes;
mod tree;

use std::{collections::BTreeSet, fmt::Display, path::Path};

use anyhow::Result;

pub(crate) use self::tree::own_mounts;
pub use self::{processes::Processes, tree::Tree};

/// Everything at one moment. Nothing in the sandbox may be on the move meanwhile, but what
/// is on the move for good.
#[derive(Debug)]
pub struct Truth {
    /// The root and what is kept in memory.
    pub tree: Tree,
    /// All but the init.
    pub processes: Processes,
}

/// How two differ, a line each.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// In the files.
    pub files: Vec<String>,
    /// In the processes.
    pub processes: Vec<String>,
    /// A file changed that a process holds. CRIU compares the two when it restores, so that
    /// an older image of the processes no longer fits.
    pub held: bool,
}

impl Truth {
    /// Reads the sandbox of an init.
    pub fn of(init: u32) -> Result<Self> {
        Ok(Self {
            tree: Tree::of(init)?,
            processes: Processes::of(init)?,
        })
    }

    /// What is different now.
    pub fn since(&self, before: &Self) -> Change {
        let changed = self.tree.changed(&before.tree);
        let is_held = |path: &Vec<u8>, held: &BTreeSet<Vec<u8>>| {
            let mut below = path.clone();
            below.push(b'/');
            held.iter()
                .any(|held| held == path || held.starts_with(&below))
        };
        let held = self.processes.held();
        Change {
            held: changed.keys().any(|path| is_held(path, &held)),
            files: changed
                .into_iter()
                .map(|(path, how)| line(&path, how))
                .collect(),
            processes: self.processes.changed(&before.processes),
        }
    }
}

fn line(path: &[u8], how: impl Display) -> String {
    format!(
        "{} {how}",
        Path::new(&*String::from_utf8_lossy(path)).display()
    )
}
