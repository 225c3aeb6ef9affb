// SPDX-License-Identifier: Apache-2.0

//! What an agent framework says of its turns goes before what is seen.

use std::{path::Path, thread, time::Duration};

use anyhow::{Result, ensure};
use crab_integration::{BUSYBOX, Crab, ExecOptions, RunOptions, Sandbox, Testbed, poll};
use crab_store::Trigger;

/// For what takes a moment on a machine that is not busy.
const LIMIT: Duration = Duration::from_secs(30);

fn begin(crab: &Crab, sandbox: &Sandbox, meta: &str) -> Result<()> {
    let id = sandbox.sandbox_id();
    crab.run(&["turn", "begin", &id, "--meta", meta])?.ok()?;
    Ok(())
}

fn end(crab: &Crab, sandbox: &Sandbox) -> Result<()> {
    let id = sandbox.sandbox_id();
    crab.run(&["turn", "end", &id, "--meta", "left=nothing"])?
        .ok()?;
    Ok(())
}

#[test]
fn nothing_ends_a_turn_between_its_hints_and_its_metadata_shows() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        // Each of these is a turn of its own where nobody says anything.
        begin(&crab, &sandbox, "tool=edit")?;
        sandbox.sh_ok("echo 1 >/root/a")?;
        sandbox.sh_ok("echo 2 >/root/b")?;
        assert_eq!(crab.turns(&sandbox)?.open.map(|turn| turn.0), Some(1));
        end(&crab, &sandbox)?;
        let turn = crab.wait_for_turn(&sandbox, 1)?;
        let record = &turn.record;
        assert_eq!(record.trigger, Trigger::Hint);
        assert_eq!(record.meta["tool"], "edit");
        assert_eq!(record.meta["left"], "nothing");
        ensure!(record.command.contains("/root/a"), "{record:?}");
        for path in ["/root/a", "/root/b"] {
            ensure!(record.changed.iter().any(|c| c.path == path), "{record:?}");
        }
        let id = sandbox.sandbox_id();
        for args in [["turns", &id].as_slice(), &["show", &id, "1"]] {
            let text = crab.run(args)?.ok()?.stdout;
            ensure!(text.contains("tool=edit"), "{text}");
        }
        // One that is begun again was not ended by whoever began it first.
        begin(&crab, &sandbox, "tool=first")?;
        begin(&crab, &sandbox, "tool=second")?;
        end(&crab, &sandbox)?;
        assert_eq!(
            crab.wait_for_turn(&sandbox, 2)?.record.meta["tool"],
            "first"
        );
        assert_eq!(
            crab.wait_for_turn(&sandbox, 3)?.record.meta["tool"],
            "second"
        );
        let refusal = crab.refusal(&["turn", "end", &id])?;
        ensure!(
            refusal.code == 4 && refusal.line.contains("no turn"),
            "{refusal:?}"
        );
        // And without hints all is as before.
        sandbox.sh_ok("rm /root/a")?;
        assert_eq!(
            crab.wait_for_turn(&sandbox, 4)?.record.trigger,
            Trigger::Exec
        );
    }
    Ok(())
}

#[test]
fn a_turn_whose_agent_dies_before_its_end_ends_by_rest() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let timeout = ["--annotation", "dev.crab.turns.hint_timeout_ms=400"];
        let sandbox = client.run(BUSYBOX, RunOptions::new().flags(timeout))?;
        let edit = "touch /root/begun; until test -e /root/go; do sleep 0.1; done; echo 1 >/root/a";
        let exec = sandbox.exec_start(&["sh", "-c", edit], &ExecOptions::new())?;
        let begun = format!("/proc/{}/root/root/begun", sandbox.pid()?);
        poll("the exec runs", LIMIT, || {
            Ok(Path::new(&begun).exists().then_some(()))
        })?;
        begin(&crab, &sandbox, "tool=edit")?;
        // Longer than the timeout, with nothing that runs: an exec that goes on is no rest.
        thread::sleep(Duration::from_secs(1));
        sandbox.sh_ok("touch /root/go")?;
        exec.wait()?.ok()?;
        let record = crab.wait_for_turn(&sandbox, 1)?.record;
        assert_eq!(record.meta["tool"], "edit");
        ensure!(
            record.changed.iter().any(|c| c.path == "/root/a"),
            "{record:?}"
        );
    }
    Ok(())
}
