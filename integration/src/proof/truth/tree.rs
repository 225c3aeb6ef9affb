// SPDX-License-Identifier: Apache-2.0

//! The files: the merged tree as the container sees it, and each file system that is kept
//! in memory.

use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, File},
    io::Read,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use rustix::{
    fs::{AtFlags, CWD, FileType, Statx, StatxFlags, statx},
    io::Errno,
};

/// The container's root is mounted on this one by the kernel (statx(2)).
const MOUNT_ROOT: u64 = 0x2000;

/// Every path with everything that is known of it.
#[derive(Debug, Default)]
pub struct Tree(BTreeMap<Vec<u8>, Entry>);

#[derive(Clone, PartialEq, Eq)]
struct Entry {
    kind: FileType,
    mode: u16,
    owner: (u32, u32),
    device: (u32, u32),
    /// Nanoseconds since the epoch; of what is no directory.
    modified: Option<i128>,
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Of a file, or where a symlink leads.
    content: Vec<u8>,
    /// The first path of the same file.
    same_as: Option<Vec<u8>>,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:?} {:o}, {} bytes",
            self.kind,
            self.mode,
            self.content.len()
        )
    }
}

impl Tree {
    /// That of the container of an init.
    pub fn of(init: u32) -> Result<Self> {
        let mut tree = Self::default();
        for mount in own_mounts(init)? {
            tree.walk(init, &mount)
                .with_context(|| format!("read {} of process {init}", mount.display()))?;
        }
        Ok(tree)
    }

    fn walk(&mut self, init: u32, mount: &Path) -> Result<()> {
        let root = PathBuf::from(format!("/proc/{init}/root"));
        let mut names: HashMap<u64, Vec<u8>> = HashMap::new();
        let mut open = vec![mount.to_owned()];
        while let Some(inside) = open.pop() {
            let path = root.join(inside.strip_prefix("/").unwrap_or(&inside));
            let wanted = StatxFlags::BASIC_STATS;
            let stat = statx(CWD, &path, AtFlags::SYMLINK_NOFOLLOW, wanted)
                .with_context(|| format!("look at {}", path.display()))?;
            let is_mount = stat.stx_attributes.bits() & MOUNT_ROOT != 0;
            if is_mount && inside != mount {
                continue;
            }
            let key = inside.as_os_str().as_bytes().to_vec();
            let entry =
                Entry::read(&path, &stat).with_context(|| format!("read {}", path.display()))?;
            if entry.kind.is_dir() {
                let mut below = Vec::new();
                for entry in fs::read_dir(&path)? {
                    below.push(inside.join(entry?.file_name()));
                }
                below.sort_unstable_by(|a, b| b.cmp(a));
                open.append(&mut below);
            }
            // The host may have more names for it than the container.
            let first = names.entry(stat.stx_ino).or_insert_with(|| key.clone());
            let same_as = (*first != key && !entry.kind.is_dir()).then(|| first.clone());
            self.0.insert(key, Entry { same_as, ..entry });
        }
        Ok(())
    }

    /// Each path that differs, and how.
    pub(super) fn changed(&self, before: &Self) -> BTreeMap<Vec<u8>, String> {
        let mut changed = BTreeMap::new();
        for (path, now) in &self.0 {
            match before.0.get(path) {
                None => {
                    changed.insert(path.clone(), format!("is new: {now:?}"));
                }
                Some(then) if then != now => {
                    changed.insert(path.clone(), now.unlike(then));
                }
                Some(_) => {}
            }
        }
        for path in before.0.keys() {
            if !self.0.contains_key(path) {
                changed.insert(path.clone(), "is gone".into());
            }
        }
        changed
    }
}

impl Entry {
    fn read(path: &Path, stat: &Statx) -> Result<Self> {
        let kind = FileType::from_raw_mode(stat.stx_mode.into());
        let mut content = Vec::new();
        match kind {
            FileType::RegularFile => {
                File::open(path)?.read_to_end(&mut content)?;
            }
            FileType::Symlink => content = fs::read_link(path)?.into_os_string().into_vec(),
            _ => {}
        }
        let time = stat.stx_mtime;
        let modified = i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
        Ok(Self {
            kind,
            mode: stat.stx_mode & 0o7777,
            owner: (stat.stx_uid, stat.stx_gid),
            device: (stat.stx_rdev_major, stat.stx_rdev_minor),
            modified: (!kind.is_dir()).then_some(modified),
            attributes: attributes(path)?,
            content,
            same_as: None,
        })
    }

    fn unlike(&self, then: &Self) -> String {
        let parts = [
            ("type", self.kind != then.kind),
            ("mode", self.mode != then.mode),
            ("owner", self.owner != then.owner),
            ("device", self.device != then.device),
            ("time", self.modified != then.modified),
            ("attributes", self.attributes != then.attributes),
            ("content", self.content != then.content),
            ("links", self.same_as != then.same_as),
        ];
        let parts = parts.into_iter().filter(|(_, differs)| *differs);
        let parts: Vec<&str> = parts.map(|(what, _)| what).collect();
        format!("has another {}", parts.join(", "))
    }
}

fn attributes(path: &Path) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut names = vec![0; 65536];
    let length = match rustix::fs::llistxattr(path, &mut names[..]) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP) => 0,
        Err(error) => return Err(error).context("list the attributes"),
    };
    let mut all = BTreeMap::new();
    for name in names[..length].split(|byte| *byte == 0) {
        if name.is_empty() {
            continue;
        }
        let mut value = vec![0; 65536];
        let length = rustix::fs::lgetxattr(path, name, &mut value[..])?;
        value.truncate(length);
        all.insert(name.to_vec(), value);
    }
    Ok(all)
}

/// Where the container's root and its own file systems in memory are mounted: no others
/// hold what a rollback brings back.
pub(crate) fn own_mounts(init: u32) -> Result<Vec<PathBuf>> {
    let table = fs::read_to_string(format!("/proc/{init}/mountinfo"))?;
    let own = table.lines().filter_map(|line| {
        let (front, back) = line.split_once(" - ")?;
        let mut front = front.split(' ').skip(3);
        let (root, at, options) = (front.next()?, front.next()?, front.next()?);
        let kind = back.split(' ').next()?;
        let writable = options.split(',').any(|option| option == "rw");
        let system = ["/proc", "/sys"].iter().any(|dir| at.starts_with(dir));
        let own = at == "/" || kind == "tmpfs" && root == "/" && writable && !system;
        own.then(|| PathBuf::from(at))
    });
    Ok(own.collect())
}
