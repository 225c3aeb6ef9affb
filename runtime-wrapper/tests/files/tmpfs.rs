// SPDX-License-Identifier: Apache-2.0
//! tmpfs mounts: captured, put back into a mount that is in use, and archived
//! as CRIU does it.

use std::{fs, os::unix::fs::MetadataExt, path::Path, process::Command};

use crab_runtime::files::{Index, Scanner, write_tmpfs_archive};

use crate::harness::{Bench, Mounted, apply, changes, list, settle, shell, skipped, tmpfs};

const DEV: &str = "
    mknod null c 1 3; chmod 666 null; mknod full c 1 7; ln -s /proc/self/fd fd; ln -s pts/ptmx ptmx
    mkdir pts shm mqueue; : >console; chmod 620 console
";

const MORE: &str = r#"
    echo shared >segment; truncate -s 100M big; printf mid | dd of=big bs=1 seek=50000000 conv=notrunc status=none
    mkfifo pipe; mkdir -p run/lock; echo 1 >run/lock/pid; ln run/lock/pid run/pid2; chown 7:8 run/lock/pid
    touch -d '2020-01-02 03:04:05.678901234' segment; chmod 1777 run
    d=; for i in $(seq 30); do d=${d}dir$i/; done; mkdir -p $d; echo deep >$d/f; ln $d/f hard; ln -s $d/f soft
    python3 - <<'P'
import os
open(b'n\xff\n="x', 'w').write('odd')
os.setxattr('segment', 'trusted.k', b'v')
f = os.open('holes', os.O_RDWR | os.O_CREAT)
for i in range(60):
    os.pwrite(f, b'x' * 5000, i * 1000000)
os.ftruncate(f, 70000000)
P
"#;

fn scanner(at: &Mounted) -> Scanner {
    Scanner::mounted(std::process::id(), &at.0).unwrap()
}

#[test]
fn a_tmpfs_is_captured_without_what_is_mounted_on_it() {
    if skipped() {
        return;
    }
    let bench = Bench::new(|_, _| {});
    let dev = tmpfs(&bench.path("dev"));
    shell(&dev.0, DEV);
    let shm = tmpfs(&dev.0.join("shm"));
    fs::write(shm.0.join("hidden"), "x").unwrap();
    let scanner = scanner(&dev);
    let (captured, _) = bench.capture_with(&scanner, &Index::default(), 1 << 20);
    assert!(captured.tree.get(b"shm").is_some());
    assert!(captured.tree.get(b"shm/hidden").is_none());
    settle();
    assert!(changes(&scanner, &captured.index).is_empty());
    fs::write(shm.0.join("more"), "x").unwrap();
    assert!(changes(&scanner, &captured.index).is_empty());
    fs::write(dev.0.join("more"), "x").unwrap();
    assert_eq!(changes(&scanner, &captured.index), ["+more"]);
    drop(shm);
}

#[test]
fn a_mount_in_use_becomes_what_was_captured() {
    if skipped() {
        return;
    }
    let bench = Bench::new(|_, _| {});
    let old = tmpfs(&bench.path("old"));
    shell(&old.0, DEV);
    shell(&old.0, MORE);
    let old_shm = tmpfs(&old.0.join("shm"));
    let (captured, reader) = bench.capture_with(&scanner(&old), &Index::default(), 64 << 20);

    // A new container's, with its own mounts and things that are too much.
    let new = tmpfs(&bench.path("new"));
    shell(&new.0, DEV);
    shell(
        &new.0,
        "mkdir -p extra/deep; : >extra/deep/f; mkdir pipe; : >extra/g; echo other >segment; chmod 600 null",
    );
    let shm = tmpfs(&new.0.join("shm"));
    fs::write(shm.0.join("keep"), "x").unwrap();
    let pts = tmpfs(&new.0.join("pts"));
    let inode = fs::symlink_metadata(new.0.join("fd")).unwrap().ino();
    let scanner = scanner(&new);
    apply(&captured.tree, &reader, &scanner);
    let index = scanner.index_restored(&captured.tree).unwrap();
    assert!(changes(&scanner, &index).is_empty());
    assert!(shm.0.join("keep").exists());
    let kept = fs::symlink_metadata(new.0.join("fd")).unwrap().ino();
    assert_eq!(inode, kept, "what was right has been replaced");
    drop((shm, pts, old_shm));
    let (found, mut wanted) = (list(&new.0), list(&old.0));
    // Hidden by mounts when they were captured, or put back.
    for path in ["shm", "pts"] {
        wanted.insert(path.into(), found[path.as_bytes()].clone());
    }
    assert_eq!(found, wanted);
    // Nothing to do the second time.
    let before: Vec<_> = inodes(&new.0);
    apply(&captured.tree, &reader, &scanner);
    assert_eq!(inodes(&new.0), before);
}

