// SPDX-License-Identifier: Apache-2.0

//! Captures of several sandboxes on one host: no more at a time than may be, with crabd and
//! when it is killed, and none for which an agent is held back for too long.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use crab_integration::{
    Counter, Crab, DEBIAN, EACH_EXEC_A_TURN, RunOptions, Sandbox, Swapped, Testbed, Turn, poll,
    processes,
};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(20);
const CONFIG: &str = "/etc/crab/config.toml";

/// A host where one sandbox is dumped at a time, and dumps begin when they are let.
struct Host {
    _config: Swapped,
    _criu: Swapped,
}

/// While it is there, CRIU waits before it looks at anything.
const HELD: &str = "/run/criu-is-held-back";

impl Host {
    fn new() -> Result<Self> {
        let config = Swapped::with(
            CONFIG,
            &format!("{EACH_EXEC_A_TURN}[schedule]\ndumps = 1\n"),
        )?;
        let criu = Swapped::wrapped(processes::CRIU_PATH, |criu| {
            let criu = criu.display();
            format!(
                "#!/bin/sh\ncase $1 in swrk) while [ -e {HELD} ]; do sleep 0.02; done;; esac\n\
                 exec {criu} \"$@\"\n"
            )
        })?;
        // The next one reads the configuration.
        if processes::crabd().is_some() {
            processes::kill_crabd()?;
        }
        Ok(Self {
            _config: config,
            _criu: criu,
        })
    }

    fn hold_back(&self) -> Result<()> {
        Ok(fs::write(HELD, "")?)
    }

    fn let_go(&self) -> Result<()> {
        Ok(fs::remove_file(HELD)?)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = fs::remove_file(HELD);
        // What is configured for this test is not for the next one.
        let _ = processes::kill_crabd();
    }
}

fn state_of(jobs: &Value, sandbox: &Sandbox) -> Option<String> {
    let id = sandbox.sandbox_id();
    let mut open = jobs["jobs"].as_array()?.iter();
    let job = open.find(|job| job["sandbox"] == id.as_str())?;
    Some(job["state"].as_str()?.to_owned())
}

fn wait_for_state(crab: &Crab, sandbox: &Sandbox, state: &str) -> Result<()> {
    poll(&format!("a job is {state}"), LIMIT, || {
        let jobs = crab.json(&["jobs"])?;
        Ok((state_of(&jobs, sandbox).as_deref() == Some(state)).then_some(()))
    })
}

fn is_whole(turn: &Turn) -> Result<()> {
    ensure!(turn.is_whole(), "{turn:?}");
    Ok(())
}

#[test]
fn dumps_wait_for_each_other_also_over_a_crabd_that_is_killed() -> Result<()> {
    let testbed = Testbed::here()?;
    if !testbed.driver().dumps_processes() {
        return Ok(());
    }
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let host = Host::new()?;
    let first = testbed.ctr().run(DEBIAN, RunOptions::new())?;
    let second = testbed.docker().run(DEBIAN, RunOptions::new())?;
    let counters = [
        Counter::start(&crab, &first, 1)?,
        Counter::start(&crab, &second, 1)?,
    ];
    let last = [crab.last_turn(&first)?, crab.last_turn(&second)?];

    host.hold_back()?;
    counters[0].ask_only()?.wait()?.ok()?;
    wait_for_state(&crab, &first, "capturing")?;
    counters[1].ask_only()?.wait()?.ok()?;
    wait_for_state(&crab, &second, "queued")?;
    let jobs = crab.json(&["jobs"])?;
    ensure!(jobs["budgets"]["dumps"] == 1, "{jobs}");
    let row = crab.ps_of(&second)?;
    ensure!(row.job.as_deref() == Some("queued"), "{row:?}");
    // And it stays so for as long as the other one is not over.
    let held = poll(
        "it is dumped beside the other",
        Duration::from_secs(2),
        || {
            let jobs = crab.json(&["jobs"])?;
            Ok((state_of(&jobs, &second).as_deref() != Some("queued")).then_some(()))
        },
    );
    ensure!(held.is_err(), "two sandboxes are captured at a time");

    host.let_go()?;
    for (sandbox, last) in [(&first, last[0]), (&second, last[1])] {
        is_whole(&crab.wait_for_turn_after(sandbox, last)?)?;
    }
    poll("all jobs have ended", LIMIT, || {
        let jobs = crab.json(&["jobs"])?;
        let open = jobs["jobs"].as_array().context("jobs")?;
        Ok(open.is_empty().then_some(()))
    })?;
    let jobs = crab.json(&["jobs"])?;
    ensure!(jobs["counts"]["failed"] == 0, "{jobs}");
    ensure!(jobs["counts"]["ungranted"] == 0, "{jobs}");

    // The same, and crabd is killed while one is captured and one waits.
    let last = [crab.last_turn(&first)?, crab.last_turn(&second)?];
    host.hold_back()?;
    counters[0].ask_only()?.wait()?.ok()?;
    wait_for_state(&crab, &first, "capturing")?;
    counters[1].ask_only()?.wait()?.ok()?;
    wait_for_state(&crab, &second, "queued")?;
    processes::kill_crabd()?;
    host.let_go()?;
    for (sandbox, last) in [(&first, last[0]), (&second, last[1])] {
        let turn = crab.wait_for_turn_after(sandbox, last)?;
        is_whole(&turn)?;
        ensure!(turn.record.changed.len() == 1, "{turn:?}");
    }
    for counter in &counters {
        ensure!(counter.ask()?.0 == 3, "a request was lost");
    }
    Ok(())
}

