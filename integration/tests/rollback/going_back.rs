// SPDX-License-Identifier: Apache-2.0

//! Ways back: with files only, with the memory of a server, of an init, while an exec runs, again
//! and again, at a terminal.

use std::fs;

use anyhow::{Context, Result, bail, ensure};
use crab_integration::{
    DEBIAN, ExecOptions, RunOptions, State, Terminal, Testbed, Tool, poll, processes, sleeper,
};
use crab_store::{Class, JournalRecord};

use crate::{
    LIMIT,
    identity::{Identity, peculiar, same},
    server::{self, ask, ask_as_turn, start_server},
    sleepers,
};

#[test]
fn a_sandbox_that_only_holds_files_goes_back_and_stays_the_same() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let events = testbed.events()?;
    for client in testbed.clients() {
        let mut options = peculiar(&testbed, client);
        if client == testbed.docker() {
            // Not where CRIU is needed: it cannot read the limits of another user's or
            // group's process on a machine that lacks CAP_SYS_RESOURCE.
            options = options.flags(["--user", "0:7"]);
        }
        let sandbox = client.run(DEBIAN, options)?;
        // What somebody did to its network is not lost with its processes.
        let pid = sandbox.pid()?.to_string();
        Tool::new("nsenter")
            .args([
                "-t",
                &pid,
                "-n",
                "ip",
                "addr",
                "add",
                "10.9.8.7/32",
                "dev",
                "lo",
            ])
            .run()?
            .ok()?;
        let before = Identity::of(&sandbox)?;
        assert!(before.addresses.contains("10.9.8.7"), "{before:?}");

        let one = crab.turn_of(&sandbox, Class::Files, "echo one >/root/f; rm /etc/issue")?;
        let two = crab.turn_of(
            &sandbox,
            Class::Files,
            "echo two >/root/f; echo x >/etc/issue",
        )?;
        let three = crab.turn_of(&sandbox, Class::None, "cat /root/f")?;

        let done = crab.rollback(&sandbox, one.number())?;
        assert_eq!(done["checkpoint"], one.number());
        assert_eq!(done["processes"], false);
        assert_eq!(
            sandbox.sh_ok("cat /root/f; ls /etc/issue 2>/dev/null | wc -l")?,
            "one\n0"
        );
        same(&Identity::of(&sandbox)?, &before)?;
        assert_eq!(sandbox.state()?, State::Running);
        assert_eq!(crab.ps_of(&sandbox)?.state, "running");

        // Turns that were left are still there to go to, and numbers go on.
        let four = crab.turn_of(&sandbox, Class::Files, "echo four >/root/f")?;
        assert!(four.number() > three.number());
        crab.rollback(&sandbox, three.number())?;
        assert_eq!(sandbox.sh_ok("cat /root/f /etc/issue")?, "two\nx");
        let turns = crab.turns(&sandbox)?;
        let left: Vec<u64> = turns
            .turns
            .iter()
            .filter(|t| t.left)
            .map(|t| t.number())
            .collect();
        assert!(
            left.contains(&four.number()) && !left.contains(&one.number()),
            "{left:?}"
        );
        let rollbacks = turns.events.iter().filter_map(|event| match event {
            JournalRecord::Rollback(record) => Some((record.asked.0, record.checkpoint.0)),
            _ => None,
        });
        assert_eq!(
            rollbacks.collect::<Vec<_>>(),
            [(one.number(), one.number()), (three.number(), two.number())]
        );
        crab.rollback(&sandbox, 0)?;
        assert_eq!(sandbox.sh_ok("ls /root | wc -l")?, "0");
        same(&Identity::of(&sandbox)?, &before)?;
        assert_eq!(events.exits_of_init(&sandbox)?, 0, "containerd saw an exit");
    }
    Ok(())
}

#[test]
fn a_live_server_goes_back_with_its_memory_and_its_files() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let events = testbed.events()?;
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, peculiar(&testbed, client))?;
        start_server(&crab, &sandbox)?;
        let before = Identity::of(&sandbox)?;
        assert_eq!(ask_as_turn(&crab, &sandbox, Class::Full)?.0, 1);
        let (count, second) = ask_as_turn(&crab, &sandbox, Class::Full)?;
        assert_eq!(count, 2);
        assert_eq!(ask_as_turn(&crab, &sandbox, Class::Full)?.0, 3);
        crab.turn_of(
            &sandbox,
            Class::Files,
            "echo later >/root/later; echo x >/dev/shm/later",
        )?;

        for round in 0..3 {
            let done = crab.rollback(&sandbox, second)?;
            assert_eq!(done["processes"], true, "round {round}");
            assert_eq!(
                sandbox
                    .sh_ok("ls /root /dev/shm | tr '\\n' ' '; grep -c . /root/log")?
                    .trim(),
                "/dev/shm: /root: log server.py 3".replace("/dev/shm: ", "/dev/shm:  "),
                "round {round}"
            );
            assert_eq!(ask(&sandbox)?, 3, "round {round}");
            assert_eq!(ask(&sandbox)?, 4, "round {round}");
            assert_eq!(sandbox.sh_ok("tail -n 1 /root/log")?, "count 4");
            same(&Identity::of(&sandbox)?, &before)?;
        }
        assert_eq!(sandbox.state()?, State::Running);
        assert_eq!(events.exits_of_init(&sandbox)?, 0, "containerd saw an exit");

        // To before it was started.
        crab.rollback(&sandbox, 0)?;
        assert_eq!(sandbox.processes()?.len(), 1);
        same(&Identity::of(&sandbox)?, &before)?;
    }
    Ok(())
}

