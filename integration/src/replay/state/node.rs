// SPDX-License-Identifier: Apache-2.0

//! One file of whatever type, and all below it; and how two of them differ.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use rustix::fs::{FileType, Statx};

use super::{Digest, How, add, content::Content, kept::times, rules, shown};

/// Extended attributes.
pub(super) type Attributes = BTreeMap<Vec<u8>, Vec<u8>>;

/// A file of whatever type, and all below it.
#[derive(Debug)]
pub(super) struct Node {
    kind: FileType,
    mode: u16,
    owner: (u32, u32),
    device: (u32, u32),
    attributes: Arc<Attributes>,
    inside: Inside,
    /// In nanoseconds since the epoch; of what is no directory.
    modified: Option<i128>,
    /// Of everything here and below.
    pub(super) exact: Digest,
    /// Of that by which runs are compared.
    pub(super) normal: Digest,
}

#[derive(Debug)]
pub(super) enum Inside {
    Nothing,
    /// The client mounted something here.
    Mount,
    Target(Vec<u8>),
    File(Content),
    /// By name.
    Directory(Vec<Child>),
}

#[derive(Debug)]
pub(super) struct Child {
    pub(super) name: Vec<u8>,
    /// By the rules, where that is another.
    pub(super) normal: Option<Vec<u8>>,
    pub(super) node: Arc<Node>,
}

impl Node {
    pub(super) fn mount(about: &Statx) -> Self {
        let mut node = Self::new(about, Arc::default(), Inside::Mount);
        // What it is lies with whoever mounted it.
        (node.mode, node.owner, node.device, node.modified) = (0, (0, 0), (0, 0), None);
        node.seal()
    }

    pub(super) fn new(about: &Statx, attributes: Arc<Attributes>, inside: Inside) -> Self {
        let kind = FileType::from_raw_mode(about.stx_mode.into());
        Self {
            kind,
            mode: about.stx_mode & 0o7777,
            owner: (about.stx_uid, about.stx_gid),
            device: (about.stx_rdev_major, about.stx_rdev_minor),
            attributes,
            inside,
            modified: (!kind.is_dir()).then_some(times(about).1),
            exact: Digest::default(),
            normal: Digest::default(),
        }
        .seal()
    }

    /// With its digests, after which it does not change.
    fn seal(mut self) -> Self {
        let mut normal = blake3::Hasher::new();
        let mut facts = Vec::with_capacity(32);
        facts.extend(self.kind.as_raw_mode().to_le_bytes());
        facts.extend(self.mode.to_le_bytes());
        for number in [self.owner.0, self.owner.1, self.device.0, self.device.1] {
            facts.extend(number.to_le_bytes());
        }
        add(&mut normal, &facts);
        add(&mut normal, &(self.attributes.len() as u64).to_le_bytes());
        for (name, value) in &*self.attributes {
            add(&mut normal, name);
            add(&mut normal, value);
        }
        let mut exact = normal.clone();
        match &self.inside {
            Inside::Nothing => {}
            Inside::Mount => add(&mut normal, b"mount"),
            Inside::Target(target) => {
                add(&mut exact, target);
                add(&mut normal, &rules::words(target));
            }
            Inside::File(content) => {
                add(&mut exact, &content.exact);
                // Of one content the rules make another by the time at which it was looked at.
                add(&mut exact, &content.normal);
                add(&mut normal, &content.normal);
            }
            Inside::Directory(children) => {
                let mut all: Vec<_> = children
                    .iter()
                    .map(|child| (child.normal(), child.node.normal))
                    .collect();
                all.sort_unstable();
                for (name, digest) in all {
                    add(&mut normal, name);
                    add(&mut normal, &digest);
                }
                for child in children {
                    add(&mut exact, &child.name);
                    add(&mut exact, child.normal());
                    add(&mut exact, &child.node.exact);
                }
            }
        }
        if let Some(modified) = self.modified {
            add(&mut exact, &modified.to_le_bytes());
        }
        self.exact = exact.finalize().into();
        self.normal = normal.finalize().into();
        self
    }

    fn digest(&self, how: How) -> Digest {
        match how {
            How::Normal => self.normal,
            How::Exact => self.exact,
        }
    }

