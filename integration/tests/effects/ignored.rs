// SPDX-License-Identifier: Apache-2.0

//! What is declared not to matter calls for no checkpoint, and is in every checkpoint
//! that something else calls for.

use anyhow::{Context, Result, ensure};
use crab_integration::{BUSYBOX, Client, Crab, DEBIAN, RunOptions, Sandbox, Testbed, sleeper};
use crab_store::{Class, IgnoredBy, Trigger};

const RULES: &str = "dev.crab.ignore.paths=**/__pycache__/** /root/.cache/** /dev/shm/scratch/**";

fn run(client: Client, image: &str) -> Result<Sandbox> {
    let flags = ["--annotation", RULES];
    client.run(image, RunOptions::new().flags(flags))
}

/// A turn that leaves nothing but what is ignored, by this rule.
fn ignored(crab: &Crab, sandbox: &Sandbox, rule: &str, script: &str) -> Result<IgnoredBy> {
    let turn = crab.turn_of(sandbox, Class::None, script)?;
    let record = turn.record;
    ensure!(record.files_changed == 0, "{script}: {:?}", record.changed);
    ensure!(record.reason.contains("ignored"), "{}", record.reason);
    let by = record
        .effects
        .ignored
        .into_iter()
        .find(|by| by.rule == rule);
    by.with_context(|| format!("{script}: nothing is ignored by {rule}"))
}

fn has(sandbox: &Sandbox, path: &str) -> Result<bool> {
    Ok(sandbox.sh(&format!("test -e {path}"))?.status == 0)
}

#[test]
fn byte_code_alone_is_no_checkpoint_and_is_in_the_next() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = run(client, DEBIAN)?;
        let rule = "**/__pycache__/**";
        crab.turn_of(
            &sandbox,
            Class::Files,
            "mkdir /root/app; echo x=1 >/root/app/m.py",
        )?;
        let import = "cd /root/app; python3 -c 'import m'";
        let by = ignored(&crab, &sandbox, rule, import)?;
        // The directory and the file in it.
        ensure!(by.count >= 2, "{by:?}");
        ensure!(by.first == "/root/app/__pycache__", "{by:?}");
        ensure!(by.setting == "ignore.paths");
        let shm = "mkdir /dev/shm/scratch; echo x >/dev/shm/scratch/x";
        ignored(&crab, &sandbox, "/dev/shm/scratch/**", shm)?;
        // Nothing touched any more: what is passed over is not looked at again.
        crab.turn_of(&sandbox, Class::None, "true")?;

        let change = "echo y=2 >/root/app/n.py";
        let turn = crab.turn_of(&sandbox, Class::Files, change)?;
        let record = &turn.record;
        let paths: Vec<&str> = record.changed.iter().map(|c| c.path.as_str()).collect();
        ensure!(paths == ["/root/app/n.py"], "{paths:?}");
        ensure!(record.changed[0].size == Some(4), "{:?}", record.changed);
        ensure!(record.effects.ignored.len() == 2, "{:?}", record.effects);
        ensure!(
            record.reason.contains("1 path changed"),
            "{}",
            record.reason
        );

        let wipe = "rm -r /root/app /dev/shm/scratch";
        crab.turn_of(&sandbox, Class::Files, wipe)?;
        crab.rollback(&sandbox, turn.number())?;
        for path in [
            "/root/app/n.py",
            "/root/app/__pycache__/m.*.pyc",
            "/dev/shm/scratch/x",
        ] {
            ensure!(has(&sandbox, path)?, "{}: no {path}", client.name());
        }
    }
    Ok(())
}

#[test]
fn what_leaves_or_comes_from_an_ignored_place_is_judged_at_both_ends() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let sandbox = run(testbed.ctr(), BUSYBOX)?;
    let rule = "/root/.cache/**";
    let made = "mkdir -p /root/.cache/a; echo x >/root/.cache/a/x; echo y >/root/.cache/y";
    crab.turn_of(&sandbox, Class::None, made)?;
    crab.turn_of(&sandbox, Class::Files, "echo notes >/root/notes")?;
    // What was there with the newest checkpoint, and is gone.
    ignored(&crab, &sandbox, rule, "rm -r /root/.cache/a")?;
    ignored(&crab, &sandbox, rule, "mv /root/.cache/y /root/.cache/z")?;
    let turn = crab.turn_of(&sandbox, Class::Files, "mv /root/notes /root/.cache/")?;
    let changed = &turn.record.changed;
    ensure!(
        changed.len() == 1 && changed[0].path == "/root/notes",
        "{changed:?}"
    );
    let turn = crab.turn_of(&sandbox, Class::Files, "mv /root/.cache/notes /root/")?;
    let changed = &turn.record.changed;
    ensure!(
        changed.len() == 1 && changed[0].path == "/root/notes",
        "{changed:?}"
    );
    // In the directory's place is something else, that no pattern covers.
    let link = "mv /root/.cache /root/elsewhere; ln -s elsewhere /root/.cache";
    crab.turn_of(&sandbox, Class::Files, link)?;
    crab.turn_of(&sandbox, Class::Files, "echo x >/root/.cache/through")?;
    Ok(())
}

