// SPDX-License-Identifier: Apache-2.0
//! How a live root differs from a tree of the store, as a process in the container would
//! see it: by what the layers show together, not by what happens to lie in the upper one.
//!
//! ```text
//!   upper as it is       tree
//!         \              /
//!          with the layers below each
//!                 |
//!             unlike?
//! ```
//! A copy of a lower entry is as good as none, and so is a whiteout that hides nothing.

use std::collections::HashSet;

use crab_store::{Tree, TreeEntry};
use rustix::io::Errno;

use super::{
    beneath::split,
    index::Index,
    lower::{Lower, Lowers},
    node::Node,
    scan::{Scan, Scanner},
    shape::{Kind, Shape, Sort},
    walk::WalkError,
    xattr::Rules,
};

/// A path that is not as a tree has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Relative to the root, which is the empty path.
    pub path: Vec<u8>,
    /// What is there; where nothing is, what should be.
    pub sort: Sort,
    /// How it differs.
    pub kind: DifferenceKind,
}

/// How a path differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DifferenceKind {
    /// It is there, and the tree has it not.
    Added,
    /// The tree has it, and it is not there.
    Removed,
    /// It is there, but for this.
    Changed(String),
}

/// What came of comparing a root with a tree.
#[derive(Debug)]
pub struct Verified {
    /// What differs, by path. May be wrong where something is torn.
    pub differences: Vec<Difference>,
    /// What changed while it was looked at.
    pub torn: Vec<Vec<u8>>,
    /// How many paths were compared.
    pub paths: usize,
}

/// What the layers below show at a path.
pub(crate) enum Below {
    Is(Option<Lower>),
    /// Not known, as a directory above stands for one elsewhere.
    Unknown,
}

/// A path that is compared, with all that is known of it.
pub(crate) struct Compared<'a> {
    pub(crate) path: &'a [u8],
    pub(crate) live: Option<&'a Node>,
    pub(crate) wanted: Option<&'a TreeEntry>,
    /// Of one that differs, and of a directory that only one of both has.
    pub(crate) below: Option<Below>,
    /// What is unlike; nothing if nobody would notice a difference.
    pub(crate) unlike: Option<String>,
}

/// A root that was read, to be compared with a tree.
#[derive(Debug)]
pub struct Look {
    live: Index,
    torn: Vec<Vec<u8>>,
}

impl Scanner {
    /// Reads all of this root anew, and tells how it differs from `tree`.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn verify(&self, tree: &Tree) -> Result<Verified, WalkError> {
        self.look(tree, &HashSet::new())?.compare(self, tree)
    }

    /// Reads all of this root anew, to be compared with `tree`. `mapped`: what processes may
    /// write without any time telling of it.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn look(&self, tree: &Tree, mapped: &HashSet<Vec<u8>>) -> Result<Look, WalkError> {
        let scan = self.scan_anew(&Index::of_tree(tree, self.rules), mapped)?;
        Ok(Look::of(scan))
    }

    /// Looks again at a root: reads what may have changed since `earlier`, which looked at it
    /// for the same tree, and what is `mapped`; with `everything` all of it. Nothing if that
    /// would be more than so many bytes, which are then fewer.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn look_again(
        &self,
        tree: &Tree,
        earlier: &Look,
        mapped: &HashSet<Vec<u8>>,
        everything: bool,
        bytes: &mut u64,
    ) -> Result<Option<Look>, WalkError> {
        let contents = Index::of_tree(tree, self.rules);
        let scan = self.scan_again(&earlier.live, &contents, mapped, everything, bytes)?;
        Ok(scan.map(Look::of))
    }
}

impl Look {
    fn of(scan: Scan) -> Self {
        Self {
            torn: scan.torn().to_vec(),
            live: scan.into_live(),
        }
    }

    /// Whether something changed while it was looked at.
    pub fn is_torn(&self) -> bool {
        !self.torn.is_empty()
    }

    /// Tells how what was seen differs from the tree. The root itself is not read any more.
    ///
    /// # Errors
    /// When the layers below cannot be read.
    pub fn compare(self, scanner: &Scanner, tree: &Tree) -> Result<Verified, WalkError> {
        let mut differences = Vec::new();
        Compared::each(scanner, &self.live, tree, |it| {
            differences.extend(it.told(tree, scanner.rules));
            Ok::<(), WalkError>(())
        })?;
        Ok(Verified {
            differences,
            torn: self.torn,
            paths: self.live.len().max(tree.entries.len()),
        })
    }
}

