// SPDX-License-Identifier: Apache-2.0

//! `crab checkpoint --dry-run`: what a checkpoint could hold, told without taking one.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crab_integration::{BUSYBOX, DEBIAN, ExecOptions, RunOptions, Sandbox, Testbed, poll, skip};
use crab_store::Class;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(20);

fn possible(testbed: &Testbed, sandbox: &Sandbox) -> Result<Value> {
    let crab = testbed.crab();
    crab.json(&["checkpoint", "--dry-run", &sandbox.sandbox_id()])
}

#[test]
fn a_dry_run_tells_what_is_possible_and_changes_nothing() -> Result<()> {
    let testbed = Testbed::here()?;
    if !testbed.driver().keeps_processes() {
        return skip("the runtime keeps no processes");
    }
    let crab = testbed.crab();
    let sandbox = testbed.ctr().run(DEBIAN, RunOptions::new())?;
    let found = possible(&testbed, &sandbox)?;
    assert_eq!(found["class"], "full");
    let reason = found["reason"].as_str().context("a reason")?;
    assert!(reason.contains("only holds it open"), "{reason}");

    let left = crab.turn_of(
        &sandbox,
        Class::Processes,
        "setsid sleep 1000 </dev/null >/dev/null 2>&1 &",
    )?;
    ensure!(left.is_whole(), "{left:?}");
    let found = possible(&testbed, &sandbox)?;
    assert_eq!(found["class"], "full");
    let reason = found["reason"].as_str().context("a reason")?;
    assert!(reason.starts_with("CRIU "), "{reason}");
    assert_eq!(found["left_out"], Value::Null);
    assert_eq!(crab.last_turn(&sandbox)?, Some(left.number()));

    let running = sandbox.exec_start(&["sleep", "1000"], &ExecOptions::new())?;
    poll("the exec is there, and is left out", LIMIT, || {
        let found = possible(&testbed, &sandbox)?;
        let left_out = found["left_out"].as_str().unwrap_or_default();
        Ok(left_out.contains("(sleep)").then_some(()))
    })?;
    drop(running);
    Ok(())
}

#[test]
fn a_dry_run_names_who_is_in_the_way() -> Result<()> {
    let testbed = Testbed::here()?;
    if !testbed.driver().keeps_processes() {
        return skip("the runtime keeps no processes");
    }
    let crab = testbed.crab();
    let sandbox = testbed.ctr().run(BUSYBOX, RunOptions::new())?;
    let turn = crab.turn_of(
        &sandbox,
        Class::Processes,
        "setsid sleep 1000 </dev/null >/dev/null 2>&1 &",
    )?;
    ensure!(!turn.is_whole(), "{turn:?}");
    let found = possible(&testbed, &sandbox)?;
    assert_eq!(found["class"], "files");
    let obstacles = found["obstacles"].as_array().context("obstacles")?;
    let named = |obstacle: &Value| {
        let text = obstacle.as_str().unwrap_or_default();
        text.starts_with("process ") && text.contains("(sleep) is busybox sleep")
    };
    ensure!(obstacles.iter().any(named), "{found}");
    let text = crab.run(&["checkpoint", "--dry-run", &sandbox.sandbox_id()])?;
    let text = text.text()?;
    ensure!(text.contains("a checkpoint could be files: "), "{text}");
    Ok(())
}
