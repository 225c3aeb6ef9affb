// SPDX-License-Identifier: Apache-2.0
//! Looking only at what may have changed, where the inodes are known that have.
//!
//! ```text
//!  inodes that changed --index--> entries to look at, and the directories that lead there
//!        |                             |
//!        |                  as in any survey; a directory that changed is listed
//!        v                             v
//!  each must be met, or nameless: else something changed that is nowhere to be
//!  found, and everything has to be looked at
//! ```
//! An inode that is not on record is new, and in a directory that changed: unless overlayfs
//! has copied it up, which it tells of no directory. Hence the last rule. Nor does it tell of an
//! inode that gets another name, only of the directory that the name is in: so the same goes for
//! one that has more names than were met.
//!
//! Beside what changed, all is looked at that an ordinary scan would not take as it was, and
//! each name of an inode with several: which of them holds it may change with any directory.

use std::collections::{HashMap, HashSet};

use rustix::fs::FileType;

use super::{
    beneath::split,
    index::{Index, settled},
    node::Node,
};

/// The inodes in a root that changed since its index was taken.
#[derive(Clone, Debug, Default)]
pub struct ChangedInodes {
    /// Those that are there, in any order.
    pub there: Vec<u64>,
    /// Those to which no name led any more when they last changed. One may be another by now
    /// that has not changed since, but then the directory that it is in has.
    pub nameless: Vec<u64>,
}

/// What is to be looked at.
pub(crate) struct Narrow {
    /// Whatever is on record of them does not count.
    touched: HashSet<u64>,
    /// Of them those that have to be somewhere.
    wanted: HashSet<u64>,
    /// By directory: the places of entries, sorted.
    places: HashMap<Vec<u8>, Vec<usize>>,
}

impl Narrow {
    pub(crate) fn new(index: &Index, changed: &ChangedInodes, forced: &HashSet<Vec<u8>>) -> Self {
        let there = changed.there.iter().copied();
        let mut this = Self {
            touched: there
                .clone()
                .chain(changed.nameless.iter().copied())
                .collect(),
            wanted: there.collect(),
            places: HashMap::new(),
        };
        let mut leading = Vec::new();
        for (path, dir) in index.dirs() {
            let entries = dir.entries().iter().enumerate();
            let may_differ = entries.filter(|(_, named)| this.may_differ(&named.node, index));
            let places: Vec<usize> = may_differ.map(|(place, _)| place).collect();
            if !places.is_empty() {
                leading.push(path.to_vec());
                this.places.insert(path.to_vec(), places);
            }
        }
        for path in forced {
            this.add(index, path, &mut leading);
        }
        for path in &index.incomplete {
            leading.push(path.clone());
            this.places.entry(path.clone()).or_default();
        }
        while let Some(path) = leading.pop() {
            this.add(index, &path, &mut leading);
        }
        for places in this.places.values_mut() {
            places.sort_unstable();
            places.dedup();
        }
        this
    }

    /// An entry, and where it is.
    fn add(&mut self, index: &Index, path: &[u8], leading: &mut Vec<Vec<u8>>) {
        if path.is_empty() {
            return;
        }
        let (parent, name) = split(path);
        let place = index.dir(parent).and_then(|dir| dir.place(name).ok());
        let Some(place) = place else {
            return;
        };
        match self.places.get_mut(parent) {
            Some(places) => places.push(place),
            None => {
                self.places.insert(parent.to_vec(), vec![place]);
                leading.push(parent.to_vec());
            }
        }
    }

    fn may_differ(&self, node: &Node, index: &Index) -> bool {
        let stat = &node.stat;
        self.touched.contains(&stat.ino)
            || index.mapped.contains(&stat.ino)
            || !settled(stat.ctime, index.started)
            || node.is_unread()
            || node.mount_point
            || stat.nlink > 1 && stat.file_type != FileType::Directory
    }

    /// Whether this inode has changed, whatever its times say.
    pub(crate) fn is_touched(&self, inode: u64) -> bool {
        self.touched.contains(&inode)
    }

    /// Whether anything in or below a directory that is as it was has to be looked at.
    pub(crate) fn leads_on(&self, dir: &[u8]) -> bool {
        self.places.contains_key(dir)
    }

    /// The places in a directory that are to be looked at.
    pub(crate) fn places(&self, dir: &[u8]) -> Vec<usize> {
        self.places.get(dir).cloned().unwrap_or_default()
    }

    /// Whether each inode that changed was met. That one is on record explains nothing: what is
    /// still there was looked at, and its number may be another's by now.
    pub(crate) fn is_explained(&self, met: &HashSet<u64>) -> bool {
        self.wanted.is_subset(met)
    }
}
