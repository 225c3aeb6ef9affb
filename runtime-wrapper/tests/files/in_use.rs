// SPDX-License-Identifier: Apache-2.0
//! Making a mounted overlay, and a tmpfs, an earlier tree again while they are in use; and telling how
//! one differs from a tree. Compared by an independent lister of the merged view.

use std::{
    fs::{self, File},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::FileExt,
    },
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use crab_runtime::files::{
    Captured, DifferenceKind, Index, Look, Plan, PlanError, PlanLimits, Scanner, put_back,
};
use crab_store::{ObjectReader, Tree};
use rustix::fs::{Mode, OFlags, open};

use crate::harness::{Bench, Over, changes, list, settle, shell, skipped, tmpfs};

fn image(one: &Path, two: &Path) {
    shell(
        two,
        "mkdir -p etc dir/sub gone/deep home; echo a >etc/a; echo b >etc/b; echo b2 >etc/b2; \
         echo c >dir/c; echo s >dir/sub/s; echo x >gone/deep/x; chmod 600 etc/b; chown 7:8 etc/b; \
         ln -s b etc/link; touch -d '2001-02-03 04:05:06.7' etc home dir/c; \
         python3 -c 'import os; os.setxattr(\"etc/b2\", \"user.note\", b\"lower\")'; head -c 300000 /dev/zero >etc/zero; \
         head -c 700000 /dev/urandom >etc/large",
    );
    shell(
        one,
        "mkdir -p etc; echo upper-a >etc/a; touch -d '2003-02-03 04:05:06.7' etc",
    );
}

fn differences(scanner: &Scanner, tree: &Tree) -> Vec<String> {
    let verified = scanner.verify(tree).unwrap();
    assert!(verified.torn.is_empty());
    let told = verified.differences.iter().map(|it| {
        let path = it.path.escape_ascii();
        match &it.kind {
            DifferenceKind::Added => format!("+{path}"),
            DifferenceKind::Removed => format!("-{path}"),
            DifferenceKind::Changed(what) => format!("~{path}: {what}"),
        }
    });
    told.collect()
}

fn directory(path: &Path) -> File {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    open(path, flags, Mode::empty()).unwrap().into()
}

/// From what `index` says to a tree, in place.
fn go(
    scanner: &Scanner,
    view: BorrowedFd<'_>,
    index: &mut Index,
    tree: &Tree,
    reader: &ObjectReader,
) -> Result<(), PlanError> {
    let plan = Plan::of(scanner, index, tree, PlanLimits::NONE)?;
    plan.carry_out(scanner, view, reader).unwrap();
    plan.renewed(scanner, tree)?.into_index(index);
    assert!(
        Plan::of(scanner, index, tree, PlanLimits::NONE)
            .unwrap()
            .is_empty()
    );
    Ok(())
}

/// Two turns, and back from the second to the first, and to the second again.
fn there_and_back(first: &str, second: &str) {
    let bench = Bench::new(image);
    let merged = bench.path("merged");
    let scanner = bench.scanner();
    bench.turn(first);
    let (one, reader_of_one) = bench.capture(&Index::default());
    let before = list(&merged);
    bench.turn(second);
    let (two, reader_of_two) = bench.capture(&one.index);
    let after = list(&merged);
    let view = directory(&merged);
    let mut index = two.index.clone();

    let named = format!("{first} | {second}");
    let go = |index: &mut Index, to: &Captured, reader: &ObjectReader| {
        go(&scanner, view.as_fd(), index, &to.tree, reader)
            .unwrap_or_else(|error| panic!("{named}: {error}"));
        assert_eq!(changes(&scanner, index), [""; 0], "{named}");
        assert_eq!(differences(&scanner, &to.tree), [""; 0], "{named}");
    };
    go(&mut index, &one, &reader_of_one);
    assert_eq!(list(&merged), before, "{named}");
    go(&mut index, &two, &reader_of_two);
    assert_eq!(list(&merged), after, "{named}");
    go(&mut index, &one, &reader_of_one);
    assert_eq!(list(&merged), before, "{named}");
    settle();
    assert_eq!(changes(&scanner, &index), [""; 0], "{named}");

    // What is captured from there comes back the same way, as a whole.
    bench.turn("echo later >home/later");
    assert_eq!(changes(&scanner, &index), ["+home/later"], "{named}");
    let later = list(&merged);
    let (three, reader) = bench.capture(&index);
    let mut bench = bench;
    let built = bench.build(&three.tree, &reader, "built");
    drop(view);
    bench.mount_with_upper(&built);
    assert_eq!(list(&merged), later, "{named}");
}

