// SPDX-License-Identifier: Apache-2.0
//! What is a change and what is none.

use std::{
    collections::HashSet,
    fs,
    os::unix::fs::FileExt,
    path::Path,
    time::{Duration, Instant},
};

use crab_runtime::files::{Index, Scanner};

use crate::harness::{Bench, changes_forced, settle, shell, skipped, tmpfs};

/// An image with a few files, and a first checkpoint of what is above it.
fn bench() -> (Bench, Index) {
    let bench = Bench::new(|one, two| {
        shell(
            two,
            "mkdir -p etc usr/bin srv/a; echo low >etc/low; echo ls >usr/bin/ls; ln -s low etc/link; echo deep >srv/a/deep",
        );
        shell(
            one,
            "mkdir -p etc; echo conf >etc/conf; echo own >etc/own; chown 7:8 etc/own",
        );
    });
    bench.turn("mkdir home; echo one >home/one; echo two >home/two; ln home/two home/three");
    let (captured, _) = bench.capture(&Index::default());
    settle();
    (bench, captured.index)
}

#[test]
fn a_turn_that_only_reads_changes_nothing() {
    if skipped() {
        return;
    }
    let (bench, index) = bench();
    bench.turn("find . | xargs ls -ld; cat etc/* home/* >/dev/null");
    assert!(bench.changes(&index).is_empty());
}

#[test]
fn what_came_and_went_nets_out() {
    if skipped() {
        return;
    }
    let (bench, index) = bench();
    for script in [
        "echo temporary >etc/tmp; rm etc/tmp",
        "mkdir -p home/d/e; echo x >home/d/e/f; rm -r home/d",
        "mv home/one home/x; mv home/x home/one",
        "mv etc/low etc/x; mv etc/x etc/low",
        "ln home/one home/x; rm home/x",
        "chmod 600 home/one; chmod 644 home/one",
        // Opened for writing, and so copied up, and not written.
        ": >>etc/conf; : >>srv/a/deep; exec 3<>etc/own",
        "chown -h 0:0 etc/link",
        "cp -p home/one home/x; mv home/x home/one",
    ] {
        bench.turn(script);
        assert_eq!(bench.changes(&index), [] as [String; 0], "{script}");
    }
    // What was copied up is in the next image all the same.
    bench.turn("echo more >>home/one");
    let (captured, _) = bench.capture(&index);
    assert!(captured.tree.get(b"srv/a/deep").is_some());
    assert!(bench.changes(&captured.index).is_empty());
}

#[test]
fn a_scan_without_changes_gives_an_index_that_reads_nothing_again() {
    if skipped() {
        return;
    }
    let (bench, index) = bench();
    bench.turn(": >>etc/conf; : >>home/one; touch x; rm x");
    let scan = bench.scanner().scan(&index, &Default::default()).unwrap();
    let index = scan.into_index().unwrap();
    settle();
    assert!(bench.changes(&index).is_empty());
    bench.turn("echo more >>etc/conf");
    assert_eq!(bench.changes(&index), ["~etc/conf"]);
}

#[test]
fn what_is_passed_over_is_found_again_and_its_mappings_are_remembered() {
    if skipped() {
        return;
    }
    let (bench, mut index) = bench();
    bench.turn("echo x >cache; rm home/two");
    let scan = bench.scanner().scan(&index, &Default::default()).unwrap();
    assert_eq!(scan.changes().len(), 2, "{:?}", scan.changes());
    scan.pass_over(&mut index);
    assert_eq!(bench.changes(&index), ["+cache", "-home/two"]);
    // Mapped while it was looked at, and written to after its page was dirty: no time
    // tells of that, and nobody maps it any more.
    settle();
    let mapped = HashSet::from([b"home/one".to_vec()]);
    let scan = bench.scanner().scan(&index, &mapped).unwrap();
    scan.pass_over(&mut index);
    let one = bench.path("merged/home/one");
    let times = fs::metadata(&one).unwrap().modified().unwrap();
    fs::write(&one, "ONE\n").unwrap();
    let file = fs::File::options().write(true).open(&one).unwrap();
    file.set_modified(times).unwrap();
    let found = bench.changes(&index);
    assert!(found.contains(&"~home/one".to_owned()), "{found:?}");
}

