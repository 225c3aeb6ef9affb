// SPDX-License-Identifier: Apache-2.0
//! Processes, mounts, and the arithmetic of watches.

use crab_bpf::{CgroupId, Effects, EffectsError, MAX_DEVICES, Programs, WatchError};

use crate::world::{Cgroup, Mounted, Seat, worlds};

#[test]
fn forks_execs_and_exits_count() {
    for mut world in worlds() {
        let directory = world.tmpfs.path().to_path_buf();
        let effects = world.run("fork", Seat::Inside, &directory);
        assert_eq!(effects.processes, 2, "fork and exit: {effects:?}");
        assert_eq!(effects.files, 0);
        let effects = world.run("exec", Seat::Inside, &directory);
        assert_eq!(effects.processes, 3, "fork, exec and exit: {effects:?}");
        let effects = world.run("thread", Seat::Inside, &directory);
        assert!(effects.processes >= 1, "{effects:?}");
        let effects = world.run("fork", Seat::Outside, &directory);
        assert_eq!(effects.processes, 0, "outside: {effects:?}");
    }
}

#[test]
fn a_crash_may_have_left_a_core_file() {
    for mut world in worlds() {
        let directory = world.tmpfs.path().to_path_buf();
        let effects = world.run("crash", Seat::Inside, &directory);
        assert_eq!(effects.files, 1, "{effects:?}");
    }
}

#[test]
fn mounts_count_or_are_told() {
    for mut world in worlds() {
        let directory = world.tmpfs.path().to_path_buf();
        let effects = world.run("mount and unmount", Seat::Inside, &directory);
        if world.programs.counts_mounts() {
            assert_eq!(
                effects.mounts, 3,
                "mount, umount2, a cloned tree: {effects:?}"
            );
            continue;
        }
        assert_eq!(effects.mounts, 0, "{effects:?}");
        let cgroup = world.cgroup.id();
        world.tracer().mounted(cgroup).unwrap();
        assert_eq!(world.effects().mounts, 1);
        drop(world.tracer.take());
        world.open();
        assert_eq!(world.effects().mounts, 1, "over a change of tracers");
    }
}

#[test]
fn what_goes_to_the_network_counts_but_not_over_loopback() {
    for mut world in worlds() {
        let directory = world.tmpfs.path().to_path_buf();
        let effects = world.run("network", Seat::Inside, &directory);
        // Over TCP and over UDP; its peer is in the sandbox too, and answers.
        assert_eq!(effects.connected, 1, "{effects:?}");
        assert_eq!(effects.listened, 1, "{effects:?}");
        assert_eq!(effects.sent, 4 + 3 + 4, "{effects:?}");
        let effects = world.run("network by loopback", Seat::Inside, &directory);
        assert_eq!(effects, Effects::default());
        let effects = world.run("network", Seat::Outside, &directory);
        assert_eq!(effects, Effects::default());
    }
}

#[test]
fn a_program_in_immutable_memory_is_no_memory_that_is_shared() {
    for mut world in worlds() {
        if world.programs != Programs::Inodes {
            continue;
        }
        let directory = world.tmpfs.path().to_path_buf();
        let effects = world.run("run from memory", Seat::Inside, &directory);
        assert!(effects.unseen > 0, "{effects:?}");
        let effects = world.run("run from immutable memory", Seat::Inside, &directory);
        assert_eq!(effects.unseen, 0, "{effects:?}");
        assert!(effects.processes > 0, "{effects:?}");
    }
}

#[test]
fn sandboxes_may_share_a_superblock() {
    for mut world in worlds() {
        let other = Cgroup::new();
        let (mine, theirs, shared) = (world.cgroup.id(), other.id(), world.tmpfs.device());
        world.tracer().watch(theirs, &[shared]).unwrap();
        let before = world.tracer().effects(theirs).unwrap();
        let directory = world.tmpfs.path().to_path_buf();
        let effects = world.run("write", Seat::Inside, &directory);
        assert_eq!(effects.files, 1);
        let after = world.tracer().effects(theirs).unwrap();
        assert!(after.files > before.files);

        // It is counted as long as one of them is there.
        assert!(world.tracer().unwatch(theirs).unwrap());
        assert_eq!(world.run("write", Seat::Inside, &directory).files, 1);
        assert!(world.tracer().unwatch(mine).unwrap());
        assert!(matches!(
            world.tracer().effects(mine),
            Err(EffectsError::NotWatched { cgroup }) if cgroup == mine
        ));
        assert!(!world.tracer().unwatch(mine).unwrap());
        assert_eq!(world.tracer().watched(), []);
    }
}

#[test]
fn counters_never_fall_when_devices_come_and_go() {
    for mut world in worlds() {
        let directory = world.tmpfs.path().to_path_buf();
        let (cgroup, device) = (world.cgroup.id(), world.tmpfs.device());
        world.run("write", Seat::Inside, &directory);
        let counted = world.effects();
        assert!(counted.files > 0);

        world.tracer().watch(cgroup, &[]).unwrap();
        assert_eq!(world.effects(), counted);
        assert_eq!(world.run("write", Seat::Inside, &directory).files, 0);

        world.tracer().watch(cgroup, &[device, device]).unwrap();
        assert!(world.effects().files >= counted.files);
        assert_eq!(world.run("write", Seat::Inside, &directory).files, 1);
    }
}

#[test]
fn a_renewed_watch_keeps_its_counters() {
    for mut world in worlds() {
        let directory = world.tmpfs.path().to_path_buf();
        world.run("write", Seat::Inside, &directory);
        let counted = world.effects();
        let (cgroup, device) = (world.cgroup.id(), world.tmpfs.device());
        let more = Mounted::tmpfs(&world.directory.path().join("more"));
        world
            .tracer()
            .watch(cgroup, &[device, more.device()])
            .unwrap();
        assert_eq!(world.effects(), counted);
        assert_eq!(world.run("write", Seat::Inside, more.path()).files, 1);
    }
}

#[test]
fn a_gap_between_two_watches_is_told() {
    for mut world in worlds() {
        let (cgroup, device) = (world.cgroup.id(), world.tmpfs.device());
        let period = world.tracer().period(cgroup).unwrap();
        world.tracer().watch(cgroup, &[]).unwrap();
        assert_eq!(world.tracer().period(cgroup), Some(period.clone()));

        world.tracer().unwatch(cgroup).unwrap();
        assert_eq!(world.tracer().period(cgroup), None);
        world.tracer().watch(cgroup, &[device]).unwrap();
        assert_ne!(world.tracer().period(cgroup), Some(period));
    }
}

#[test]
fn too_many_devices_are_refused_and_change_nothing() {
    for mut world in worlds() {
        let devices: Vec<_> = (1..=MAX_DEVICES as u64 + 1)
            .map(crab_bpf::Device::from_st_dev)
            .collect();
        let cgroup = world.cgroup.id();
        assert!(matches!(
            world.tracer().watch(cgroup, &devices),
            Err(WatchError::TooManyDevices { .. })
        ));
        let directory = world.tmpfs.path().to_path_buf();
        assert_eq!(world.run("write", Seat::Inside, &directory).files, 1);
        let new = CgroupId(u64::MAX);
        world.tracer().watch(new, &devices[..MAX_DEVICES]).unwrap();
        assert_eq!(world.tracer().effects(new).unwrap(), Effects::default());
    }
}