#[test]
fn a_root_in_use_goes_back_exactly() {
    if skipped() {
        return;
    }
    let turns = [
        (
            "echo 1 >etc/new; echo 1 >x",
            "echo 2 >etc/new; rm x; echo y >y",
        ),
        // What is the image's, changed and removed.
        (
            "true",
            "echo B >etc/b; rm etc/a; rm etc/link; rm etc/large; : >etc/zero",
        ),
        (
            "echo B >etc/b; echo 1 >>etc/large",
            "rm etc/b etc/large; echo b >etc/b3",
        ),
        (
            "rm etc/a etc/link",
            "echo new >etc/a; ln -s elsewhere etc/link",
        ),
        // Only what is told of files.
        (
            "echo x >home/x",
            "chmod 4755 home/x; chown 5:6 home/x etc/b; touch -d '2011-01-01 01:02:03.4' etc/a; \
             python3 -c 'import os; os.setxattr(\"etc/b2\", \"user.note\", b\"other\"); \
             os.setxattr(\"home/x\", \"user.new\", b\"1\")'; chmod 700 etc",
        ),
        // Directories that are not the image's.
        (
            "mkdir -p home/a/b/c; echo 1 >home/a/b/c/f; chmod 751 home/a/b",
            "rm -r home/a; mkdir -p home/q/r; echo z >home/q/r/z",
        ),
        (
            "mkdir home/d; echo 1 >home/d/f",
            "rm -r home/d; echo file >home/d",
        ),
        (
            "echo file >home/d",
            "rm home/d; mkdir -p home/d/e; echo 1 >home/d/e/f",
        ),
        // Every kind.
        (
            "mkfifo home/p; mknod home/n c 1 3; ln -s x home/l; truncate -s 5M home/sparse",
            "rm home/p; echo p >home/p; rm home/n; mknod home/n c 1 5; rm home/l; ln -s y home/l; \
             echo full >home/sparse",
        ),
        (
            "cp /bin/true home/t; python3 -c 'import os; os.setxattr(\"home/t\", \"security.capability\", \
             bytes.fromhex(\"0100000200040000000000000000000000000000\"))'",
            "echo x >home/t",
        ),
        // A directory of the image that was replaced already, and is left so.
        (
            "rm -r dir; mkdir dir; echo n >dir/n",
            "echo m >dir/n; echo s >dir/s; chmod 700 dir",
        ),
        // Odd names.
        (
            "touch $'home/\\xff\\n'",
            "rm $'home/\\xff\\n'; echo 1 >$'home/ \\x01'",
        ),
        // A time that moved and nothing else.
        (
            "mkdir home/t; echo 1 >home/t/f",
            "echo 2 >home/t/g; rm home/t/g",
        ),
        // The same of a directory of the image, which only then lies in the upper one.
        (
            "echo 1 >home/f",
            "echo 2 >home/f; echo t >dir/sub/t; rm dir/sub/t",
        ),
        (
            "echo 1 >etc/new",
            "mkdir etc/sub; mv etc/new etc/sub/moved; mv etc/b home/b",
        ),
    ];
    for (first, second) in turns {
        there_and_back(first, second);
    }
}

const NESTED: &str = "mkdir home/nested; \
    python3 -c 'import os; os.setxattr(\"home/nested\", \"trusted.overlay.opaque\", b\"y\")'";

/// An overlay notes in an attribute that it is immutable.
const PROTECTED: &str = "mkdir home/kept; chattr +i home/kept";

#[test]
fn the_time_of_a_directory_comes_back_where_the_root_was_exchanged_since() {
    if skipped() {
        return;
    }
    let mut bench = Bench::new(image);
    let merged = bench.path("merged");
    bench.turn("echo 1 >home/f");
    let (one, reader_of_one) = bench.capture(&Index::default());
    bench.turn("echo 2 >home/f; echo t >dir/sub/t; rm dir/sub/t");
    let (two, reader_of_two) = bench.capture(&one.index);
    let after = list(&merged);
    let built = bench.build(&one.tree, &reader_of_one, "built");
    bench.mount_with_upper(&built);
    let scanner = bench.scanner();
    let mut index = scanner.index_restored(&one.tree).unwrap();
    let view = directory(&merged);
    go(
        &scanner,
        view.as_fd(),
        &mut index,
        &two.tree,
        &reader_of_two,
    )
    .unwrap();
    assert_eq!(list(&merged), after);
}

