// SPDX-License-Identifier: Apache-2.0
//! The file half: the roots that are captured, compared and copied.

use std::{
    collections::{BTreeSet, HashSet},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Result;
use crab_runtime::{
    files::{Change, ChangeKind, ChangedInodes, Index, Scan, Scanner, Staged, Staging},
    mount::{Tmpfs, tmpfs_of},
    procs::Set,
    rootfs::RootFs,
};
use crab_store::{Class, Digest, FileImage, TmpfsImage, escape};

use super::{Capture, take::Judged};
use crate::{
    relevance::{Relevance, Verdict},
    tracer::Watched,
};

/// A root that is captured: the upper directory (or the whole root where that is no overlay), or
/// a tmpfs.
pub(crate) struct Root {
    /// Where in the container; nothing for the root itself.
    pub(crate) mount: Option<PathBuf>,
    /// A store to a mapping of one of its files may move no time.
    pub(crate) in_memory: bool,
    pub(crate) scanner: Arc<Scanner>,
    pub(crate) index: Index,
    /// The tree in the store that the index describes.
    pub(crate) tree: Option<Digest>,
}

/// Opens the roots of a container whose mounts are in place.
pub(crate) fn open_roots(rootfs: &RootFs, init: i32) -> Result<(Vec<Root>, Vec<Tmpfs>)> {
    let mut roots = vec![Root {
        mount: None,
        in_memory: rootfs.is_in_memory(),
        scanner: Arc::new(rootfs.scanner()?),
        index: Index::default(),
        tree: None,
    }];
    let mounts = tmpfs_of(init)?;
    for mount in &mounts {
        roots.extend(Root::tmpfs(init, &mount.path)?);
    }
    Ok((roots, mounts))
}

/// Under which names CRIU keeps these mounts' contents.
pub(crate) fn images_of(mounts: &[Tmpfs]) -> Vec<TmpfsImage> {
    mounts
        .iter()
        .map(|mount| TmpfsImage {
            mount: mount.path.as_os_str().as_encoded_bytes().to_vec(),
            image: mount.criu_image(),
        })
        .collect()
}

impl Root {
    /// Nothing where that lasts: another mount hides it, say, and the container cannot reach it
    /// either. What may pass has the capture fail: it would lack the mount in silence.
    fn tmpfs(init: i32, at: &Path) -> Result<Option<Self>> {
        let scanner = match Scanner::mounted(init as u32, at) {
            Err(error) if !error.may_pass() => {
                tracing::warn!(mount = %at.display(), %error, "not captured");
                return Ok(None);
            }
            scanner => scanner?,
        };
        Ok(Some(Self {
            scanner: Arc::new(scanner),
            mount: Some(at.to_path_buf()),
            in_memory: true,
            index: Index::default(),
            tree: None,
        }))
    }
}

impl Root {
    /// Where it is mounted in the container; nothing for the root itself.
    pub(super) fn mount_bytes(&self) -> Option<&[u8]> {
        let mount = self.mount.as_deref()?;
        Some(mount.as_os_str().as_encoded_bytes())
    }

    /// Its tree in an image; nothing if that has no such mount.
    pub(super) fn tree_in(&self, files: &FileImage) -> Option<Digest> {
        match self.mount_bytes() {
            None => Some(files.upper),
            Some(mount) => files.tmpfs_at(mount),
        }
    }
}

/// The scans of all roots, and what they found together.
pub(super) struct Scans {
    scans: Vec<Scan>,
    pub(super) torn: bool,
    /// What a look at everything saw and one at what had changed did not: only in builds that
    /// are tested, which look twice. It counts if nothing changed in between.
    pub(super) missed: Option<String>,
}

impl Scans {
    fn changes(&self) -> impl Iterator<Item = (usize, &Change)> {
        self.scans
            .iter()
            .enumerate()
            .flat_map(|(root, scan)| scan.changes().iter().map(move |change| (root, change)))
    }

    pub(super) fn count(&self) -> usize {
        self.changes().count()
    }
}

impl Root {
    /// Those of the container's paths that lie in this root, relative to it. `mounts`
    /// are the roots that are mounted on others.
    pub(super) fn within(
        &self,
        paths: &BTreeSet<Vec<u8>>,
        mounts: &[Vec<u8>],
    ) -> BTreeSet<Vec<u8>> {
        let own = self.mount.as_deref().map(inside);
        paths
            .iter()
            .filter_map(|path| {
                // The deepest mount that holds the path is where it is.
                let holder = mounts
                    .iter()
                    .filter(|mount| below(path, mount).is_some())
                    .max_by_key(|mount| mount.len());
                match (&own, holder) {
                    (None, None) => Some(path.clone()),
                    (Some(own), Some(holder)) if own == holder => {
                        below(path, own).map(<[u8]>::to_vec)
                    }
                    _ => None,
                }
            })
            .collect()
    }
}

/// A mount point as a path in the container, without the leading slash.
fn inside(mount: &Path) -> Vec<u8> {
    let bytes = mount.as_os_str().as_encoded_bytes();
    bytes.strip_prefix(b"/").unwrap_or(bytes).to_vec()
}

/// The rest of `path` below `dir`; empty for `dir` itself.
fn below<'a>(path: &'a [u8], dir: &[u8]) -> Option<&'a [u8]> {
    let rest = path.strip_prefix(dir)?;
    match rest.split_first() {
        None => Some(rest),
        Some((b'/', rest)) => Some(rest),
        Some(_) => None,
    }
}

