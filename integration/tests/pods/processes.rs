// SPDX-License-Identifier: Apache-2.0

//! A process namespace that is not the container's own: the pod's.

use anyhow::Result;
use crab_integration::{BUSYBOX, DEBIAN, State, Testbed, poll, processes, sleeper};
use crab_store::Class;

use crate::{LIMIT, pod::Pod};

#[test]
fn processes_in_the_pods_namespace_are_not_imaged_and_the_files_are() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let pod = Pod::start(testbed.ctr())?;
    let sandbox = pod.run_in(DEBIAN, &["pid"])?;
    let script = format!("echo kept >/root/kept; {}", sleeper(1000));
    let turn = crab.turn_of(&sandbox, Class::Full, &script)?;
    let degraded = turn.record.degraded.clone().unwrap_or_default();
    assert!(degraded.contains("process namespace is shared"), "{turn:?}");
    assert!(turn.published);
    crab.turn_of(&sandbox, Class::Files, "rm /root/kept")?;
    let pause = pod.pause.pid()?;
    crab.rollback(&sandbox, turn.number())?;
    assert_eq!(sandbox.sh_ok("cat /root/kept")?, "kept");
    assert_eq!(pod.pause.pid()?, pause);
    Ok(())
}

#[test]
fn what_ran_beside_an_init_that_ends_ends_with_it_and_the_pod_does_not() -> Result<()> {
    let testbed = Testbed::here()?;
    let events = testbed.events()?;
    let pod = Pod::start(testbed.ctr())?;
    let sandbox = pod.run_in(BUSYBOX, &["pid"])?;
    sandbox.sh_ok(&sleeper(1234))?;
    let left = || {
        let is_it = |words: &Vec<String>| words.iter().any(|word| word == "1234");
        let all = processes::all().into_iter();
        all.filter(|(_, words)| is_it(words)).count()
    };
    assert_eq!(left(), 1);
    sandbox.stop()?;
    poll("its processes have ended", LIMIT, || {
        Ok((left() == 0).then_some(()))
    })?;
    assert_eq!(events.exits_of_init(&sandbox)?, 1);
    assert_eq!(pod.pause.state()?, State::Running);
    Ok(())
}