#[test]
fn a_socket_that_was_bound_again_is_the_same() {
    if skipped() {
        return;
    }
    const BIND: &str = "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"home/s\")'";
    let bench = Bench::new(image);
    bench.turn(BIND);
    let (one, _) = bench.capture(&Index::default());
    bench.turn(&format!("rm home/s; {BIND}"));
    let none: [&str; 0] = [];
    assert_eq!(differences(&bench.scanner(), &one.tree), none);
    bench.turn("chmod 600 home/s");
    assert_eq!(differences(&bench.scanner(), &one.tree), ["~home/s: mode"]);
}

#[test]
fn a_plan_ends_where_it_exceeds_its_limits() {
    if skipped() {
        return;
    }
    let bench = Bench::new(image);
    bench
        .turn("for i in {1..30}; do echo $i >home/$i; done; head -c 200000 /dev/urandom >home/big");
    let (one, _) = bench.capture(&Index::default());
    bench.turn("rm home/*");
    let (two, _) = bench.capture(&one.index);
    let planned = |paths, bytes| {
        let limits = PlanLimits { paths, bytes };
        Plan::of(&bench.scanner(), &two.index, &one.tree, limits)
    };
    // The directory that holds them is one, too.
    assert_eq!(planned(32, 300_000).unwrap().len(), 32);
    for (paths, bytes) in [(31, 300_000), (5, 300_000), (32, 100_000)] {
        let plan = planned(paths, bytes);
        assert!(matches!(plan, Err(PlanError::TooMuch)), "{plan:?}");
    }
}

/// Tells a test that it runs in a process of its own that may hold few descriptors.
const FEW: &str = "CRAB_TEST_FEW_DESCRIPTORS";

#[test]
fn however_many_paths_differ_few_descriptors_are_open() {
    const NAME: &str = "in_use::however_many_paths_differ_few_descriptors_are_open";
    if skipped() {
        return;
    }
    if std::env::var_os(FEW).is_none() {
        let limited = "ulimit -n 64; exec \"$0\" --exact \"$1\" --nocapture";
        let test = std::env::current_exe().unwrap();
        let done = std::process::Command::new("bash")
            .args(["-euc", limited])
            .arg(test)
            .arg(NAME)
            .env(FEW, "1")
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success(), "{told}");
        assert!(told.contains("1 passed"), "{told}");
        return;
    }
    let bench = Bench::new(|_, two| {
        shell(
            two,
            "mkdir many; for i in {1..300}; do echo $i >many/$i; done",
        );
    });
    let (one, reader) = bench.capture(&Index::default());
    let before = list(&bench.path("merged"));
    bench.turn("rm many/1*; for i in many/2*; do echo more >>$i; done");
    let (two, _) = bench.capture(&one.index);
    let scanner = bench.scanner();
    assert_eq!(differences(&scanner, &one.tree).len(), 222);
    let view = directory(&bench.path("merged"));
    let mut index = two.index;
    go(&scanner, view.as_fd(), &mut index, &one.tree, &reader).unwrap();
    assert_eq!(list(&bench.path("merged")), before);
}

#[test]
fn what_comes_back_from_the_image_is_looked_at_too() {
    if skipped() {
        return;
    }
    for spoil in [
        "time=$(stat -c %y etc/b); echo x >etc/b; touch -d \"$time\" etc/b",
        "rm etc/b",
        "chmod 640 etc/b",
        "touch etc",
    ] {
        let bench = Bench::new(image);
        let scanner = bench.scanner();
        bench.turn("echo 1 >home/f");
        let (one, reader) = bench.capture(&Index::default());
        bench.turn("echo B >etc/b; echo 1 >etc/new");
        let (two, _) = bench.capture(&one.index);
        let plan = Plan::of(&scanner, &two.index, &one.tree, PlanLimits::NONE).unwrap();
        let view = directory(&bench.path("merged"));
        plan.carry_out(&scanner, view.as_fd(), &reader).unwrap();
        plan.renewed(&scanner, &one.tree).unwrap();
        bench.turn(spoil);
        let renewed = plan.renewed(&scanner, &one.tree);
        assert!(
            matches!(renewed, Err(PlanError::Unsuitable { .. })),
            "{spoil}: {renewed:?}"
        );
    }
}