#[test]
fn a_change_tells_the_size_before_and_after() {
    if skipped() {
        return;
    }
    let (bench, index) = bench();
    bench.turn(
        "echo more >>home/one; echo more >>etc/low; rm home/two etc/own; echo x >new; mkdir dir",
    );
    let scan = bench.scanner().scan(&index, &Default::default()).unwrap();
    let told: Vec<_> = scan
        .changes()
        .iter()
        .map(|change| {
            (
                String::from_utf8_lossy(&change.path),
                change.before,
                change.size,
            )
        })
        .collect();
    let told: Vec<_> = told.iter().map(|(path, b, s)| (&**path, *b, *s)).collect();
    let expected = [
        ("dir", None, 0),
        ("etc/low", Some(4), 9),
        ("etc/own", Some(4), 0),
        ("home/one", Some(4), 9),
        ("home/two", Some(4), 0),
        ("new", None, 2),
    ];
    assert_eq!(told, expected);
}

#[test]
fn every_change_is_found() {
    if skipped() {
        return;
    }
    for (script, expected) in [
        ("echo x >new", "+new"),
        ("echo x >etc/new", "+etc/new"),
        ("mkdir new", "+new"),
        ("ln -s x new", "+new"),
        ("mkfifo new", "+new"),
        ("echo x >home/one", "~home/one"),
        ("echo xxx >home/one", "~home/one"),
        ("echo x >>etc/low", "~etc/low"),
        ("sed -i s/conf/CONF/ etc/conf", "~etc/conf"),
        ("chmod 700 home/one", "~home/one"),
        ("chmod 700 home", "~home"),
        ("chmod 700 .", "~"),
        ("chown 5:6 etc/low", "~etc/low"),
        ("chown -h 5:6 etc/link", "~etc/link"),
        ("ln -sf other etc/link", "~etc/link"),
        ("rm etc/low", "-etc/low"),
        ("rm home/one", "-home/one"),
        ("rm -r srv/a", "-srv/a"),
        ("rm -r srv/a; mkdir srv/a", "~srv/a"),
        ("rm etc/low; mkdir etc/low", "~etc/low"),
        ("rm home/one; mkdir home/one", "~home/one"),
        // The authors' own inspector says "unchanged" to these.
        ("> home/one; rm home/one", "-home/one"),
        ("> etc/low; rm etc/low", "-etc/low"),
        ("echo t >tmp; mv tmp home/one; rm home/one", "-home/one"),
        ("echo t >tmp; mv tmp etc/low; rm etc/low", "-etc/low"),
        ("echo a >home/a; ln home/a home/b; rm home/a", "+home/b"),
        (
            "python3 -c \"import mmap,os; f=os.open('home/one',os.O_RDWR); m=mmap.mmap(f,4); m[0:1]=b'X'\"",
            "~home/one",
        ),
        (
            "python3 -c \"import os; a=os.open('etc/conf',0); b=os.open('home/new',os.O_RDWR|os.O_CREAT); os.sendfile(b,a,0,5)\"",
            "+home/new",
        ),
        (
            "python3 -c \"import os; a=os.open('etc/conf',0); b=os.open('home/one',os.O_RDWR); os.copy_file_range(a,b,2)\"",
            "~home/one",
        ),
        ("fallocate -l 100 home/one", "~home/one"),
        ("fallocate -p -o 0 -l 2 home/one", "~home/one"),
        ("truncate -s 1 home/one", "~home/one"),
        ("touch -d 2001-01-01 home/one", "~home/one"),
        (
            "python3 -c \"import os; os.setxattr('home/one','user.k',b'v')\"",
            "~home/one",
        ),
        (
            "python3 -c \"import os; os.setxattr('home','trusted.k',b'v')\"",
            "~home",
        ),
        // The times tell nothing, the bytes do.
        (
            "touch -r home/one /tmp/crab-ref-$$; echo ONE >home/one; touch -r /tmp/crab-ref-$$ home/one; rm /tmp/crab-ref-$$",
            "~home/one",
        ),
    ] {
        let (bench, index) = bench();
        bench.turn(script);
        assert_eq!(bench.changes(&index), [expected], "{script}");
    }
}

