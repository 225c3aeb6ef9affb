// SPDX-License-Identifier: Apache-2.0

//! One shim, several sandboxes.

use anyhow::{Result, ensure};
use crab_integration::{BUSYBOX, Census, Counter, DEBIAN, Testbed, forget_fifos, poll, processes};
use crab_store::Class;

use crate::{LIMIT, pod::Pod};

#[test]
fn each_container_has_turns_of_its_own_and_the_pause_has_none() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let pod = Pod::start(testbed.ctr())?;
    let one = pod.run(BUSYBOX)?;
    let two = pod.run(BUSYBOX)?;
    pod.shim()?;
    crab.turn_of(&one, Class::Files, "echo 1 >/root/one")?;
    crab.turn_of(&two, Class::Files, "echo 2 >/root/two")?;
    crab.turn_of(&two, Class::None, "cat /root/two")?;
    assert_eq!(crab.last_turn(&one)?, Some(1));
    assert_eq!(crab.last_turn(&two)?, Some(2));

    let shown: Vec<String> = crab.ps()?.into_iter().map(|row| row.sandbox).collect();
    assert!(shown.contains(&one.sandbox_id()) && shown.contains(&two.sandbox_id()));
    assert!(!shown.contains(&pod.pause.sandbox_id()), "{shown:?}");
    assert!(!pod.pause.store().exists());
    let refused = crab.refusal(&["checkpoint", &pod.pause.sandbox_id()])?;
    assert!(
        refused.line.contains("only holds its pod open"),
        "{refused:?}"
    );
    Ok(())
}

#[test]
fn a_rollback_of_one_container_leaves_the_others_alone() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let pod = Pod::start(testbed.ctr())?;
    let one = pod.run(DEBIAN)?;
    let two = pod.run(DEBIAN)?;
    let counter = Counter::start(&crab, &one, 1)?;
    crab.turn_of(&two, Class::Files, "echo 2 >/root/two")?;
    let (_, first) = counter.ask()?;
    counter.ask()?;
    let (shim, pause, init) = (pod.shim()?, pod.pause.pid()?, two.pid()?);
    crab.rollback(&one, first.number())?;
    assert_eq!(counter.ask()?.0, 2);
    assert_eq!(two.sh_ok("cat /root/two")?, "2");
    assert_eq!(
        (pod.shim()?, pod.pause.pid()?, two.pid()?),
        (shim, pause, init)
    );
    Ok(())
}

#[test]
fn a_containers_end_is_not_the_pods_and_with_the_last_the_shim_goes() -> Result<()> {
    let testbed = Testbed::here()?;
    let events = testbed.events()?;
    let before = Census::take()?;
    let pod = Pod::start(testbed.ctr())?;
    let one = pod.run(BUSYBOX)?;
    let two = pod.run(BUSYBOX)?;
    let shim = pod.shim()?;
    one.stop()?;
    assert_eq!(two.sh_ok("echo lives")?, "lives");
    one.remove()?;
    assert_eq!(two.sh_ok("echo lives")?, "lives");
    assert_eq!(pod.shim()?, shim);
    // Its place is free, for one like it.
    let three = pod.run(BUSYBOX)?;
    assert_eq!(three.sh_ok("echo new")?, "new");
    assert_eq!(pod.shim()?, shim);
    three.remove()?;
    assert_eq!(events.exits_of_init(&two)?, 0);
    two.remove()?;
    drop(pod);
    before.wait_for_nothing_left()
}

#[test]
fn after_a_killed_shim_all_of_the_pod_is_cleaned_up() -> Result<()> {
    let testbed = Testbed::here()?;
    let events = testbed.events()?;
    let before = Census::take()?;
    let pod = Pod::start(testbed.ctr())?;
    let one = pod.run(BUSYBOX)?;
    let two = pod.run(BUSYBOX)?;
    let all = [&pod.pause, &one, &two];
    let inits = [pod.pause.pid()?, one.pid()?, two.pid()?];
    processes::kill(pod.shim()?)?;
    for sandbox in all {
        poll("containerd has seen the end", LIMIT, || {
            Ok((events.exits_of_init(sandbox)? > 0).then_some(()))
        })?;
    }
    for init in inits {
        processes::wait_gone(init, LIMIT)?;
    }
    for sandbox in all {
        ensure!(events.exits_of_init(sandbox)? == 1, "{}", sandbox.name());
    }
    drop((one, two, pod));
    forget_fifos()?;
    before.wait_for_nothing_left()
}
