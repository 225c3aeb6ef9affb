// SPDX-License-Identifier: Apache-2.0

//! Pipes: whole, apart, and with an end.

use anyhow::Result;
use crab_integration::{BUSYBOX, Client, ExecOptions, RunOptions, Testbed};

use crate::{LIMIT, shell};

#[test]
fn stdout_and_stderr_arrive_apart_and_whole() -> Result<()> {
    let testbed = Testbed::here()?;
    let script = "seq 1 300000; seq 1 200000 >&2; echo end; exit 7";
    let lines = |last: u32| (1..=last).map(|n| format!("{n}\n")).collect::<String>();
    let (stdout, stderr) = (lines(300_000) + "end\n", lines(200_000));
    assert!(stdout.len() > 1 << 20 && stderr.len() > 1 << 20);
    for client in testbed.clients() {
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        for said in [client.run_rm(BUSYBOX, shell(script))?, sandbox.sh(script)?] {
            assert_eq!(said.status, 7, "{}", said.command);
            assert!(
                // The runtime may have said something on the container's stderr before.
                said.stdout == stdout && said.stderr.ends_with(&stderr),
                "{}: {} of {} bytes, {} of {} on stderr",
                said.command,
                said.stdout.len(),
                stdout.len(),
                said.stderr.len(),
                stderr.len()
            );
        }
    }
    Ok(())
}

#[test]
fn stdin_reaches_the_program_and_ends_with_its_end() -> Result<()> {
    let testbed = Testbed::here()?;
    let big: String = (1..=200_000).map(|n| format!("{n}\n")).collect();
    for client in testbed.clients() {
        let interactive = match client {
            Client::Docker => RunOptions::new().flags(["-i"]),
            // `ctr run` always hands its own on.
            Client::Ctr { .. } => RunOptions::new(),
        };
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        for input in ["one line\n", "no end of line", &big] {
            let (tool, _guard) = client.run_rm_tool(BUSYBOX, interactive.clone().args(["cat"]))?;
            let said = tool.stdin(input).limit(LIMIT).run()?.ok()?;
            assert!(said.stdout == input, "{}", said.command);
            let options = ExecOptions::new().stdin(input).limit(LIMIT);
            let said = sandbox.exec_with(&["cat"], &options)?.ok()?;
            assert!(said.stdout == input, "{}", said.command);
        }
    }
    Ok(())
}

#[test]
fn a_stdin_that_is_empty_or_not_read_ends_too() -> Result<()> {
    let testbed = Testbed::here()?;
    // `ctr` itself cannot tell an end that comes before its Create is answered.
    let docker = testbed.docker();
    let (tool, _guard) =
        docker.run_rm_tool(BUSYBOX, RunOptions::new().flags(["-i"]).args(["cat"]))?;
    assert_eq!(tool.limit(LIMIT).run()?.ok()?.stdout, "");
    for client in testbed.clients() {
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        if client == docker {
            let options = ExecOptions::new().stdin("").limit(LIMIT);
            assert_eq!(sandbox.exec_with(&["cat"], &options)?.ok()?.stdout, "");
        }
        // No stdin at all reads as its end.
        assert_eq!(sandbox.exec(&["cat", "/dev/null"])?.ok()?.stdout, "");
        let input = vec![b'x'; 1 << 20];
        let options = ExecOptions::new().stdin(input).limit(LIMIT);
        let said = sandbox.exec_with(&["sh", "-c", "exec <&-; echo deaf"], &options)?;
        assert_eq!(said.ok()?.stdout, "deaf\n");
    }
    Ok(())
}
