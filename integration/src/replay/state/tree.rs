// SPDX-License-Identifier: Apache-2.0

//! The files: the root as the container sees it, and each tmpfs of its own.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        io::{AsRawFd, OwnedFd},
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use anyhow::{Context, Result, ensure};
use rustix::{
    fs::{
        AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags, openat,
        openat2, readlinkat, statx,
    },
    io::Errno,
};

use super::{
    How, add, content,
    kept::{Seen, What, times},
    node::{Attributes, Child, Inside, Node},
    rules, shown,
};
use crate::proof::own_mounts;

/// A directory this deep below another is more than any sandbox under test has. Each one on
/// the way is open.
const DEEPEST: usize = 300;
/// Something is mounted here (statx(2)).
const MOUNT_ROOT: u64 = 0x2000;
/// How often a file that is written to is read.
const TRIES: u32 = 3;
/// What one attribute, or all names of a file's, may have: the kernel's own limit.
const ATTRIBUTE: usize = 64 << 10;

/// Which paths are one file: the groups as they are, and by the rules.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Links {
    exact: BTreeSet<Vec<Vec<u8>>>,
    normal: Vec<Vec<Vec<u8>>>,
}

/// Each of the container's own file systems by where it is mounted.
#[derive(Clone, Debug)]
pub(super) struct Trees {
    roots: BTreeMap<Vec<u8>, Arc<Node>>,
    links: Arc<Links>,
}

/// A walk through one file system.
struct Walk<'s, 'k> {
    seen: &'s mut Seen<'k>,
    path: Vec<u8>,
    depth: usize,
    /// What has more names than one.
    links: &'s mut HashMap<(u32, u32, u64), Vec<Vec<u8>>>,
}

/// What went away while it was looked at is not there.
fn there<T>(result: std::result::Result<T, Errno>) -> std::result::Result<Option<T>, Errno> {
    match result {
        Ok(it) => Ok(Some(it)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::STALE) => Ok(None),
        Err(error) => Err(error),
    }
}

fn stat(directory: &OwnedFd, name: &[u8]) -> std::result::Result<Option<Statx>, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    there(statx(directory, name, flags, StatxFlags::BASIC_STATS))
}

impl Seen<'_> {
    /// Reads those of an init; and the texts among them once more where a sum was told that was
    /// not known yet.
    pub(super) fn trees(&mut self, init: u32) -> Result<Trees> {
        let trees = self.trees_once(init)?;
        if !self.window.sums.came_late() {
            return Ok(trees);
        }
        self.forget_new();
        self.trees_once(init)
    }

    fn trees_once(&mut self, init: u32) -> Result<Trees> {
        let root = PathBuf::from(format!("/proc/{init}/root"));
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::PATH;
        let root = openat(CWD, &root, flags, Mode::empty()).context("open its root")?;
        let ours = host_devices()?;
        let mut roots = BTreeMap::new();
        let mut links = HashMap::new();
        for mount in own_mounts(init)? {
            let inside = mount.strip_prefix("/").unwrap_or(&mount);
            let place = match inside.as_os_str().is_empty() {
                true => Path::new("."),
                false => inside,
            };
            let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY | OFlags::NONBLOCK;
            let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
            let opened = there(openat2(&root, place, flags, Mode::empty(), within));
            let Some(fd) = opened.with_context(|| format!("open {}", mount.display()))? else {
                continue;
            };
            let path = mount.as_os_str().as_bytes().to_vec();
            let about = statx(&fd, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
            // A tmpfs of the host's that was bound into it.
            if path != b"/" && ours.contains(&(about.stx_dev_major, about.stx_dev_minor)) {
                continue;
            }
            let mut walk = Walk {
                seen: self,
                path: match path == b"/" {
                    true => Vec::new(),
                    false => path.clone(),
                },
                depth: 0,
                links: &mut links,
            };
            let node = walk.directory(&fd, &about)?;
            roots.insert(path, node);
        }
        ensure!(roots.contains_key(&b"/"[..]), "its root is no mount");
        let links = Links::of(links, self);
        Ok(Trees { roots, links })
    }
}