#[test]
fn links_are_followed_through_renames_and_removals() {
    if skipped() {
        return;
    }
    for (script, expected) in [
        ("rm home/three", vec!["-home/three", "~home/two"]),
        ("rm home/two", vec!["~home/three", "-home/two"]),
        (
            "cp -p home/two t; mv t home/two",
            vec!["~home/three", "~home/two"],
        ),
        ("echo x >>home/two", vec!["~home/three", "~home/two"]),
        ("ln home/three home/z", vec!["+home/z"]),
    ] {
        let (bench, index) = bench();
        bench.turn(script);
        let mut found = bench.changes(&index);
        let expected: Vec<String> = expected.into_iter().map(String::from).collect();
        // `three` is the first name: when the others go, it is as it was.
        found.retain(|line| expected.contains(line));
        assert!(!found.is_empty(), "{script}: {:?}", bench.changes(&index));
        let (captured, reader) = bench.capture(&index);
        bench.build(&captured.tree, &reader, "again");
        let list = crate::harness::list;
        assert_eq!(list(&bench.path("again")), list(&bench.path("upper")));
        assert!(bench.changes(&captured.index).is_empty());
    }
    // Only the directory is renamed: no inode of the group is touched.
    let (bench, _) = bench();
    bench.turn("mkdir -p a b; echo x >a/f; ln a/f b/g");
    let (captured, _) = bench.capture(&Index::default());
    settle();
    bench.turn("mv a z");
    let (captured, reader) = bench.capture(&captured.index);
    bench.build(&captured.tree, &reader, "again");
    let list = crate::harness::list;
    assert_eq!(list(&bench.path("again")), list(&bench.path("upper")));
}

#[test]
fn a_rewrite_within_one_tick_of_the_clock_is_found() {
    if skipped() {
        return;
    }
    let (bench, _) = bench();
    let path = bench.path("merged/racy");
    for round in 0..50u8 {
        fs::write(&path, [b'a' + round % 20; 8]).unwrap();
        let (captured, _) = bench.capture(&Index::default());
        // Same size, and the same time as far as the file system can tell.
        let times = fs::metadata(&path).unwrap().modified().unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.write_all_at(&[b'A' + round % 20], 0).unwrap();
        file.set_modified(times).unwrap();
        drop(file);
        assert_eq!(bench.changes(&captured.index), ["~racy"], "round {round}");
    }
}

#[test]
fn stores_to_a_mapping_that_move_no_times_are_found_even_after_it_is_gone() {
    if skipped() {
        return;
    }
    let (bench, _) = bench();
    // On tmpfs a page stays dirty for good: only the first store moves the times.
    let shm = tmpfs(&bench.path("shm"));
    fs::write(shm.0.join("one"), "one").unwrap();
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(shm.0.join("one"));
    let flags = rustix::mm::MapFlags::SHARED;
    let access = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
    let file = file.unwrap();
    // SAFETY: a mapping of its own, of a file that stays at least this long.
    let page = unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, access, flags, &file, 0) };
    let page = page.unwrap().cast::<u8>();
    let store = |byte: u8| {
        // SAFETY: within the mapping, which nobody else uses.
        unsafe { page.write_volatile(byte) }
    };
    store(b'1');
    settle();
    let scanner = Scanner::mounted(std::process::id(), &shm.0).unwrap();
    let (captured, _) = bench.capture_with(&scanner, &Index::default(), 1 << 20);
    settle();
    store(b'2');
    assert!(changes_forced(&scanner, &captured.index, &[]).is_empty());
    let found = changes_forced(&scanner, &captured.index, &["one"]);
    assert_eq!(found, ["~one"]);
    store(b'1');
    let forced = [b"one".to_vec()].into();
    let scan = scanner.scan(&captured.index, &forced).unwrap();
    let index = scan.into_index().unwrap();
    settle();
    store(b'3');
    // SAFETY: the mapping is not used after this.
    unsafe { rustix::mm::munmap(page.cast(), 4096) }.unwrap();
    drop(file);
    assert_eq!(changes_forced(&scanner, &index, &[]), ["~one"]);
}

