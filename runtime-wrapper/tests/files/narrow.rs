// SPDX-License-Identifier: Apache-2.0
//! A scan of what is known to have changed says what one of everything says.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
};

use crab_runtime::files::{ChangedInodes, Index, Scan, Scanner, Staging};
use crab_store::Tree;
use rustix::fs::{Timespec, Timestamps};

use crate::harness::{Bench, settle, skipped};

/// What moves with any change: inode, time of change, links.
type Identity = (u64, i64, i64, u64);

/// All that is in a directory, by path.
fn look(dir: &Path, all: &mut BTreeMap<std::path::PathBuf, Identity>) {
    let stat = fs::symlink_metadata(dir).unwrap();
    let identity = (stat.ino(), stat.ctime(), stat.ctime_nsec(), stat.nlink());
    all.insert(dir.to_path_buf(), identity);
    if stat.is_dir() {
        for entry in fs::read_dir(dir).unwrap() {
            look(&entry.unwrap().path(), all);
        }
    }
}

fn upper(bench: &Bench) -> BTreeMap<std::path::PathBuf, Identity> {
    let mut all = BTreeMap::new();
    look(&bench.path("upper"), &mut all);
    all
}

/// The inodes that changed between two looks, as the kernel side tells them.
fn changed(
    before: &BTreeMap<std::path::PathBuf, Identity>,
    after: &BTreeMap<std::path::PathBuf, Identity>,
) -> ChangedInodes {
    let old: HashSet<&Identity> = before.values().collect();
    let new: HashSet<u64> = after.values().map(|it| it.0).collect();
    ChangedInodes {
        there: after
            .values()
            .filter(|it| !old.contains(it))
            .map(|it| it.0)
            .collect(),
        nameless: before
            .values()
            .map(|it| it.0)
            .filter(|inode| !new.contains(inode))
            .collect(),
    }
}

fn persisted(bench: &Bench, scanner: &Scanner, scan: Scan) -> (Tree, Index) {
    assert_eq!(scan.torn(), [] as [Vec<u8>; 0]);
    let (directory, memory) = bench.staging(16 << 20);
    let staging = Staging {
        memory,
        directory: &directory,
    };
    let staged = scanner.stage(scan, &staging).unwrap();
    let captured = staged.persist(&mut bench.store.begin().unwrap()).unwrap();
    (captured.tree, captured.index)
}

/// One turn: both scans, compared; the index of the narrow one.
fn turn(bench: &Bench, index: &Index, script: &str) -> Index {
    let before = upper(bench);
    settle();
    bench.turn(script);
    let changed = changed(&before, &upper(bench));
    let scanner = bench.scanner();
    let none = HashSet::new();
    let whole = scanner.scan(index, &none).unwrap();
    let narrow = scanner.scan_changed(index, &none, &changed).unwrap();
    let narrow = narrow.unwrap_or_else(|| panic!("{script}: {changed:?} is not all"));
    assert_eq!(narrow.changes(), whole.changes(), "{script}: {changed:?}");
    let (expected, _) = persisted(bench, &scanner, whole);
    let (tree, index) = persisted(bench, &scanner, narrow);
    assert_eq!(tree, expected, "{script}: {changed:?}");
    index
}

fn bench() -> Bench {
    Bench::new(|first, second| {
        fs::create_dir_all(first.join("image/deep/er")).unwrap();
        fs::write(first.join("image/deep/file"), "one").unwrap();
        fs::write(first.join("image/deep/er/file"), "two").unwrap();
        fs::create_dir(second.join("other")).unwrap();
        fs::write(second.join("other/file"), "three").unwrap();
        fs::hard_link(second.join("other/file"), second.join("other/link")).unwrap();
    })
}

/// Against what is there now; as all scans of a sandbox after its first.
fn first(bench: &Bench, script: &str) -> Index {
    bench.turn(script);
    settle();
    let scanner = bench.scanner();
    let scan = scanner.scan(&Index::default(), &HashSet::new()).unwrap();
    persisted(bench, &scanner, scan).1
}

const START: &str = "mkdir -p a/b/c d; echo 1 >a/one; echo 2 >a/b/two; echo 3 >a/b/c/three; \
                     echo 4 >d/four; ln a/one d/link; ln -s one a/symlink";

#[test]
fn each_kind_of_change_is_found_by_its_inodes() {
    if skipped() {
        return;
    }
    for script in [
        "true",
        "echo more >>a/b/c/three",
        "chmod 600 a/b/two",
        "chown 5:6 a/b",
        "touch -d @5 a/b/c",
        "rm a/b/two",
        "rm -r a",
        "mv a/b d/b",
        "mv a/b d/b; echo 5 >d/b/c/three; mkdir -p a/b/c; echo 6 >a/b/c/new",
        "mv a t; mv d a; mv t d",
        "mv a/b/c t; rm -r a/b; mv t a/b",
        "mv a/b/two a/b/c/two; echo 7 >>a/b/c/two",
        "ln a/b/two d/again; rm a/b/two",
        "mv a z",
        "rm a/one",
        "rm d/link; echo 8 >d/link",
        "mkdir -p n/e/w; echo 9 >n/e/w/file; ln n/e/w/file a/b/c/file",
        "echo x >a/t; mv a/t a/b/two",
        "echo x >a/t; rm a/t",
        "rm a/b/two; mkdir a/b/two; echo y >a/b/two/file",
        "rm -r a/b; echo z >a/b",
        "rm image/deep/file",
        "rm -r image/deep",
        "rm -r image/deep; mkdir -p image/deep/er",
        "echo q >image/deep/er/file",
        "echo q >other/link",
        "rm other/link",
        "mv image/deep/file image/deep/er/moved",
    ] {
        let bench = bench();
        let index = first(&bench, START);
        let index = turn(&bench, &index, script);
        // And what is on record by then holds for the next.
        turn(&bench, &index, "echo last >>d/four; rm -rf z a/b/c");
    }
}