impl Walk<'_, '_> {
    fn directory(&mut self, fd: &OwnedFd, about: &Statx) -> Result<Arc<Node>> {
        ensure!(
            self.depth <= DEEPEST,
            "{}... is more than {DEEPEST} directories deep, which is more than a comparison looks into",
            shown(&self.path[..self.path.len().min(200)])
        );
        let key = self.seen.key(about);
        let attributes = match self.seen.known(&key) {
            Some(What::Attributes(attributes)) => attributes,
            _ => {
                let reading = SystemTime::now();
                let attributes = Arc::new(attributes(fd, b".")?.unwrap_or_default());
                let what = What::Attributes(attributes.clone());
                self.seen.remember(key, what, reading);
                attributes
            }
        };
        let mut names = Vec::new();
        let list = Dir::read_from(fd).with_context(|| self.at("list"))?;
        for entry in list {
            let Some(entry) = there(entry).with_context(|| self.at("list"))? else {
                break;
            };
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(name.to_vec());
            }
        }
        names.sort_unstable();
        let mut children = Vec::with_capacity(names.len());
        for name in names {
            let length = self.path.len();
            self.path.push(b'/');
            self.path.extend_from_slice(&name);
            if let Some(node) = self.entry(fd, &name)? {
                let normal = rules::name(&self.path, &name, &self.seen.window);
                children.push(Child { name, normal, node });
            }
            self.path.truncate(length);
        }
        let inside = Inside::Directory(children);
        Ok(self.seen.one(Node::new(about, attributes, inside)))
    }

    fn entry(&mut self, parent: &OwnedFd, name: &[u8]) -> Result<Option<Arc<Node>>> {
        let Some(about) = stat(parent, name).with_context(|| self.at("look at"))? else {
            return Ok(None);
        };
        if about.stx_attributes.bits() & MOUNT_ROOT != 0 {
            return Ok(Some(self.seen.one(Node::mount(&about))));
        }
        if !FileType::from_raw_mode(about.stx_mode.into()).is_dir() {
            return self.leaf(parent, name, about);
        }
        let flags = OFlags::RDONLY
            | OFlags::DIRECTORY
            | OFlags::NOFOLLOW
            | OFlags::CLOEXEC
            | OFlags::NONBLOCK;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let opened = there(openat2(parent, name, flags, Mode::empty(), within));
        match opened {
            Ok(None) => Ok(None),
            // Mounted, or made a symlink, just now.
            Err(Errno::XDEV | Errno::LOOP) => Ok(None),
            Err(error) => Err(error).with_context(|| self.at("open")),
            Ok(Some(fd)) => {
                self.depth += 1;
                let node = self.directory(&fd, &about);
                self.depth -= 1;
                node.map(Some)
            }
        }
    }

    /// What is no directory.
    fn leaf(&mut self, parent: &OwnedFd, name: &[u8], about: Statx) -> Result<Option<Arc<Node>>> {
        if about.stx_nlink > 1 {
            let id = (about.stx_dev_major, about.stx_dev_minor, about.stx_ino);
            self.links.entry(id).or_default().push(self.path.clone());
        }
        let key = self.seen.key(&about);
        let may_lie = self.seen.mapped.has(about.stx_ino, &self.path);
        if !may_lie && let Some(What::Leaf(node)) = self.seen.known(&key) {
            return Ok(Some(node));
        }
        let mut about = about;
        for _ in 1..TRIES {
            let reading = SystemTime::now();
            let Some(node) = self.read(parent, name, &about)? else {
                return Ok(None);
            };
            let Some(then) = stat(parent, name).with_context(|| self.at("look at"))? else {
                return Ok(None);
            };
            let key = self.seen.key(&about);
            if self.seen.key(&then) == key {
                let node = self.seen.one(node);
                // A tmpfs does not tell that a mapped page of a file became writable.
                if !may_lie && !is_in_memory(parent) {
                    self.seen.remember(key, What::Leaf(node.clone()), reading);
                }
                return Ok(Some(node));
            }
            about = then;
        }
        // It is written to all the time: what it is now is as good as any moment.
        let node = self.read(parent, name, &about)?;
        Ok(node.map(|node| self.seen.one(node)))
    }

    fn read(&mut self, parent: &OwnedFd, name: &[u8], about: &Statx) -> Result<Option<Node>> {
        let kind = FileType::from_raw_mode(about.stx_mode.into());
        let Some(attributes) = attributes(parent, name).with_context(|| self.at("read"))? else {
            return Ok(None);
        };
        let inside = match kind {
            FileType::Symlink => match readlinkat(parent, name, Vec::new()) {
                Ok(target) => Inside::Target(target.into_bytes()),
                Err(Errno::NOENT | Errno::INVAL) => return Ok(None),
                Err(error) => return Err(error).with_context(|| self.at("read")),
            },
            FileType::RegularFile => {
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let place = there(openat(parent, name, flags, Mode::empty()));
                let Some(place) = place.with_context(|| self.at("open"))? else {
                    return Ok(None);
                };
                let Some(file) = content::open(place).with_context(|| self.at("read"))? else {
                    return Ok(None);
                };
                let window = match self.seen.is_old(about) {
                    true => None,
                    false => Some(self.seen.window.until(times(about).0)),
                };
                let content =
                    content::read(&file, about.stx_size, window.as_ref(), self.seen.image());
                Inside::File(content.with_context(|| self.at("read"))?)
            }
            _ => Inside::Nothing,
        };
        Ok(Some(Node::new(about, Arc::new(attributes), inside)))
    }

    fn at(&self, verb: &str) -> String {
        format!("{verb} {}", shown(&self.path))
    }
}

