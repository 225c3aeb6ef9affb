// SPDX-License-Identifier: Apache-2.0

//! What a sandbox says for itself, by annotations and labels.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use crab_integration::{BUSYBOX, Crab, RunOptions, Sandbox, State, Swapped, Testbed, poll};
use crab_store::Class;

use crate::LIMIT;

const SWITCH: &str = "dev.crab.checkpoints.enabled";

fn said(flag: &str, name: &str, text: &str) -> [String; 2] {
    [flag.to_owned(), format!("{name}={text}")]
}

/// It runs, and no checkpoint is to be had, for this reason.
fn is_without_checkpoints(crab: &Crab, sandbox: &Sandbox, why: &str) -> Result<()> {
    ensure!(sandbox.sh_ok("echo x >/root/x; cat /root/x")? == "x");
    let refusal = crab.refusal(&["checkpoint", &sandbox.sandbox_id()])?;
    ensure!(refusal.line.contains(why), "{}", refusal.line);
    ensure!(crab.ps_of(sandbox)?.config_faults.is_empty());
    Ok(())
}

#[test]
fn a_sandbox_goes_without_checkpoints_by_an_annotation_or_a_label() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let ways = [
        (testbed.ctr(), "--annotation"),
        (testbed.ctr(), "--label"),
        (testbed.docker(), "--annotation"),
        (testbed.docker(), "--label"),
    ];
    for (client, flag) in ways {
        let options = RunOptions::new().flags(said(flag, SWITCH, "false"));
        let sandbox = client.run(BUSYBOX, options)?;
        is_without_checkpoints(&crab, &sandbox, "switched off by an annotation")
            .with_context(|| format!("{} {flag}", client.name()))?;
        // The next one says nothing, and has its own.
        let other = client.run(BUSYBOX, RunOptions::new())?;
        crab.turn_of(&other, Class::Files, "echo x >/root/x")?;
    }
    Ok(())
}

#[test]
fn a_sandbox_of_nerdctl_goes_without_checkpoints_by_an_annotation() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let Some(nerdctl) = testbed.nerdctl()? else {
        return Ok(());
    };
    let options = RunOptions::new().flags(said("--annotation", SWITCH, "false"));
    let container = nerdctl.run(BUSYBOX, options)?;
    let why = "switched off by an annotation";
    is_without_checkpoints(&testbed.crab(), container.sandbox(), why)
}

#[test]
fn an_annotation_wins_over_a_label() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let options = RunOptions::new()
        .flags(said("--label", SWITCH, "false"))
        .flags(said("--annotation", SWITCH, "true"));
    let sandbox = testbed.docker().run(BUSYBOX, options)?;
    crab.turn_of(&sandbox, Class::Files, "echo x >/root/x")?;
    assert!(crab.ps_of(&sandbox)?.config_faults.is_empty());
    Ok(())
}

/// What each wrong one is answered with.
const WRONG: [(&str, &str, &str); 5] = [
    (
        "dev.crab.checkpoints.enable",
        "false",
        "there is no such setting",
    ),
    (SWITCH, "nein", "it must be true or false, and is \"nein\""),
    (
        "dev.crab.checkpoints.max_gate_ms",
        "999999",
        "a whole number of milliseconds between 0 and 600000, and is \"999999\"",
    ),
    (
        "dev.crab.runtime.freeze_timeout_ms",
        "20000",
        "a sandbox may say 10000 at most",
    ),
    ("dev.crab.store", "/etc", "store is the host's to say"),
];

fn containerd_log() -> Result<String> {
    Ok(fs::read_to_string("/var/log/containerd.log")?)
}

