// SPDX-License-Identifier: Apache-2.0

//! Reading a checkpoint's objects back. Every byte is checked against the
//! digest that it was asked for by.

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
    manifest::Manifest,
    object::{self, Value},
    pack::{self, Index},
    sandbox::SandboxStore,
    tree::Tree,
};

/// How many packs are kept open.
const MAX_OPEN: usize = 64;

/// Reads the objects of one checkpoint. May be shared between threads.
pub struct ObjectReader {
    store: SandboxStore,
    index: Index,
    open: Mutex<HashMap<PackId, Arc<File>>>,
}

impl ObjectReader {
    pub(crate) fn new(store: SandboxStore, manifest: &Manifest) -> Result<Self, ReadError> {
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
        })
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
