// SPDX-License-Identifier: Apache-2.0

//! What comes new in journals, read as it comes.
//!
//! ```text
//! journal   header  record  record  record | rec
//!                                          ^ place: what lies behind it is not whole yet
//! ```
//! A look costs one `stat` per journal, and reads only what has been appended since the one before. A
//! journal is known by its inode: one that is kept under another name from now on goes on, one that a
//! repair has written anew goes on behind the record that was read last, and one that another sandbox of
//! the same name has begun is read from its beginning.
//!
//! It changes nothing and holds no lock.

use std::{
    collections::BTreeMap,
    fs::{self, File, Metadata},
    io::ErrorKind,
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
};

use crate::{
    error::{FileError, OpenError, ReadError},
    id::SandboxId,
    journal::{self, Frame, HEADER_LEN},
    record::JournalRecord,
    sandbox::SandboxStore,
    store::Store,
};

/// Where in the journals that are there already it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowFrom {
    /// With their first records.
    Beginning,
    /// Behind their last ones.
    Now,
}

/// Reads the journals of a store, or of one sandbox.
#[derive(Debug)]
pub struct Follow {
    store: Store,
    only: Option<SandboxId>,
    tails: BTreeMap<SandboxId, Tail>,
}

/// A journal that cannot be followed; told once.
pub type Unreadable = (SandboxId, ReadError);

/// How far a journal has been read.
#[derive(Clone, Debug)]
struct Tail {
    inode: (u64, u64),
    /// Where the last record that was read ends.
    place: u64,
    /// Where it begins, and its check.
    last: Option<(u64, [u8; journal::CHECK_LEN])>,
    /// How long the journal was then.
    len: u64,
    /// That it cannot be read has been told.
    told: bool,
}

impl Tail {
    fn new(inode: (u64, u64)) -> Self {
        Self {
            inode,
            place: 0,
            last: None,
            len: 0,
            told: false,
        }
    }
}