/// The path in the container of what lies in a root.
pub(super) fn in_container(mount: Option<&Path>, path: &[u8]) -> Vec<u8> {
    let mut whole = mount.map_or_else(Vec::new, |mount| {
        mount.as_os_str().as_encoded_bytes().to_vec()
    });
    if whole.is_empty() || !path.is_empty() {
        whole.push(b'/');
    }
    whole.extend_from_slice(path);
    whole
}

/// Whether a change at `path` changes something that is held: the path itself, or,
/// where it is gone or is something else, anything below it.
fn touches(change: &Change, held: &BTreeSet<Vec<u8>>) -> bool {
    change.kind != ChangeKind::Added && held_below(&change.path, held)
}

/// Whether a path, or anything below it, is held.
pub(super) fn held_below(path: &[u8], held: &BTreeSet<Vec<u8>>) -> bool {
    if held.contains(path) {
        return true;
    }
    let mut prefix = path.to_vec();
    // A directory that is only changed still holds what it held, unless it hides
    // what is below it; which of both it is, is not worth a wrong no.
    prefix.push(b'/');
    held.range(prefix.clone()..)
        .next()
        .is_some_and(|path| path.starts_with(&prefix))
}

impl Capture {
    pub(super) fn mounts(&self) -> Vec<Vec<u8>> {
        self.roots
            .iter()
            .filter_map(|root| root.mount.as_deref().map(inside))
            .collect()
    }

    /// Compares every root with its index. With `reread`, the content of
    /// memory-backed files is read again: a store to a page of theirs that is mapped
    /// moves no time.
    pub(super) fn scan(&self, set: &Set, reread: bool) -> Result<Scans> {
        // On a disk it moves the time with the first store only.
        let mapped = set.shared_mappings();
        let mounts = self.mounts();
        let mut scans = Vec::with_capacity(self.roots.len());
        let mut torn = false;
        let mut missed = None;
        for root in &self.roots {
            let forced = || root.within(&mapped, &mounts).into_iter().collect();
            let watched = root.mount.is_none() && self.watches_root();
            // Where nobody watches the root, nobody has seen a mapping that is gone again.
            let unknown = root.mount.is_none() && !watched;
            let scan = if root.in_memory && (reread || unknown) {
                root.scanner.scan_everything(&root.index)?
            } else if watched && !root.in_memory {
                self.scan_overlay(root, &forced(), reread, &mut missed)?
            } else {
                root.scanner.scan(&root.index, &forced())?
            };
            torn |= !scan.torn().is_empty();
            scans.push(scan);
        }
        Ok(Scans {
            scans,
            torn,
            missed,
        })
    }