/// The devices that this process itself sees mounted.
fn host_devices() -> Result<BTreeSet<(u32, u32)>> {
    let table = fs::read_to_string("/proc/self/mountinfo").context("read our mounts")?;
    let devices = table.lines().filter_map(|line| {
        let (major, minor) = line.split(' ').nth(2)?.split_once(':')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    });
    Ok(devices.collect())
}

fn is_in_memory(directory: &OwnedFd) -> bool {
    const TMPFS: u64 = 0x0102_1994;
    rustix::fs::fstatfs(directory).is_ok_and(|about| about.f_type as u64 == TMPFS)
}

/// Those of a name in a directory, no symlink followed; nothing if it is gone.
fn attributes(directory: &OwnedFd, name: &[u8]) -> Result<Option<Attributes>> {
    let mut path = format!("/proc/self/fd/{}/", directory.as_raw_fd()).into_bytes();
    path.extend_from_slice(name);
    let path = PathBuf::from(std::ffi::OsString::from_vec(path));
    let mut all = Attributes::new();
    // Nearly none has any.
    let mut few = [0; 256];
    let mut many = Vec::new();
    let names = match rustix::fs::llistxattr(&path, &mut few[..]) {
        Ok(length) => &few[..length],
        Err(Errno::RANGE) => {
            many.resize(ATTRIBUTE, 0);
            let length = rustix::fs::llistxattr(&path, &mut many[..])?;
            &many[..length]
        }
        Err(Errno::OPNOTSUPP) => &[],
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error).context("list its attributes"),
    };
    for name in names.split(|byte| *byte == 0) {
        let of_overlay =
            name.starts_with(b"trusted.overlay.") || name.starts_with(b"user.overlay.");
        if name.is_empty() || of_overlay {
            continue;
        }
        let mut value = vec![0; ATTRIBUTE];
        match rustix::fs::lgetxattr(&path, name, &mut value[..]) {
            Ok(length) => value.truncate(length),
            Err(Errno::NODATA | Errno::NOENT) => continue,
            Err(error) => return Err(error).context("read its attributes"),
        }
        all.insert(name.to_vec(), value);
    }
    Ok(Some(all))
}

impl Links {
    fn of(found: HashMap<(u32, u32, u64), Vec<Vec<u8>>>, seen: &mut Seen<'_>) -> Arc<Self> {
        // The host may have more names for a file than the container.
        let mut exact = BTreeSet::new();
        let mut normal = Vec::new();
        for mut group in found.into_values().filter(|group| group.len() > 1) {
            group.sort();
            let mut ruled: Vec<_> = group
                .iter()
                .map(|path| rules::path(path, &seen.window))
                .collect();
            ruled.sort();
            normal.push(ruled);
            exact.insert(group);
        }
        normal.sort();
        seen.one_set(Self { exact, normal })
    }

    fn lines(&self, how: How) -> Vec<String> {
        let line = |group: &Vec<Vec<u8>>| {
            let paths: Vec<String> = group.iter().map(|path| shown(path)).collect();
            paths.join(" = ")
        };
        match how {
            How::Exact => self.exact.iter().map(line).collect(),
            How::Normal => self.normal.iter().map(line).collect(),
        }
    }
}

impl Trees {
    pub(super) fn unlike(&self, then: &Self, how: How) -> Vec<String> {
        let mut lines = Vec::new();
        for (path, now) in &self.roots {
            let inside = match &path[..] {
                b"/" => b"",
                path => path,
            };
            match then.roots.get(path) {
                Some(then) => now.unlike(then, inside, how, &mut lines),
                None => lines.push(format!("{} is a new mount", shown(path))),
            }
        }
        for path in then.roots.keys() {
            if !self.roots.contains_key(path) {
                lines.push(format!("{} is no longer a mount", shown(path)));
            }
        }
        if self.links != then.links {
            let (now, then) = (self.links.lines(how), then.links.lines(how));
            lines.extend(super::apart(&now, &then, "one file:"));
        }
        lines
    }