    /// How a file and all below it differ, a line each.
    pub(super) fn unlike(&self, then: &Self, path: &[u8], how: How, lines: &mut Vec<String>) {
        if self.digest(how) == then.digest(how) {
            return;
        }
        let target = |node: &Self| match (&node.inside, how) {
            (Inside::Target(target), How::Exact) => target.clone(),
            (Inside::Target(target), How::Normal) => rules::words(target),
            _ => Vec::new(),
        };
        let content = match (&self.inside, &then.inside) {
            // What is the same to the byte is so by any rule.
            (Inside::File(now), Inside::File(then)) => {
                now.exact != then.exact && (how == How::Exact || now.normal != then.normal)
            }
            _ => false,
        };
        let size = |node: &Self| match node.inside {
            Inside::File(content) => content.size,
            _ => 0,
        };
        let parts = [
            ("type", self.kind != then.kind),
            ("mount", self.is_mount() != then.is_mount()),
            ("mode", self.mode != then.mode),
            ("owner", self.owner != then.owner),
            ("device", self.device != then.device),
            ("attributes", self.attributes != then.attributes),
            ("target", target(self) != target(then)),
            ("content", content),
            ("time", how == How::Exact && self.modified != then.modified),
        ];
        let parts = parts.into_iter().filter(|(_, differs)| *differs);
        let parts: Vec<&str> = parts.map(|(what, _)| what).collect();
        if !parts.is_empty() {
            let mut line = format!("{} has another {}", shown_path(path), parts.join(", "));
            if content && size(self) != size(then) {
                line += &format!(" ({} bytes, not {})", size(self), size(then));
            }
            lines.push(line);
        }
        let (mut now, mut before) = (self.below(how), then.below(how));
        let names: BTreeSet<Vec<u8>> = now.keys().chain(before.keys()).cloned().collect();
        for name in names {
            let mut path = path.to_vec();
            path.push(b'/');
            path.extend_from_slice(&name);
            let mut now = now.remove(&name).unwrap_or_default();
            let mut before = before.remove(&name).unwrap_or_default();
            // Where a rule gives several one name, those that are alike belong together.
            now.retain(|node| {
                let same = before
                    .iter()
                    .position(|then| node.digest(how) == then.digest(how));
                same.map(|at| before.remove(at)).is_none()
            });
            let both = now.len().min(before.len());
            for (now, then) in now.drain(..both).zip(before.drain(..both)) {
                now.unlike(then, &path, how, lines);
            }
            lines.extend(
                now.iter()
                    .map(|node| format!("{} is new: {}", shown_path(&path), node.told())),
            );
            lines.extend(
                before
                    .iter()
                    .map(|node| format!("{} is missing: {}", shown_path(&path), node.told())),
            );
        }
    }

    /// What is in a directory, by name.
    fn below(&self, how: How) -> BTreeMap<Vec<u8>, Vec<&Self>> {
        let mut all: BTreeMap<Vec<u8>, Vec<&Self>> = BTreeMap::new();
        if let Inside::Directory(children) = &self.inside {
            for child in children {
                let name = match how {
                    How::Normal => child.normal(),
                    How::Exact => &child.name,
                };
                all.entry(name.to_vec()).or_default().push(&child.node);
            }
        }
        for nodes in all.values_mut() {
            nodes.sort_by_key(|node| node.normal);
        }
        all
    }

    fn is_mount(&self) -> bool {
        matches!(self.inside, Inside::Mount)
    }

    fn told(&self) -> String {
        let mode = self.mode;
        match &self.inside {
            Inside::File(content) => format!("file {mode:o}, {} bytes", content.size),
            Inside::Target(target) => format!("symlink to {}", shown(target)),
            Inside::Directory(all) => format!("directory {mode:o} of {}", all.len()),
            Inside::Mount => "mount".into(),
            Inside::Nothing => format!("{:?} {mode:o}", self.kind),
        }
    }
}

impl Child {
    fn normal(&self) -> &[u8] {
        self.normal.as_deref().unwrap_or(&self.name)
    }
}

fn shown_path(path: &[u8]) -> String {
    match path.is_empty() {
        true => "/".into(),
        false => shown(path),
    }
}