    /// Looks only at what the kernel says has changed, if it can say. With `may_be_unseen` it
    /// cannot: a store to a page that is mapped tells nothing of the file.
    fn scan_overlay(
        &self,
        root: &Root,
        forced: &HashSet<Vec<u8>>,
        may_be_unseen: bool,
        missed: &mut Option<String>,
    ) -> Result<Scan> {
        let Root { scanner, index, .. } = root;
        // Before anything is looked at: what changes after this is in the next answer.
        let mark = index.mark().unwrap_or_default();
        let told = self.tracer.changes(self.devices[0], mark);
        let told = self.async_runtime.block_on(told).unwrap_or_default();
        let mut narrow = None;
        if told.complete && !may_be_unseen {
            let changed = ChangedInodes {
                there: told.inodes,
                nameless: told.nameless,
            };
            narrow = scanner.scan_changed(index, forced, &changed)?;
            if cfg!(debug_assertions)
                && let Some(narrow) = &narrow
            {
                *missed = difference(narrow, &scanner.scan(index, forced)?);
            }
        }
        tracing::debug!(
            narrow = narrow.is_some(),
            told = told.complete,
            "looked at the files"
        );
        let scan = match narrow {
            Some(scan) => scan,
            None => scanner.scan(index, forced)?,
        };
        let mark = (!told.mark.is_empty()).then_some(told.mark);
        Ok(scan.marked(mark.as_deref()))
    }

    /// Copies what changed; roots without a change only get a fresher index.
    pub(super) fn stage(&mut self, scans: Scans) -> Result<Vec<(usize, Staged)>> {
        let config = &self.container.config;
        let directory = config.store.clone();
        let staging = Staging {
            memory: config.checkpoints.staging_bytes / 4,
            directory: &directory,
        };
        let mut staged = Vec::new();
        for (at, scan) in scans.scans.into_iter().enumerate() {
            let root = &mut self.roots[at];
            if scan.changes().is_empty() && root.tree.is_some() {
                if let Some(index) = scan.into_index() {
                    root.index = index;
                }
            } else {
                staged.push((at, root.scanner.stage(scan, &staging)?));
            }
        }
        Ok(staged)
    }

    /// A file that a process holds on to, and that was changed, moved or removed: CRIU looks for
    /// it by its path on restore, and compares it, so that the older image would not fit the newer
    /// files.
    /// What is passed over needs to fit nothing: it is as the older image has it, in the older
    /// file image.
    pub(super) fn held_change(&self, judged: &Judged, set: &Set) -> Option<String> {
        let Judged { scans, class, .. } = judged;
        if *class == Class::None
            || set.is_empty()
            || !self.known.some_processes
            || scans.count() == 0
        {
            return None;
        }
        let held = set.references();
        let mounts = self.mounts();
        let in_use = |(root, scan): (&Root, &Scan)| {
            let held = root.within(&held, &mounts);
            let touched = |change: &&Change| touches(change, &held);
            scan.changes().iter().find(touched).map(|c| escape(&c.path))
        };
        let changed = self.roots.iter().zip(&scans.scans).find_map(in_use);
        // What was moved is new by the path by which it is held, and removed by another.
        changed.or_else(|| {
            let now = set.references_by_process();
            now.moved_since(&self.known.references).map(escape)
        })
    }

    /// Sorts what changed into what matters and what does not.
    pub(super) fn judge(&self, scans: &Scans, whole: bool) -> Verdict {
        let everything;
        let relevance = if whole {
            everything = Relevance::of_everything();
            &everything
        } else {
            &self.relevance
        };
        relevance.judge(scans.changes().map(|(root, change)| {
            let mount = self.roots[root].mount.as_deref();
            (in_container(mount, &change.path), change)
        }))
    }

    /// Lets things be: no root has a change that calls for a capture. Those without any
    /// get a fresher index.
    pub(super) fn pass_over(&mut self, scans: Scans) {
        for (root, scan) in self.roots.iter_mut().zip(scans.scans) {
            if !scan.changes().is_empty() || root.tree.is_none() {
                scan.pass_over(&mut root.index);
            } else if let Some(index) = scan.into_index() {
                root.index = index;
            }
        }
    }

    /// Where each root is mounted, and its tree in the store.
    pub(crate) fn root_trees(&self) -> Vec<(Option<Vec<u8>>, Option<Digest>)> {
        self.roots
            .iter()
            .map(|root| (root.mount_bytes().map(<[u8]>::to_vec), root.tree))
            .collect()
    }