#[test]
fn a_wrong_annotation_costs_no_container_and_is_told_wherever_one_looks() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    for client in testbed.clients() {
        let mut options = RunOptions::new();
        for (name, text, _) in WRONG {
            options = options.flags(said("--annotation", name, text));
        }
        let sandbox = client.run(BUSYBOX, options)?;
        assert_eq!(sandbox.state()?, State::Running);
        // The host's settings hold.
        crab.turn_of(&sandbox, Class::Files, "echo x >/root/x")?;
        let id = sandbox.sandbox_id();
        let faults = crab.ps_of(&sandbox)?.config_faults;
        assert_eq!(faults.len(), WRONG.len(), "{faults:?}");
        let turns = crab.run(&["turns", &id])?.ok()?.stdout;
        let show = crab.run(&["show", &id, "1"])?.ok()?.stdout;
        for (name, _, why) in WRONG {
            let fault = faults.iter().find(|fault| {
                fault.starts_with(&format!("{name} is ignored: ")) && fault.contains(why)
            });
            let fault = fault.with_context(|| format!("{name} is not in {faults:?}"))?;
            ensure!(turns.contains(fault), "{turns}");
            ensure!(show.contains(fault), "{show}");
            // Written through a FIFO that containerd reads when it likes. A quotation mark is
            // escaped there.
            let begin = format!("{name} is ignored: ");
            poll("it is in containerd's log", LIMIT, || {
                let log = containerd_log()?;
                let told = log.lines().any(|line| line.contains(&begin));
                Ok(told.then_some(()))
            })?;
        }
        // And when it is gone.
        sandbox.remove()?;
        let turns = crab.run(&["turns", &id])?.ok()?.stdout;
        ensure!(turns.contains("dev.crab.store is ignored"), "{turns}");
    }
    Ok(())
}

/// A program that says that it ran.
struct Trap {
    program: PathBuf,
    ran: PathBuf,
}

impl Trap {
    fn new(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir)?;
        let (program, ran) = (dir.join("criu"), dir.join("ran"));
        fs::write(&program, format!("#!/bin/sh\ntouch {}\n", ran.display()))?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        Ok(Self { program, ran })
    }
}

impl Drop for Trap {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.program);
        let _ = fs::remove_file(&self.ran);
    }
}

#[test]
fn no_sandbox_can_name_a_program_or_a_place_of_the_host() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let trap = Trap::new(Path::new("/tmp/crab-trap"))?;
    let program = trap.program.display().to_string();
    for client in testbed.clients() {
        let mut options = RunOptions::new();
        for (name, text) in [
            ("runtime.binary", program.as_str()),
            ("runtime.criu", &program),
            ("crabd", &program),
            ("store", "/tmp/crab-trap/store"),
            ("run_dir", "/tmp/crab-trap/run"),
            ("checkpoints.staging_dir", "/tmp/crab-trap/staging"),
        ] {
            options = options.flags(said("--annotation", &format!("dev.crab.{name}"), text));
        }
        let sandbox = client.run(BUSYBOX, options)?;
        crab.turn_of(&sandbox, Class::Files, "echo x >/root/x")?;
        let held = crab.turn_of(&sandbox, Class::Processes, &crab_integration::sleeper(1000))?;
        assert!(held.published, "{held:?}");
        crab.rollback(&sandbox, 1)?;
        assert!(!trap.ran.exists(), "{}", client.name());
        for dir in ["store", "run", "staging"] {
            assert!(!Path::new("/tmp/crab-trap").join(dir).exists(), "{dir}");
        }
    }
    Ok(())
}

#[test]
fn checkpoints_that_the_host_has_switched_off_cannot_be_switched_on() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let _config = Swapped::with("/etc/crab/config.toml", "[checkpoints]\nenabled = false\n")?;
    for client in testbed.clients() {
        let options = RunOptions::new().flags(said("--annotation", SWITCH, "true"));
        let sandbox = client.run(BUSYBOX, options)?;
        let refusal = crab.refusal(&["checkpoint", &sandbox.sandbox_id()])?;
        let why = "switched off in the configuration";
        assert!(refusal.line.contains(why), "{}", refusal.line);
        let faults = crab.ps_of(&sandbox)?.config_faults;
        assert!(faults[0].contains("has it switched off"), "{faults:?}");
        // One that asks for nothing is told of nothing.
        let other = client.run(BUSYBOX, RunOptions::new())?;
        is_without_checkpoints(&crab, &other, why)?;
    }
    Ok(())
}
