// SPDX-License-Identifier: Apache-2.0

//! What a witness remembers between looks: a file whose times are as they were is not read
//! again, and what is equal is kept once.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Weak},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::fs::Statx;

use super::{
    Digest,
    maps::Mapped,
    node::{Attributes, Node},
    rules::{Sums, Window},
    tree::Links,
};

/// A change this soon after another may leave the file's times alike: they are as coarse as the
/// clock's ticks. What was changed so shortly before it was read is read again the next time.
const RACY: i128 = Duration::from_millis(100).as_nanos() as i128;
/// More than so many files are thinned out to those of the last looks.
const MANY: usize = 1 << 19;
/// Those looks.
const LATEST: u64 = 32;

/// What a file is known again by. The kernel alone sets the time of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    device: (u32, u32),
    inode: u64,
    size: u64,
    modified: i128,
    changed: i128,
}

/// The memory.
#[derive(Debug)]
pub(super) struct Kept {
    began: SystemTime,
    look: u64,
    known: HashMap<Key, Known>,
    nodes: HashMap<Digest, Weak<Node>>,
    links: Vec<Weak<Links>>,
    sums: Arc<Sums>,
    image: HashSet<Digest>,
}

#[derive(Debug)]
struct Known {
    what: What,
    /// The look that found it, and the last one that met it.
    since: u64,
    look: u64,
}

/// Of a directory only that which its time of change stands for.
#[derive(Clone, Debug)]
pub(super) enum What {
    Leaf(Arc<Node>),
    Attributes(Arc<Attributes>),
}

/// One look's view of it.
#[derive(Debug)]
pub(super) struct Seen<'a> {
    kept: &'a mut Kept,
    pub(super) window: Window,
    pub(super) mapped: Mapped,
}

/// In nanoseconds since the epoch.
pub(super) fn nanoseconds(time: SystemTime) -> i128 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as i128
}

/// When a file was changed and modified, in nanoseconds since the epoch.
pub(super) fn times(stat: &Statx) -> (i128, i128) {
    let time = |time: rustix::fs::StatxTimestamp| {
        i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
    };
    (time(stat.stx_ctime), time(stat.stx_mtime))
}

impl Kept {
    pub(super) fn new() -> Self {
        Self {
            began: SystemTime::now(),
            look: 0,
            known: HashMap::new(),
            nodes: HashMap::new(),
            links: Vec::new(),
            sums: Arc::default(),
            image: HashSet::new(),
        }
    }

    pub(super) fn sums(&self) -> Arc<Sums> {
        self.sums.clone()
    }

    pub(super) fn began(&self) -> SystemTime {
        self.began
    }
}

impl<'a> Seen<'a> {
    pub(super) fn new(kept: &'a mut Kept, window: Window, mapped: Mapped) -> Self {
        kept.look += 1;
        let look = kept.look;
        if kept.known.len() > MANY {
            kept.known.retain(|_, known| known.look + LATEST > look);
        }
        if kept.nodes.len() > MANY {
            kept.nodes.retain(|_, node| node.strong_count() > 0);
        }
        kept.links.retain(|links| links.strong_count() > 0);
        Self {
            kept,
            window,
            mapped,
        }
    }

    /// The contents of the image's files that were met.
    pub(super) fn image(&mut self) -> &mut HashSet<Digest> {
        &mut self.kept.image
    }

    /// Whether a file was there before the witness, which is to say that it is the image's.
    pub(super) fn is_old(&self, stat: &Statx) -> bool {
        times(stat).0 + RACY < nanoseconds(self.kept.began)
    }

    pub(super) fn key(&self, stat: &Statx) -> Key {
        let (changed, modified) = times(stat);
        Key {
            // The image's files are the same in each container, on another overlay.
            device: match self.is_old(stat) {
                true => (0, 0),
                false => (stat.stx_dev_major, stat.stx_dev_minor),
            },
            inode: stat.stx_ino,
            size: stat.stx_size,
            modified,
            changed,
        }
    }

    pub(super) fn known(&mut self, key: &Key) -> Option<What> {
        let look = self.kept.look;
        let known = self.kept.known.get_mut(key)?;
        known.look = look;
        Some(known.what.clone())
    }

    /// Remembers what was read from this moment on, unless the times may have lied by then.
    pub(super) fn remember(&mut self, key: Key, what: What, reading: SystemTime) {
        if key.changed + RACY < nanoseconds(reading) {
            let look = self.kept.look;
            let known = Known {
                what,
                since: look,
                look,
            };
            self.kept.known.insert(key, known);
        }
    }

    /// Forgets what is known since this look.
    pub(super) fn forget_new(&mut self) {
        let look = self.kept.look;
        self.kept.known.retain(|_, known| known.since < look);
    }

    /// One for all that are alike.
    pub(super) fn one(&mut self, node: Node) -> Arc<Node> {
        if let Some(same) = self.kept.nodes.get(&node.exact).and_then(Weak::upgrade) {
            return same;
        }
        let node = Arc::new(node);
        self.kept.nodes.insert(node.exact, Arc::downgrade(&node));
        node
    }

    /// The same of links.
    pub(super) fn one_set(&mut self, links: Links) -> Arc<Links> {
        let all = self.kept.links.iter().filter_map(Weak::upgrade);
        if let Some(same) = all.into_iter().find(|kept| **kept == links) {
            return same;
        }
        let links = Arc::new(links);
        self.kept.links.push(Arc::downgrade(&links));
        links
    }
}
