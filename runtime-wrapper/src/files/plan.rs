// SPDX-License-Identifier: Apache-2.0
//! What has to be done to a root that is in use, so that it is a tree again.
//!
//! An overlay is changed through its merged view alone: what overlayfs would do if
//! something changed in its layers behind its back is undefined. So only what the merged
//! view can be told to do is planned; all else is [`PlanError::Unsuitable`], and such a root has
//! to be exchanged as a whole.
//!
//! ```text
//!              below   live        tree        done in the merged view
//!   changed    -       file        file'       remove, make
//!   new        -       file        -           remove
//!   removed    file    whiteout    -           make a copy of the one below
//!   was gone   file    -           whiteout    remove
//!   in a dir   dir     dir or -    dir or -    give it its owner, mode, times
//!   replaced   dir     anything    else        unsuitable
//! ```
//! A copy of a lower file is what overlayfs itself leaves of one that was opened for writing,
//! and nobody in the container can tell it from that file. What lies in a directory of the image
//! that was removed or replaced would have to be copied as a whole.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use crab_store::{EntryKind, Segment, Time, Tree, TreeEntry};
use rustix::{
    fs::{FileType, OFlags},
    io::Errno,
};

use super::{
    beneath::{Stat, open_beneath, split},
    difference::{Below, Compared},
    examine::is_copy,
    index::Index,
    node::{Content, Node},
    scan::Scanner,
    shape::{Kind, Shape, entry_of_lower, read_link},
    walk::{WalkError, shown},
    xattr::{self, Rules, Xattrs},
};

/// What has to be done, in this order.
#[derive(Debug, Default)]
pub struct Plan {
    /// What must not be there, children before their parents. True for directories.
    pub(crate) removals: Vec<(Vec<u8>, bool)>,
    /// What must be there and is not, parents before their children.
    pub(crate) new: Vec<Wanted>,
    /// What is there, and is to have another owner, mode, time or attributes.
    pub(crate) amended: Vec<TreeEntry>,
    /// Directories whose owner, mode, time and attributes are set last, children before
    /// their parents: those above, and those in which something was made or removed.
    pub(crate) directories: Vec<TreeEntry>,
    /// What is not as it should be.
    differing: Vec<Vec<u8>>,
    /// How long the files are that are made.
    bytes: u64,
    /// What is known of each path that is made another.
    results: BTreeMap<Vec<u8>, Outcome>,
}

/// Something to be made, as the merged view shows it.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) entry: TreeEntry,
    /// Its content is that of the lower layers' file at this path.
    pub(crate) copied: bool,
}

/// How much may be done while a root stands still.
#[derive(Clone, Copy, Debug)]
pub struct PlanLimits {
    /// Paths that become others.
    pub paths: usize,
    /// Bytes of files that are written.
    pub bytes: u64,
}

impl PlanLimits {
    /// Whatever it takes.
    pub const NONE: Self = Self {
        paths: usize::MAX,
        bytes: u64::MAX,
    };
}

/// What is known of a path afterwards.
#[derive(Debug)]
enum Outcome {
    /// As the tree has it.
    Is(Arc<[Segment]>),
    /// As if it were not in the upper directory at all.
    NetsOut,
    /// The tree says nothing of it, and no layer either.
    Gone,
}

/// Why a root cannot be changed in place.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// Not what a merged view can be told to do.
    #[error("{path}: {why}")]
    Unsuitable {
        /// Where.
        path: String,
        /// Why.
        why: &'static str,
    },
    /// It is more than the limits allow.
    #[error("too much has to be put back")]
    TooMuch,
    /// Something could not be looked at.
    #[error(transparent)]
    Walk(#[from] WalkError),
}

/// A root after a plan was carried out, looked at where it was changed.
#[derive(Debug)]
pub struct Renewed(Vec<(Vec<u8>, Option<Node>)>);

impl Renewed {
    /// Takes it over.
    pub fn into_index(self, index: &mut Index) {
        for (path, node) in self.0 {
            match node {
                Some(node) => {
                    index.insert(&path, Arc::new(node));
                }
                None => {
                    index.remove(&path);
                }
            }
        }
    }
}

