// SPDX-License-Identifier: Apache-2.0
//! A real overlay on a real disk, a real store, and guards that clean up.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs,
    os::{
        fd::AsFd,
        unix::{
            ffi::OsStrExt,
            fs::{FileTypeExt, MetadataExt},
        },
    },
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
};

use crab_runtime::{
    files::{self, Captured, ChangeKind, Index, Scanner, Staging},
    overlay::OverlayMount,
};
use crab_store::{
    Class, Digest, FileImage, Manifest, ObjectReader, PackWriter, SandboxId, SandboxWriter, Store,
    Tree, TurnId,
};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

/// True, and says why, where a test has to be skipped.
pub(crate) fn skipped() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped: mounting needs root");
    }
    !root
}

/// Something mounted, until it is dropped.
pub(crate) struct Mounted(pub(crate) PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// Ends what goes on beside a test, however that ends: a scope waits for its threads.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// An overlay of two lower layers, the first above the second.
pub(crate) struct Bench {
    pub(crate) merged: Option<Mounted>,
    pub(crate) mount: OverlayMount,
    pub(crate) store: SandboxWriter,
    turns: std::cell::Cell<u64>,
    pub(crate) dir: TempDir,
}

impl Bench {
    /// `fill` makes the layers: it is given those two directories.
    pub(crate) fn new(fill: impl FnOnce(&Path, &Path)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["lower1", "lower2", "upper", "work", "merged", "staging"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let at = |name: &str| dir.path().join(name);
        fill(&at("lower1"), &at("lower2"));
        let options = format!(
            "lowerdir={}:{},upperdir={},workdir={},index=off",
            at("lower1").display(),
            at("lower2").display(),
            at("upper").display(),
            at("work").display(),
        );
        let options = std::ffi::CString::new(options).unwrap();
        let target = at("merged");
        mount(
            "overlay",
            &target,
            "overlay",
            MountFlags::empty(),
            Some(options.as_c_str()),
        )
        .unwrap();
        let merged = Mounted(target);
        let mount = OverlayMount::find(std::process::id(), &merged.0).unwrap();
        let store = Store::create(at("store")).unwrap();
        let store = store.writer(&SandboxId::new("test", "box").unwrap());
        Self {
            merged: Some(merged),
            mount,
            store: store.unwrap(),
            turns: 0.into(),
            dir,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn scanner(&self) -> Scanner {
        Scanner::overlay(&self.mount).unwrap()
    }

    /// Runs a shell in the merged view, as a turn does.
    pub(crate) fn turn(&self, script: &str) {
        shell(&self.path("merged"), script);
    }

    /// What changed against an index, as lines: `+a`, `~b`, `-c`.
    pub(crate) fn changes(&self, index: &Index) -> Vec<String> {
        changes(&self.scanner(), index)
    }

    pub(crate) fn staging(&self, memory: u64) -> (PathBuf, u64) {
        (self.path("staging"), memory)
    }

    /// Captures and publishes.
    pub(crate) fn capture(&self, index: &Index) -> (Captured, ObjectReader) {
        self.capture_with(&self.scanner(), index, 16 << 20)
    }

    pub(crate) fn capture_with(
        &self,
        scanner: &Scanner,
        index: &Index,
        memory: u64,
    ) -> (Captured, ObjectReader) {
        let scan = scanner.scan(index, &HashSet::new()).unwrap();
        assert_eq!(scan.torn(), [] as [Vec<u8>; 0]);
        let (directory, memory) = self.staging(memory);
        let staging = Staging {
            memory,
            directory: &directory,
        };
        let staged = scanner.stage(scan, &staging).unwrap();
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
        let mut pack = self.store.begin().unwrap();
        let captured = staged.persist(&mut pack).unwrap();
        let tree = pack.put_tree(&captured.tree).unwrap();
        let reader = self.publish(pack, tree);
        assert_eq!(reader.tree(tree).unwrap(), captured.tree);
        (captured, reader)
    }

    /// Publishes a pack as the checkpoint of a turn.
    pub(crate) fn publish(&self, mut pack: PackWriter, tree: Digest) -> ObjectReader {
        let turn = TurnId(self.turns.get());
        self.turns.set(turn.0 + 1);
        let manifest = Manifest {
            sandbox: self.store.store().id().clone(),
            turn,
            class: Class::Files,
            created_ms: 0,
            parent: None,
            files: FileImage {
                turn,
                upper: tree,
                whole: false,
                tmpfs: Vec::new(),
            },
            processes: None,
            degraded: None,
            spec: pack.put(b"{}").unwrap(),
            packs: Vec::new(),
            bytes_stored: 0,
            bytes_raw: 0,
            machine: None,
        };
        let manifest = pack.publish(manifest).unwrap();
        self.store.store().reader(&manifest).unwrap()
    }

    /// Builds a tree into a new directory beside the upper one.
    pub(crate) fn build(&self, tree: &Tree, reader: &ObjectReader, name: &str) -> PathBuf {
        let target = self.path(name);
        fs::create_dir(&target).unwrap();
        files::build(tree, reader, &target, files::Durability::WriteBack).unwrap();
        target
    }

    /// Puts another upper directory under the mount.
    pub(crate) fn mount_with_upper(&mut self, upper: &Path) {
        self.merged = None;
        let work = self.dir.path().join("work2");
        fs::create_dir(&work).unwrap();
        self.mount.upper = upper.to_owned();
        self.mount.work = work;
        let target = self.path("merged");
        self.mount.mount_at(&target).unwrap();
        self.merged = Some(Mounted(target));
    }
}

pub(crate) fn changes(scanner: &Scanner, index: &Index) -> Vec<String> {
    changes_forced(scanner, index, &[])
}

pub(crate) fn changes_forced(scanner: &Scanner, index: &Index, forced: &[&str]) -> Vec<String> {
    let forced = forced.iter().map(|path| path.as_bytes().to_vec()).collect();
    let scan = scanner.scan(index, &forced).unwrap();
    assert_eq!(scan.torn(), [] as [Vec<u8>; 0]);
    let lines = scan.changes().iter().map(|change| {
        let sign = match change.kind {
            ChangeKind::Added => '+',
            ChangeKind::Changed => '~',
            ChangeKind::Removed => '-',
        };
        format!("{sign}{}", change.path.escape_ascii())
    });
    lines.collect()
}

/// Runs a shell script in a directory; it has to succeed.
pub(crate) fn shell(dir: &Path, script: &str) {
    let done = Command::new("bash")
        .args(["-euc", script])
        .current_dir(dir)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{script}: {error}");
}

/// Longer than the time in which two changes may look like one.
pub(crate) fn settle() {
    std::thread::sleep(std::time::Duration::from_millis(60));
}

/// Everything about a directory tree that `std` and `lstat` can tell, by path:
/// written without any code of the crate.
pub(crate) fn list(root: &Path) -> BTreeMap<Vec<u8>, String> {
    let mut found = BTreeMap::new();
    let mut links: HashMap<u64, Vec<Vec<u8>>> = HashMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let name = path.strip_prefix(root).unwrap().as_os_str();
        let kind = meta.file_type();
        let mut line = format!(
            "{:o} {}:{} {}.{:09} rdev {:x}",
            meta.mode(),
            meta.uid(),
            meta.gid(),
            meta.mtime(),
            meta.mtime_nsec(),
            meta.rdev(),
        );
        if kind.is_file() {
            let bytes = blake3_like(&path);
            line += &format!(" size {} content {bytes:x}", meta.len());
        } else if kind.is_symlink() {
            line += &format!(" to {:?}", fs::read_link(&path).unwrap());
        } else if kind.is_dir() {
            let entries = fs::read_dir(&path).unwrap();
            pending.extend(entries.map(|entry| entry.unwrap().path()));
        }
        let whiteout = kind.is_char_device() && meta.rdev() == 0;
        if meta.nlink() > 1 && !kind.is_dir() && !whiteout {
            let names = links.entry(meta.ino()).or_default();
            names.push(name.as_bytes().to_vec());
        }
        for (attribute, value) in attributes(&path) {
            line += &format!(" {}={}", attribute, value.escape_ascii());
        }
        found.insert(name.as_bytes().to_vec(), line);
    }
    for names in links.values_mut() {
        names.sort();
        for name in names.iter() {
            let all = names.join(&b' ');
            let line = found.get_mut(name).unwrap();
            *line += &format!(" linked {}", all.escape_ascii());
        }
    }
    found
}

fn blake3_like(path: &Path) -> u64 {
    use std::hash::Hasher;
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(&fs::read(path).unwrap());
    hasher.finish()
}

/// Extended attributes, without those that tie an upper directory to its mount.
pub(crate) fn attributes(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut names = vec![0; 4096];
    let len = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let mut found = Vec::new();
    for name in names[..len].split(|byte| *byte == 0) {
        let name = String::from_utf8(name.to_vec()).unwrap();
        let dropped = ["origin", "impure", "uuid", "nlink"];
        let own = name.strip_prefix("trusted.overlay.");
        if name.is_empty() || own.is_some_and(|own| dropped.contains(&own)) {
            continue;
        }
        let mut value = vec![0; 4096];
        let len = rustix::fs::lgetxattr(path, &name, &mut value[..]).unwrap();
        value.truncate(len);
        found.push((name, value));
    }
    found.sort();
    found
}

/// A tmpfs at a path.
pub(crate) fn tmpfs(at: &Path) -> Mounted {
    fs::create_dir_all(at).unwrap();
    let options = c"mode=755";
    mount("tmpfs", at, "tmpfs", MountFlags::empty(), Some(options)).unwrap();
    Mounted(at.to_owned())
}

pub(crate) fn apply(tree: &Tree, reader: &ObjectReader, scanner: &Scanner) {
    files::apply(tree, reader, scanner.root().as_fd(), &Index::default()).unwrap();
}
