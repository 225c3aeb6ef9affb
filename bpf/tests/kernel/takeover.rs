// SPDX-License-Identifier: Apache-2.0
//! The programs outlive their tracer, and are taken over or replaced.

use std::fs;
use std::path::Path;

use aya::programs::fexit::FExitLink;
use aya::programs::{FExit, ProgramError};
use aya::{Btf, Ebpf};
use crab_bpf::{OpenError, Programs, Tracer};

use crate::attention::waits_in;
use crate::world::{Seat, World, difference, look, worlds};

fn set_of(pins: &Path) -> String {
    let mut names: Vec<_> = fs::read_dir(pins)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        // The kernel puts iterators of its own (maps.debug) into a new bpffs.
        .filter(|name| !name.contains('.'))
        .collect();
    assert_eq!(names.len(), 1, "{names:?}");
    names.remove(0)
}

#[test]
fn counting_goes_on_while_there_is_no_tracer() {
    for mut world in worlds() {
        let directory = world.tmpfs.path().to_path_buf();
        let mut agent = world.start("write", Seat::Inside, &directory);
        look(&directory);
        let before = world.effects();
        let cgroup = world.cgroup.id();
        let period = world.tracer().period(cgroup);

        drop(world.tracer.take());
        agent.go_on();
        assert!(agent.reaches("after"));
        world.open();

        assert_eq!(world.tracer().period(cgroup), period);
        assert_eq!(world.tracer().watched(), [cgroup]);
        assert_eq!(difference(&world.effects(), &before).files, 1);
        agent.go_on();
        world.finish(agent);
        assert_eq!(world.run("write", Seat::Inside, &directory).files, 1);
    }
}

/// Another program at a function, as long as this is there.
fn stranger() -> Result<FExitLink, ProgramError> {
    static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/stranger.bpf.o"));
    let types = Btf::from_sys_fs().unwrap();
    let mut object = Ebpf::load(OBJECT).unwrap();
    let program = object.program_mut("stranger").unwrap();
    let program: &mut FExit = program.try_into()?;
    program.load("__x64_sys_splice", &types)?;
    let link = program.attach()?;
    program.take_link(link)
}

#[test]
fn a_call_that_ends_after_a_stranger_came_and_went_is_counted_or_another_period_is_told() {
    for mut world in worlds() {
        let directory = world.tmpfs.path().to_path_buf();
        let mut agent = world.start("splice from a fifo", Seat::Inside, &directory);
        look(&directory);
        agent.go_on();
        waits_in(world.pid(&agent), &[libc::SYS_splice]);
        let cgroup = world.cgroup.id();
        let periods = |world: &mut World| world.tracer().period(cgroup).unwrap();
        let (before, period) = (world.effects(), periods(&mut world));
        assert_eq!(periods(&mut world), period);

        let stranger = stranger();
        assert!(
            world.programs != Programs::Exits || stranger.is_ok(),
            "{stranger:?}"
        );
        let meanwhile = periods(&mut world);
        drop(stranger);

        fs::write(directory.join("new"), "text").unwrap();
        assert!(agent.reaches("after"));
        if world.programs == Programs::Exits {
            assert_ne!(meanwhile, period);
            assert_ne!(periods(&mut world), meanwhile);
        } else {
            assert_eq!(periods(&mut world), period);
            assert!(difference(&world.effects(), &before).files > 0);
        }
        agent.go_on();
        world.finish(agent);
        let effects = world.run("write", Seat::Inside, &directory);
        assert_eq!(
            (effects.files, effects.lost),
            (1, 0),
            "the next ones are counted"
        );
    }
}

#[test]
fn another_builds_programs_are_replaced_under_a_new_instance() {
    for mut world in worlds() {
        let pins = world.pin_dir();
        let instance = world.tracer().instance().to_owned();
        drop(world.tracer.take());
        let old = format!("set-0123456789abcdef-{instance}");
        fs::rename(pins.join(set_of(&pins)), pins.join(&old)).unwrap();
        fs::create_dir(pins.join("new-leftover")).unwrap();

        world.open();
        assert_ne!(world.tracer().instance(), instance);
        assert_eq!(world.tracer().watched(), []);
        assert_ne!(set_of(&pins), old);
    }
}

#[test]
fn a_set_with_a_program_gone_is_replaced() {
    for mut world in worlds() {
        let pins = world.pin_dir();
        let instance = world.tracer().instance().to_owned();
        drop(world.tracer.take());
        fs::remove_file(pins.join(set_of(&pins)).join("link_sched_process_exec")).unwrap();
        world.open();
        assert_ne!(world.tracer().instance(), instance);
    }
}

#[test]
fn a_pin_directory_has_one_owner() {
    for mut world in worlds() {
        let pins = world.pin_dir();
        assert!(matches!(Tracer::open(&pins), Err(OpenError::Busy { .. })));
        drop(world.tracer.take());
        world.open();
    }
}

#[test]
fn closing_leaves_nothing_behind() {
    for mut world in worlds() {
        let pins = world.pin_dir();
        assert!(pins.exists());
        world.tracer.take().unwrap().close_and_unpin().unwrap();
        assert!(!pins.exists());
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(pins.to_str().unwrap()));
    }
}