#[test]
fn what_changes_among_thousands_of_files_is_found_and_nothing_else() {
    if skipped() {
        return;
    }
    let (bench, _) = bench();
    // Large directories, which are looked at in pieces, and many small ones.
    bench.turn(
        "mkdir -p large wide; (cd large; touch $(seq 3000)); \
         for d in $(seq 60); do mkdir wide/$d; (cd wide/$d; touch $(seq 50)); done; \
         ln large/2000 wide/7/linked; ln wide/9/9 wide/9/again",
    );
    settle();
    let (mut captured, _) = bench.capture(&Index::default());
    assert!(bench.changes(&captured.index).is_empty());
    let all = captured.index.len();
    let turns: [(&str, &[&str]); 5] = [
        (
            "for f in 1 511 512 513 1500 2999 3000; do echo x >large/$f; done; echo x >wide/60/50",
            &[
                "~large/1",
                "~large/1500",
                "~large/2999",
                "~large/3000",
                "~large/511",
                "~large/512",
                "~large/513",
                "~wide/60/50",
            ],
        ),
        (
            "rm large/7 large/2900; touch large/new wide/1/new; rm -r wide/2/4?; rm -r wide/3",
            &[
                "-large/2900",
                "-large/7",
                "+large/new",
                "+wide/1/new",
                "-wide/2/40",
                "-wide/2/41",
                "-wide/2/42",
                "-wide/2/43",
                "-wide/2/44",
                "-wide/2/45",
                "-wide/2/46",
                "-wide/2/47",
                "-wide/2/48",
                "-wide/2/49",
            ],
        ),
        (
            "echo x >wide/7/linked; rm wide/9/9",
            &["~large/2000", "-wide/9/9", "~wide/9/again"],
        ),
        (
            "mv wide/5 wide/moved; mv wide/moved wide/5; touch large/x; rm large/x",
            &[],
        ),
        (
            "rm large/3000; mkdir large/3000; chmod 600 large/2",
            &["~large/2", "~large/3000"],
        ),
    ];
    for (script, expected) in turns {
        bench.turn(script);
        let mut found = bench.changes(&captured.index);
        found.retain(|line| !line.starts_with("-wide/3") && line != "~wide/7/linked");
        assert_eq!(found, expected, "{script}");
        settle();
        let before = captured.index;
        (captured, _) = bench.capture(&before);
        // As one that starts with nothing.
        let (anew, _) = bench.capture(&Index::default());
        assert!(captured.tree == anew.tree, "{script}");
        assert!(bench.changes(&captured.index).is_empty(), "{script}");
    }
    assert_eq!(captured.index.len(), all + 2 - 2 - 10 - 51 - 1);
}

#[test]
fn twenty_thousand_unchanged_files_are_scanned_quickly() {
    if skipped() {
        return;
    }
    let (bench, _) = bench();
    bench.turn("for d in $(seq 200); do mkdir -p many/$d; (cd many/$d; touch $(seq 100)); done");
    settle();
    let (captured, _) = bench.capture(&Index::default());
    let scanner = bench.scanner();
    let (mut best, mut best_look) = (Duration::MAX, Duration::MAX);
    for _ in 0..5 {
        let begun = Instant::now();
        let scan = scanner.scan(&captured.index, &Default::default()).unwrap();
        best = best.min(begun.elapsed());
        assert!(scan.changes().is_empty());
        let begun = Instant::now();
        assert!(look_at_all(&bench.path("upper")) >= 20_200);
        best_look = best_look.min(begun.elapsed());
    }
    println!(
        "{} entries: {best:?}, and {best_look:?} to look at each",
        captured.index.len()
    );
    // As much as this machine needs to look at them, and some slack for a debug build.
    assert!(best < best_look * 10, "{best:?}, {best_look:?}");
}

/// The least that a scan can do: lstat on everything; gives how much that is.
fn look_at_all(dir: &Path) -> usize {
    let entries = fs::read_dir(dir).unwrap().map(|entry| {
        let path = entry.unwrap().path();
        let below = fs::symlink_metadata(&path).unwrap().is_dir();
        1 + if below { look_at_all(&path) } else { 0 }
    });
    entries.sum()
}
