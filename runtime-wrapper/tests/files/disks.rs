// SPDX-License-Identifier: Apache-2.0
//! Captures on the file systems that a disk may have: a large file is cloned where that can be
//! done, and copied elsewhere.

use std::{
    collections::HashSet,
    fs::{self, File},
    os::unix::fs::FileExt,
    process::Command,
    time::Instant,
};

use crab_runtime::files::{Index, Scanner, Staging};
use rustix::fs::statvfs;

use crate::harness::{Bench, Mounted, list, settle, shell, skipped};

const LARGE: usize = 48 << 20;

/// A disk of its own with this file system; nothing, and says so, where it cannot be made.
fn disk(bench: &Bench, kind: &str) -> Option<Mounted> {
    let tool = format!("mkfs.{kind}");
    if Command::new(&tool).arg("-V").output().is_err() {
        println!("skipped: {kind}: there is no {tool}");
        return None;
    }
    let at = bench.path(kind);
    fs::create_dir(&at).unwrap();
    let script = format!(
        "truncate -s 400M {kind}.img; {tool} -q {kind}.img; mount -o loop {kind}.img {kind}"
    );
    shell(bench.dir.path(), &script);
    Some(Mounted(at))
}

#[test]
fn a_large_file_is_taken_at_once_where_the_disk_can_and_exactly_everywhere() {
    if skipped() {
        return;
    }
    for (kind, clones) in [("ext4", false), ("xfs", true), ("btrfs", true)] {
        let bench = Bench::new(|_, _| {});
        let Some(disk) = disk(&bench, kind) else {
            continue;
        };
        let (root, staging) = (disk.0.join("root"), disk.0.join("staging"));
        fs::create_dir(&root).unwrap();
        fs::create_dir(&staging).unwrap();
        let script = format!(
            "head -c {LARGE} /dev/urandom >large; truncate -s 64M sparse; echo end >>sparse; \
             printf x | dd of=sparse bs=1 seek=3000000 conv=notrunc status=none; \
             mkdir d; echo small >d/small; ln large d/linked; ln -s large link; mkfifo fifo; \
             setfattr -n user.x -v y large 2>/dev/null || true; touch -d '2001-02-03 04:05:06.123456789' d/small; sync ."
        );
        shell(&root, &script);
        settle();
        let scanner = Scanner::directory(File::open(&root).unwrap().into());
        let scan = scanner.scan(&Index::default(), &HashSet::new()).unwrap();
        let free = || {
            let stat = statvfs(&disk.0).unwrap();
            (stat.f_bfree * stat.f_frsize) as i64
        };
        let before = free();
        let begun = Instant::now();
        let place = Staging {
            memory: 0,
            directory: &staging,
        };
        let staged = scanner.stage(scan, &place).unwrap();
        println!("{kind}: {:?} for {LARGE} bytes", begun.elapsed());
        shell(&disk.0, "sync .");
        let taken = before - free();
        assert_eq!(taken < (LARGE / 4) as i64, clones, "{kind}: {taken}");
        // What is staged is out of reach.
        let expected = list(&root);
        let (content, times) = (fs::read(root.join("large")).unwrap(), root.join("large"));
        let modified = fs::metadata(&times).unwrap().modified().unwrap();
        let file = File::options().write(true).open(&times).unwrap();
        file.write_all_at(&[b'x'; 1 << 20], 5 << 20).unwrap();
        let captured = {
            let mut pack = bench.store.begin().unwrap();
            let captured = staged.persist(&mut pack).unwrap();
            let tree = pack.put_tree(&captured.tree).unwrap();
            (bench.publish(pack, tree), captured)
        };
        let (reader, captured) = captured;
        file.write_all_at(&content[5 << 20..6 << 20], 5 << 20)
            .unwrap();
        file.set_modified(modified).unwrap();
        assert_eq!(list(&root), expected);
        let built = bench.build(&captured.tree, &reader, &format!("built-{kind}"));
        assert!(list(&built) == expected, "{kind}");
        // And on this disk itself.
        let again = disk.0.join("again");
        fs::create_dir(&again).unwrap();
        let durability = crab_runtime::files::Durability::Synced;
        crab_runtime::files::build(&captured.tree, &reader, &again, durability).unwrap();
        assert!(list(&again) == expected, "{kind}");
    }
}
