// SPDX-License-Identifier: Apache-2.0

//! Reading a checkpoint's objects back. Every byte is checked against the
//! digest that it was asked for by.
//!
//! A reader has the lock of readers (locks.rs) for as long as it lives: no pack is removed or
//! replaced under it. So it never sees half of a checkpoint, at the price that what is
//! removed meanwhile is freed when the next removal comes.

use std::{
    collections::HashMap,
    fs::File,
    io::ErrorKind,
    sync::{Arc, Mutex, PoisonError},
};

use crate::{
    digest::Digest,
    error::{FileError, ReadError},
    id::PackId,
    image::ProcessImage,
    locks::{self, Held},
    manifest::Manifest,
    object::{self, Value},
    pack::{self, Index, Location},
    sandbox::SandboxStore,
    tree::Tree,
    writer::packs,
};

/// How many packs are kept open.
const MAX_OPEN: usize = 64;

/// Reads the objects of one checkpoint. May be shared between threads.
pub struct ObjectReader {
    store: SandboxStore,
    index: Index,
    open: Mutex<HashMap<PackId, Arc<File>>>,
    _reading: Held,
}

impl ObjectReader {
    pub(crate) fn new(store: SandboxStore, manifest: &Manifest) -> Result<Self, ReadError> {
        let reading = locks::reading(&store)?;
        // From here on no pack goes. Those of a manifest that went before may be gone.
        if !store.manifest_path(manifest.turn).exists() {
            return Err(ReadError::NoCheckpoint {
                sandbox: store.id().clone(),
                turn: manifest.turn,
                why: "it has just been removed".to_owned(),
                left: Box::default(),
            });
        }
        let mut index = Index::default();
        for pack in &manifest.packs {
            match pack::read_index(&store.pack_path(*pack)) {
                Ok(objects) => index.add(*pack, &objects),
                Err(ReadError::File(error)) if error.cause.kind() == ErrorKind::NotFound => {
                    return Err(ReadError::NoPack {
                        pack: *pack,
                        dir: store.packs_dir(),
                    });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Self {
            store,
            index,
            open: Mutex::default(),
            _reading: reading,
        })
    }

    /// Reads the objects of all packs that are sound.
    pub(crate) fn of_all(store: &SandboxStore) -> Result<Self, ReadError> {
        let reading = locks::reading(store)?;
        let mut index = Index::default();
        for pack in packs(store)? {
            if let Ok(objects) = pack::read_index(&store.pack_path(pack)) {
                index.add(pack, &objects);
            }
        }
        Ok(Self {
            store: store.clone(),
            index,
            open: Mutex::default(),
            _reading: reading,
        })
    }

    /// Where an object is.
    pub(crate) fn find(&self, digest: &Digest) -> Option<(PackId, Location)> {
        self.index.find(digest)
    }

    fn file(&self, pack: PackId) -> Result<Arc<File>, ReadError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = open.get(&pack) {
            return Ok(file.clone());
        }
        let path = self.store.pack_path(pack);
        let file = Arc::new(File::open(&path).map_err(FileError::of("open", &path))?);
        if open.len() >= MAX_OPEN {
            open.clear();
        }
        open.insert(pack, file.clone());
        Ok(file)
    }

    /// An object's bytes.
    pub fn get(&self, digest: Digest) -> Result<Vec<u8>, ReadError> {
        let (pack, location) = self
            .index
            .find(&digest)
            .ok_or(ReadError::NoObject(digest))?;
        pack::read_object(
            &*self.file(pack)?,
            &self.store.pack_path(pack),
            digest,
            location,
        )
    }

    /// A tree.
    pub fn tree(&self, digest: Digest) -> Result<Tree, ReadError> {
        self.value(digest)
    }

    /// A process image.
    pub fn process_image(&self, digest: Digest) -> Result<ProcessImage, ReadError> {
        self.value(digest)
    }

    fn value<T: Value>(&self, digest: Digest) -> Result<T, ReadError> {
        object::decode(digest, &self.get(digest)?, |part| self.get(part))
    }
}
