// SPDX-License-Identifier: Apache-2.0

//! What is refused before anything is touched.

use anyhow::{Result, ensure};
use crab_integration::{DEBIAN, ExecOptions, RunOptions, Testbed, poll};
use crab_store::Class;

use crate::{LIMIT, sleepers};

#[test]
fn a_turn_that_does_not_exist_is_refused_and_nothing_is_touched() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::without_bytecode())?;
        crab.turn_of(&sandbox, Class::Files, "echo one >/root/f")?;
        let running = sandbox.exec_start(&["sleep", "1000"], &ExecOptions::new())?;
        let inside = poll("the exec runs", LIMIT, || {
            let inside = sandbox.processes()?;
            Ok((sleepers(&sandbox)? == ["1000"]).then_some(inside))
        })?;
        let pid = sandbox.pid()?;
        for turn in [3, 999, u64::MAX] {
            let refusal = crab.rollback_refusal(&sandbox, turn)?;
            assert_eq!(refusal.code, 3, "{}", refusal.line);
        }
        // The one that is open has not ended, so there is nothing to go back to.
        crab.rollback_refusal(&sandbox, 2)?;
        assert_eq!(sandbox.pid()?, pid);
        let now = sandbox.processes()?;
        ensure!(
            inside.iter().all(|pid| now.contains(pid)),
            "a process was killed"
        );
        drop(running);
        assert_eq!(sandbox.sh_ok("cat /root/f")?, "one");
    }
    Ok(())
}

#[test]
fn a_paused_or_stopped_sandbox_is_refused() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let client = testbed.docker();
    let sandbox = client.run(DEBIAN, RunOptions::without_bytecode())?;
    let one = crab.turn_of(&sandbox, Class::Files, "echo one >/root/f")?;
    let turn = one.number().to_string();
    let rollback = ["rollback", sandbox.name(), "--turn", &turn];
    client.tool(["pause", sandbox.name()]).run()?.ok()?;
    let refusal = crab.refusal(&rollback)?;
    assert_eq!(refusal.code, 4, "{}", refusal.line);
    assert!(refusal.line.contains("paused"), "{}", refusal.line);
    let refusal = crab.refusal(&["checkpoint", sandbox.name()])?;
    assert!(refusal.line.contains("paused"), "{}", refusal.line);
    client.tool(["unpause", sandbox.name()]).run()?.ok()?;
    sandbox.stop()?;
    let refusal = crab.refusal(&rollback)?;
    assert_eq!(refusal.code, 4, "{}", refusal.line);
    assert!(refusal.line.contains("crab restore"), "{}", refusal.line);
    Ok(())
}
