// SPDX-License-Identifier: Apache-2.0

//! What stops a container for a while: pause, and the standard checkpoint.

use anyhow::Result;
use crab_integration::{BUSYBOX, Client, DEBIAN, RunOptions, State, Testbed, processes::is_frozen};

use crate::shell;

#[test]
fn pause_stops_a_container_and_resume_lets_it_go_on() -> Result<()> {
    let testbed = Testbed::here()?;
    for client in testbed.clients() {
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        let pid = sandbox.pid()?;
        assert!(!is_frozen(pid)?);
        let pause = match client {
            Client::Docker => client.tool(["pause", sandbox.name()]),
            Client::Ctr { .. } => client.tool(["task", "pause", sandbox.id()]),
        };
        pause.run()?.ok()?;
        assert_eq!(sandbox.state()?, State::Paused);
        assert!(is_frozen(pid)?);
        let resume = match client {
            Client::Docker => client.tool(["unpause", sandbox.name()]),
            Client::Ctr { .. } => client.tool(["task", "resume", sandbox.id()]),
        };
        resume.run()?.ok()?;
        assert_eq!(sandbox.state()?, State::Running);
        assert!(!is_frozen(pid)?);
        assert_eq!(sandbox.sh_ok("echo alive")?, "alive");
        assert_eq!(sandbox.pid()?, pid);
    }
    Ok(())
}

#[test]
fn a_paused_container_can_be_killed_and_removed() -> Result<()> {
    let testbed = Testbed::here()?;
    let client = testbed.ctr();
    let sandbox = client.run(BUSYBOX, RunOptions::new())?;
    client.tool(["task", "pause", sandbox.id()]).run()?.ok()?;
    let removed = client.tool(["task", "rm", "-f", sandbox.id()]).run()?;
    // Whatever that says, the guard must be able to remove it.
    drop(sandbox);
    let left = client.tool(["container", "ls", "-q"]).run()?.text()?;
    assert_eq!(left, "", "{}", removed.stderr);
    Ok(())
}

#[test]
fn the_standard_checkpoint_leaves_the_container_running() -> Result<()> {
    let testbed = Testbed::here()?;
    let client = testbed.ctr();
    // The second is one that CRIU has to dump.
    for options in [RunOptions::new(), shell("sleep infinity & wait")] {
        let sandbox = client.run(DEBIAN, options)?;
        let pid = sandbox.pid()?;
        let said = client.tool(["task", "checkpoint", sandbox.id()]).run()?;
        if testbed.driver().dumps_processes() {
            said.ok()?;
        } else {
            assert_ne!(said.status, 0);
            assert!(said.stderr.contains("no process images"), "{}", said.stderr);
        }
        assert_eq!(sandbox.state()?, State::Running);
        assert_eq!(sandbox.pid()?, pid);
        assert!(!is_frozen(pid)?);
        assert_eq!(sandbox.sh_ok("echo alive")?, "alive");
    }
    Ok(())
}
