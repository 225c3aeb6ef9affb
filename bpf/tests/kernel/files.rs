// SPDX-License-Identifier: Apache-2.0
//! Which system calls count as a change of files, and whose.

use std::path::Path;

use crab_bpf::{Effects, Programs};

use crate::calls::{
    BATCHES, CHANGES, COMPAT_CHANGES, COMPAT_HARMLESS, COMPAT_UNSEEN, Call, HARMLESS, UNSEEN,
};
use crate::world::{Cgroup, Mounted, Seat, World, worlds};

/// Runs each call in a directory of its own, and judges what was counted.
fn each(
    world: &mut World,
    calls: &[(&str, Call)],
    seat: Seat<'_>,
    good: impl Fn(&str, &Effects) -> bool,
) {
    let directory = world.tmpfs.path().to_path_buf();
    each_in(world, &directory, calls, seat, good);
}

fn each_in(
    world: &mut World,
    root: &Path,
    calls: &[(&str, Call)],
    seat: Seat<'_>,
    good: impl Fn(&str, &Effects) -> bool,
) {
    let mut bad = Vec::new();
    for (name, _) in calls {
        let directory = tempfile::tempdir_in(root).unwrap();
        match world.run_if_known(name, seat, directory.path()) {
            Some(effects) if !good(name, &effects) => bad.push(format!("{name}: {effects:?}")),
            _ => {}
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
}

fn changed(effects: &Effects) -> bool {
    effects.files > 0 && effects.mounts == 0 && effects.lost == 0
}

#[test]
fn every_change_of_a_watched_file_counts() {
    for mut world in worlds() {
        each(&mut world, CHANGES, Seat::Inside, |_, effects| {
            changed(effects)
        });
    }
}

/// Whether a change through a mapping was told. A hole moves the times of the file, too,
/// where that is on a watched superblock itself.
fn mapped(name: &str, effects: &Effects) -> bool {
    let hole = name == "hole through a shared map" && effects.files > 0;
    hole || effects.unseen > 0
}

/// Whether nothing was counted that was not: a write to a FIFO moves its times, which is
/// all that is seen at the inodes.
fn nothing(programs: Programs) -> impl Fn(&str, &Effects) -> bool {
    move |name, effects| {
        let moves_times = programs == Programs::Inodes && name == "write to a fifo file";
        moves_times || *effects == Effects::default()
    }
}

#[test]
fn reads_failures_pipes_and_other_file_systems_do_not_count() {
    for mut world in worlds() {
        let nothing = nothing(world.programs);
        each(&mut world, HARMLESS, Seat::Inside, nothing);
    }
}

#[test]
fn what_can_write_with_no_further_call_counts_as_unseen() {
    for mut world in worlds() {
        each(&mut world, UNSEEN, Seat::Inside, mapped);
    }
}

#[test]
fn an_instance_to_submit_writes_to_counts_where_the_writes_may_not() {
    for mut world in worlds() {
        let programs = world.programs;
        each(&mut world, BATCHES, Seat::Inside, |_, effects| {
            let expected = u64::from(programs != Programs::Inodes);
            effects.unseen == expected && effects.files == 0
        });
    }
}

#[test]
fn the_32_bit_entry_counts_by_its_own_numbers() {
    for mut world in worlds() {
        if !Path::new("/proc/sys/abi/vsyscall32").exists() {
            println!("skipped: the kernel has no 32-bit entry");
            return;
        }
        each(&mut world, COMPAT_CHANGES, Seat::Inside, |_, effects| {
            changed(effects)
        });
        each(&mut world, COMPAT_HARMLESS, Seat::Inside, |_, effects| {
            *effects == Effects::default()
        });
        each(&mut world, COMPAT_UNSEEN, Seat::Inside, |_, effects| {
            effects.unseen > 0
        });
    }
}

#[test]
fn changes_from_outside_of_the_cgroup_count_by_superblock() {
    for mut world in worlds() {
        let by_fd = [
            "write",
            "writev",
            "sendfile",
            "ftruncate",
            "fallocate",
            "fchmod",
            "fsetxattr",
            "futimens",
            "openat to create",
            "32-bit write",
            "copy_file_range",
            "splice",
        ];
        for name in by_fd.into_iter().chain([
            "unlink from its directory",
            "unlink through a directory fd",
            "unlink in a chroot",
        ]) {
            let directory = tempfile::tempdir_in(world.tmpfs.path()).unwrap();
            let effects = world.run(name, Seat::Outside, directory.path());
            assert!(changed(&effects), "{name}: {effects:?}");
            assert_eq!(effects.processes, 0, "{name}: {effects:?}");
        }
    }
}

#[test]
fn nothing_counts_from_outside_on_another_superblock() {
    for mut world in worlds() {
        let other = Mounted::tmpfs(&world.directory.path().join("other"));
        for name in [
            "write",
            "unlink",
            "store to a shared map",
            "io_setup",
            "unlink in a chroot",
            "fork",
        ] {
            let directory = tempfile::tempdir_in(other.path()).unwrap();
            let effects = world.run(name, Seat::Outside, directory.path());
            assert_eq!(effects, Effects::default(), "{name}");
        }
    }
}

#[test]
fn a_write_elsewhere_by_a_sandboxed_task_does_not_count() {
    for mut world in worlds() {
        let other = Mounted::tmpfs(&world.directory.path().join("other"));
        for name in [
            "write",
            "fchmod",
            "futimens",
            "openat to create",
            "store to a shared map",
        ] {
            let directory = tempfile::tempdir_in(other.path()).unwrap();
            let effects = world.run(name, Seat::Inside, directory.path());
            // Nor is it told whose file a page is of that is mapped.
            let pages = world.programs == Programs::Inodes && name == "store to a shared map";
            assert!(
                pages || effects == Effects::default(),
                "{name}: {effects:?}"
            );
            assert_eq!(effects.files, 0, "{name}: {effects:?}");
        }
    }
}

/// An overlay whose layers are on the disk that holds `on`, and the cgroup with it alone
/// for a device.
pub(crate) fn on_overlay(world: &mut World, on: &Path) -> Mounted {
    let merged = Mounted::overlay(&world.directory.path().join("merged"), on);
    let cgroup = world.cgroup.id();
    world.tracer().watch(cgroup, &[merged.device()]).unwrap();
    merged
}

/// Not on /tmp, which may be memory: beside the program, as a container's layers are.
pub(crate) fn on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap()
}

#[test]
fn every_change_through_an_overlay_counts() {
    for mut world in worlds() {
        let layers = on_disk();
        let merged = on_overlay(&mut world, layers.path());
        // A nameless file is no change of the tree, and an overlay keeps it to itself.
        let programs = world.programs;
        let nameless =
            |name: &str| programs == Programs::Inodes && name == "openat of a nameless file";
        each_in(
            &mut world,
            merged.path(),
            CHANGES,
            Seat::Inside,
            |name, effects| changed(effects) || nameless(name),
        );
        each_in(&mut world, merged.path(), UNSEEN, Seat::Inside, mapped);
    }
}

#[test]
fn reads_through_an_overlay_do_not_count() {
    for mut world in worlds() {
        let layers = on_disk();
        let merged = on_overlay(&mut world, layers.path());
        let nothing = nothing(world.programs);
        each_in(&mut world, merged.path(), HARMLESS, Seat::Inside, nothing);
    }
}

#[test]
fn every_change_through_an_overlay_counts_from_outside_by_inodes() {
    for mut world in worlds() {
        if world.programs != Programs::Inodes {
            continue;
        }
        let layers = on_disk();
        let merged = on_overlay(&mut world, layers.path());
        each_in(
            &mut world,
            merged.path(),
            CHANGES,
            Seat::Outside,
            |name, effects| changed(effects) || name == "openat of a nameless file",
        );
    }
}

#[test]
fn an_overlay_counts_by_its_own_device_also_through_a_copy_up() {
    for mut world in worlds() {
        let layers = tempfile::tempdir_in(world.tmpfs.path()).unwrap();
        let merged = Mounted::overlay(&world.directory.path().join("merged"), layers.path());
        let cgroup = world.cgroup.id();
        world.tracer().watch(cgroup, &[merged.device()]).unwrap();
        for (seat, names) in [
            (
                Seat::Inside,
                &["write", "chmod of the image's file", "unlink", "rename"] as &[_],
            ),
            (Seat::Outside, &["write", "append to the image's file"]),
        ] {
            for name in names {
                let effects = world.run(name, seat, merged.path());
                assert!(changed(&effects), "{name}: {effects:?}");
            }
        }
        let effects = world.run("store to a shared map", Seat::Inside, merged.path());
        assert!(effects.unseen > 0, "{effects:?}");
    }
}

#[test]
fn child_cgroups_count_however_deep() {
    for mut world in worlds() {
        let mut chain = vec![world.cgroup.child("a")];
        for _ in 0..40 {
            let deeper = chain.last().unwrap().child("a");
            chain.push(deeper);
        }
        for depth in [0, 40] {
            let directory = tempfile::tempdir_in(world.tmpfs.path()).unwrap();
            let effects = world.run("mkdir", Seat::Below(&chain[depth]), directory.path());
            assert!(changed(&effects), "{effects:?}");
            let effects = world.run("fork", Seat::Below(&chain[depth]), directory.path());
            assert!(effects.processes >= 2, "{effects:?}");
        }
        while let Some(cgroup) = chain.pop() {
            drop(cgroup);
        }
    }
}

#[test]
fn a_neighbour_is_not_counted() {
    for mut world in worlds() {
        let neighbour = Cgroup::new();
        let other = Mounted::tmpfs(&world.directory.path().join("other"));
        let (id, device) = (neighbour.id(), other.device());
        world.tracer().watch(id, &[device]).unwrap();
        for name in ["write", "unlink", "fork", "store to a shared map"] {
            let effects = world.run(name, Seat::Below(&neighbour), other.path());
            assert_eq!(effects, Effects::default(), "{name}");
        }
        let theirs = world.tracer().effects(id).unwrap();
        assert!(
            theirs.files > 0 && theirs.processes > 0 && theirs.unseen > 0,
            "{theirs:?}"
        );
    }
}
