// SPDX-License-Identifier: Apache-2.0

//! nerdctl: its log driver is a program that the shim starts, and its networks are made
//! by hooks of the container. (`nerdctl run` in the foreground is not tested: with big
//! output it was seen to hang under containerd's own shim.)

use anyhow::{Result, ensure};
use crab_integration::{
    BUSYBOX, Census, DEBIAN, ExecOptions, RunOptions, State, Testbed, poll, sleeper,
};
use crab_store::Class;

use crate::LIMIT;

fn without_network() -> RunOptions {
    RunOptions::new().flags(["--network", "none"])
}

#[test]
fn a_container_runs_and_execs_and_stops_and_leaves_nothing() -> Result<()> {
    let testbed = Testbed::here()?;
    let Some(nerdctl) = testbed.nerdctl()? else {
        return Ok(());
    };
    // What is made once for all containers is there after the first one.
    nerdctl.run(BUSYBOX, without_network())?.remove()?;
    let before = Census::take()?;
    let container = nerdctl.run(BUSYBOX, without_network())?;
    assert_eq!(container.state()?, State::Running);
    let said = container.exec(&["sh", "-c", "echo out; echo err >&2; exit 3"])?;
    // nerdctl has an exit status of its own, and says that of the command.
    assert_eq!((said.stdout.as_str(), said.status), ("out\n", 1));
    assert!(said.stderr.contains("err\n"), "{}", said.stderr);
    assert!(said.stderr.contains("exit code 3"), "{}", said.stderr);
    let said = container.exec_with(&["cat"], &ExecOptions::new().stdin("in"))?;
    assert_eq!(said.ok()?.stdout, "in");

    // `sleep' does not hear SIGTERM as init.
    container.stop()?;
    assert_eq!(container.state()?, State::Stopped);
    assert_eq!(container.exit_code()?, 137);
    container.start_again()?;
    assert_eq!(container.sh_ok("echo again")?, "again");
    container.remove()?;
    before.wait_for_nothing_left()
}

#[test]
fn its_log_driver_gets_all_that_the_container_prints() -> Result<()> {
    let testbed = Testbed::here()?;
    let Some(nerdctl) = testbed.nerdctl()? else {
        return Ok(());
    };
    // At the end of a container nerdctl's driver loses what it has not read yet, under any
    // shim: this one stays until all is logged.
    let script = "seq 1 20000; echo to stderr >&2; exec sleep infinity";
    let container = nerdctl.run(BUSYBOX, without_network().args(["sh", "-c", script]))?;
    let expected: String = (1..=20_000).map(|n| format!("{n}\n")).collect();
    // The driver writes on its own time.
    poll("everything is logged", LIMIT, || {
        let logs = container.logs()?;
        let whole = logs.stdout == expected && logs.stderr.ends_with("to stderr\n");
        Ok(whole.then_some(()))
    })
}

#[test]
fn two_containers_of_its_bridge_reach_each_other() -> Result<()> {
    let testbed = Testbed::here()?;
    let Some(nerdctl) = testbed.nerdctl()? else {
        return Ok(());
    };
    let serve = "mkdir /www && echo served >/www/index.html && exec httpd -f -p 80 -h /www";
    let server = nerdctl.run(BUSYBOX, RunOptions::new().args(["sh", "-c", serve]))?;
    let client = nerdctl.run(BUSYBOX, RunOptions::new())?;
    let address =
        server.sh_ok("ip -4 addr show eth0 | sed -n 's|.*inet \\([0-9.]*\\)/.*|\\1|p'")?;
    ensure!(!address.is_empty(), "the server has no address");
    let fetched = poll("the server answers", LIMIT, || {
        let said = client.exec(&["wget", "-qO-", &format!("http://{address}/")])?;
        Ok((said.status == 0).then_some(said.stdout))
    })?;
    assert_eq!(fetched, "served\n");
    Ok(())
}

#[test]
fn its_execs_are_turns_and_a_rollback_brings_them_back() -> Result<()> {
    turns_and_a_rollback(without_network())
}

#[test]
fn a_rollback_keeps_what_its_hooks_have_made_of_the_network() -> Result<()> {
    turns_and_a_rollback(RunOptions::new())
}

fn turns_and_a_rollback(options: RunOptions) -> Result<()> {
    let testbed = Testbed::here()?;
    let Some(nerdctl) = testbed.nerdctl()? else {
        return Ok(());
    };
    let crab = testbed.crab();
    let container = nerdctl.run(DEBIAN, options)?;
    let sandbox = container.sandbox();
    let turn = |script: &str, class: Class| -> Result<u64> {
        let last = crab.last_turn(sandbox)?;
        container.sh_ok(script)?;
        let turn = crab.wait_for_turn_after(sandbox, last)?;
        assert_eq!(turn.class(), class, "{script}: {}", turn.record.reason);
        Ok(turn.number())
    };
    let network = "cd /proc/net && cat fib_trie route; cat /sys/class/net/*/address";
    let before = container.sh_ok(network)?;
    turn("true", Class::None)?;
    turn("echo one >/root/file", Class::Files)?;
    let kept = turn(&sleeper(1000), Class::Processes)?;
    turn("echo two >/root/file; pkill sleep", Class::Full)?;
    crab.rollback(sandbox, kept)?;
    assert_eq!(container.sh_ok("cat /root/file; pgrep -c sleep")?, "one\n2");
    assert_eq!(container.sh_ok(network)?, before);
    assert_eq!(container.state()?, State::Running);
    Ok(())
}
