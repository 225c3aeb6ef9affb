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

use crab_store::{Tree, TreeEntry};
use rustix::io::Errno;

use super::{
    beneath::split,
    index::{Index, Node},
    lower::{Lower, Lowers},
    scan::Scanner,
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

/// One that differs, with all that is known of it.
pub(crate) struct Differing<'a> {
    pub(crate) path: &'a [u8],
    pub(crate) live: Option<&'a Node>,
    pub(crate) wanted: Option<&'a TreeEntry>,
    pub(crate) below: Below,
    /// Of two that are there: what is unlike.
    unlike: String,
}

impl Scanner {
    /// Reads all of this root anew, and tells how it differs from `tree`.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn verify(&self, tree: &Tree) -> Result<Verified, WalkError> {
        let scan = self.scan_anew(&Index::of_tree(tree, self.rules))?;
        let torn = scan.torn().to_vec();
        let live = scan.into_live();
        let differing = Differing::all(self, &live, tree)?;
        let differences = differing.iter();
        Ok(Verified {
            differences: differences
                .filter_map(|it| it.told(tree, self.rules))
                .collect(),
            torn,
            paths: live.nodes.len().max(tree.entries.len()),
        })
    }
}

impl<'a> Differing<'a> {
    /// All paths at which what `live` says of a root differs from a tree, by path.
    pub(crate) fn all(
        scanner: &Scanner,
        live: &'a Index,
        tree: &'a Tree,
    ) -> Result<Vec<Self>, WalkError> {
        let rules = scanner.rules;
        let mut compare = Compare {
            live,
            rules,
            lowers: scanner
                .lowers()
                .map_err(|errno| WalkError::io("open the layers of", b"", errno))?,
        };
        let mut found = Vec::new();
        let mut in_both = 0;
        for entry in &tree.entries {
            let node = live.nodes.get(entry.path.as_slice());
            in_both += usize::from(node.is_some());
            let node = node.map(|node| &**node);
            compare.add(&entry.path, node, Some(entry), &mut found)?;
        }
        if in_both < live.nodes.len() {
            for (path, node) in &live.nodes {
                if tree.get(path).is_none() {
                    compare.add(path, Some(node), None, &mut found)?;
                }
            }
            found.sort_unstable_by(|a, b| a.path.cmp(b.path));
        }
        Ok(found)
    }

    fn told(&self, tree: &Tree, rules: Rules) -> Option<Difference> {
        let is = match (self.live, &self.below) {
            (Some(node), _) => Shape::of_node(node, rules).sort(tree),
            (None, Below::Is(Some(lower))) => Some(Sort::of(lower.stat.file_type)),
            (None, _) => None,
        };
        let should_be = match (self.wanted, &self.below) {
            (Some(entry), _) => Shape::of_entry(entry, rules).sort(tree),
            (None, Below::Is(Some(lower))) => Some(Sort::of(lower.stat.file_type)),
            (None, _) => None,
        };
        let (sort, kind) = match (is, should_be) {
            (Some(is), Some(_)) => (is, DifferenceKind::Changed(self.unlike.clone())),
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

impl<'a> Compare<'a> {
    /// Adds the path to those that differ, if it does.
    fn add(
        &mut self,
        path: &'a [u8],
        live: Option<&'a Node>,
        wanted: Option<&'a TreeEntry>,
        found: &mut Vec<Differing<'a>>,
    ) -> Result<(), WalkError> {
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
            (Some(_), None) if live.is_some_and(|node| node.nets_out) => None,
            (Some(one), None) | (None, Some(one)) => {
                match below.insert(self.below(path).map_err(failed)?) {
                    Below::Is(lower) => one.unlike_lower(lower.as_ref(), rules).map_err(failed)?,
                    Below::Unknown => Some("there".into()),
                }
            }
            (None, None) => None,
        };
        if let Some(unlike) = unlike {
            let below = match below {
                Some(below) => below,
                None => self.below(path).map_err(failed)?,
            };
            found.push(Differing {
                path,
                live,
                wanted,
                below,
                unlike,
            });
        }
        Ok(())
    }

    /// What lower layers show at a path, where what is above it in the live root lets them.
    fn below(&mut self, path: &[u8]) -> rustix::io::Result<Below> {
        if !self.rules.is_overlay() {
            return Ok(Below::Is(None));
        }
        let mut above = path;
        while !above.is_empty() {
            above = split(above).0;
            if let Some(node) = self.live.nodes.get(above) {
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
