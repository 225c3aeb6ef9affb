// SPDX-License-Identifier: Apache-2.0
//! Which system calls count as a change of files, and whose.

use std::path::Path;

use crab_bpf::Effects;

use crate::calls::{
    CHANGES, COMPAT_CHANGES, COMPAT_HARMLESS, COMPAT_UNSEEN, Call, HARMLESS, UNSEEN,
};
use crate::world::{Cgroup, Mounted, Seat, World};

/// Runs each call in a directory of its own, and judges what was counted.
fn each(
    world: &mut World,
    calls: &[(&str, Call)],
    seat: Seat<'_>,
    good: impl Fn(&Effects) -> bool,
) {
    let mut bad = Vec::new();
    for (name, _) in calls {
        let directory = tempfile::tempdir_in(world.tmpfs.path()).unwrap();
        match world.run_if_known(name, seat, directory.path()) {
            Some(effects) if !good(&effects) => bad.push(format!("{name}: {effects:?}")),
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
    let Some(mut world) = World::new() else {
        return;
    };
    each(&mut world, CHANGES, Seat::Inside, changed);
}

#[test]
fn reads_failures_pipes_and_other_file_systems_do_not_count() {
    let Some(mut world) = World::new() else {
        return;
    };
    each(&mut world, HARMLESS, Seat::Inside, |effects| {
        *effects == Effects::default()
    });
}

#[test]
fn what_can_write_with_no_further_call_counts_as_unseen() {
    let Some(mut world) = World::new() else {
        return;
    };
    each(&mut world, UNSEEN, Seat::Inside, |effects| {
        effects.unseen > 0 && effects.files == 0
    });
}

#[test]
fn the_32_bit_entry_counts_by_its_own_numbers() {
    let Some(mut world) = World::new() else {
        return;
    };
    if !Path::new("/proc/sys/abi/vsyscall32").exists() {
        println!("skipped: the kernel has no 32-bit entry");
        return;
    }
    each(&mut world, COMPAT_CHANGES, Seat::Inside, changed);
    each(&mut world, COMPAT_HARMLESS, Seat::Inside, |effects| {
        *effects == Effects::default()
    });
    each(&mut world, COMPAT_UNSEEN, Seat::Inside, |effects| {
        effects.unseen > 0
    });
}

#[test]
fn changes_from_outside_of_the_cgroup_count_by_superblock() {
    let Some(mut world) = World::new() else {
        return;
    };
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

#[test]
fn nothing_counts_from_outside_on_another_superblock() {
    let Some(mut world) = World::new() else {
        return;
    };
    let other = Mounted::tmpfs(&world.directory.path().join("other"));
    for name in [
        "write",
        "unlink",
        "shared map",
        "io_setup",
        "unlink in a chroot",
        "fork",
    ] {
        let directory = tempfile::tempdir_in(other.path()).unwrap();
        let effects = world.run(name, Seat::Outside, directory.path());
        assert_eq!(effects, Effects::default(), "{name}");
    }
}

#[test]
fn a_write_elsewhere_by_a_sandboxed_task_does_not_count() {
    let Some(mut world) = World::new() else {
        return;
    };
    let other = Mounted::tmpfs(&world.directory.path().join("other"));
    for name in [
        "write",
        "fchmod",
        "futimens",
        "openat to create",
        "shared map",
    ] {
        let directory = tempfile::tempdir_in(other.path()).unwrap();
        let effects = world.run(name, Seat::Inside, directory.path());
        assert_eq!(effects, Effects::default(), "{name}");
    }
}

#[test]
fn an_overlay_counts_by_its_own_device_also_through_a_copy_up() {
    let Some(mut world) = World::new() else {
        return;
    };
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
    let effects = world.run("shared map", Seat::Inside, merged.path());
    assert_eq!(effects.unseen, 1);
}

#[test]
fn child_cgroups_count_however_deep() {
    let Some(mut world) = World::new() else {
        return;
    };
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

#[test]
fn a_neighbour_is_not_counted() {
    let Some(mut world) = World::new() else {
        return;
    };
    let neighbour = Cgroup::new();
    let other = Mounted::tmpfs(&world.directory.path().join("other"));
    let (id, device) = (neighbour.id(), other.device());
    world.tracer().watch(id, &[device]).unwrap();
    for name in ["write", "unlink", "fork", "shared map"] {
        let effects = world.run(name, Seat::Below(&neighbour), other.path());
        assert_eq!(effects, Effects::default(), "{name}");
    }
    let theirs = world.tracer().effects(id).unwrap();
    assert!(
        theirs.files > 0 && theirs.processes > 0 && theirs.unseen > 0,
        "{theirs:?}"
    );
}
