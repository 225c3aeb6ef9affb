// SPDX-License-Identifier: Apache-2.0

//! What a user gets wrong: names, usage, rights, the configuration.

use anyhow::{Context, Result, ensure};
use crab_integration::{
    BUSYBOX, Client, RunOptions, State, Swapped, Testbed, Tool, poll, processes::SHIM,
};
use crab_store::Class;

use crate::{CONFIG, FAILED, LIMIT, NOT_FOUND, REFUSED, USAGE, lines_of_turns, lives, refuses};

#[test]
fn an_unknown_sandbox_or_turn_is_said() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        let turn = crab.turn_of(&sandbox, Class::Files, "echo 1 >/root/f")?;
        let id = &sandbox.sandbox_id();
        for args in [
            &["turns", "no-such"][..],
            &["show", "no-such", "1"],
            &["checkpoint", "no-such"],
            &["rollback", "no-such", "--turn", "1"],
            &["restore", "no-such"],
            &["restore", "no-such", "--turn", "1"],
            &["turns", "no-such-namespace/x"],
        ] {
            let words = ["no-such", "crab ps"];
            refuses(&crab, args, NOT_FOUND, &words)?;
        }
        let words = ["77", "crab turns"];
        refuses(&crab, &["show", id, "77"], NOT_FOUND, &words)?;
        refuses(&crab, &["rollback", id, "--turn", "77"], NOT_FOUND, &words)?;
        let running = ["it is running", "crab rollback"];
        refuses(&crab, &["restore", id], REFUSED, &running)?;

        // Nothing was changed by any of it.
        lives(&sandbox)?;
        assert_eq!(sandbox.sh_ok("cat /root/f")?, "1");
        assert_eq!(crab.turns(&sandbox)?.head.map(|t| t.0), Some(turn.number()));

        sandbox.stop()?;
        // Docker deletes the task of what has stopped.
        let stopped = match client {
            Client::Docker => ["it is not running", "crab restore"],
            Client::Ctr { .. } => ["it has stopped", "crab restore"],
        };
        refuses(&crab, &["rollback", id, "--turn", "1"], REFUSED, &stopped)?;
        refuses(&crab, &["checkpoint", id], REFUSED, &stopped)?;
        let restore = ["restore", id, "--turn", "77"];
        refuses(&crab, &restore, NOT_FOUND, &words)?;
        assert_eq!(sandbox.state()?, State::Stopped);
        crab.restore(&sandbox, None)?;
        lives(&sandbox)?;

        // What has no container any more.
        let (id, turns) = (id.clone(), turn.number().to_string());
        sandbox.remove()?;
        let gone = ["not running", "crab restore"];
        refuses(&crab, &["rollback", &id, "--turn", &turns], REFUSED, &gone)?;
        refuses(&crab, &["checkpoint", &id], REFUSED, &gone)?;
        let lost = ["no such container any more", "checkpoints are untouched"];
        refuses(&crab, &["restore", &id], FAILED, &lost)?;
    }
    Ok(())
}

#[test]
fn an_ambiguous_name_is_said_with_what_it_may_mean() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let ctr = testbed.ctr();
    let one = ctr.run(BUSYBOX, RunOptions::new().id("ambiguous-1"))?;
    let two = ctr.run(BUSYBOX, RunOptions::new().id("ambiguous-2"))?;
    let words = ["ambiguous-1", "ambiguous-2"];
    let refusal = crab.refusal(&["checkpoint", "ambiguous"])?;
    for word in words {
        assert!(refusal.line.contains(word), "{}", refusal.line);
    }
    crab.run(&["checkpoint", "ambiguous-1"])?.ok()?;
    lives(&one)?;
    lives(&two)
}

