// SPDX-License-Identifier: Apache-2.0
//! Every kind of file there and back, compared by an independent lister.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileExt, MetadataExt},
    },
    process::Command,
};

use crab_runtime::files::{Index, digest};

use crate::harness::{Bench, list, settle, shell, skipped};

fn lower(bench_lower: &std::path::Path) {
    shell(
        bench_lower,
        "mkdir -p etc dir/sub gone/deep; echo a >etc/a; echo b >etc/b; echo c >dir/c; echo s >dir/sub/s; echo x >gone/deep/x",
    );
}

const EVERYTHING: &str = r#"
    umask 022
    mkdir -p t/empty t/sticky t/setgid
    echo text >t/file; : >t/zero; chmod 4755 t/file; chown 1000:1001 t/zero
    chmod 1777 t/sticky; chown 3:4 t/setgid; chmod 2775 t/setgid; echo inside >t/setgid/f
    ln t/file t/hard; ln t/file t/a-hard; mkdir t/file-; ln t/file t/file-/hard
    ln -s ../nowhere t/link; chown -h 5:6 t/link; touch -h -d '2011-02-03 04:05:06.789012345' t/link
    ln t/link t/link2
    mkfifo -m 640 t/fifo
    mknod t/char c 1 3; mknod t/block b 7 99; chown 9:9 t/block; ln t/char t/char2
    python3 -c "import socket; socket.socket(socket.AF_UNIX).bind('t/socket')"
    chmod 755 t/socket
    touch -d '1969-12-31 23:59:58.5' t/zero; touch -d '2004-05-06 07:08:09.123456789' t/empty
    truncate -s 5M t/sparse; printf mid | dd of=t/sparse bs=1 seek=3000000 conv=notrunc status=none
    truncate -s 80M t/hole
    head -c 700000 /dev/urandom >t/random
    echo mode0 >t/secret; chmod 000 t/secret
    python3 - <<'P'
import os
os.setxattr('t/file', 'user.note', b'\x00\xffbinary')
os.setxattr('t/file', 'trusted.t', b'')
os.setxattr('t/random', 'security.capability', bytes.fromhex('0100000200040000000000000000000000000000'))
os.setxattr('t/empty', 'user.dir', b'd' * 1000)
os.setxattr('t/link2', 'trusted.onlink', b'l', follow_symlinks=False)
os.setxattr('t/fifo', 'trusted.onfifo', b'f')
acl = bytes.fromhex('02000000' '01000700ffffffff' '02000600e8030000' '04000500ffffffff' '10000700ffffffff' '20000500ffffffff')
os.setxattr('t/setgid', 'system.posix_acl_default', acl)
open(b't/\xff\xfe name\n', 'w').write('odd')
os.mkdir(b't/d\x80')
open(b't/d\x80/' + b'n' * 255, 'w').write('long')
P
    echo in >t/setgid/with-acl
    rm etc/a; echo B >etc/b; rm -r gone; rm -r dir; mkdir dir; echo new >dir/new
"#;

#[test]
fn every_kind_of_file_comes_back_exactly() {
    if skipped() {
        return;
    }
    let mut bench = Bench::new(|one, two| {
        lower(two);
        shell(one, "mkdir -p etc; echo upper-a >etc/a");
    });
    bench.turn(EVERYTHING);
    let upper = list(&bench.path("upper"));
    let merged = list(&bench.path("merged"));
    let (captured, reader) = bench.capture(&Index::default());
    assert_eq!(list(&bench.path("upper")), upper, "capturing touched it");

    let built = bench.build(&captured.tree, &reader, "built");
    assert_eq!(list(&built), upper);
    // Kept sparse: what is stored is what is allocated, within a few blocks.
    for name in ["sparse", "hole"] {
        let meta = fs::metadata(built.join("t").join(name)).unwrap();
        assert!(
            meta.blocks() * 512 <= 256 << 10,
            "{name}: {}",
            meta.blocks()
        );
    }
    // Bookkeeping of the old mount is gone, the rest is there.
    let raw = |path: &str| {
        let mut names = vec![0; 4096];
        let len = rustix::fs::llistxattr(built.join(path), &mut names[..]).unwrap();
        String::from_utf8_lossy(&names[..len]).into_owned()
    };
    assert!(!raw("etc").contains("overlay"), "{}", raw("etc"));
    assert!(raw("dir").contains("trusted.overlay.opaque"));

    bench.mount_with_upper(&built);
    assert_eq!(list(&bench.path("merged")), merged);
    let index = bench.scanner().index_restored(&captured.tree).unwrap();
    assert!(bench.changes(&index).is_empty());
    settle();
    assert!(bench.changes(&index).is_empty());
    bench.turn("echo more >>t/file");
    assert_eq!(
        bench.changes(&index),
        ["~t/a-hard", "~t/file", "~t/file-/hard", "~t/hard"]
    );
}

#[test]
fn the_same_files_give_the_same_digest_wherever_they_lie() {
    if skipped() {
        return;
    }
    let mut bench = Bench::new(|_, two| lower(two));
    bench.turn(EVERYTHING);
    let (first, reader) = bench.capture(&Index::default());
    let built = bench.build(&first.tree, &reader, "built");
    bench.mount_with_upper(&built);
    let (second, _) = bench.capture(&Index::default());
    assert_eq!(digest(&first.tree).unwrap(), digest(&second.tree).unwrap());
    bench.turn("chmod 600 t/zero");
    let (third, _) = bench.capture(&second.index);
    assert_ne!(digest(&first.tree).unwrap(), digest(&third.tree).unwrap());
}