impl Plan {
    /// What makes the root of a scanner, which is as its index says, a tree.
    ///
    /// # Errors
    /// When that cannot be done while the root is in use, or is more than the limits allow.
    pub fn of(
        scanner: &Scanner,
        live: &Index,
        tree: &Tree,
        limits: PlanLimits,
    ) -> Result<Self, PlanError> {
        let rules = scanner.rules;
        let linked = tree.link_targets();
        let mut plan = Self::default();
        let mut directories: BTreeMap<Vec<u8>, TreeEntry> = BTreeMap::new();
        let mut touched: HashSet<Vec<u8>> = HashSet::new();
        Compared::each(scanner, live, tree, |it| {
            if it.unlike.is_none() {
                // Times of directories call for nothing by themselves.
                if let Some(entry) = with_other_time(it, rules)? {
                    directories.insert(it.path.to_vec(), entry);
                }
            } else {
                let before = plan.removals.len() + plan.new.len();
                plan.add(it, &linked, rules, &mut directories)?;
                if plan.removals.len() + plan.new.len() > before {
                    touched.insert(split(it.path).0.to_vec());
                }
            }
            let paths = plan.results.len().max(directories.len());
            if paths > limits.paths || plan.bytes > limits.bytes {
                return Err(PlanError::TooMuch);
            }
            Ok(())
        })?;
        let removed: HashSet<&[u8]> = plan.removals.iter().map(|(path, _)| &**path).collect();
        for dir in touched {
            if directories.contains_key(&dir) || removed.contains(&*dir) {
                continue;
            }
            if let Some(entry) = as_seen(scanner, tree, &dir)? {
                directories.insert(dir, entry);
            }
        }
        for entry in directories.values() {
            if let Some(why) = other_in_view(rules, &entry.xattrs) {
                return Err(PlanError::Unsuitable {
                    path: shown(&entry.path),
                    why,
                });
            }
        }
        plan.removals.sort_unstable_by(|a, b| b.0.cmp(&a.0));
        // The others are in the order of their paths already.
        plan.directories = directories.into_values().rev().collect();
        for entry in &plan.directories {
            let in_tree = tree.get(&entry.path).is_some();
            let outcome = if in_tree {
                Outcome::Is([].into())
            } else {
                Outcome::NetsOut
            };
            plan.results.entry(entry.path.clone()).or_insert(outcome);
        }
        if plan.results.len() > limits.paths {
            return Err(PlanError::TooMuch);
        }
        Ok(plan)
    }

    /// Whether nothing has to be done.
    pub fn is_empty(&self) -> bool {
        self.results.is_empty()
    }

    /// How many paths become others.
    pub fn len(&self) -> usize {
        self.results.len()
    }

    /// How many bytes of files are written.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What is made, removed or becomes another.
    pub fn differing(&self) -> &[Vec<u8>] {
        &self.differing
    }

    /// Whether a socket's name is made. It is not that of any socket that is open.
    pub fn makes_a_socket(&self) -> bool {
        let mut kinds = self.new.iter().map(|wanted| &wanted.entry.kind);
        kinds.any(|kind| *kind == EntryKind::Socket)
    }

