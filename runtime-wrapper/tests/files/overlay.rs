// SPDX-License-Identifier: Apache-2.0
//! Finding an overlay, and mounting it again.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use crab_runtime::{
    overlay::{OverlayError, OverlayMount},
    rootfs::RootFs,
};

use crate::harness::{Bench, Mounted, shell, skipped};

fn find(at: &Path) -> Result<OverlayMount, OverlayError> {
    OverlayMount::find(std::process::id(), at)
}

#[test]
fn a_mounted_overlay_is_found_and_mounted_again() {
    if skipped() {
        return;
    }
    let mut bench = Bench::new(|one, two| {
        shell(one, "echo 1 >a");
        shell(two, "echo 2 >a; echo 2 >b");
    });
    let mount = bench.mount.clone();
    assert_eq!(mount.upper, bench.path("upper"));
    assert_eq!(mount.work, bench.path("work"));
    assert_eq!(mount.lowers, [bench.path("lower1"), bench.path("lower2")]);
    let dev = fs::metadata(bench.path("merged")).unwrap().dev();
    assert_eq!(mount.dev, dev);
    bench.turn("echo 3 >b");
    bench.merged = None;
    mount.mount_at(&bench.path("merged")).unwrap();
    bench.merged = Some(Mounted(bench.path("merged")));
    bench.turn("test $(cat a b | tr -d '\\n') = 13");
    let again = find(&bench.path("merged")).unwrap();
    assert_eq!(OverlayMount { dev, ..again }, mount);
}

#[test]
fn an_overlay_is_found_by_a_path_with_a_symlink_in_it() {
    if skipped() {
        return;
    }
    let bench = Bench::new(|one, _| shell(one, "echo 1 >a"));
    let link = bench.path("link");
    std::os::unix::fs::symlink(".", &link).unwrap();
    let found = RootFs::find(&link.join("merged")).unwrap();
    assert_eq!(found, RootFs::Overlay(bench.mount.clone()));
}

#[test]
fn what_is_not_an_overlay_says_what_it_is() {
    if skipped() {
        return;
    }
    let bench = Bench::new(|_, _| {});
    let error = find(&bench.path("upper")).unwrap_err();
    assert!(matches!(error, OverlayError::NotOverlay { .. }), "{error}");
    assert!(error.to_string().ends_with(", not overlay"));
    bench.turn("mkdir in");
    let error = find(&bench.path("merged/in")).unwrap_err();
    assert!(matches!(error, OverlayError::NotMounted { .. }), "{error}");
}

#[test]
fn odd_names_survive_the_kernels_escapes() {
    if skipped() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for name in ["l:1", "l,2", "l 3", "l\\4", "u p", "w,k", "m"] {
        fs::create_dir(at(name)).unwrap();
    }
    fs::write(at("l\\4").join("f"), "x").unwrap();
    shell(
        dir.path(),
        r"mount -t overlay overlay -o 'lowerdir=l\:1:l\,2:l 3:l\\4,upperdir=u p,workdir=w\,k' m",
    );
    let first = Mounted(at("m"));
    // Relative to a directory that nothing tells: put right by hand, as what
    // is above the layer's own directory is looked for by the crate.
    let error = find(&at("m")).unwrap_err();
    assert!(matches!(error, OverlayError::NoBase { .. }), "{error}");
    drop(first);
    shell(
        dir.path(),
        r#"mount -t overlay overlay -o "lowerdir=$PWD/l\:1:$PWD/l\,2:$PWD/l 3:$PWD/l\\\\4,upperdir=$PWD/u p,workdir=$PWD/w\,k" m"#,
    );
    let first = Mounted(at("m"));
    let found = find(&at("m")).unwrap();
    let layers = ["l:1", "l,2", "l 3", "l\\4"].map(at);
    assert_eq!(found.lowers, layers);
    assert_eq!(found.upper, at("u p"));
    assert_eq!(found.work, at("w,k"));
    drop(first);
    found.mount_at(&at("m")).unwrap();
    let _again = Mounted(at("m"));
    assert_eq!(fs::read_to_string(at("m/f")).unwrap(), "x");
    assert_eq!(find(&at("m")).unwrap().lowers, layers);
}

#[test]
fn relative_options_as_docker_writes_them_work() {
    if skipped() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    shell(
        dir.path(),
        "mkdir -p l 1/diff 2/diff 7/diff 7/work 7/merged; ln -s ../1/diff l/AAA; ln -s ../2/diff l/BBB; echo x >2/diff/f
         mount -t overlay overlay -o lowerdir=l/AAA:l/BBB,upperdir=7/diff,workdir=7/work 7/merged",
    );
    let merged = dir.path().join("7/merged");
    let first = Mounted(merged.clone());
    let found = find(&merged).unwrap();
    assert_eq!(found.base.as_deref(), Some(dir.path()));
    assert_eq!(found.upper, dir.path().join("7/diff"));
    drop(first);
    let here = std::env::current_dir().unwrap();
    found.mount_at(&merged).unwrap();
    let _again = Mounted(merged.clone());
    assert_eq!(std::env::current_dir().unwrap(), here);
    assert_eq!(fs::read_to_string(merged.join("f")).unwrap(), "x\n");
    assert_eq!(find(&merged).unwrap().lowers, found.lowers);
}

#[test]
fn more_layers_than_a_page_holds_are_mounted_one_by_one() {
    if skipped() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let long = "x".repeat(60);
    let at = |name: &str| dir.path().join(name);
    let layers: Vec<_> = (0..100).map(|n| at(&format!("{long}{n}"))).collect();
    for layer in &layers {
        fs::create_dir(layer).unwrap();
    }
    for name in ["upper", "work", "merged"] {
        fs::create_dir(at(name)).unwrap();
    }
    fs::write(layers[99].join("f"), "x").unwrap();
    let mut mount = Bench::new(|_, _| {}).mount.clone();
    mount.lowers = layers;
    mount.upper = at("upper");
    mount.work = at("work");
    mount.mount_point = at("merged");
    mount.mount_at(&at("merged")).unwrap();
    let _merged = Mounted(at("merged"));
    assert_eq!(fs::read_to_string(at("merged/f")).unwrap(), "x");
    let found = find(&at("merged")).unwrap();
    assert_eq!(found.lowers, mount.lowers);
}