#[test]
fn whoever_asks_for_a_checkpoint_gets_all_and_so_does_a_rollback() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let sandbox = run(testbed.ctr(), BUSYBOX)?;
    let before = crab.turn_of(&sandbox, Class::Files, "echo x >/root/x")?;
    crab.turn_of(
        &sandbox,
        Class::None,
        "mkdir /root/.cache; echo 1 >/root/.cache/one",
    )?;
    let taken = crab.checkpoint(&sandbox)?;
    ensure!(taken["class"] == "files", "{taken}");
    let taken = crab.checkpoint(&sandbox)?;
    ensure!(taken["class"] == "none", "{taken}");
    crab.turn_of(&sandbox, Class::None, "echo 2 >/root/.cache/two")?;
    crab.rollback(&sandbox, before.number())?;
    ensure!(!has(&sandbox, "/root/.cache")?);
    // The state that was left is one to go back to.
    let turns = crab.turns(&sandbox)?.turns;
    let asked = turns
        .iter()
        .filter(|turn| turn.record.trigger == Trigger::Manual)
        .map(|turn| turn.number())
        .max()
        .context("the state of before the rollback has no turn")?;
    crab.rollback(&sandbox, asked)?;
    ensure!(has(&sandbox, "/root/.cache/one")? && has(&sandbox, "/root/.cache/two")?);
    Ok(())
}

#[test]
fn an_ignored_file_that_a_process_holds_fits_the_process_image() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let sandbox = run(testbed.ctr(), DEBIAN)?;
    let held = "/root/.cache/held";
    let holder = format!(
        "mkdir /root/.cache; echo one >{held}; setsid sleep 1000 9<>{held} </dev/null >/dev/null 2>&1 & \
         until grep -qs '^230 ' /proc/$!/syscall; do :; done"
    );
    crab.turn_of(&sandbox, Class::Full, &holder)?;
    let rule = "/root/.cache/**";
    // The older file image has it as the process image does.
    let longer = format!("echo two >>{held}");
    ignored(&crab, &sandbox, rule, &longer)?;
    let before = crab.last_turn(&sandbox)?.context("no turn")?;
    // A newer one has not.
    let turn = crab.turn_of(&sandbox, Class::Full, "echo x >/root/x")?;
    ensure!(
        turn.record.reason.contains("which a process holds"),
        "{}",
        turn.record.reason
    );
    ignored(&crab, &sandbox, rule, &format!("rm {held}"))?;
    let gone = crab.turn_of(&sandbox, Class::Full, "echo y >/root/y")?;

    let lines = format!("pgrep -x sleep >/dev/null; wc -l <{held}");
    crab.rollback(&sandbox, turn.number())?;
    ensure!(sandbox.sh_ok(&lines)?.trim() == "2");
    crab.rollback(&sandbox, before)?;
    ensure!(sandbox.sh_ok(&lines)?.trim() == "1");
    crab.rollback(&sandbox, gone.number())?;
    ensure!(!has(&sandbox, held)? && has(&sandbox, "/root/y")?);
    ensure!(sandbox.sh_ok("pgrep -f 'sleep 1000' | wc -l")?.trim() != "0");
    Ok(())
}

/// Patterns of processes; a blank in one is written `?`.
const PROCESSES: &str = "dev.crab.ignore.processes=sleep?10* *ticker.py";

#[test]
fn an_ignored_process_calls_for_no_image_and_is_in_each() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let flags = ["--annotation", PROCESSES];
    let options = RunOptions::without_bytecode().flags(flags);
    let sandbox = testbed.ctr().run(DEBIAN, options)?;
    let turn = crab.turn_of(&sandbox, Class::None, &sleeper(1000))?;
    let by = &turn.record.effects.ignored;
    ensure!(
        by.len() == 1 && by[0].setting == "ignore.processes" && by[0].first == "sleep 1000",
        "{by:?}"
    );
    let ticker = "printf 'import time\nwhile True: time.sleep(0.01)\n' >/root/ticker.py";
    crab.turn_of(&sandbox, Class::Files, ticker)?;
    let start = "setsid python3 /root/ticker.py </dev/null >/dev/null 2>&1 & \
         until grep -qs '^230 ' /proc/$!/syscall; do :; done";
    crab.turn_of(&sandbox, Class::None, start)?;
    // It goes on all the time.
    crab.turn_of(&sandbox, Class::Files, "echo x >/root/x")?;
    crab.turn_of(&sandbox, Class::None, "true")?;

    let turn = crab.turn_of(&sandbox, Class::Processes, &sleeper(2000))?;
    ensure!(turn.record.degraded.is_none(), "{:?}", turn.record.degraded);
    let show = crab.show(&sandbox, turn.number())?;
    let held = show["checkpoint"]["contents"]["processes"].as_array();
    ensure!(held.is_some_and(|held| held.len() == 3), "{show}");
    let told = show["record"]["effects"]["processes"].as_array();
    ensure!(told.is_some_and(|told| told.len() == 1), "{show}");
    // One that matters and idles, beside those that do not and do not.
    crab.turn_of(&sandbox, Class::None, "true")?;
    crab.turn_of(&sandbox, Class::Files, "echo y >/root/y")?;

    let kill = |what: &str| format!("pkill -f '{what}'; while pgrep -f '{what}'; do :; done");
    let last = crab.turn_of(&sandbox, Class::Processes, &kill("[s]leep 2000"))?;
    ensure!(
        last.record.reason.contains("that matters"),
        "{}",
        last.record.reason
    );
    crab.turn_of(&sandbox, Class::None, &kill("[t]icker.py"))?;

    let count = "pgrep -fc 'sleep [12]000|[t]icker.py'";
    crab.rollback(&sandbox, turn.number())?;
    ensure!(sandbox.sh_ok(count)?.trim() == "3");
    crab.rollback(&sandbox, last.number())?;
    ensure!(
        sandbox
            .sh_ok("pgrep -f '[t]icker.py' >/dev/null && echo it ticks")?
            .trim()
            == "it ticks"
    );
    Ok(())
}