    fn add(
        &mut self,
        it: &Compared<'_>,
        linked: &HashSet<&[u8]>,
        rules: Rules,
        directories: &mut BTreeMap<Vec<u8>, TreeEntry>,
    ) -> Result<(), PlanError> {
        let path = it.path;
        let unsuitable = |why| PlanError::Unsuitable {
            path: shown(path),
            why,
        };
        let failed = |errno| WalkError::io("read", path, errno);
        let Some(Below::Is(lower)) = &it.below else {
            return Err(unsuitable("it is in a directory that was renamed"));
        };
        let is = it.live.map(|node| Shape::of_node(node, rules));
        let should_be = it.wanted.map(|entry| Shape::of_entry(entry, rules));
        for shape in [&is, &should_be].into_iter().flatten() {
            let odd = match shape.kind {
                Kind::Link(_) => Some("it has several names"),
                Kind::Mount { .. } => Some("something is mounted on it"),
                _ if other_in_view(rules, shape.xattrs).is_some() => {
                    other_in_view(rules, shape.xattrs)
                }
                Kind::Dir if rules.is_redirected(shape.xattrs) => Some("it was renamed"),
                Kind::Dir => None,
                _ if rules.steers_merge(shape.xattrs) => Some("its data is elsewhere"),
                _ => None,
            };
            if let Some(why) = odd {
                return Err(unsuitable(why));
            }
        }
        let has_names = |node: &Node| {
            let is_one = node.stat.is_dir() || rules.is_overlay() && node.stat.is_null_device();
            !is_one && node.stat.nlink > 1
        };
        if it.live.is_some_and(has_names) || linked.contains(path) {
            return Err(unsuitable("it has several names"));
        }
        self.differing.push(path.to_vec());
        if let Some(lower) = lower
            && lower.stat.is_dir()
        {
            let hides = |shape: &Shape<'_>| rules.hides_lower(shape.xattrs);
            let merges = |shape: &Option<Shape<'_>>| {
                shape.as_ref().is_none_or(|it| it.is_dir() && !hides(it))
            };
            let covers = |shape: &Option<Shape<'_>>| {
                shape.as_ref().is_some_and(|it| it.is_dir() && hides(it))
            };
            if !(merges(&is) && merges(&should_be) || covers(&is) && covers(&should_be)) {
                return Err(unsuitable("a directory of the image was replaced"));
            }
            let entry = match it.wanted {
                Some(entry) => seen(entry, rules),
                None => entry_of_lower(path, lower, rules).map_err(failed)?,
            };
            directories.insert(path.to_vec(), entry);
            return Ok(());
        }
        let is_whiteout = |shape: &Shape<'_>| shape.kind == Kind::Whiteout;
        // Whether something is there, and whether it is a directory.
        let there = match (&is, lower) {
            (Some(is), _) => (!is_whiteout(is)).then(|| is.is_dir()),
            (None, Some(_)) => Some(false),
            (None, None) => None,
        };
        let new = match (it.wanted, lower) {
            (Some(entry), _) => (!should_be.as_ref().is_some_and(is_whiteout)).then(|| Wanted {
                entry: seen(entry, rules),
                copied: false,
            }),
            (None, Some(lower)) => {
                let xattrs = xattr::read(lower.fd.as_fd()).map_err(failed)?;
                if rules.steers_merge(&xattrs) || rules.is_escaped(&xattrs) {
                    return Err(unsuitable("its data is elsewhere"));
                }
                Some(Wanted {
                    entry: entry_of_lower(path, lower, rules).map_err(failed)?,
                    copied: lower.stat.is_file(),
                })
            }
            (None, None) => None,
        };
        let outcome = match (it.wanted, &new) {
            (Some(entry), _) => Outcome::Is(match &entry.kind {
                EntryKind::File { content, .. } => content.as_slice().into(),
                _ => [].into(),
            }),
            (None, Some(_)) => Outcome::NetsOut,
            (None, None) => Outcome::Gone,
        };
        match (there, new) {
            (Some(true), Some(wanted)) if wanted.entry.kind == EntryKind::Dir => {
                directories.insert(path.to_vec(), wanted.entry);
            }
            (
                Some(false),
                Some(Wanted {
                    entry,
                    copied: false,
                }),
            ) if it.live.is_some() && holds_the_same(&is, &should_be) => {
                self.amended.push(entry);
            }
            (there, new) => {
                if let Some(is_dir) = there {
                    self.removals.push((path.to_vec(), is_dir));
                }
                if let Some(wanted) = new {
                    if wanted.entry.kind == EntryKind::Dir {
                        directories.insert(path.to_vec(), wanted.entry.clone());
                    }
                    if let EntryKind::File { size, .. } = wanted.entry.kind {
                        self.bytes = self.bytes.saturating_add(size);
                    }
                    self.new.push(wanted);
                }
            }
        }
        self.results.insert(path.to_vec(), outcome);
        Ok(())
    }

    /// Looks at what was changed: it has to be as it was wanted.
    ///
    /// # Errors
    /// When it is not.
    pub fn renewed(&self, scanner: &Scanner, tree: &Tree) -> Result<Renewed, PlanError> {
        let mut nodes = Vec::with_capacity(self.results.len());
        let of_directories = self.directories.iter();
        let times: HashMap<&[u8], Time> = of_directories
            .map(|entry| (entry.path.as_slice(), entry.mtime))
            .collect();
        let mut lowers = scanner
            .lowers()
            .map_err(|errno| WalkError::io("open the layers of", b"", errno))?;
        for (path, outcome) in &self.results {
            let failed = |errno| WalkError::io("look at", path, errno);
            let (fd, node) = look(scanner, path, outcome).map_err(failed)?.unzip();
            let is_right = match (&node, outcome, tree.get(path)) {
                (Some(node), Outcome::Is(_), Some(entry)) => {
                    let is = Shape::of_node(node, scanner.rules);
                    let should_be = Shape::of_entry(entry, scanner.rules);
                    // What a directory would hide of lower ones is not there, or it was not
                    // touched.
                    let unlike = is.unlike(&should_be, scanner.rules, || Ok(true));
                    unlike.map_err(failed)?.is_none()
                }
                // Nothing was below it.
                (None, Outcome::Is(_), Some(entry)) => {
                    Shape::of_entry(entry, scanner.rules).kind == Kind::Whiteout
                }
                (None, Outcome::NetsOut | Outcome::Gone, None) => true,
                (Some(node), Outcome::NetsOut, None) => match (&fd, lowers.find(path)) {
                    (Some(fd), Ok(Some(lower))) => {
                        is_copy(scanner.rules, fd, node, &lower).map_err(failed)?
                    }
                    (_, Err(errno)) => return Err(failed(errno).into()),
                    _ => false,
                },
                (Some(node), Outcome::Gone, None) => {
                    Shape::of_node(node, scanner.rules).kind == Kind::Whiteout
                }
                _ => false,
            };
            let time = times.get(path.as_slice());
            let is_timely = |node: &Node| time.is_none_or(|time| *time == node.stat.mtime);
            if !is_right || !node.as_ref().is_none_or(is_timely) {
                return Err(PlanError::Unsuitable {
                    path: shown(path),
                    why: "it is not what it was made",
                });
            }
            nodes.push((path.clone(), node));
        }
        Ok(Renewed(nodes))
    }
}

