// SPDX-License-Identifier: Apache-2.0

//! Where its processes are the checkpoint's own, a sandbox goes back under them.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use crab_integration::{Crab, DEBIAN, ExecOptions, RunOptions, Sandbox, Testbed, poll};
use crab_store::Class;
use serde_json::Value;

use crate::{
    LIMIT,
    identity::{Identity, same},
    server::{ask, ask_as_turn, start_server},
};

/// Its processes, by their ids on the host.
fn alive(sandbox: &Sandbox) -> Result<BTreeSet<u32>> {
    Ok(sandbox.processes()?.into_iter().collect())
}

/// Goes back, with the processes that there are.
fn warm(crab: &Crab, sandbox: &Sandbox, turn: u64) -> Result<Value> {
    let before = alive(sandbox)?;
    let done = crab.rollback_verified(sandbox, turn)?;
    ensure!(done["warm"] == true, "{done}");
    ensure!(alive(sandbox)? == before, "other processes: {done}");
    Ok(done)
}

/// Goes back, with others.
fn cold(crab: &Crab, sandbox: &Sandbox, turn: u64) -> Result<String> {
    let before = alive(sandbox)?;
    let done = crab.rollback_verified(sandbox, turn)?;
    ensure!(done["warm"] == false, "{done}");
    ensure!(
        alive(sandbox)?.is_disjoint(&before),
        "the same processes: {done}"
    );
    Ok(done["cold_because"].as_str().unwrap_or_default().to_owned())
}

const LIST: &str = "cd / && find root etc usr/share/base-files /dev/shm /run -xdev -exec stat -c '%n %F %a %u:%g %s %y' {} + \
                    | grep -v '/etc/hosts\\|resolv.conf\\|hostname' | sort; \
                    cat /root/* /dev/shm/* /etc/issue /etc/motd 2>&1; true";

#[test]
fn files_go_back_under_the_processes_and_are_exactly_as_they_were() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let events = testbed.events()?;
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::without_bytecode())?;
        let before = Identity::of(&sandbox)?;
        let one = crab.turn_of(
            &sandbox,
            Class::Files,
            "echo one >/root/f; mkdir /root/d; echo d >/root/d/f; chmod 751 /root/d; \
             ln -s f /root/l; echo m >/dev/shm/m; echo mine >/etc/issue",
        )?;
        let at_one = sandbox.sh_ok(LIST)?;
        let two = crab.turn_of(
            &sandbox,
            Class::Files,
            "echo two >/root/f; rm -r /root/d; rm /root/l; mkdir /root/l; echo n >/dev/shm/m; \
             echo more >/dev/shm/more; rm /etc/issue /etc/motd; chown 7 /etc/passwd",
        )?;
        let at_two = sandbox.sh_ok(LIST)?;
        for _ in 0..2 {
            warm(&crab, &sandbox, one.number())?;
            assert_eq!(sandbox.sh_ok(LIST)?, at_one);
            warm(&crab, &sandbox, two.number())?;
            assert_eq!(sandbox.sh_ok(LIST)?, at_two);
        }
        warm(&crab, &sandbox, 0)?;
        assert_eq!(sandbox.sh_ok("ls /root | wc -l")?, "0");
        // What is seen of it later is what was done later.
        assert_eq!(crab.checkpoint(&sandbox)?["class"], "none");
        let three = crab.turn_of(&sandbox, Class::Files, "echo three >/root/f")?;
        let changed: Vec<&str> = three
            .record
            .changed
            .iter()
            .map(|it| it.path.as_str())
            .collect();
        assert_eq!(changed, ["/root/f"]);
        crab.rollback_cold(&sandbox, one.number())?;
        assert_eq!(sandbox.sh_ok(LIST)?, at_one);
        // What a directory of the image hides cannot be put back under anybody.
        crab.turn_of(&sandbox, Class::Files, "rm -r /usr/share/base-files")?;
        let why = cold(&crab, &sandbox, one.number())?;
        ensure!(why.contains("base-files"), "{why}");
        assert_eq!(sandbox.sh_ok(LIST)?, at_one);
        same(&Identity::of(&sandbox)?, &before)?;
        assert_eq!(events.exits_of_init(&sandbox)?, 0, "containerd saw an exit");
    }
    Ok(())
}

#[test]
fn a_server_goes_on_while_files_go_back_under_it() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::without_bytecode())?;
        start_server(&crab, &sandbox)?;
        let (_, asked) = ask_as_turn(&crab, &sandbox, Class::Full)?;
        let one = crab.turn_of(&sandbox, Class::Files, "echo one >/root/f")?;
        crab.turn_of(&sandbox, Class::Files, "echo two >/root/f; echo x >/root/x")?;
        let done = warm(&crab, &sandbox, one.number())?;
        assert_eq!(done["verified"]["memory"], "same", "{done}");
        assert_eq!(
            sandbox.sh_ok("cat /root/f; ls /root/x 2>/dev/null | wc -l")?,
            "one\n0"
        );
        // Being held still and thawed is no change.
        let looked = crab.turn_of(&sandbox, Class::None, "cat /root/f")?;
        warm(&crab, &sandbox, asked)?;
        warm(&crab, &sandbox, looked.number())?;
        // The server has counted: now it is another.
        assert_eq!(ask(&sandbox)?, 2);
        let why = cold(&crab, &sandbox, one.number())?;
        ensure!(why.contains("processes"), "{why}");
        assert_eq!(ask(&sandbox)?, 2);
        assert_eq!(sandbox.sh_ok("cat /root/f")?, "one");
    }
    Ok(())
}

#[test]
fn with_an_exec_that_runs_all_processes_are_replaced() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let client = testbed.docker();
    let sandbox = client.run(DEBIAN, RunOptions::without_bytecode())?;
    let one = crab.turn_of(&sandbox, Class::Files, "echo one >/root/f")?;
    let running = sandbox.exec_start(&["sleep", "1000"], &ExecOptions::new())?;
    poll("the exec runs", LIMIT, || {
        Ok((sandbox.processes()?.len() == 2).then_some(()))
    })?;
    cold(&crab, &sandbox, one.number())?;
    assert_eq!(running.wait()?.status, 137);
    Ok(())
}