#[test]
fn an_index_vouches_only_for_what_has_not_been_touched_since() {
    if skipped() {
        return;
    }
    let bench = Bench::new(|_, _| {});
    let root = tmpfs(&bench.path("root"));
    let date = "touch -d '2020-01-02 03:04:05.678901234'";
    shell(
        &root.0,
        &format!("echo one >a; echo two >b; echo three >c; echo kept >d; {date} b c d"),
    );
    settle();
    let scanner = scanner(&root);
    let (captured, reader) = bench.capture_with(&scanner, &Index::default(), 1 << 20);
    let (before, kept) = (list(&root.0), inodes(&root.0));
    // The same length and time: by its own inode, by another.
    shell(
        &root.0,
        &format!("rm a; echo TWO >b; {date} b; echo THREE >e; {date} e; mv e c"),
    );
    let wanted = (&captured.tree, &reader, scanner.root());
    crab_runtime::files::apply(wanted.0, wanted.1, wanted.2, &captured.index).unwrap();
    assert_eq!(list(&root.0), before);
    let d = |all: &[(std::ffi::OsString, u64)]| all.iter().find(|(name, _)| name == "d").cloned();
    assert_eq!(d(&inodes(&root.0)), d(&kept));
}

fn inodes(dir: &std::path::Path) -> Vec<(std::ffi::OsString, u64)> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| {
        let entry = entry.unwrap();
        (entry.file_name(), entry.metadata().unwrap().ino())
    });
    // Those with several names are made anew each time.
    let mut inodes: Vec<_> = entries.filter(|(name, _)| name != "hard").collect();
    inodes.sort();
    inodes
}

#[test]
fn tar_extracts_the_archive_as_criu_does() {
    if skipped() {
        return;
    }
    let bench = Bench::new(|_, _| {});
    let old = tmpfs(&bench.path("old"));
    shell(&old.0, DEV);
    shell(&old.0, MORE);
    let (captured, reader) = bench.capture_with(&scanner(&old), &Index::default(), 64 << 20);
    let archive = fs::File::create(bench.path("archive")).unwrap();
    write_tmpfs_archive(&captured.tree, &reader, archive).unwrap();
    assert!(fs::metadata(bench.path("archive")).unwrap().len() < 1 << 20);

    let new = tmpfs(&bench.path("new"));
    // The arguments of CRIU's tmpfs_restore, and the attributes that it leaves out.
    let done = Command::new("tar")
        .args(["--extract", "--gzip", "--no-unquote", "--no-wildcards"])
        .args(["--xattrs", "--xattrs-include=*", "--directory"])
        .arg(&new.0)
        .stdin(fs::File::open(bench.path("archive")).unwrap())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && error.is_empty(), "{error}");
    assert_eq!(list(&new.0), list(&old.0));
    let big = fs::metadata(new.0.join("big")).unwrap();
    assert!(big.blocks() * 512 <= 1 << 20, "{} blocks", big.blocks());
}

#[test]
fn a_mount_of_another_process_is_reached_and_nothing_else() {
    if skipped() {
        return;
    }
    let bench = Bench::new(|_, _| {});
    let dev = tmpfs(&bench.path("dev"));
    fs::create_dir(dev.0.join("plain")).unwrap();
    std::os::unix::fs::symlink(&dev.0, bench.path("link")).unwrap();
    let pid = std::process::id();
    assert!(Scanner::mounted(pid, &dev.0).is_ok());
    let fails = |at: &Path| Scanner::mounted(pid, at).unwrap_err();
    fs::write(bench.path("file"), "").unwrap();
    // No mount point, and what leads to none.
    for name in ["dev/plain", "link", "absent", "file"] {
        assert!(!fails(&bench.path(name)).may_pass(), "{name}");
    }
}