#[test]
fn a_second_look_reads_what_changed_and_no_more_than_it_may() {
    if skipped() {
        return;
    }
    let bench = Bench::new(image);
    let scanner = bench.scanner();
    bench.turn("head -c 400000 /dev/urandom >home/big; echo 1 >home/f; echo 1 >home/g");
    let (one, _) = bench.capture(&Index::default());
    settle();
    let none = Default::default();
    let look = |earlier: &Look, everything, mut bytes| {
        let look = scanner.look_again(&one.tree, earlier, &none, everything, &mut bytes);
        look.unwrap()
    };
    let told = |look: Look| {
        let verified = look.compare(&scanner, &one.tree).unwrap();
        let paths = verified.differences.iter().map(|it| it.path.clone());
        paths.collect::<Vec<_>>()
    };
    let first = scanner.look(&one.tree, &none).unwrap();
    // What is as it was is not read.
    assert_eq!(told(look(&first, false, 0).unwrap()), [b""; 0]);
    assert!(look(&first, true, 400_000).is_none());
    assert_eq!(told(look(&first, true, 500_000).unwrap()), [b""; 0]);
    // With the length that it had, and the time.
    bench.turn("time=$(stat -c %y home/f); echo 2 >home/f; touch -d \"$time\" home/f");
    assert!(look(&first, false, 1).is_none());
    assert_eq!(told(look(&first, false, 10).unwrap()), [b"home/f"]);
    let second = look(&first, false, 10).unwrap();
    bench.turn("time=$(stat -c %y home/f); echo 1 >home/f; touch -d \"$time\" home/f; rm home/g");
    assert_eq!(told(look(&second, false, 10).unwrap()), [b"home/g"]);
    // What is only a copy of the image's, and was more before.
    bench.turn("chown 9 etc/b");
    let third = look(&second, false, 10).unwrap();
    bench.turn("chown 7 etc/b");
    assert_eq!(told(look(&third, false, 10).unwrap()), [b"home/g"]);
}

#[test]
fn what_was_written_to_in_the_first_look_is_looked_at_in_the_second() {
    if skipped() {
        return;
    }
    let bench = Bench::new(image);
    let scanner = bench.scanner();
    bench.turn("head -c 8000000 /dev/zero | tr '\\0' x >home/busy");
    let (one, _) = bench.capture(&Index::default());
    settle();
    let none = Default::default();
    let busy = fs::OpenOptions::new()
        .write(true)
        .open(bench.path("merged").join("home/busy"))
        .unwrap();
    let is_over = AtomicBool::new(false);
    let first = thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| {
            // What it holds already.
            while !is_over.load(Ordering::Relaxed) {
                busy.write_all_at(b"x", 0).unwrap();
            }
        });
        let torn = (0..1000).find_map(|_| {
            let look = scanner.look(&one.tree, &none).unwrap();
            look.is_torn().then_some(look)
        });
        torn.expect("one of a thousand looks at what is written to is torn")
    });
    settle();
    let mut bytes = u64::MAX;
    let second = scanner.look_again(&one.tree, &first, &none, false, &mut bytes);
    let second = second.unwrap().unwrap();
    assert!(!second.is_torn());
    let verified = second.compare(&scanner, &one.tree).unwrap();
    let [only] = &verified.differences[..] else {
        panic!("{:?}", verified.differences);
    };
    // It has another time, and is there.
    assert_eq!(only.path, b"home/busy");
    assert!(matches!(only.kind, DifferenceKind::Changed(_)), "{only:?}");
}

#[test]
fn what_the_merged_view_cannot_be_told_is_refused_and_nothing_is_touched() {
    if skipped() {
        return;
    }
    let turns = [
        ("true", "rm -r gone"),
        ("rm -r gone", "mkdir gone"),
        ("true", "rm -r dir; mkdir dir; echo n >dir/n"),
        ("rm -r gone; echo file >gone", "rm gone; mkdir gone"),
        ("echo 1 >home/a; ln home/a home/b", "echo 2 >home/a"),
        ("echo 1 >home/a", "ln home/a home/b; echo 2 >home/a"),
        // A nested overlay's own: its attributes have other names in the merged view.
        (NESTED, "echo 1 >home/nested/f"),
        (
            NESTED,
            "echo 1 >home/nested/f; rm home/nested/f; echo 2 >home/other",
        ),
        (NESTED, "rmdir home/nested"),
        ("true", NESTED),
        // What keeps it from being changed is no attribute in the merged view.
        (
            PROTECTED,
            "chattr -i home/kept; rmdir home/kept; ln -s x home/kept",
        ),
        ("true", PROTECTED),
    ];
    for (first, second) in turns {
        let bench = Bench::new(image);
        bench.turn(first);
        let (one, _) = bench.capture(&Index::default());
        bench.turn(second);
        let (two, _) = bench.capture(&one.index);
        let plan = Plan::of(&bench.scanner(), &two.index, &one.tree, PlanLimits::NONE);
        assert!(
            matches!(plan, Err(PlanError::Unsuitable { .. })),
            "{first} | {second}: {plan:?}"
        );
        assert!(!differences(&bench.scanner(), &one.tree).is_empty());
    }
}