/// Why attributes cannot be set through the merged view, where they have other names or are no
/// attributes.
fn other_in_view(rules: Rules, xattrs: &Xattrs) -> Option<&'static str> {
    if rules.is_escaped(xattrs) {
        Some("it is part of a nested overlay")
    } else if rules.is_protected(xattrs) {
        Some("it is immutable or append-only")
    } else {
        None
    }
}

/// Whether only owner, mode, time or attributes of a file differ.
fn holds_the_same(is: &Option<Shape<'_>>, should_be: &Option<Shape<'_>>) -> bool {
    match (is, should_be) {
        (Some(is), Some(should_be)) => {
            is.kind == should_be.kind && matches!(is.kind, Kind::File { .. } | Kind::Device(..))
        }
        _ => false,
    }
}

/// An entry of a tree as the merged view shows it.
fn seen(entry: &TreeEntry, rules: Rules) -> TreeEntry {
    TreeEntry {
        xattrs: rules.visible(entry.xattrs.clone()),
        ..entry.clone()
    }
}

/// A directory that is as it should be but for its time, as it is to be seen. What a tree does not
/// have had the time of the layers below, and what the root does not have has it now.
fn with_other_time(it: &Compared<'_>, rules: Rules) -> Result<Option<TreeEntry>, WalkError> {
    let lower = match &it.below {
        Some(Below::Is(Some(lower))) if lower.stat.is_dir() => Some(lower),
        _ => None,
    };
    let time = match it.live {
        Some(node) if node.mount_point || !node.stat.is_dir() => return Ok(None),
        Some(node) => Some(node.stat.mtime),
        None => lower.map(|lower| lower.stat.mtime),
    };
    let differs = |wanted| time.is_some_and(|time| time != wanted);
    match (it.wanted, lower) {
        (Some(entry), _) if entry.kind == EntryKind::Dir => {
            Ok(differs(entry.mtime).then(|| seen(entry, rules)))
        }
        (None, Some(lower)) if differs(lower.stat.mtime) => {
            let failed = |errno| WalkError::io("read", it.path, errno);
            entry_of_lower(it.path, lower, rules)
                .map(Some)
                .map_err(failed)
        }
        _ => Ok(None),
    }
}

/// A directory as it is to be seen: as the tree has it, or else the layers below.
fn as_seen(scanner: &Scanner, tree: &Tree, dir: &[u8]) -> Result<Option<TreeEntry>, WalkError> {
    let rules = scanner.rules;
    if let Some(entry) = tree.get(dir) {
        return Ok(Some(seen(entry, rules)));
    }
    let failed = |errno| WalkError::io("read", dir, errno);
    let mut lowers = scanner.lowers().map_err(failed)?;
    let lower = lowers.find(dir).map_err(failed)?;
    let lower = lower.filter(|lower| lower.stat.is_dir());
    lower
        .map(|lower| entry_of_lower(dir, &lower, rules).map_err(failed))
        .transpose()
}

/// What the root itself has at a path now.
fn look(
    scanner: &Scanner,
    path: &[u8],
    outcome: &Outcome,
) -> rustix::io::Result<Option<(OwnedFd, Node)>> {
    let rules = scanner.rules;
    let fd = match open_beneath(scanner.root(), path, OFlags::PATH) {
        Ok(fd) => fd,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    let stat = Stat::of(fd.as_fd())?;
    let xattrs = rules.keep(xattr::read(fd.as_fd())?);
    let content = match (stat.file_type, outcome) {
        (FileType::RegularFile, _) if stat.size == 0 => Content::Known([].into()),
        (FileType::RegularFile, Outcome::Is(content)) => Content::Known(content.clone()),
        (FileType::RegularFile, _) => Content::Unread,
        _ => Content::None,
    };
    let node = Node {
        hides_lower: stat.is_dir() && rules.hides_lower(&xattrs),
        target: match stat.file_type {
            FileType::Symlink => read_link(fd.as_fd())?,
            _ => Vec::new(),
        },
        stat,
        xattrs,
        content,
        link_to: None,
        nets_out: !matches!(outcome, Outcome::Is(_)),
        mount_point: false,
    };
    Ok(Some((fd, node)))
}
