// SPDX-License-Identifier: Apache-2.0

//! Which objects of a sandbox are needed: by which half, and by how many checkpoints.

use std::collections::{HashMap, HashSet};

use crate::{
    digest::Digest,
    error::ReadError,
    manifest::Manifest,
    pack,
    reach::{self, Root},
    reader::ObjectReader,
    sandbox::SandboxStore,
};

/// The objects that the checkpoints need which were marked so far.
pub(crate) struct Marks {
    reader: ObjectReader,
    live: HashSet<Digest>,
    followed: HashSet<Root>,
}

/// What marking a checkpoint brought that none marked before it needs, in bytes of disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Added {
    pub(crate) files: u64,
    pub(crate) processes: u64,
    pub(crate) rest: u64,
}

impl Added {
    pub(crate) fn total(self) -> u64 {
        self.files + self.processes + self.rest
    }
}

impl Marks {
    /// None yet. As long as this lives, no pack of the sandbox is removed.
    pub(crate) fn new(store: &SandboxStore) -> Result<Self, ReadError> {
        Ok(Self {
            reader: ObjectReader::of_all(store)?,
            live: HashSet::new(),
            followed: HashSet::new(),
        })
    }

    /// Marks what a checkpoint needs. An error means that it is not known.
    pub(crate) fn mark(&mut self, manifest: &Manifest) -> Result<Added, ReadError> {
        let mut added = Added::default();
        for root in reach::roots(manifest) {
            if !self.followed.insert(root) {
                continue;
            }
            let bytes = match root {
                Root::Tree(_) => &mut added.files,
                Root::Image(_) => &mut added.processes,
                Root::Spec(_) => &mut added.rest,
            };
            let (reader, live) = (&self.reader, &mut self.live);
            root.follow(
                |digest| reader.get(digest),
                |digest| {
                    let (_, location) = reader.find(&digest).ok_or(ReadError::NoObject(digest))?;
                    if live.insert(digest) {
                        *bytes += pack::room(&location);
                    }
                    Ok(())
                },
            )?;
        }
        Ok(added)
    }

    /// The objects that are needed.
    pub(crate) fn into_live(self) -> HashSet<Digest> {
        self.live
    }
}

/// How many bytes of disk each of these checkpoints needs that no other one does.
pub(crate) fn unique(store: &SandboxStore, manifests: &[Manifest]) -> Result<Vec<u64>, ReadError> {
    const SEVERAL: usize = usize::MAX;
    let reader = ObjectReader::of_all(store)?;
    let mut user: HashMap<Digest, usize> = HashMap::new();
    let mut of_root: HashMap<Root, usize> = HashMap::new();
    // A root that two checkpoints have is followed once for both.
    for (number, manifest) in manifests.iter().enumerate() {
        for root in reach::roots(manifest) {
            of_root
                .entry(root)
                .and_modify(|user| {
                    if *user != number {
                        *user = SEVERAL;
                    }
                })
                .or_insert(number);
        }
    }
    for (root, number) in of_root {
        root.follow(
            |digest| reader.get(digest),
            |digest| {
                user.entry(digest)
                    .and_modify(|user| {
                        if *user != number {
                            *user = SEVERAL;
                        }
                    })
                    .or_insert(number);
                Ok(())
            },
        )?;
    }
    let mut unique = vec![0; manifests.len()];
    for (digest, number) in user {
        if let Some(bytes) = unique.get_mut(number)
            && let Some((_, location)) = reader.find(&digest)
        {
            *bytes += pack::room(&location);
        }
    }
    Ok(unique)
}
