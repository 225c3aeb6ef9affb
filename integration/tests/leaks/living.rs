// SPDX-License-Identifier: Apache-2.0

//! What a shim holds while its container lives: as much as at its beginning.

use anyhow::{Context, Result, ensure};
use crab_integration::{
    BUSYBOX, DEBIAN, Descriptors, ExecOptions, RunOptions, Sandbox, Testbed, descriptors, poll,
};
use crab_store::Class;

use crate::LIMIT;

/// How often each thing is done.
const TIMES: usize = 40;

/// The shim's descriptors, its threads counted with them.
fn held(shim: u32) -> Result<(Descriptors, usize)> {
    let threads = std::fs::read_dir(format!("/proc/{shim}/task"))?.count();
    Ok((descriptors(shim), threads))
}

/// Does something again and again, and has the shim hold no more for it.
fn costs_nothing(sandbox: &Sandbox, what: &str, act: impl Fn() -> Result<()>) -> Result<()> {
    let shim = sandbox.shim()?;
    // What the first ones open for good.
    for _ in 0..3 {
        act()?;
    }
    let before = held(shim)?;
    for _ in 0..TIMES {
        act()?;
    }
    ensure!(sandbox.shim()? == shim, "another shim");
    let mut now = held(shim)?;
    let waited = poll("the shim holds as much as before", LIMIT, || {
        now = held(shim)?;
        let more = now.0.more_than(&before.0).count() > 0 || now.1 > before.1;
        Ok((!more).then_some(()))
    });
    waited.with_context(|| {
        format!(
            "after {TIMES} times {what} ({}): {}, {} threads; before: {}, {} threads",
            sandbox.client().name(),
            now.0,
            now.1,
            before.0,
            before.1
        )
    })
}

#[test]
fn execs_of_any_kind_cost_a_shim_no_descriptor() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    for client in testbed.clients() {
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        costs_nothing(&sandbox, "an exec", || {
            sandbox.sh_ok("echo x >/root/x")?;
            Ok(())
        })?;
        costs_nothing(&sandbox, "an exec with a stdin", || {
            let stdin = ExecOptions::new().stdin("in");
            ensure!(sandbox.exec_with(&["cat"], &stdin)?.ok()?.stdout == "in");
            Ok(())
        })?;
        costs_nothing(&sandbox, "an exec of nothing", || {
            ensure!(sandbox.exec(&["no-such-program"])?.status != 0);
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn checkpoints_and_rollbacks_cost_a_shim_no_descriptor() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::new())?;
        crab.turn_of(&sandbox, Class::Files, "echo 1 >/root/f")?;
        costs_nothing(&sandbox, "a turn and two rollbacks", || {
            sandbox.sh_ok("echo 2 >/root/f")?;
            crab.rollback(&sandbox, 1)?;
            crab.rollback_cold(&sandbox, 0)?;
            Ok(())
        })?;
    }
    Ok(())
}
