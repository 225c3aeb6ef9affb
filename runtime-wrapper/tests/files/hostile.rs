// SPDX-License-Identifier: Apache-2.0
//! A container that changes things while they are looked at.

use std::{
    collections::HashSet,
    fs,
    sync::atomic::{AtomicBool, Ordering},
};

use crab_runtime::files::{Index, StageError, Staging};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::harness::{Bench, Over, settle, skipped};

#[test]
fn a_symlink_swapped_for_a_directory_leads_nowhere() {
    if skipped() {
        return;
    }
    let bench = Bench::new(|_, _| {});
    let outside = bench.path("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), "host").unwrap();
    bench.turn("mkdir -p a/b; echo inside >a/b/f; ln -s ../../../outside a/link; mkdir a/x");
    std::os::unix::fs::symlink(&outside, bench.path("upper/a/absolute")).unwrap();
    let stop = AtomicBool::new(false);
    let (one, two) = (bench.path("upper/a/b"), bench.path("upper/a/absolute"));
    std::thread::scope(|scope| {
        let _over = Over(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                renameat_with(CWD, &one, CWD, &two, RenameFlags::EXCHANGE).unwrap();
            }
        });
        let scanner = bench.scanner();
        let mut whole = 0;
        for _ in 0..2000 {
            let scan = scanner.scan(&Index::default(), &HashSet::new()).unwrap();
            let seen = |name: &[u8]| {
                scan.changes()
                    .iter()
                    .any(|change| change.path.ends_with(name))
            };
            assert!(!seen(b"secret"));
            whole += usize::from(scan.torn().is_empty());
            let directory = bench.path("staging");
            let staging = Staging {
                memory: 1 << 20,
                directory: &directory,
            };
            let staged = scanner.stage(scan, &staging).unwrap();
            if staged.torn().is_empty() {
                let mut pack = bench.store.begin().unwrap();
                staged.persist(&mut pack).unwrap();
            }
        }
        println!("{whole} of 2000 scans were not torn");
    });
}

#[test]
fn a_file_that_changes_between_scan_and_copy_voids_the_capture() {
    if skipped() {
        return;
    }
    let bench = Bench::new(|_, _| {});
    for script in [
        "echo more >>f",
        "rm f",
        "rm f; mkfifo f",
        "rm f; ln -s /etc/passwd f",
        "mv d e",
        "chmod 600 f",
    ] {
        bench.turn("rm -rf * ; mkdir d; echo x >f; echo y >d/g");
        settle();
        let scanner = bench.scanner();
        let scan = scanner.scan(&Index::default(), &HashSet::new()).unwrap();
        assert!(scan.torn().is_empty());
        bench.turn(script);
        let directory = bench.path("staging");
        let staging = Staging {
            memory: 1 << 20,
            directory: &directory,
        };
        let staged = scanner.stage(scan, &staging).unwrap();
        assert_eq!(staged.torn().len(), 1, "{script}");
        let error = staged.persist(&mut bench.store.begin().unwrap());
        let error = error.unwrap_err().to_string();
        assert!(error.ends_with("changed while it was read"), "{error}");
    }
}

#[test]
fn a_tree_that_moves_all_the_time_is_walked_and_never_wrong() {
    if skipped() {
        return;
    }
    let bench = Bench::new(|_, _| {});
    bench.turn("mkdir -p p/q/r s; for i in $(seq 50); do echo $i >p/q/r/$i; done");
    let stop = AtomicBool::new(false);
    let upper = bench.path("upper");
    std::thread::scope(|scope| {
        let _over = Over(&stop);
        scope.spawn(|| {
            let mut round = 0u64;
            while !stop.load(Ordering::Relaxed) {
                round += 1;
                let _ = fs::rename(upper.join("p/q"), upper.join("s/q"));
                let _ = fs::rename(upper.join("s/q"), upper.join("p/q"));
                let _ = fs::write(upper.join(format!("p/t{}", round % 7)), vec![1; 9000]);
                let _ = fs::remove_file(upper.join(format!("p/t{}", (round + 3) % 7)));
            }
        });
        let scanner = bench.scanner();
        let mut index = Index::default();
        for _ in 0..500 {
            let scan = scanner.scan(&index, &HashSet::new()).unwrap();
            let directory = bench.path("staging");
            let staging = Staging {
                memory: 1 << 20,
                directory: &directory,
            };
            let staged = scanner.stage(scan, &staging).unwrap();
            if staged.torn().is_empty() {
                let mut pack = bench.store.begin().unwrap();
                let captured = staged.persist(&mut pack).unwrap();
                captured.tree.check().unwrap();
                index = captured.index;
            }
        }
    });
}

#[test]
fn a_fifo_or_device_in_the_place_of_a_file_is_never_opened() {
    if skipped() {
        return;
    }
    let bench = Bench::new(|_, two| crate::harness::shell(two, "echo low >f; echo low >g"));
    // A read of the FIFO would hang, one of the device would succeed.
    bench.turn("rm f g; mkfifo f; mknod g c 1 5; truncate -s 1E big || truncate -s 15T big");
    let (captured, _) = bench.capture(&Index::default());
    assert_eq!(captured.tree.segments().count(), 0);
}

#[test]
fn a_full_staging_disk_stops_the_capture_and_nothing_else() {
    if skipped() {
        return;
    }
    let bench = Bench::new(|_, _| {});
    bench.turn("head -c 3000000 /dev/urandom >big");
    let small = crate::harness::tmpfs(&bench.path("small"));
    let full = |free: &str| {
        crate::harness::shell(&small.0, &format!("mount -o remount,size={free} ."));
        let scanner = bench.scanner();
        let scan = scanner.scan(&Index::default(), &HashSet::new()).unwrap();
        let staging = Staging {
            memory: 1 << 20,
            directory: &small.0,
        };
        scanner.stage(scan, &staging)
    };
    let error = full("1M").unwrap_err();
    let StageError::Write { source, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(source.kind(), std::io::ErrorKind::StorageFull);
    full("4M").unwrap();
    bench.turn("echo alive >f");
}