#[test]
fn contents_above_the_memory_budget_go_through_files() {
    if skipped() {
        return;
    }
    let bench = Bench::new(|_, two| lower(two));
    bench.turn(EVERYTHING);
    let scanner = bench.scanner();
    let (in_memory, _) = bench.capture_with(&scanner, &Index::default(), 64 << 20);
    let (in_files, reader) = bench.capture_with(&scanner, &Index::default(), 0);
    assert_eq!(in_memory.tree, in_files.tree);
    let built = bench.build(&in_files.tree, &reader, "built");
    assert_eq!(list(&built), list(&bench.path("upper")));
}

#[test]
fn a_directory_time_is_recorded_although_it_is_no_change() {
    if skipped() {
        return;
    }
    let bench = Bench::new(|_, two| lower(two));
    bench.turn("mkdir d; echo x >d/f");
    let (first, _) = bench.capture(&Index::default());
    settle();
    bench.turn("touch d/t; rm d/t; echo y >d/f");
    assert_eq!(bench.changes(&first.index), ["~d/f"]);
    let (second, reader) = bench.capture(&first.index);
    let time = |path: &str| fs::metadata(bench.path(path)).unwrap().modified().unwrap();
    assert_ne!(
        first.tree.get(b"d").unwrap().mtime,
        second.tree.get(b"d").unwrap().mtime
    );
    bench.build(&second.tree, &reader, "built");
    assert_eq!(time("built/d"), time("upper/d"));
}

#[test]
fn paths_longer_than_the_kernel_takes_come_back() {
    if skipped() {
        return;
    }
    let mut bench = Bench::new(|_, two| lower(two));
    // 60 names of 200 bytes, and a chain of 3000 short ones.
    bench.turn(
        "python3 - <<'P'
import os
top = os.getcwd()
for name, count in ('d' * 200, 60), ('c', 3000):
    os.chdir(top)
    for _ in range(count):
        os.mkdir(name)
        os.chdir(name)
    open('f', 'w').write('bottom')
    os.symlink('x', 'l')
    os.mkfifo('p')
P",
    );
    // `rm -r` and `find` go down by descriptors.
    let census = |dir: &str| {
        let done = Command::new("bash")
            .arg("-c")
            .arg("find . -printf '%d %f %m %s %T@\n' | sort | md5sum; find . | wc -l")
            .current_dir(bench.path(dir))
            .output()
            .unwrap();
        String::from_utf8(done.stdout).unwrap()
    };
    let before = census("upper");
    let (captured, reader) = bench.capture(&Index::default());
    assert!(captured.tree.entries.len() > 3060);
    let built = bench.build(&captured.tree, &reader, "built");
    // Sizes of directories differ from one file system history to another.
    assert_eq!(
        before.lines().last(),
        census("built").lines().last(),
        "number of entries"
    );
    bench.mount_with_upper(&built);
    let index = bench.scanner().index_restored(&captured.tree).unwrap();
    settle();
    assert!(bench.changes(&index).is_empty());
    shell(bench.dir.path(), "rm -rf built/* upper/*");
}

#[test]
fn a_target_that_is_not_empty_or_a_tree_that_is_not_sound_is_refused() {
    if skipped() {
        return;
    }
    let bench = Bench::new(|_, two| lower(two));
    bench.turn("echo x >f");
    let (captured, reader) = bench.capture(&Index::default());
    let build = |tree: &crab_store::Tree, target: &str| {
        let durability = crab_runtime::files::Durability::Synced;
        crab_runtime::files::build(tree, &reader, &bench.path(target), durability)
    };
    let error = build(&captured.tree, "lower2").unwrap_err();
    assert!(error.to_string().ends_with("is not empty"), "{error}");
    fs::create_dir(bench.path("new")).unwrap();
    for path in ["../escaped", "/escaped", "f/below", "f"] {
        let mut tree = captured.tree.clone();
        let mut entry = tree.get(b"f").unwrap().clone();
        entry.path = path.into();
        tree.entries.push(entry);
        assert!(build(&tree, "new").is_err(), "{path}");
        assert_eq!(fs::read_dir(bench.path("new")).unwrap().count(), 0);
    }
    build(&captured.tree, "new").unwrap();
    assert!(!bench.path("escaped").exists());
}

#[test]
fn a_file_that_changed_where_its_holes_are_is_unchanged() {
    if skipped() {
        return;
    }
    let bench = Bench::new(|_, two| lower(two));
    bench.turn("truncate -s 3M s; touch -d 2020-02-02 s");
    let (captured, _) = bench.capture(&Index::default());
    settle();
    let file = fs::File::options().write(true).open(bench.path("merged/s"));
    let file = file.unwrap();
    file.write_all_at(&[0; 100_000], 1 << 20).unwrap();
    drop(file);
    bench.turn("touch -d 2020-02-02 s");
    assert!(bench.changes(&captured.index).is_empty());
    let name = OsStr::from_bytes(b"s");
    assert!(
        fs::metadata(bench.path("upper").join(name))
            .unwrap()
            .blocks()
            > 0
    );
}