#[test]
fn half_of_a_way_back_is_undone() {
    if skipped() {
        return;
    }
    let bench = Bench::new(image);
    let (merged, scanner) = (bench.path("merged"), bench.scanner());
    bench.turn("echo 1 >etc/new; mkdir home/d; echo 1 >home/d/f");
    let (one, reader) = bench.capture(&Index::default());
    bench.turn("echo 2 >etc/new; rm -r home/d; rm etc/b; echo a >etc/a; chmod 711 home");
    let (two, reader_of_two) = bench.capture(&one.index);
    let now = list(&merged);
    let view = directory(&merged);
    let plan = Plan::of(&scanner, &two.index, &one.tree, PlanLimits::NONE).unwrap();
    // Something is in the way of the last thing that is made.
    shell(&merged, "echo in the way >home/d");
    assert!(plan.carry_out(&scanner, view.as_fd(), &reader).is_err());
    assert_ne!(list(&merged), now);
    let index = put_back(&scanner, view.as_fd(), &two.index, &reader_of_two).unwrap();
    assert_eq!(list(&merged), now);
    assert_eq!(changes(&scanner, &index), [""; 0]);
}

#[test]
fn a_tmpfs_goes_back_and_what_is_mounted_on_it_is_let_be() {
    if skipped() {
        return;
    }
    let bench = Bench::new(image);
    let at = bench.path("memory");
    let _memory = tmpfs(&at);
    let _inner = tmpfs(&at.join("inner"));
    fs::write(at.join("inner/other"), "x").unwrap();
    let scanner = Scanner::directory(directory(&at).into());
    shell(&at, "echo 1 >f; mkdir d; echo 1 >d/f; mknod null c 1 3");
    let (one, reader) = bench.capture_with(&scanner, &Index::default(), 1 << 20);
    let before = list(&at);
    shell(&at, "echo 2 >f; rm -r d; rm null; echo g >g");
    let (two, _) = bench.capture_with(&scanner, &one.index, 1 << 20);
    assert_eq!(
        differences(&scanner, &one.tree),
        ["-d", "-d/f", "~f: content, time", "+g", "-null"]
    );
    let mut index = two.index;
    go(&scanner, scanner.root(), &mut index, &one.tree, &reader).unwrap();
    assert_eq!(list(&at), before);
    assert_eq!(differences(&scanner, &one.tree), [""; 0]);
}

#[test]
fn how_a_root_differs_from_a_tree_is_told_as_the_container_sees_it() {
    if skipped() {
        return;
    }
    let bench = Bench::new(image);
    let scanner = bench.scanner();
    bench.turn("echo one >home/f; echo x >home/x; rm etc/a; mkdir home/d; echo 12 >home/same");
    let (one, _) = bench.capture(&Index::default());
    assert_eq!(differences(&scanner, &one.tree), [""; 0]);
    // Opened for writing, or written with the same bytes at the same time: no difference.
    bench.turn(
        ": >>etc/b; : >home/gone; rm home/gone; touch -r home/same /tmp/crab-same.$$; \
                echo 12 >home/same; touch -r /tmp/crab-same.$$ home/same; rm /tmp/crab-same.$$",
    );
    assert_eq!(differences(&scanner, &one.tree), [""; 0]);
    bench.turn(
        "time=$(stat -c %y home/f); echo two >home/f; touch -d \"$time\" home/f; chmod 600 home/x; \
         echo a >etc/a; rm etc/b; rmdir home/d; touch -d 2000-01-01 home/same; echo n >home/new",
    );
    assert_eq!(
        differences(&scanner, &one.tree),
        [
            "+etc/a",
            "-etc/b",
            "-home/d",
            "~home/f: content",
            "+home/new",
            "~home/same: time",
            "~home/x: mode"
        ]
    );
}