    pub(super) fn add_to(&self, hasher: &mut blake3::Hasher) {
        for (path, node) in &self.roots {
            add(hasher, path);
            add(hasher, &node.normal);
        }
        add(hasher, b"links");
        for line in self.links.lines(How::Normal) {
            add(hasher, line.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{FileTimes, Permissions, set_permissions},
        os::unix::fs::{PermissionsExt, symlink},
        thread,
        time::Duration,
    };

    use super::*;
    use crate::replay::state::{kept::Kept, maps::Mapped, rules::Window};

    /// As if a directory were a container's, somewhere in it.
    fn read(kept: &mut Kept, dir: &Path, place: &str) -> (Arc<Node>, Arc<Links>) {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY;
        let fd = openat(CWD, dir, flags, Mode::empty()).unwrap();
        let about = statx(&fd, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).unwrap();
        let window = Window::since(kept.began(), kept.sums());
        let mut seen = Seen::new(kept, window, Mapped::default());
        let mut links = HashMap::new();
        let mut walk = Walk {
            seen: &mut seen,
            path: place.as_bytes().to_vec(),
            depth: 0,
            links: &mut links,
        };
        let node = walk.directory(&fd, &about).unwrap();
        (node, Links::of(links, &mut seen))
    }

    fn lines(now: &Node, then: &Node, how: How) -> Vec<String> {
        let mut lines = Vec::new();
        now.unlike(then, b"/w", how, &mut lines);
        assert_eq!(
            lines.is_empty(),
            how == How::Normal && now.normal == then.normal || now.exact == then.exact
        );
        lines
    }

    #[test]
    fn a_change_within_one_tick_of_the_clock_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let mut kept = Kept::new();
        let file = dir.path().join("file");
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        let write = |text: &str| {
            fs::write(&file, text).unwrap();
            let open = fs::File::options().write(true).open(&file).unwrap();
            open.set_times(FileTimes::new().set_modified(time)).unwrap();
        };
        write("0");
        let mut last = read(&mut kept, dir.path(), "/w").0;
        for n in 1..200 {
            write(&(n % 10).to_string());
            let now = read(&mut kept, dir.path(), "/w").0;
            assert_eq!(
                lines(&now, &last, How::Exact),
                ["/w/file has another content"],
                "{n}"
            );
            last = now;
        }
        // After a while it is not read again, and the same one is kept once.
        thread::sleep(Duration::from_millis(150));
        let first = read(&mut kept, dir.path(), "/w").0;
        assert!(Arc::ptr_eq(&first, &read(&mut kept, dir.path(), "/w").0));
    }

    #[test]
    fn names_drawn_by_chance_belong_together_by_what_they_name() {
        let mut kept = Kept::new();
        let made = |names: [&str; 3], text: &str| {
            let dir = tempfile::tempdir().unwrap();
            for (name, text) in names.iter().zip(["one", text, "three"]) {
                fs::write(dir.path().join(name), text).unwrap();
            }
            dir
        };
        let one = made(["tmpaaaaaaaa", "tmpbbbbbbbb", "tmpcccccccc"], "two");
        let two = made(["tmpffffffff", "tmpeeeeeeee", "tmpdddddddd"], "two");
        let other = made(["tmpffffffff", "tmpeeeeeeee", "tmpdddddddd"], "tow");
        let mut of = |dir: &tempfile::TempDir, place| read(&mut kept, dir.path(), place).0;
        assert!(lines(&of(&one, "/tmp"), &of(&two, "/tmp"), How::Normal).is_empty());
        let told = lines(&of(&one, "/tmp"), &of(&other, "/tmp"), How::Normal);
        assert_eq!(told, ["/w/(temporary) has another content"]);
        // They are what they are anywhere else, and in one run.
        assert_eq!(
            lines(&of(&one, "/w"), &of(&two, "/w"), How::Normal).len(),
            6
        );
        assert_eq!(
            lines(&of(&one, "/tmp"), &of(&two, "/tmp"), How::Exact).len(),
            6
        );
    }

    #[test]
    fn files_of_all_types_differ_by_what_they_are() {
        let mut kept = Kept::new();
        let made = |mode: u32, target: &str, both: bool| {
            let dir = tempfile::tempdir().unwrap();
            let at = |name: &str| dir.path().join(name);
            fs::create_dir(at("dir")).unwrap();
            set_permissions(at("dir"), Permissions::from_mode(mode)).unwrap();
            symlink(target, at("link")).unwrap();
            fs::write(at("a"), "same").unwrap();
            match both {
                true => fs::hard_link(at("a"), at("b")).unwrap(),
                false => drop(fs::copy(at("a"), at("b")).unwrap()),
            }
            dir
        };
        let first = made(0o755, "x", true);
        let mut of = |dir: &tempfile::TempDir| read(&mut kept, dir.path(), "/w");
        let (node, links) = of(&first);
        let (again, links_again) = of(&made(0o755, "x", true));
        assert!(lines(&again, &node, How::Normal).is_empty() && links == links_again);
        let (other, apart) = of(&made(0o700, "y", false));
        assert_eq!(
            lines(&other, &node, How::Normal),
            ["/w/dir has another mode", "/w/link has another target"]
        );
        assert_eq!(links.lines(How::Normal), ["/w/a = /w/b"]);
        assert!(apart.lines(How::Normal).is_empty());
    }
}