impl Compared<'_> {
    /// Compares what `live` says of a root with a tree, one path after the other, in their
    /// order. What is open of one is closed before the next.
    pub(crate) fn each<E: From<WalkError>>(
        scanner: &Scanner,
        live: &Index,
        tree: &Tree,
        mut act: impl FnMut(&Compared<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut compare = Compare {
            live,
            rules: scanner.rules,
            lowers: scanner.opened_lowers()?,
        };
        let mut unwanted: Vec<(Vec<u8>, &Node)> = live
            .iter()
            .filter(|(path, _)| tree.get(path).is_none())
            .map(|(path, node)| (path, &**node))
            .collect();
        unwanted.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let mut unwanted = unwanted.iter().peekable();
        for entry in &tree.entries {
            let path = entry.path.as_slice();
            while let Some((path, node)) = unwanted.next_if(|(before, _)| **before < *path) {
                act(&compare.one(path, Some(node), None)?)?;
            }
            let node = live.get(path).map(|node| &**node);
            act(&compare.one(path, node, Some(entry))?)?;
        }
        for (path, node) in unwanted {
            act(&compare.one(path, Some(node), None)?)?;
        }
        Ok(())
    }

    fn told(&self, tree: &Tree, rules: Rules) -> Option<Difference> {
        let unlike = self.unlike.as_ref()?;
        let is = match (self.live, &self.below) {
            (Some(node), _) => Shape::of_node(node, rules).sort(tree),
            (None, Some(Below::Is(Some(lower)))) => Some(Sort::of(lower.stat.file_type)),
            (None, _) => None,
        };
        let should_be = match (self.wanted, &self.below) {
            (Some(entry), _) => Shape::of_entry(entry, rules).sort(tree),
            (None, Some(Below::Is(Some(lower)))) => Some(Sort::of(lower.stat.file_type)),
            (None, _) => None,
        };
        let (sort, kind) = match (is, should_be) {
            (Some(is), Some(_)) => (is, DifferenceKind::Changed(unlike.clone())),
            (Some(is), None) => (is, DifferenceKind::Added),
            (None, Some(should_be)) => (should_be, DifferenceKind::Removed),
            (None, None) => return None,
        };
        Some(Difference {
            path: self.path.to_vec(),
            sort,
            kind,
        })
    }
}

struct Compare<'a> {
    live: &'a Index,
    rules: Rules,
    lowers: Lowers,
}

impl Compare<'_> {
    fn one<'p>(
        &mut self,
        path: &'p [u8],
        live: Option<&'p Node>,
        wanted: Option<&'p TreeEntry>,
    ) -> Result<Compared<'p>, WalkError> {
        let failed = |errno| WalkError::io("compare", path, errno);
        let rules = self.rules;
        let is = live.map(|node| Shape::of_node(node, rules));
        let should_be = wanted.map(|entry| Shape::of_entry(entry, rules));
        let mut below = None;
        let unlike = match (&is, &should_be) {
            (Some(is), Some(should_be)) => {
                let inert = || {
                    let below = below.insert(self.below(path)?);
                    Ok(!matches!(below, Below::Unknown)
                        && !matches!(below, Below::Is(Some(lower)) if lower.stat.is_dir()))
                };
                is.unlike(should_be, rules, inert).map_err(failed)?
            }
            // An overlay's own copy.
            (Some(is), None) if live.is_some_and(|node| node.nets_out) => {
                if is.is_dir() {
                    below = Some(self.below(path).map_err(failed)?);
                }
                None
            }
            (Some(one), None) | (None, Some(one)) => {
                match below.insert(self.below(path).map_err(failed)?) {
                    Below::Is(lower) => one.unlike_lower(lower.as_ref(), rules).map_err(failed)?,
                    Below::Unknown => Some("there".into()),
                }
            }
            (None, None) => None,
        };
        if unlike.is_some() && below.is_none() {
            below = Some(self.below(path).map_err(failed)?);
        }
        Ok(Compared {
            path,
            live,
            wanted,
            below,
            unlike,
        })
    }

    /// What lower layers show at a path, where what is above it in the live root lets them.
    fn below(&mut self, path: &[u8]) -> rustix::io::Result<Below> {
        if !self.rules.is_overlay() {
            return Ok(Below::Is(None));
        }
        let mut above = path;
        while !above.is_empty() {
            above = split(above).0;
            if let Some(node) = self.live.get(above) {
                if self.rules.is_redirected(&node.xattrs) {
                    return Ok(Below::Unknown);
                }
                let is_seen_through =
                    Shape::of_node(node, self.rules).kind == Kind::Dir && !node.hides_lower;
                if !is_seen_through {
                    return Ok(Below::Is(None));
                }
            }
        }
        match self.lowers.find(path) {
            Ok(lower) => Ok(Below::Is(lower)),
            Err(Errno::NAMETOOLONG) => Ok(Below::Unknown),
            Err(errno) => Err(errno),
        }
    }
}