#[test]
fn a_capture_that_would_hold_an_agent_back_for_too_long_is_given_up_and_made_up_for() -> Result<()>
{
    let testbed = Testbed::here()?;
    if !testbed.driver().dumps_processes() {
        return Ok(());
    }
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let host = Host::new()?;
    let ctr = testbed.ctr();
    let annotated = |setting: &str| {
        let flags = ["--annotation".to_owned(), format!("dev.crab.{setting}")];
        ctr.run(DEBIAN, RunOptions::new().flags(flags))
    };
    let busy = ctr.run(DEBIAN, RunOptions::new())?;
    let limited = annotated("checkpoints.max_gate_ms=300")?;
    let latest = annotated("schedule.durability=latest")?;
    let of_busy = Counter::start(&crab, &busy, 1)?;
    let cases = [
        (
            &limited,
            Counter::start(&crab, &limited, 1)?,
            ["given up", "given-up"],
        ),
        (
            &latest,
            Counter::start(&crab, &latest, 1)?,
            ["the next turn", "merged"],
        ),
    ];
    let last = crab.last_turn(&busy)?;
    host.hold_back()?;
    of_busy.ask_only()?.wait()?.ok()?;
    wait_for_state(&crab, &busy, "capturing")?;
    for (sandbox, counter, [says, kind]) in &cases {
        let last = crab.last_turn(sandbox)?;
        counter.ask_only()?.wait()?.ok()?;
        wait_for_state(&crab, sandbox, "queued")?;
        // The agent goes on, while the other sandbox is still being captured.
        sandbox.sh_ok("echo on >/root/on")?;
        let turn = crab.wait_for_turn_after(sandbox, last)?;
        ensure!(turn.failed.is_some() && !turn.published, "{turn:?}");
        ensure!(turn.record.reason.contains(says), "{}", turn.record.reason);
        let told = crab.run(&["events", &sandbox.sandbox_id(), "--json"])?;
        let kind = format!("\"kind\":\"{kind}\"");
        ensure!(told.stdout.contains(&kind), "{}", told.stdout);
    }
    let jobs = crab.json(&["jobs"])?;
    ensure!(
        state_of(&jobs, &busy).as_deref() == Some("capturing"),
        "{jobs}"
    );
    ensure!(jobs["counts"]["given_up"] == 1, "{jobs}");
    ensure!(jobs["counts"]["void"] == 1, "{jobs}");
    host.let_go()?;
    is_whole(&crab.wait_for_turn_after(&busy, last)?)?;
    for (sandbox, counter, _) in &cases {
        // What was given up is in what comes next.
        let (answer, turn) = counter.ask()?;
        is_whole(&turn)?;
        sandbox.sh_ok("rm /root/on /root/count")?;
        counter.ask()?;
        crab.rollback(sandbox, turn.number())?;
        ensure!(sandbox.sh_ok("cat /root/on /root/count")? == format!("on\n{answer}"));
        ensure!(counter.ask()?.0 == answer + 1, "another process image");
    }
    Ok(())
}

#[test]
fn turns_that_change_nothing_or_files_alone_wait_for_no_dump() -> Result<()> {
    let testbed = Testbed::here()?;
    if !testbed.driver().dumps_processes() {
        return Ok(());
    }
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let host = Host::new()?;
    let busy = testbed.ctr().run(DEBIAN, RunOptions::new())?;
    let quiet = testbed.docker().run(DEBIAN, RunOptions::new())?;
    let counter = Counter::start(&crab, &busy, 1)?;
    let last = crab.last_turn(&busy)?;
    crab.turn_of(&quiet, crab_store::Class::Files, "echo 0 >/root/f")?;
    host.hold_back()?;
    counter.ask_only()?.wait()?.ok()?;
    wait_for_state(&crab, &busy, "capturing")?;
    let turn = crab.turn_of(&quiet, crab_store::Class::Files, "echo 1 >/root/f")?;
    is_whole(&turn)?;
    crab.turn_of(&quiet, crab_store::Class::None, "cat /root/f")?;
    ensure!(Path::new(HELD).exists());
    host.let_go()?;
    is_whole(&crab.wait_for_turn_after(&busy, last)?)?;
    Ok(())
}
