// SPDX-License-Identifier: Apache-2.0
//! Which inodes are told to have changed, through a real overlay on a disk.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crab_bpf::{Changes, Programs};

use crate::calls::{CHANGES, HARMLESS};
use crate::files::{on_disk, on_overlay};
use crate::world::{Mounted, Seat, World, worlds};

/// What moves with any change.
type Identity = (u64, i64, i64, u64, u32);

/// All that is in a directory.
fn tree(dir: &Path) -> BTreeMap<PathBuf, Identity> {
    let mut all = BTreeMap::new();
    let mut pending = vec![dir.to_path_buf()];
    while let Some(path) = pending.pop() {
        let stat = fs::symlink_metadata(&path).unwrap();
        if stat.is_dir() {
            pending.extend(fs::read_dir(&path).unwrap().map(|it| it.unwrap().path()));
        }
        let (sec, nsec) = (stat.ctime(), stat.ctime_nsec());
        all.insert(path, (stat.ino(), sec, nsec, stat.size(), stat.mode()));
    }
    all
}

fn told(world: &mut World, merged: &Mounted, mark: &str) -> Changes {
    let cgroup = world.cgroup.id();
    world
        .tracer()
        .changes(cgroup, merged.device(), mark)
        .unwrap()
}

/// What of a tree is another than before, and neither told nor in a directory that is, or
/// in a new one that is.
fn unexplained(
    before: &BTreeMap<PathBuf, Identity>,
    after: &BTreeMap<PathBuf, Identity>,
    told: &BTreeSet<u64>,
) -> Vec<PathBuf> {
    let is_told = |path: &Path| after.get(path).is_some_and(|it| told.contains(&it.0));
    let mut found = BTreeSet::new();
    for (path, is) in after {
        let listed = path.parent().is_some_and(|parent| {
            let is_new = !before.contains_key(parent);
            is_told(parent) || is_new && found.contains(parent)
        });
        if listed || told.contains(&is.0) && before.values().any(|was| was.0 == is.0) {
            found.insert(path.clone());
        }
    }
    let differs = after
        .iter()
        .filter(|(path, is)| before.get(*path) != Some(is) && !found.contains(*path))
        .map(|(path, _)| path);
    let gone = before.keys().filter(|path| {
        let parent = path.parent().unwrap_or(path);
        !after.contains_key(*path) && after.contains_key(parent) && !is_told(parent)
    });
    differs.chain(gone).cloned().collect()
}

fn by_inodes() -> impl Iterator<Item = World> {
    worlds().filter(|world| world.programs == Programs::Inodes)
}

/// What a copy out of the image makes of the directories that it is in is no change, and not
/// told. That there is one is: an inode that is nowhere.
#[test]
fn whatever_changes_through_an_overlay_is_told_by_its_inode() {
    for mut world in by_inodes() {
        let layers = on_disk();
        let merged = on_overlay(&mut world, layers.path());
        let upper = layers.path().join("upper");
        for (name, _) in CHANGES {
            for seat in [Seat::Inside, Seat::Outside] {
                let directory = tempfile::tempdir_in(merged.path()).unwrap();
                let mark = told(&mut world, &merged, "").mark;
                let before = tree(&upper);
                if world.run_if_known(name, seat, directory.path()).is_none() {
                    continue;
                }
                let changes = told(&mut world, &merged, &mark);
                let after = tree(&upper);
                let inodes = changes.inodes.unwrap_or_else(|| panic!("{name}: not told"));
                let there: BTreeSet<u64> = inodes.iter().map(|it| it.inode).collect();
                let missed = unexplained(&before, &after, &there);
                let known: BTreeSet<u64> = before
                    .values()
                    .chain(after.values())
                    .map(|it| it.0)
                    .collect();
                let nowhere = inodes
                    .iter()
                    .any(|it| !it.nameless && !known.contains(&it.inode));
                assert!(
                    missed.is_empty() || nowhere,
                    "{name}: {missed:?} of {inodes:?}"
                );
                assert!(!inodes.is_empty() || before == after, "{name}");
            }
        }
    }
}

