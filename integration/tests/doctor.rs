// SPDX-License-Identifier: Apache-2.0

//! `crab doctor` says that all is well, or what is missing and how to mend it.

use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

use anyhow::{Context, Result, ensure};
use crab_integration::{BUSYBOX, Census, Output, RunOptions, Swapped, Testbed, Tool, processes};
use rustix::process::Signal;
use serde::Deserialize;

const CONFIG: &str = "/etc/crab/config.toml";
const STORE: &str = "/var/lib/crab";

#[derive(Debug, Deserialize)]
struct Report {
    well: bool,
    checks: Vec<Check>,
}

#[derive(Debug, Deserialize)]
struct Check {
    check: String,
    verdict: String,
    found: String,
    mend: Option<String>,
}

fn doctor(testbed: &Testbed, args: &[&str]) -> Result<Output> {
    testbed.crab().run(&[&["doctor"], args].concat())
}

fn report(testbed: &Testbed) -> Result<Report> {
    let said = doctor(testbed, &["--json"])?;
    let report: Report = serde_json::from_str(&said.stdout)
        .with_context(|| format!("it printed {:?} {:?}", said.stdout, said.stderr))?;
    ensure!(said.status == i32::from(!report.well), "{}", said.status);
    Ok(report)
}

/// The one check that fails has to be this one, with these words in what was found and in
/// what to do.
fn only_fails(testbed: &Testbed, name: &str, found: &[&str], mend: &[&str]) -> Result<()> {
    let report = report(testbed)?;
    ensure!(!report.well, "{name} is said to be well");
    let failed: Vec<&Check> = report
        .checks
        .iter()
        .filter(|check| check.verdict == "fail")
        .collect();
    let [check] = failed[..] else {
        anyhow::bail!("{} checks fail: {failed:?}", failed.len());
    };
    ensure!(check.check == name, "{check:?}");
    for word in found {
        ensure!(check.found.contains(word), "{word:?} is not in {check:?}");
    }
    let advice = check.mend.as_deref().unwrap_or_default();
    for word in mend {
        ensure!(advice.contains(word), "{word:?} is not in {check:?}");
    }
    Ok(())
}

#[test]
fn a_host_with_everything_is_well() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let sandbox = testbed.ctr().run(BUSYBOX, RunOptions::new())?;
    // The start of a container does not wait for crabd, nor does its first exec.
    testbed.crab().wait_until_observed(&sandbox)?;
    let said = doctor(&testbed, &[])?.ok()?;
    let last = said.stdout.lines().last().unwrap_or_default();
    ensure!(last.starts_with("all is well"), "{}", said.stdout);
    let report = report(&testbed)?;
    ensure!(report.checks.len() + 1 == said.stdout.lines().count());
    let found = |name: &str| {
        let mut checks = report.checks.iter();
        checks
            .find(|check| check.check == name)
            .with_context(|| format!("there is no check {name}"))
    };
    for name in [
        "user",
        "kernel",
        "btf",
        "overlayfs",
        "cgroup",
        "checkpoint-restore",
        "soft-dirty",
        "time-namespace",
        "userfaultfd",
        "runtime",
        "containerd",
        "shim",
        "docker",
        "crabd",
        "bpf",
        "configuration",
        "store",
        "staging",
    ] {
        let check = found(name)?;
        // Where the machine keeps controllers for itself, or has little room.
        let may_warn = matches!(name, "cgroup" | "staging");
        ensure!(
            check.verdict == "ok" || may_warn && check.verdict == "warn",
            "{check:?}"
        );
        ensure!(!check.found.contains('\n'), "{check:?}");
    }
    ensure!(
        found("crabd")?.found.contains("1 sandbox"),
        "{:?}",
        found("crabd")?
    );
    ensure!(
        found("bpf")?.found.contains("0 events lost"),
        "{:?}",
        found("bpf")?
    );
    let tracking = found("soft-dirty")?;
    ensure!(tracking.found.contains("images are whole"), "{tracking:?}");
    // Whatever its version, it is there.
    ensure!(found("criu")?.found.contains(processes::CRIU_PATH));
    drop(sandbox);
    Ok(())
}