    /// Something may have been mounted or unmounted inside: what is a memory-backed
    /// mount of the container now is captured and watched from here on. Tells whether
    /// the mounts are others than before.
    pub(super) fn follow_mounts(&mut self) -> Result<bool> {
        let table = mount_table(self.init);
        if table == self.mount_table {
            return Ok(false);
        }
        let mounts = tmpfs_of(self.init)?;
        let first = usize::from(self.watches_root());
        // All of them before anything is changed here: what fails now is to be done next time.
        let mut opened = Vec::with_capacity(mounts.len());
        for mount in &mounts {
            // Known by its superblock: another one may be mounted at the same place.
            let is_known = self.devices[first..].contains(&mount.device)
                && (self.roots[1..].iter()).any(|root| root.mount.as_ref() == Some(&mount.path));
            opened.push(match is_known {
                true => None,
                false => Some(Root::tmpfs(self.init, &mount.path)?),
            });
        }
        self.lasting.follow(&table);
        self.mount_table = table;
        self.devices.truncate(first);
        let mut old: Vec<Root> = self.roots.split_off(1);
        for (mount, opened) in mounts.iter().zip(opened) {
            let is_it = |root: &Root| root.mount.as_ref() == Some(&mount.path);
            let known = || old.iter().position(is_it).map(|at| old.swap_remove(at));
            self.roots.extend(opened.unwrap_or_else(known));
            self.devices.push(mount.device);
        }
        self.tmpfs_images = images_of(&mounts);
        let watched = Watched {
            cgroup: self.cgroup.clone(),
            devices: self.devices.clone(),
            init: self.init,
        };
        if let Err(reason) = self.async_runtime.block_on(self.tracer.watch(watched)) {
            tracing::warn!(reason, "turns are unobserved");
        }
        Ok(true)
    }
}

/// The first change that one scan has and the other has not.
fn difference(narrow: &Scan, whole: &Scan) -> Option<String> {
    let (some, all) = (narrow.changes(), whole.changes());
    let differing = all.iter().find(|change| !some.contains(change));
    let differing = differing.or_else(|| some.iter().find(|change| !all.contains(change)));
    differing.map(|change| format!("{}: {:?}", escape(&change.path), change.kind))
}

/// The mounts that a process sees, as text.
pub(crate) fn mount_table(init: i32) -> Vec<u8> {
    fs::read(format!("/proc/{init}/mountinfo")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crab_runtime::files::FileKind;

    fn paths(list: &[&str]) -> BTreeSet<Vec<u8>> {
        list.iter().map(|path| path.as_bytes().to_vec()).collect()
    }

    fn change(path: &str, kind: ChangeKind) -> Change {
        Change {
            path: path.into(),
            kind,
            entry: FileKind::Dir,
            size: 0,
            before: None,
        }
    }

    #[test]
    fn a_removed_directory_touches_what_is_held_below_it() {
        let held = paths(&["app/server", "app2/x"]);
        assert!(touches(&change("app", ChangeKind::Removed), &held));
        assert!(touches(&change("app/server", ChangeKind::Changed), &held));
        assert!(!touches(&change("app/other", ChangeKind::Changed), &held));
        assert!(!touches(&change("ap", ChangeKind::Removed), &held));
        assert!(!touches(&change("app", ChangeKind::Added), &held));
    }

    #[test]
    fn a_path_belongs_to_the_deepest_mount_that_holds_it() {
        assert_eq!(below(b"dev/shm/x", b"dev/shm"), Some(b"x".as_slice()));
        assert_eq!(below(b"dev/shm", b"dev/shm"), Some(b"".as_slice()));
        assert_eq!(below(b"dev/shmem", b"dev/shm"), None);
        let shm = Some(Path::new("/dev/shm"));
        assert_eq!(in_container(shm, b"x"), b"/dev/shm/x");
        assert_eq!(in_container(shm, b""), b"/dev/shm");
        assert_eq!(in_container(None, b"x/y"), b"/x/y");
        assert_eq!(in_container(None, b""), b"/");
    }
}