fn inode(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

impl Follow {
    /// Begins to follow all sandboxes, or `only` one.
    ///
    /// # Errors
    /// When the sandboxes cannot be listed.
    pub fn begin(
        store: Store,
        only: Option<SandboxId>,
        from: FollowFrom,
    ) -> Result<Self, OpenError> {
        let mut follow = Self {
            store,
            only,
            tails: BTreeMap::new(),
        };
        if from == FollowFrom::Now {
            for (sandbox, metadata) in follow.there()? {
                let mut tail = Tail::new(inode(&metadata));
                // What cannot be read is told by the first look.
                if let Ok(file) = File::open(sandbox.journal_path()) {
                    let mut last = None;
                    let end = journal::end(&file, metadata.len(), &mut last);
                    (tail.place, tail.last) = (end.unwrap_or_default(), last);
                }
                follow.tails.insert(sandbox.id().clone(), tail);
            }
        }
        Ok(follow)
    }

    /// The journals that there are.
    fn there(&self) -> Result<Vec<(SandboxStore, Metadata)>, OpenError> {
        let ids = match &self.only {
            Some(only) => vec![only.clone()],
            None => self.store.sandboxes()?,
        };
        let mut there = Vec::with_capacity(ids.len());
        for id in ids {
            let sandbox = self.store.at(&id);
            match fs::metadata(sandbox.journal_path()) {
                Ok(metadata) if metadata.is_file() => there.push((sandbox, metadata)),
                Err(error) if !is_gone(&error) => {
                    return Err(FileError::of("read", &sandbox.journal_path())(error).into());
                }
                // It has none yet, or no more.
                _ => {}
            }
        }
        Ok(there)
    }

    /// Hands on the records that have come since the last look, those of one sandbox in their order.
    /// Tells which journals cannot be read, once each: the others are followed.
    ///
    /// # Errors
    /// When the sandboxes cannot be listed.
    pub fn look(
        &mut self,
        each: &mut dyn FnMut(&SandboxId, JournalRecord),
    ) -> Result<Vec<Unreadable>, OpenError> {
        let there = self.there()?;
        let mut before = std::mem::take(&mut self.tails);
        // Those that have kept their journal, under whatever name.
        let mut by_inode: BTreeMap<(u64, u64), SandboxId> = BTreeMap::new();
        for (id, tail) in &before {
            by_inode.insert(tail.inode, id.clone());
        }
        let mut kept: BTreeMap<SandboxId, Tail> = BTreeMap::new();
        for (sandbox, metadata) in &there {
            let tail = by_inode
                .get(&inode(metadata))
                .and_then(|id| before.remove(id));
            if let Some(tail) = tail {
                kept.insert(sandbox.id().clone(), tail);
            }
        }
        let mut faults = Vec::new();
        for (sandbox, metadata) in there {
            let id = sandbox.id().clone();
            let mut tail = kept.remove(&id).unwrap_or_else(|| {
                let mut tail = Tail::new(inode(&metadata));
                // Its journal was written anew, or it is another sandbox: what was read last tells.
                tail.last = before.remove(&id).and_then(|tail| tail.last);
                tail
            });
            if metadata.len() != tail.len || tail.place == 0 {
                let fault = tail.look(&sandbox.journal_path(), &mut |record| each(&id, record));
                faults.extend(fault.map(|error| (id.clone(), error)));
            }
            self.tails.insert(id, tail);
        }
        Ok(faults)
    }

    /// The same of one sandbox that is followed, for one that is told that its journal has changed.
    ///
    /// # Errors
    /// As [`Follow::look`], which it falls back to where that journal is another one.
    pub fn look_at(
        &mut self,
        id: &SandboxId,
        each: &mut dyn FnMut(&SandboxId, JournalRecord),
    ) -> Result<Vec<Unreadable>, OpenError> {
        let path = self.store.at(id).journal_path();
        let there = fs::metadata(&path).ok().map(|metadata| inode(&metadata));
        match self.tails.get_mut(id) {
            Some(tail) if there == Some(tail.inode) => {
                let fault = tail.look(&path, &mut |record| each(id, record));
                Ok(fault.map(|error| (id.clone(), error)).into_iter().collect())
            }
            _ => self.look(each),
        }
    }
}

fn is_gone(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

impl Tail {
    /// Reads what has come. Why that is not possible, if it has not been told yet.
    fn look(&mut self, path: &Path, each: &mut dyn FnMut(JournalRecord)) -> Option<ReadError> {
        match self.read(path, each) {
            Ok(()) => {
                self.told = false;
                None
            }
            Err(error) => (!std::mem::replace(&mut self.told, true)).then_some(error),
        }
    }

    /// Reads what has come.
    fn read(&mut self, path: &Path, each: &mut dyn FnMut(JournalRecord)) -> Result<(), ReadError> {
        let file = match File::open(path) {
            Ok(file) => file,
            // The next look finds out what has become of it.
            Err(error) if is_gone(&error) => return Ok(()),
            Err(error) => return Err(FileError::of("open", path)(error).into()),
        };
        let metadata = file.metadata().map_err(FileError::of("read", path))?;
        if inode(&metadata) != self.inode {
            return Ok(());
        }
        let len = metadata.len();
        if self.place > 0 && !self.is_where_it_was(&file, len) {
            self.place = 0;
        }
        if self.place == 0 {
            if !journal::has_header(path, &file, len)? {
                self.len = len;
                return Ok(());
            }
            self.place = self.after_last(path, &file, len)?;
        }
        let mut last = self.last;
        self.place = journal::frames(path, &file, self.place, len, &mut |frame: Frame| {
            last = Some((frame.begin, frame.check));
            each(frame.record);
        })?;
        (self.last, self.len) = (last, len);
        Ok(())
    }

    /// Whether what was read last is still there: an inode's number may be another file's by now.
    fn is_where_it_was(&self, file: &File, len: u64) -> bool {
        let Some((begin, check)) = self.last else {
            return self.place <= len;
        };
        let mut found = [0; journal::CHECK_LEN];
        let at = begin + journal::CHECK_AT as u64;
        self.place <= len && file.read_exact_at(&mut found, at).is_ok() && found == check
    }

    /// Behind the record that was read last, where that is in the journal; else its beginning.
    fn after_last(&self, path: &Path, file: &File, len: u64) -> Result<u64, ReadError> {
        let mut after = HEADER_LEN as u64;
        if let Some((_, check)) = self.last {
            journal::frames(path, file, after, len, &mut |frame: Frame| {
                if frame.check == check {
                    after = frame.end;
                }
            })?;
        }
        Ok(after)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write;

    use super::*;
    use crate::{CaptureFailed, Durability, SandboxWriter, TurnId};

    fn record(turn: u64) -> JournalRecord {
        JournalRecord::CaptureFailed(CaptureFailed {
            at_ms: turn,
            turn: TurnId(turn),
            reason: "x".repeat(turn as usize % 50),
            kind: Default::default(),
        })
    }

    fn append(writer: &SandboxWriter, turns: std::ops::Range<u64>) {
        for turn in turns {
            writer.append(record(turn), Durability::Lazy).unwrap();
        }
    }

    fn id(name: &str) -> SandboxId {
        SandboxId::new("default", name).unwrap()
    }

    struct Host {
        dir: tempfile::TempDir,
        store: Store,
    }

    impl Host {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let store = Store::create(dir.path()).unwrap();
            Self { dir, store }
        }

        fn follow(&self, from: FollowFrom) -> Follow {
            Follow::begin(self.store.clone(), None, from).unwrap()
        }

        fn journal(&self, name: &str) -> std::path::PathBuf {
            self.dir
                .path()
                .join("sandboxes/default")
                .join(name)
                .join("journal")
        }
    }

    fn new(follow: &mut Follow) -> Vec<(String, u64)> {
        let mut new = Vec::new();
        let faults = follow
            .look(&mut |id, record| new.push((id.id().to_owned(), record.turn().unwrap().0)))
            .unwrap();
        assert!(faults.is_empty(), "{faults:?}");
        new
    }

    fn of(name: &str, turns: std::ops::Range<u64>) -> Vec<(String, u64)> {
        turns.map(|turn| (name.to_owned(), turn)).collect()
    }

    #[test]
    fn each_record_is_told_once_and_new_sandboxes_from_their_beginning() {
        let host = Host::new();
        let a = host.store.writer(&id("a")).unwrap();
        append(&a, 0..3);
        let mut all = host.follow(FollowFrom::Beginning);
        let mut later = host.follow(FollowFrom::Now);
        assert_eq!(new(&mut all), of("a", 0..3));
        assert_eq!(new(&mut later), []);
        append(&a, 3..5);
        let b = host.store.writer(&id("b")).unwrap();
        append(&b, 0..2);
        let expected = [of("a", 3..5), of("b", 0..2)].concat();
        assert_eq!(new(&mut all), expected);
        assert_eq!(new(&mut later), expected);
        assert_eq!(new(&mut all), []);
        let mut one =
            Follow::begin(host.store.clone(), Some(id("b")), FollowFrom::Beginning).unwrap();
        assert_eq!(new(&mut one), of("b", 0..2));
    }

    #[test]
    fn a_record_is_not_told_before_it_is_whole() {
        let host = Host::new();
        drop(host.store.writer(&id("a")).unwrap());
        let mut follow = host.follow(FollowFrom::Beginning);
        assert_eq!(new(&mut follow), []);
        // What another journal has, byte by byte.
        let b = host.store.writer(&id("b")).unwrap();
        append(&b, 1..3);
        let whole = fs::read(host.journal("b")).unwrap();
        let mut told = Vec::new();
        let mut file = OpenOptions::new()
            .write(true)
            .open(host.journal("a"))
            .unwrap();
        fs::remove_dir_all(host.journal("b").parent().unwrap()).unwrap();
        for byte in &whole {
            file.write_all(&[*byte]).unwrap();
            told.extend(new(&mut follow));
        }
        assert_eq!(told, of("a", 1..3));
        // Nor does one that begins now with half a record miss the rest of it.
        append(&host.store.writer(&id("a")).unwrap(), 3..4);
        let whole = fs::read(host.journal("a")).unwrap();
        fs::write(host.journal("a"), &whole[..whole.len() - 3]).unwrap();
        let mut later = host.follow(FollowFrom::Now);
        assert_eq!(new(&mut later), []);
        fs::write(host.journal("a"), &whole).unwrap();
        assert_eq!(new(&mut later), of("a", 3..4));
    }

    #[test]
    fn a_torn_tail_that_is_cut_off_and_written_over_loses_nothing() {
        let host = Host::new();
        let a = host.store.writer(&id("a")).unwrap();
        append(&a, 0..2);
        drop(a);
        let path = host.journal("a");
        let mut torn = fs::read(&path).unwrap();
        torn.extend([0xff, b'C', b'J', 0xfe, 9, 0, 0, 0, 1, 2, 3]);
        fs::write(&path, &torn).unwrap();
        let mut follow = host.follow(FollowFrom::Now);
        assert_eq!(new(&mut follow), []);
        append(&host.store.writer(&id("a")).unwrap(), 2..5);
        assert_eq!(new(&mut follow), of("a", 2..5));
    }

    #[test]
    fn a_journal_with_another_name_goes_on_and_its_successor_is_new() {
        let host = Host::new();
        let a = host.store.writer(&id("a")).unwrap();
        append(&a, 0..3);
        let mut follow = host.follow(FollowFrom::Beginning);
        assert_eq!(new(&mut follow).len(), 3);
        append(&a, 3..4);
        let dir = host.journal("a").parent().unwrap().to_owned();
        fs::rename(&dir, dir.with_file_name("a.17")).unwrap();
        drop(a);
        append(&host.store.writer(&id("a")).unwrap(), 0..2);
        let expected = [of("a", 0..2), of("a.17", 3..4)].concat();
        assert_eq!(new(&mut follow), expected);
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(new(&mut follow), []);
    }

    #[test]
    fn a_journal_that_was_written_anew_goes_on_where_it_was() {
        let host = Host::new();
        let path = host.journal("a");
        append(&host.store.writer(&id("a")).unwrap(), 0..3);
        let mut follow = host.follow(FollowFrom::Beginning);
        assert_eq!(new(&mut follow).len(), 3);
        // As a repair does it.
        let anew = path.with_file_name("anew");
        fs::copy(&path, &anew).unwrap();
        fs::rename(&anew, &path).unwrap();
        assert_eq!(new(&mut follow), []);
        append(&host.store.writer(&id("a")).unwrap(), 3..5);
        assert_eq!(new(&mut follow), of("a", 3..5));
        // Another sandbox of that name, in whatever inode.
        let dir = path.parent().unwrap();
        fs::remove_dir_all(dir).unwrap();
        append(&host.store.writer(&id("a")).unwrap(), 7..9);
        assert_eq!(new(&mut follow), of("a", 7..9));
    }

    #[test]
    fn a_journal_of_a_later_version_is_told_of_once_and_holds_up_no_other() {
        let host = Host::new();
        append(&host.store.writer(&id("a")).unwrap(), 0..1);
        let path = host.journal("a");
        let mut bytes = fs::read(&path).unwrap();
        bytes[8] = 2;
        fs::write(&path, &bytes).unwrap();
        let b = host.store.writer(&id("b")).unwrap();
        append(&b, 0..1);
        let mut follow = host.follow(FollowFrom::Beginning);
        let mut told = 0;
        let faults = follow.look(&mut |_, _| told += 1).unwrap();
        assert!(matches!(&faults[..], [(a, ReadError::NewerFormat { .. })] if *a == id("a")));
        assert_eq!(told, 1);
        append(&b, 1..2);
        assert_eq!(new(&mut follow), of("b", 1..2));
    }
}