#[test]
fn a_missing_criu_shim_or_runtime_is_named_with_the_cure() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let hidden = Swapped::hidden(processes::CRIU_PATH)?;
    only_fails(
        &testbed,
        "criu",
        &["not found on", "/usr/sbin"],
        &["install CRIU"],
    )?;
    drop(hidden);
    let hidden = Swapped::hidden("/usr/local/bin/containerd-shim-crab-v1")?;
    only_fails(
        &testbed,
        "shim",
        &["containerd's PATH", "/usr/local/bin"],
        &["scripts/install"],
    )?;
    drop(hidden);
    // One that does not work on this host.
    let broken = Swapped::with(
        processes::CRIU_PATH,
        "#!/bin/sh\n[ \"$1\" != check ] || { echo 'Error (criu/vdso.c:1): no' >&2; exit 1; }\n\
         echo 'Version: 3.17.1'\n",
    )?;
    only_fails(
        &testbed,
        "criu",
        &["3.17.1", "criu/vdso.c:1"],
        &["install CRIU"],
    )?;
    drop(broken);
    ensure!(report(&testbed)?.well);
    Ok(())
}

/// What is hidden from a user looks as if it were missing.
#[test]
fn to_another_user_nothing_is_said_that_only_root_can_see() -> Result<()> {
    Testbed::here()?;
    let args = "--reuid 65534 --regid 65534 --clear-groups crab doctor --json";
    let said = Tool::new("setpriv").args(args.split(' ')).run()?;
    assert_eq!(said.status, 1, "{}", said.stderr);
    let report: Report = serde_json::from_str(&said.stdout)?;
    let fails = |check: &&Check| check.verdict == "fail";
    let failed: Vec<&Check> = report.checks.iter().filter(fails).collect();
    ensure!(failed.len() == 1 && failed[0].check == "user", "{failed:?}");
    ensure!(report.checks.iter().any(|check| check.check == "kernel"));
    Ok(())
}

#[test]
fn a_crabd_that_is_gone_missing_or_hangs_is_named_with_the_cure() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let sandbox = testbed.ctr().run(BUSYBOX, RunOptions::new())?;
    let crab = testbed.crab();
    crab.wait_until_observed(&sandbox)?;

    let hanging = processes::crabd().context("no crabd runs")?;
    processes::signal(hanging, Signal::STOP)?;
    let told = only_fails(
        &testbed,
        "crabd",
        &["does not answer", &format!("process {hanging}")],
        &["the next one takes over"],
    );
    processes::signal(hanging, Signal::CONT)?;
    told?;

    // None runs: it is tried out, which starts none.
    processes::kill_crabd()?;
    let without = report(&testbed)?;
    ensure!(without.well, "{without:?}");
    let bpf = without.checks.iter().find(|check| check.check == "bpf");
    ensure!(
        bpf.is_some_and(|check| check.found.ends_with(" can be attached")),
        "{bpf:?}"
    );
    ensure!(processes::crabd().is_none());

    let hidden = Swapped::hidden(processes::CRABD_PATH)?;
    only_fails(&testbed, "crabd", &["not found"], &["scripts/install"])?;
    drop(hidden);
    crab.wait_until_observed(&sandbox)
}

#[test]
fn a_broken_configuration_is_named_with_its_line() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let broken = Swapped::with(CONFIG, "log_level = \"info\"\nstor = \"/x\"\n")?;
    only_fails(
        &testbed,
        "configuration",
        &["/etc/crab/config.toml:2", "stor"],
        &["defaults"],
    )?;
    drop(broken);
    let elsewhere = Swapped::with(CONFIG, "[runtime]\nbinary = \"/opt/no-runc\"\n")?;
    only_fails(&testbed, "runtime", &["/opt/no-runc"], &["runtime.binary"])?;
    drop(elsewhere);
    ensure!(report(&testbed)?.well);
    Ok(())
}

#[test]
fn a_store_that_others_can_read_is_told() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    fs::create_dir_all(STORE)?;
    let before = fs::metadata(STORE)?.permissions();
    fs::set_permissions(STORE, PermissionsExt::from_mode(0o755))?;
    let told = only_fails(
        &testbed,
        "store",
        &["mode 0755"],
        &["chmod 700 /var/lib/crab"],
    );
    fs::set_permissions(STORE, before)?;
    told
}

#[test]
fn looking_leaves_nothing_and_starts_nothing() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    if processes::crabd().is_some() {
        processes::kill_crabd()?;
    }
    let files = || -> Result<Vec<_>> {
        let mut names = Vec::new();
        for dir in [
            "/tmp",
            "/run",
            "/var/lib",
            "/etc/crab",
            "/run/crab",
            "/sys/fs/bpf",
        ] {
            for entry in fs::read_dir(dir).into_iter().flatten() {
                names.push(entry?.path());
            }
        }
        names.sort();
        Ok(names)
    };
    let before = (Census::take()?, files()?);
    doctor(&testbed, &[])?.ok()?;
    let left = Census::take()?.since(&before.0);
    ensure!(left.is_empty(), "left: {left:?}");
    assert_eq!(files()?, before.1);
    std::thread::sleep(Duration::from_millis(200));
    ensure!(processes::crabd().is_none());
    Ok(())
}
