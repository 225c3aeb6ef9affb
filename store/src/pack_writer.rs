// SPDX-License-Identifier: Apache-2.0

//! Writing a checkpoint: objects into a new pack, then the manifest.
//!
//! Nothing of a checkpoint can be seen before its manifest is renamed into
//! place. A writer that is dropped, or that meets an error, takes its pack
//! with it; what a killed one leaves, the next [`crate::Store::writer`] removes.
//!
//! Everything that a published manifest refers to, directly or through a tree,
//! is in the packs that it names: publishing follows the references, and
//! refuses if one leads nowhere.

use std::{
    collections::{BTreeSet, HashMap},
    fs::File,
    sync::Arc,
};

use crab_fault::Point;

use crate::{
    MAX_OBJECT,
    digest::Digest,
    durable,
    error::{FileError, ReadError, WriteError},
    id::PackId,
    image::ProcessImage,
    manifest::Manifest,
    object::{self, Value},
    pack::{self, FLAG_ZSTD, Location},
    pack_file::PackFile,
    reach,
    sandbox::MANIFEST,
    tree::{Segment, Tree},
    writer::{Borrower, Shared},
};

/// Nearly all of the time that storing takes is the compressor's. A tenth faster on a
/// process's memory than level 1, which leaves 18 % of it instead of 20.
const ZSTD_LEVEL: i32 = -1;

/// The pack that a checkpoint is being written into.
struct Pack {
    id: PackId,
    file: PackFile,
}

impl Pack {
    fn create(shared: &Shared) -> Result<Self, WriteError> {
        let mut id = [0; 16];
        rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| WriteError::Source(error.into()))?;
        let id = PackId(id);
        let file = PackFile::create(shared.store.pack_path(id))?;
        crab_fault::at(Point::PackCreated);
        Ok(Self { id, file })
    }

    /// Makes the pack whole and durable.
    fn finish(&mut self) -> Result<(), FileError> {
        self.file.finish()?;
        let path = self.file.path();
        durable::sync_dir(path.parent().unwrap_or(path))
    }
}

/// Writes one checkpoint. It can be moved to another thread, and lives on when
/// the [`crate::SandboxWriter`] that made it is gone.
pub struct PackWriter {
    shared: Arc<Shared>,
    /// Keeps what published packs have, and this checkpoint leans on, from being removed.
    borrower: Borrower,
    /// Made with the first object that no published pack has.
    pack: Option<Pack>,
    own: HashMap<Digest, Location>,
    compressor: zstd::bulk::Compressor<'static>,
    raw: u64,
    given_up: bool,
}

impl PackWriter {
    pub(crate) fn new(shared: Arc<Shared>) -> Result<Self, WriteError> {
        shared.load_index();
        Ok(Self {
            borrower: shared.borrower(),
            shared,
            pack: None,
            own: HashMap::new(),
            compressor: zstd::bulk::Compressor::new(ZSTD_LEVEL).map_err(WriteError::Source)?,
            raw: 0,
            given_up: false,
        })
    }

    /// Bytes given so far, before dedup and compression.
    pub fn bytes_raw(&self) -> u64 {
        self.raw
    }

    /// Bytes that go to disk for them.
    pub fn bytes_stored(&self) -> u64 {
        self.pack.as_ref().map_or(0, |pack| pack.file.len())
    }

    /// Counts bytes that were given and are in an object already.
    pub(crate) fn count(&mut self, bytes: usize) {
        self.raw += bytes as u64;
    }

    /// Stores an object, unless the sandbox has it.
    pub fn put(&mut self, bytes: &[u8]) -> Result<Digest, WriteError> {
        self.put_as(Digest::of(bytes), bytes)
    }

    /// The same of bytes whose digest is known.
    pub(crate) fn put_as(&mut self, digest: Digest, bytes: &[u8]) -> Result<Digest, WriteError> {
        if self.given_up {
            return Err(WriteError::GivenUp);
        }
        if bytes.len() > MAX_OBJECT {
            return Err(WriteError::TooLarge {
                what: "object",
                size: bytes.len() as u64,
                limit: MAX_OBJECT as u64,
            });
        }
        self.raw += bytes.len() as u64;
        if self.own.contains_key(&digest) || self.borrow(&digest).is_some() {
            return Ok(digest);
        }
        match self.append(digest, bytes) {
            Ok(()) => Ok(digest),
            Err(error) => {
                self.give_up();
                Err(error)
            }
        }
    }

    fn append(&mut self, digest: Digest, bytes: &[u8]) -> Result<(), WriteError> {
        let packed = self
            .compressor
            .compress(bytes)
            .map_err(WriteError::Source)?;
        let (method, stored) = if packed.len() < bytes.len() {
            (FLAG_ZSTD, packed.as_slice())
        } else {
            (0, bytes)
        };
        let pack = match &mut self.pack {
            Some(pack) => pack,
            none => none.insert(Pack::create(&self.shared)?),
        };
        let location = pack
            .file
            .append(digest, bytes.len() as u32, method, stored)?;
        self.own.insert(digest, location);
        Ok(())
    }

    /// Stores a tree.
    pub fn put_tree(&mut self, tree: &Tree) -> Result<Digest, WriteError> {
        tree.check()?;
        self.put_value(tree)
    }

    /// Stores a process image.
    pub fn put_process_image(&mut self, image: &ProcessImage) -> Result<Digest, WriteError> {
        self.put_value(image)
    }