#[test]
fn an_init_that_is_the_server_goes_back_and_its_output_goes_on() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let events = testbed.events()?;
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, server::as_init())?;
        assert_eq!(ask_as_turn(&crab, &sandbox, Class::Processes)?.0, 1);
        let (count, second) = ask_as_turn(&crab, &sandbox, Class::Processes)?;
        assert_eq!(count, 2);
        assert_eq!(ask(&sandbox)?, 3);
        let mut printed = vec!["ready", "count 1", "count 2", "count 3"];
        for round in 0..3 {
            crab.rollback(&sandbox, second)?;
            assert_eq!(ask(&sandbox)?, 3, "round {round}");
            assert_eq!(ask(&sandbox)?, 4, "round {round}");
            printed.extend(["count 3", "count 4"]);
            if client == testbed.docker() {
                poll("its output is in the log", LIMIT, || {
                    let logs = sandbox.logs()?.stdout;
                    Ok((logs.lines().eq(printed.iter().copied())).then_some(()))
                })
                .with_context(|| format!("round {round}"))?;
            }
        }
        assert_eq!(events.exits_of_init(&sandbox)?, 0, "containerd saw an exit");
        // Its end is still told, once.
        processes::kill(sandbox.pid()?)?;
        sandbox.wait_for(State::Stopped)?;
        assert_eq!(events.exits_of_init(&sandbox)?, 1);
    }
    Ok(())
}

#[test]
fn an_exec_that_runs_ends_with_137() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::without_bytecode())?;
        let one = crab.turn_of(&sandbox, Class::Files, "echo one >/root/f")?;
        let script = "echo two >/root/f; echo runs; exec sleep 1000";
        let running = sandbox.exec_start(&["sh", "-c", script], &ExecOptions::new())?;
        poll("it runs", LIMIT, || {
            let file = sandbox.root()?.join("root/f");
            Ok((fs::read_to_string(file)? == "two\n").then_some(()))
        })?;
        crab.rollback(&sandbox, one.number())?;
        let ended = running.wait()?;
        assert_eq!(
            (ended.status, ended.stdout.as_str()),
            (137, "runs\n"),
            "{}",
            ended.stderr
        );
        assert_eq!(sandbox.sh_ok("cat /root/f")?, "one");
        // What it did is not lost: it is a turn of its own.
        let left = crab.wait_for_turn_after(&sandbox, Some(one.number()))?;
        crab.rollback(&sandbox, left.number())?;
        assert_eq!(sandbox.sh_ok("cat /root/f")?, "two");
    }
    Ok(())
}

#[test]
fn cycles_of_exec_checkpoint_and_rollback_go_on_for_ever() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::without_bytecode())?;
        let mut expected = Vec::new();
        let mut turns = Vec::new();
        for cycle in 1..=5 {
            let script = format!("{}; echo {cycle} >/root/{cycle}", sleeper(1000 + cycle));
            let turn = crab.turn_of(&sandbox, Class::Full, &script)?;
            ensure!(turn.record.degraded.is_none(), "cycle {cycle}: {turn:?}");
            turns.push(turn.number());
            expected.push((1000 + cycle).to_string());
            assert_eq!(crab.checkpoint(&sandbox)?["class"], "none", "cycle {cycle}");
            crab.turn_of(
                &sandbox,
                Class::Full,
                "pkill -f '^sleep 100'; while pgrep -f '^sleep 100'; do :; done; rm -r /root",
            )?;
            crab.rollback_verified(&sandbox, turn.number())
                .with_context(|| format!("cycle {cycle}"))?;
            assert_eq!(sleepers(&sandbox)?, expected, "cycle {cycle}");
            assert_eq!(sandbox.sh_ok("ls /root | wc -l")?, cycle.to_string());
        }
        for (at, turn) in turns.iter().enumerate() {
            crab.rollback(&sandbox, *turn)?;
            assert_eq!(sleepers(&sandbox)?, expected[..=at], "turn {turn}");
        }
    }
    Ok(())
}

#[test]
fn a_sandbox_at_a_terminal_goes_back() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let docker = testbed.docker();
    let options = RunOptions::without_bytecode()
        .flags(["-it"])
        .args(["bash", "--norc"]);
    let sandbox = docker.run(DEBIAN, options)?;
    let one = crab.turn_of(&sandbox, Class::Full, "echo one >/root/f")?;
    crab.turn_of(&sandbox, Class::Files, "echo two >/root/f")?;
    crab.rollback(&sandbox, one.number())?;
    assert_eq!(sandbox.sh_ok("cat /root/f")?, "one");
    // Somebody who attaches finds it.
    let tool = docker.tool(["attach", "--detach-keys", "ctrl-x", sandbox.name()]);
    let mut terminal = Terminal::start(&tool, 24, 80)?;
    terminal.send("echo attached $((6*7))\n")?;
    terminal.wait_for("attached 42")?;
    let Some(degraded) = &one.record.degraded else {
        return Ok(());
    };
    // A checkpoint without its terminal has to say so.
    if !degraded.starts_with("files only: ") {
        bail!("{degraded}");
    }
    Ok(())
}