#[test]
fn an_inode_that_is_nowhere_makes_a_narrow_scan_impossible() {
    if skipped() {
        return;
    }
    let bench = bench();
    // The root is always looked at; what was in the upper directory before is not.
    let index = first(&bench, "chmod 700 image/deep");
    let before = upper(&bench);
    settle();
    // Copied up: nothing tells of the directories that it is in.
    bench.turn("echo q >image/deep/er/file");
    let after = upper(&bench);
    let file = after[&bench.path("upper/image/deep/er/file")].0;
    let there = vec![file];
    let only = ChangedInodes {
        there,
        ..Default::default()
    };
    let scanner = bench.scanner();
    let none = HashSet::new();
    assert!(
        scanner
            .scan_changed(&index, &none, &only)
            .unwrap()
            .is_none()
    );
    let all = changed(&before, &after);
    assert!(scanner.scan_changed(&index, &none, &all).unwrap().is_some());
}

/// Of a further name only the directory tells that it is in.
#[test]
fn an_inode_of_which_a_name_is_missing_makes_a_narrow_scan_impossible() {
    if skipped() {
        return;
    }
    for (script, again) in [
        ("ln a/b/two d/again", "upper/a/b/two"),
        ("ln image/deep/file d/again", "upper/image/deep/file"),
    ] {
        let bench = bench();
        let index = first(&bench, &format!("{START}; chmod 700 image/deep"));
        let inode = |path: &str| fs::metadata(bench.path(path)).unwrap().ino();
        settle();
        bench.turn(script);
        let told = |there| ChangedInodes {
            there,
            ..Default::default()
        };
        let scanner = bench.scanner();
        let scan = |changed| {
            scanner
                .scan_changed(&index, &HashSet::new(), &changed)
                .unwrap()
        };
        assert!(scan(told(vec![inode("upper/d")])).is_none(), "{script}");
        let dir = Path::new(again).parent().unwrap().to_str().unwrap();
        assert!(scan(told(vec![inode("upper/d"), inode(dir)])).is_some());
    }
}

#[test]
fn a_number_that_is_on_record_may_be_another_inodes_by_now() {
    if skipped() {
        return;
    }
    let bench = bench();
    let index = first(&bench, START);
    let inode = |path: &str| fs::metadata(bench.path(path)).unwrap().ino();
    let (dir, gone) = (inode("upper/a/b"), inode("upper/a/b/two"));
    settle();
    fs::remove_file(bench.path("merged/a/b/two")).unwrap();
    // As if a file of the image had been copied up in a directory of which nothing is told, and
    // got the number.
    let changed = ChangedInodes {
        there: vec![dir, gone],
        ..Default::default()
    };
    let scan = bench
        .scanner()
        .scan_changed(&index, &HashSet::new(), &changed);
    assert!(scan.unwrap().is_none(), "it would never be found");
}

#[test]
fn what_changed_counts_more_than_its_times() {
    if skipped() {
        return;
    }
    let bench = bench();
    let index = first(&bench, START);
    let file = bench.path("merged/a/b/two");
    let stat = fs::metadata(&file).unwrap();
    settle();
    fs::write(&file, "3\n").unwrap();
    let same = Timespec {
        tv_sec: stat.mtime(),
        tv_nsec: stat.mtime_nsec() as _,
    };
    let times = Timestamps {
        last_access: same,
        last_modification: same,
    };
    rustix::fs::utimensat(rustix::fs::CWD, &file, &times, rustix::fs::AtFlags::empty()).unwrap();
    let inode = fs::metadata(bench.path("upper/a/b/two")).unwrap().ino();
    let changed = ChangedInodes {
        there: vec![inode],
        ..Default::default()
    };
    let scanner = bench.scanner();
    let scan = scanner
        .scan_changed(&index, &HashSet::new(), &changed)
        .unwrap()
        .unwrap();
    assert_eq!(scan.changes().len(), 1, "{:?}", scan.changes());
}

#[test]
fn random_turns_are_told_as_by_a_look_at_everything() {
    if skipped() {
        return;
    }
    let seed = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_nanos() as u64;
    println!("seed {seed}");
    let mut state = seed | 1;
    let mut any = |of: &[&str]| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        of[(state % of.len() as u64) as usize].to_string()
    };
    let names = [
        "a",
        "a/b",
        "a/b/c",
        "d",
        "d/e",
        "image/deep",
        "image",
        "other",
        "a/f",
        "d/f",
        "image/deep/file",
        "other/file",
    ];
    let bench = bench();
    let mut index = first(&bench, START);
    for _ in 0..150 {
        let mut script = String::new();
        for _ in 0..3 {
            let (one, two) = (any(&names), any(&names));
            script += &match &*any(&["write", "mkdir", "mv", "rm", "ln", "append", "chmod"]) {
                "write" => format!("echo $$ >{one}; "),
                "append" => format!("echo more >>{one}; "),
                "mkdir" => format!("mkdir -p {one}; "),
                "mv" => format!("mv {one} {two}; "),
                "rm" => format!("rm -rf {one}; "),
                "ln" => format!("ln {one} {two}; "),
                _ => format!("chmod 7{} {one}; ", any(&["00", "11", "55"])),
            };
        }
        let script = format!("set +e; exec 2>/dev/null; {script} true");
        index = turn(&bench, &index, &script);
    }
}