    fn put_value<T: Value>(&mut self, value: &T) -> Result<Digest, WriteError> {
        let bad = |why| WriteError::Value { what: T::NAME, why };
        if let Some(why) = value.fault() {
            return Err(bad(why));
        }
        let prefix = object::prefix::<T>(object::WHOLE).to_vec();
        let whole = postcard::to_extend(value, prefix).map_err(|error| bad(error.to_string()))?;
        if whole.len() <= object::PART {
            return self.put(&whole);
        }
        let payload = &whole[object::prefix::<T>(object::WHOLE).len()..];
        if payload.len() as u64 > object::MAX_VALUE {
            return Err(WriteError::TooLarge {
                what: T::NAME,
                size: payload.len() as u64,
                limit: object::MAX_VALUE,
            });
        }
        let mut parts = Vec::new();
        for (number, part) in payload.chunks(object::PART).enumerate() {
            parts.push(Segment {
                offset: (number * object::PART) as u64,
                len: part.len() as u32,
                digest: self.put(part)?,
            });
        }
        let prefix = object::prefix::<T>(object::SPLIT).to_vec();
        let split = postcard::to_extend(&parts, prefix).map_err(|error| bad(error.to_string()))?;
        self.put(&split)
    }

    /// Publishes the checkpoint, and returns its manifest with `packs` and the
    /// byte counts filled in. If this fails, nothing of it is left.
    pub fn publish(mut self, mut manifest: Manifest) -> Result<Manifest, WriteError> {
        if self.given_up {
            return Err(WriteError::GivenUp);
        }
        let shared = self.shared.clone();
        let path = shared.store.manifest_path(manifest.turn);
        // One at a time, so that no other takes the turn meanwhile.
        let _publishing = shared.publishing()?;
        if path.exists() {
            return Err(WriteError::TurnExists(manifest.turn));
        }
        if manifest.sandbox != *shared.store.id() {
            return Err(WriteError::Value {
                what: "manifest",
                why: format!("it is one of sandbox {}", manifest.sandbox),
            });
        }
        if let Some(pack) = &mut self.pack {
            pack.file.flush()?;
            crab_fault::at(Point::PackWritten);
        }
        let packs = self.reachable(&manifest).map_err(WriteError::Incomplete)?;
        manifest.packs = packs.into_iter().collect();
        if let Some(pack) = &mut self.pack {
            pack.finish()?;
        }
        manifest.bytes_raw = self.bytes_raw();
        manifest.bytes_stored = self.bytes_stored();
        let bytes = MANIFEST
            .seal(&manifest)
            .map_err(|error| WriteError::Value {
                what: "manifest",
                why: error.to_string(),
            })?;
        crab_fault::at(Point::PackSynced);
        let written = || crab_fault::at(Point::ManifestWritten);
        let renamed = || crab_fault::at(Point::ManifestRenamed);
        if let Err(error) = durable::replace_and(&path, &bytes, written, renamed) {
            // It may be there already, and only its name not durable.
            let _ = durable::remove(&path);
            return Err(error.into());
        }
        if let Some(pack) = self.pack.take() {
            shared.add_pack(pack.id, pack.file.objects());
        }
        crab_fault::at(Point::Published);
        Ok(manifest)
    }

    /// Where a published pack has an object, which is not removed while this writer lives.
    fn borrow(&self, digest: &Digest) -> Option<(PackId, Location)> {
        self.shared.borrow(&self.borrower, digest)
    }

    /// Every pack that holds something the manifest refers to.
    fn reachable(&self, manifest: &Manifest) -> Result<BTreeSet<PackId>, ReadError> {
        let mut packs = BTreeSet::new();
        for root in reach::roots(manifest) {
            root.follow(
                |digest| self.get(digest),
                |digest| {
                    let pack = match (&self.pack, self.own.contains_key(&digest)) {
                        (Some(pack), true) => pack.id,
                        _ => self.borrow(&digest).ok_or(ReadError::NoObject(digest))?.0,
                    };
                    packs.insert(pack);
                    Ok(())
                },
            )?;
        }
        Ok(packs)
    }

    /// Reads an object of this checkpoint or an older one.
    pub(crate) fn get(&self, digest: Digest) -> Result<Vec<u8>, ReadError> {
        if let (Some(pack), Some(location)) = (&self.pack, self.own.get(&digest)) {
            return pack::read_object(pack.file.file(), pack.file.path(), digest, *location);
        }
        let mut place = self.borrow(&digest).ok_or(ReadError::NoObject(digest))?;
        loop {
            let (pack, location) = place;
            let path = self.shared.store.pack_path(pack);
            let read = File::open(&path)
                .map_err(|error| FileError::of("open", &path)(error).into())
                .and_then(|file| pack::read_object(&file, &path, digest, location));
            // A pack that was replaced meanwhile has it elsewhere.
            match self.borrow(&digest) {
                Some(now) if read.is_err() && now != place => place = now,
                _ => return read,
            }
        }
    }

    /// Gives the space back at once.
    fn give_up(&mut self) {
        self.given_up = true;
        self.own.clear();
        if let Some(pack) = self.pack.take() {
            // The next writer removes it if this fails.
            let _ = durable::remove(pack.file.path());
        }
    }
}

impl Drop for PackWriter {
    fn drop(&mut self) {
        self.give_up();
    }
}