#[test]
fn wrong_usage_is_said() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    for args in [
        &[][..],
        &["undo"],
        &["ps", "--fast"],
        &["turns"],
        &["show", "x"],
        &["show", "x", "1st"],
        &["rollback", "x"],
        &["rollback", "x", "--turn"],
        &["rollback", "x", "--turn", "-1"],
        &["restore", "x", "--turn", "99999999999999999999999"],
        &["checkpoint", "x", "y"],
    ] {
        refuses(&crab, args, USAGE, &["crab --help"]).with_context(|| format!("{args:?}"))?;
    }
    let nowhere = ["--store", "/no/such/store", "ps"];
    refuses(&crab, &nowhere, NOT_FOUND, &["/no/such/store"])?;
    let no_store = ["--store", "/etc", "ps"];
    refuses(&crab, &no_store, NOT_FOUND, &["/etc"])?;
    Ok(())
}

#[test]
fn only_root_may() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let sandbox = testbed.ctr().run(BUSYBOX, RunOptions::new())?;
    crab.turn_of(&sandbox, Class::Files, "echo 1 >/root/f")?;
    let id = &sandbox.sandbox_id();
    for args in [
        &["ps"][..],
        &["turns", id],
        &["show", id, "1"],
        &["checkpoint", id],
        &["rollback", id, "--turn", "0"],
        &["restore", id],
    ] {
        let tool = Tool::new("setpriv").args([
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
            "crab",
        ]);
        let said = tool.args(args.iter().copied()).run()?;
        let lines: Vec<&str> = said.stderr.lines().collect();
        ensure!(
            said.status == REFUSED && said.stdout.is_empty(),
            "{} ended with {}: {} {}",
            said.command,
            said.status,
            said.stdout,
            said.stderr
        );
        let [line] = lines[..] else {
            anyhow::bail!("{} said {lines:?}", said.command);
        };
        assert!(
            line.starts_with("crab: ") && line.contains("as root"),
            "{line}"
        );
    }
    assert_eq!(sandbox.sh_ok("cat /root/f")?, "1");
    Ok(())
}

#[test]
fn a_broken_configuration_starts_containers_and_is_said() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    for client in testbed.clients() {
        let config = Swapped::with(
            CONFIG,
            "# by hand\n[checkpoints]\nmax_gate = 5\nenabled = 1\n",
        )?;
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        let id = sandbox.sandbox_id();
        lives(&sandbox)?;
        let words = [CONFIG, ":3", "max_gate", "line 4", "correct these lines"];
        refuses(&crab, &["ps"], FAILED, &words)?;
        refuses(&crab, &["checkpoint", &id], FAILED, &words)?;
        sandbox.sh_ok("echo 1 >/root/f")?;
        drop(config);
        // The defaults were in force, which is told for as long as they are.
        let fault = "the default configuration is in force: cannot use the configuration \
                     /etc/crab/config.toml:3: ";
        let faults = crab.ps_of(&sandbox)?.config_faults;
        ensure!(
            faults.len() == 1 && faults[0].starts_with(fault),
            "{faults:?}"
        );
        ensure!(lines_of_turns(&crab, &sandbox, fault)?.len() == 1);
        let turn = poll("the turn is recorded", LIMIT, || {
            let mut turns = crab.turns(&sandbox)?.turns.into_iter();
            Ok(turns.find(|t| t.published && t.number() > 0 && t.class() == Class::Files))
        })?;
        crab.rollback(&sandbox, turn.number())?;
        assert_eq!(sandbox.sh_ok("cat /root/f")?, "1");
    }
    Ok(())
}

#[test]
fn a_pod_by_the_sandbox_api_is_refused_with_what_to_configure() -> Result<()> {
    Testbed::here()?;
    // As containerd runs it under `sandboxer = "shim"`, in a directory like this.
    let said = Tool::new("env")
        .args(["-C", "/run/containerd"])
        .args([SHIM, "-namespace", "k8s.io", "-id", "pod", "start"])
        .run()?;
    ensure!(said.status == 1 && said.stdout.is_empty(), "{said:?}");
    let words = ["no config.json", "leave out sandboxer"];
    ensure!(
        words.iter().all(|word| said.stderr.contains(word)),
        "{said:?}"
    );
    ensure!(said.stderr.lines().count() == 1, "{said:?}");
    Ok(())
}
