// SPDX-License-Identifier: Apache-2.0

//! Parts that are switched off: what is captured is as right as with them.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use crab_integration::{
    BUSYBOX, Crab, DEBIAN, RunOptions, Sandbox, Swapped, Testbed, Tool, poll, processes, sleeper,
};
use crab_store::Class;

use crate::LIMIT;

const CONFIG: &str = "/etc/crab/config.toml";
const PINS: &str = "/sys/fs/bpf/crab";

/// Kills crabd, where one runs: with what it has pinned as it is.
fn end_crabd() -> Result<()> {
    if processes::crabd().is_some() {
        processes::kill_crabd()?;
    }
    Ok(())
}

/// The kernel's ids of the programs that crabd has pinned.
fn pinned_programs() -> Result<Vec<u64>> {
    let mut ids = Vec::new();
    for set in fs::read_dir(PINS).context("read the pins")? {
        for pin in fs::read_dir(set?.path())? {
            let pin = pin?;
            if !pin.file_name().as_encoded_bytes().starts_with(b"prog_") {
                continue;
            }
            let pin = pin.path().display().to_string();
            let args = ["-j", "prog", "show", "pinned", &pin];
            let said = Tool::new("bpftool").args(args).run()?.ok()?;
            let shown: serde_json::Value = serde_json::from_str(&said.stdout)?;
            ids.push(shown["id"].as_u64().context("a program without an id")?);
        }
    }
    Ok(ids)
}

fn is_loaded(program: u64) -> Result<bool> {
    let args = ["prog", "show", "id", &program.to_string()];
    Ok(Tool::new("bpftool").args(args).run()?.status == 0)
}

/// crabd holds nothing of BPF's, by pin or by descriptor.
fn holds_no_programs() -> Result<()> {
    ensure!(!Path::new(PINS).exists(), "something is pinned");
    let crabd = processes::crabd().context("no crabd runs")?;
    for fd in fs::read_dir(format!("/proc/{crabd}/fd"))? {
        // One of a connection may be gone by now.
        let Ok(what) = fs::read_link(fd?.path()) else {
            continue;
        };
        let what = what.display().to_string();
        ensure!(!what.contains("bpf"), "crabd holds {what}");
    }
    Ok(())
}

/// A turn that has to say that it is unobserved, and that somebody wanted it.
fn unobserved(crab: &Crab, sandbox: &Sandbox, class: Class, script: &str) -> Result<u64> {
    let turn = crab.turn_of(sandbox, class, script)?;
    let why = turn.record.unobserved.as_deref();
    let why = why.with_context(|| format!("{script} was observed"))?;
    ensure!(why.contains("switched off in the configuration"), "{why}");
    ensure!(class == Class::None || turn.is_whole(), "{turn:?}");
    Ok(turn.record.turn.0)
}

#[test]
fn without_the_inspector_turns_are_unobserved_and_right_and_no_program_is_loaded() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let old = testbed.ctr().run(BUSYBOX, RunOptions::new())?;
    crab.wait_until_observed(&old)?;
    let programs = pinned_programs()?;
    ensure!(!programs.is_empty(), "nothing counts");

    let config = Swapped::with(CONFIG, "[inspector]\nenabled = false\n")?;
    end_crabd()?;
    let new = testbed.docker().run(DEBIAN, RunOptions::new())?;
    for sandbox in [&old, &new] {
        let before = unobserved(&crab, sandbox, Class::None, "ls /")?;
        unobserved(&crab, sandbox, Class::Files, "echo 1 >/root/f")?;
        unobserved(&crab, sandbox, Class::None, "cat /root/f")?;
        crab.rollback(sandbox, before)?;
        unobserved(&crab, sandbox, Class::None, "test ! -e /root/f")?;
        holds_no_programs()?;
    }
    unobserved(&crab, &new, Class::Processes, &sleeper(1000))?;
    // It has run, for all that anybody knows.
    unobserved(&crab, &new, Class::Processes, "true")?;
    for program in programs {
        poll("a program is gone", LIMIT, || {
            Ok((!is_loaded(program)?).then_some(()))
        })?;
    }
    let report = crab.json(&["doctor"])?;
    let checks = report["checks"].as_array().context("no checks")?;
    let bpf = checks.iter().find(|check| check["check"] == "bpf");
    let bpf = bpf.context("no check of BPF")?;
    ensure!(bpf["verdict"] == "absent", "{bpf}");
    ensure!(bpf["found"].to_string().contains("switched off"), "{bpf}");

    drop(config);
    end_crabd()?;
    // Compared with what was before anything counted.
    crab.turn_of(&new, Class::Processes, "true")?;
    // Its programs may take the kernel longer to check than that turn could wait.
    crab.wait_until_watched(&new)?;
    crab.turn(&new, &["true"])?.0.ok()?;
    crab.wait_until_observed(&old)?;
    for sandbox in [&old, &new] {
        let turn = crab.turn_of(sandbox, Class::Files, "echo 2 >/root/f")?;
        ensure!(turn.record.unobserved.is_none(), "{:?}", turn.record);
    }
    ensure!(!pinned_programs()?.is_empty(), "nothing counts again");
    Ok(())
}

#[test]
fn without_optimism_files_are_captured_with_a_freeze() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    for client in testbed.clients() {
        for optimistic in [true, false] {
            let said = format!("dev.crab.checkpoints.optimistic={optimistic}");
            let options = RunOptions::new().flags(["--annotation", &said]);
            let sandbox = client.run(BUSYBOX, options)?;
            crab.wait_until_observed(&sandbox)?;
            let files = crab.turn_of(&sandbox, Class::Files, "echo x >/root/x")?;
            let frozen = files.record.cost.frozen_us > 0;
            ensure!(frozen != optimistic, "{said}: {:?}", files.record);
            ensure!(files.is_whole(), "{files:?}");
            // Not looked at.
            let nothing = crab.turn_of(&sandbox, Class::None, "cat /root/x")?;
            ensure!(nothing.record.cost.frozen_us == 0, "{:?}", nothing.record);
            crab.turn_of(&sandbox, Class::Files, "echo y >/root/x")?;
            crab.rollback(&sandbox, files.number())?;
            ensure!(sandbox.sh_ok("cat /root/x")? == "x");
        }
    }
    Ok(())
}
