// SPDX-License-Identifier: Apache-2.0

//! Who decides which runtime is driven.

use anyhow::{Result, ensure};
use crab_integration::{BUSYBOX, Census, CgroupMode, RunOptions, Swapped, Testbed};
use crab_store::Class;

use crate::{STRANGE, configured, runtime_of, strange};

#[test]
fn the_configuration_decides_and_without_it_there_is_runc() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let _strange = strange()?;
    let ctr = testbed.ctr();
    let plain = ctr.run(BUSYBOX, RunOptions::new())?;
    assert_eq!(runtime_of(&plain)?, "runc");
    for binary in ["builtin", STRANGE] {
        let _config = configured(binary)?;
        let sandbox = ctr.run(BUSYBOX, RunOptions::new())?;
        assert_eq!(runtime_of(&sandbox)?, binary);
        assert_eq!(sandbox.sh_ok("echo alive")?, "alive");
    }
    // It keeps the one that it was made with.
    assert_eq!(plain.sh_ok("echo alive")?, "alive");
    Ok(())
}

#[test]
fn where_there_is_no_runc_the_built_in_one_runs_and_leaves_nothing() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let before = Census::take()?;
    {
        let _hidden = [
            Swapped::hidden("/usr/bin/runc")?,
            Swapped::hidden("/usr/sbin/runc")?,
        ];
        for client in testbed.clients() {
            let sandbox = client.run(BUSYBOX, RunOptions::new())?;
            let turn = crab.turn_of(&sandbox, Class::Files, "echo one >/root/f")?;
            ensure!(turn.is_whole(), "{turn:?}");
            crab.turn_of(&sandbox, Class::Files, "rm /root/f")?;
            crab.rollback(&sandbox, turn.number())?;
            assert_eq!(sandbox.sh_ok("cat /root/f")?, "one");
        }
    }
    before.wait_for_nothing_left()
}

#[test]
fn a_runtime_that_is_missing_or_refuses_says_so_and_leaves_nothing() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let ctr = testbed.ctr();
    let before = Census::take()?;
    let run = |binary: &str, args: &[&str]| {
        let _config = configured(binary)?;
        ctr.run_rm(BUSYBOX, RunOptions::new().args(args.iter().copied()))
    };
    let said = run("/no/such/oci", &["true"])?;
    assert_ne!(said.status, 0);
    ensure!(said.stderr.contains("/no/such/oci"), "{}", said.stderr);
    // crun 1.21 wants no controller on the v2 hierarchy of a hybrid host; this one has some.
    let said = run("crun", &["echo", "ran"])?;
    match testbed.cgroup() {
        CgroupMode::V1 if said.status != 0 => {
            ensure!(said.stderr.contains("hybrid mode"), "{}", said.stderr);
        }
        _ => assert_eq!(said.stdout, "ran\n", "{}", said.stderr),
    }
    // The reason of each, in words.
    for binary in ["runc", "builtin"] {
        let said = run(binary, &["/no/such/program"])?;
        let line = "\"/no/such/program\": stat /no/such/program: no such file or directory";
        ensure!(said.stderr.contains(line), "{binary}: {}", said.stderr);
    }
    before.wait_for_nothing_left()
}
