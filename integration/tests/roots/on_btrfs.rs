// SPDX-License-Identifier: Apache-2.0

//! Subvolumes of btrfs, whose inodes have the same numbers in each, and a device number that is
//! not that of their file system.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use crab_integration::{RunOptions, Testbed, Tool, skip};
use crab_store::Class;

use crate::{
    place::{Place, on_host},
    same_as_any::there_and_back,
};

/// Where the snapshotter keeps its subvolumes.
const DIR: &str = "/var/lib/containerd/io.containerd.snapshotter.v1.btrfs";

/// A file system of btrfs in a file, at the snapshotter's place. containerd uses the snapshotter
/// while this is there.
struct Btrfs<'a> {
    testbed: &'a Testbed,
    image: tempfile::NamedTempFile,
}

impl<'a> Btrfs<'a> {
    /// Nothing where there is none.
    fn mount(testbed: &'a Testbed) -> Result<Option<Self>> {
        let sh = |script: &str| Tool::new("sh").args(["-c", script]).run();
        if sh("command -v mkfs.btrfs && { grep -qw btrfs /proc/filesystems || modprobe btrfs; }")?
            .status
            != 0
        {
            skip("this host has no btrfs")?;
            return Ok(None);
        }
        let image = tempfile::NamedTempFile::new_in("/var/lib/containerd")?;
        image.as_file().set_len(512 << 20)?;
        fs::create_dir_all(DIR)?;
        let file = image.path().display();
        sh(&format!(
            "mkfs.btrfs -q {file} && mount -o loop {file} {DIR}"
        ))?
        .ok()?;
        let here = Self { testbed, image };
        testbed.service("restart", "containerd")?;
        let plugins = Tool::new("ctr").args(["plugins", "ls"]).run()?.ok()?;
        let mut lines = plugins.stdout.lines().filter(|line| line.contains("btrfs"));
        if !lines.any(|line| line.trim_end().ends_with("ok")) {
            skip("this containerd has no snapshotter for btrfs")?;
            return Ok(None);
        }
        Ok(Some(here))
    }
}

impl Drop for Btrfs<'_> {
    fn drop(&mut self) {
        let stopped = self.testbed.service("stop", "containerd");
        let unmounted = Tool::new("umount").args(["-l", DIR]).run();
        let started = self.testbed.service("start", "containerd");
        let file = self.image.path().display();
        for done in [stopped, unmounted, started] {
            if let Err(error) = done {
                eprintln!("{file} at {DIR} was not cleaned up: {error:#}");
            }
        }
    }
}

fn btrfs(args: &[&str]) -> Result<()> {
    let said = Tool::new("btrfs").args(args.iter().copied()).run()?;
    said.ok().map(drop)
}

#[test]
fn a_subvolume_goes_there_and_back_with_those_in_it() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let Some(_btrfs) = Btrfs::mount(&testbed)? else {
        return Ok(());
    };
    let place = Place::Snapshotter("btrfs");
    there_and_back(&testbed, place)?;

    // Whoever may write to a directory can make subvolumes in it.
    let crab = testbed.crab();
    let sandbox = place.run(&testbed, RunOptions::new())?;
    let root = on_host(place, &sandbox).join("root");
    let path = |name: &str| root.join(name).display().to_string();
    for name in ["a", "b"] {
        btrfs(&["-q", "subvolume", "create", &path(name)])?;
        // Inodes with the same numbers, two names each.
        fs::write(root.join(name).join("f"), name)?;
        fs::hard_link(root.join(name).join("f"), root.join(name).join("g"))?;
    }
    let both = crab.turn_of(&sandbox, Class::Files, "true")?;
    let list = "cd /root; for f in a/f a/g b/f b/g; do cat $f; done; stat -c %h a/f b/g";
    let as_made = "aabb2\n2";
    ensure!(sandbox.sh_ok(list)? == as_made);
    crab.turn_of(&sandbox, Class::None, "true")?;

    // The one in the place of the other: the same numbers again.
    let swap = |one: &str, two: &str| -> Result<()> {
        let (one, two) = (root.join(one), root.join(two));
        let kept = rustix::fs::RenameFlags::EXCHANGE;
        rustix::fs::renameat_with(rustix::fs::CWD, &one, rustix::fs::CWD, &two, kept)
            .context("exchange two subvolumes")
    };
    swap("a", "b")?;
    crab.turn_of(&sandbox, Class::Files, "true")?;
    ensure!(sandbox.sh_ok(list)? == "bbaa2\n2");
    crab.rollback(&sandbox, both.number())?;
    ensure!(sandbox.sh_ok(list)? == as_made);
    ensure!(Path::new(&path("a/f")).exists());

    // One that nobody can write to is in the way of a rollback, which leaves all as it was.
    btrfs(&["-q", "subvolume", "create", &path("sealed")])?;
    fs::write(root.join("sealed/f"), "x")?;
    btrfs(&["property", "set", "-ts", &path("sealed"), "ro", "true"])?;
    let sealed = crab.turn_of(&sandbox, Class::Files, "echo x >/root/x")?;
    let refusal = crab.rollback_refusal(&sandbox, both.number())?;
    ensure!(refusal.line.contains("root/sealed"), "{refusal:?}");
    ensure!(crab.verify(&sandbox, Some(sealed.number()))?["same"] == true);
    btrfs(&["property", "set", "-ts", &path("sealed"), "ro", "false"])?;
    crab.rollback(&sandbox, both.number())?;
    ensure!(sandbox.sh_ok("ls /root")? == "a\nb");
    Ok(())
}
