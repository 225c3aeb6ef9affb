// SPDX-License-Identifier: Apache-2.0

//! How a program ended reaches the client.

use anyhow::Result;
use crab_integration::{
    BUSYBOX, Census, Client, Driver, RunOptions, Runtime, State, Testbed, poll, processes,
};

use crate::{LIMIT, shell, status_of_init};

#[test]
fn an_exit_status_reaches_the_client() -> Result<()> {
    let testbed = Testbed::here()?;
    for client in testbed.clients() {
        for status in [0, 3, 255] {
            let script = format!("exit {status}");
            let said = client.run_rm(BUSYBOX, shell(&script))?;
            assert_eq!(said.status, status, "{}: {}", said.command, said.stderr);
        }
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        for status in [0, 3, 255] {
            let said = sandbox.sh(&format!("exit {status}"))?;
            assert_eq!(said.status, status, "{}: {}", said.command, said.stderr);
        }
        let said = sandbox.sh("kill -KILL $$")?;
        assert_eq!(said.status, 137, "{}: {}", said.command, said.stderr);
        let said = sandbox.sh("kill -TERM $$")?;
        assert_eq!(said.status, 143, "{}: {}", said.command, said.stderr);
    }
    Ok(())
}

#[test]
fn a_killed_init_is_137() -> Result<()> {
    let testbed = Testbed::here()?;
    let events = testbed.events()?;
    for client in testbed.clients() {
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        sandbox.kill("KILL")?.ok()?;
        sandbox.wait_for(State::Stopped)?;
        assert_eq!(status_of_init(&sandbox, &events)?, 137, "{}", client.name());

        // Not by way of the client at all.
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        processes::kill(sandbox.pid()?)?;
        sandbox.wait_for(State::Stopped)?;
        assert_eq!(status_of_init(&sandbox, &events)?, 137, "{}", client.name());
    }
    Ok(())
}

#[test]
fn a_program_that_is_missing_is_said_and_leaves_nothing() -> Result<()> {
    let testbed = Testbed::here()?;
    for client in testbed.clients() {
        let before = Census::take()?;
        let missing = || RunOptions::new().args(["/no/such/program"]);
        let said = client.run_rm(BUSYBOX, missing())?;
        let (of_run, of_exec) = match (client, testbed.driver()) {
            // It writes "No such file", and Docker looks for "no such file".
            (Client::Docker, Driver::Crun) => (125, 126),
            // What the clients make of it, newer ones other than older ones.
            _ => {
                let stock = RunOptions::new().runtime(Runtime::Stock);
                let sandbox = client.run(BUSYBOX, stock)?;
                let of_exec = sandbox.exec(&["/no/such/program"])?.status;
                sandbox.remove()?;
                let stock = missing().runtime(Runtime::Stock);
                (client.run_rm(BUSYBOX, stock)?.status, of_exec)
            }
        };
        assert_eq!(said.status, of_run, "{}: {}", client.name(), said.stderr);
        assert!(said.stderr.contains("/no/such/program"), "{}", said.stderr);
        before.wait_for_nothing_left()?;

        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        let said = sandbox.exec(&["/no/such/program"])?;
        assert_eq!(said.status, of_exec, "{}: {}", client.name(), said.stderr);
        assert!(
            format!("{}{}", said.stdout, said.stderr).contains("/no/such/program"),
            "{} {}",
            said.stdout,
            said.stderr
        );
        // And by the shell inside.
        assert_eq!(sandbox.sh("/no/such/program")?.status, 127);
    }
    Ok(())
}

#[test]
fn an_init_that_ends_at_once_is_not_lost() -> Result<()> {
    let testbed = Testbed::here()?;
    let events = testbed.events()?;
    for client in testbed.clients() {
        for status in [0, 4, 0, 4, 0] {
            let sandbox = client.run(BUSYBOX, shell(&format!("exit {status}")))?;
            sandbox.wait_for(State::Stopped)?;
            assert_eq!(status_of_init(&sandbox, &events)?, status);
            assert_eq!(events.exits_of_init(&sandbox)?, 1);
        }
    }
    Ok(())
}

#[test]
fn docker_keeps_logs_and_stops() -> Result<()> {
    let testbed = Testbed::here()?;
    let events = testbed.events()?;
    let docker = testbed.docker();
    let script = "trap 'echo told; exit 5' TERM; echo out; echo err >&2; \
                  while :; do sleep 0.01; done";
    let sandbox = docker.run(BUSYBOX, shell(script))?;
    poll("the logs have both lines", LIMIT, || {
        let logs = sandbox.logs()?;
        // The runtime may have said something before.
        Ok((logs.stdout == "out\n" && logs.stderr.ends_with("err\n")).then_some(()))
    })?;
    docker.tool(["stop", sandbox.name()]).run()?.ok()?;
    assert_eq!(sandbox.state()?, State::Stopped);
    assert_eq!(status_of_init(&sandbox, &events)?, 5);
    assert_eq!(sandbox.logs()?.stdout, "out\ntold\n");

    // Deaf to SIGTERM: killed when the time is over.
    let sandbox = docker.run(BUSYBOX, shell("trap '' TERM; while :; do sleep 1; done"))?;
    docker
        .tool(["stop", "-t", "1", sandbox.name()])
        .run()?
        .ok()?;
    assert_eq!(status_of_init(&sandbox, &events)?, 137);
    docker.tool(["start", sandbox.name()]).run()?.ok()?;
    assert_eq!(sandbox.sh_ok("echo again")?, "again");
    docker.tool(["rm", "-f", sandbox.name()]).run()?.ok()?;
    assert_eq!(sandbox.state()?, State::Gone);
    Ok(())
}