#[test]
fn what_is_read_is_not_told() {
    for mut world in by_inodes() {
        let layers = on_disk();
        let merged = on_overlay(&mut world, layers.path());
        let upper = layers.path().join("upper");
        for (name, _) in HARMLESS {
            let directory = tempfile::tempdir_in(merged.path()).unwrap();
            let mut agent = world.start(name, Seat::Inside, directory.path());
            let mark = told(&mut world, &merged, "").mark;
            let before = tree(&upper);
            agent.go_on();
            let reached = agent.reaches("after");
            let changes = told(&mut world, &merged, &mark);
            if reached {
                agent.go_on();
                world.finish(agent);
                let inodes = changes.inodes.unwrap();
                let fifo = *name == "write to a fifo file";
                assert!(
                    inodes.is_empty() || fifo || before != tree(&upper),
                    "{name}: {inodes:?}"
                );
            }
        }
    }
}

#[test]
fn a_file_of_the_image_is_told_by_its_copy() {
    for mut world in by_inodes() {
        let layers = on_disk();
        let merged = on_overlay(&mut world, layers.path());
        // Known to the kernel by the image's inode before it is copied.
        fs::metadata(merged.path().join("below")).unwrap();
        let mark = told(&mut world, &merged, "").mark;
        fs::write(merged.path().join("below"), "another").unwrap();
        let inodes = told(&mut world, &merged, &mark).inodes.unwrap();
        let copy = fs::metadata(layers.path().join("upper/below"))
            .unwrap()
            .ino();
        assert!(
            inodes.iter().any(|it| it.inode == copy && !it.nameless),
            "{inodes:?}"
        );
    }
}

#[test]
fn what_came_and_went_is_told_to_have_no_name() {
    for mut world in by_inodes() {
        let layers = on_disk();
        let merged = on_overlay(&mut world, layers.path());
        let mark = told(&mut world, &merged, "").mark;
        let path = merged.path().join("scratch");
        fs::write(&path, "x").unwrap();
        let inode = fs::metadata(layers.path().join("upper/scratch"))
            .unwrap()
            .ino();
        fs::remove_file(&path).unwrap();
        let inodes = told(&mut world, &merged, &mark).inodes.unwrap();
        let by_number: HashMap<u64, bool> =
            inodes.iter().map(|it| (it.inode, it.nameless)).collect();
        assert_eq!(by_number.get(&inode), Some(&true), "{inodes:?}");
    }
}

#[test]
fn too_many_changes_another_watch_and_another_superblock_are_not_told() {
    for mut world in by_inodes() {
        let layers = on_disk();
        let merged = on_overlay(&mut world, layers.path());
        let (cgroup, device) = (world.cgroup.id(), merged.device());
        let mark = told(&mut world, &merged, "").mark;
        for n in 0..1000 {
            fs::write(merged.path().join(format!("{n}")), "x").unwrap();
        }
        assert_eq!(told(&mut world, &merged, &mark).inodes, None);
        let mark = told(&mut world, &merged, "").mark;
        fs::write(merged.path().join("one"), "x").unwrap();
        assert!(told(&mut world, &merged, &mark).inodes.is_some());
        let tmpfs = world.tmpfs.device();
        let none = world.tracer().changes(cgroup, tmpfs, &mark).unwrap();
        assert_eq!(none, Changes::default());
        world.tracer().unwatch(cgroup).unwrap();
        world.tracer().watch(cgroup, &[device]).unwrap();
        assert_eq!(told(&mut world, &merged, &mark).inodes, None);
        // A successor goes on.
        let mark = told(&mut world, &merged, "").mark;
        world.tracer = None;
        fs::write(merged.path().join("two"), "x").unwrap();
        world.open();
        assert!(
            told(&mut world, &merged, &mark)
                .inodes
                .is_some_and(|it| !it.is_empty())
        );
    }
}
