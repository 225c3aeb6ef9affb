// SPDX-License-Identifier: Apache-2.0

//! Pods of the CRI, as a kubelet makes them: a pause container, containers beside it,
//! one shim for all of them.

use anyhow::{Result, ensure};
use crab_integration::{
    BUSYBOX, Census, ContainerOptions, DEBIAN, ExecOptions, PodOptions, Runtime, State, Testbed,
    poll, processes, sleeper,
};
use crab_store::Class;

use crate::LIMIT;

#[test]
fn the_containers_of_a_pod_come_and_go_under_one_shim_and_leave_nothing() -> Result<()> {
    let testbed = Testbed::here()?;
    let Some(cri) = testbed.cri()? else {
        return Ok(());
    };
    // What is made once for all pods is there after the first one.
    cri.pod(Runtime::Crab, PodOptions::new())?.remove()?;
    let before = Census::take()?;
    let pod = cri.pod(Runtime::Crab, PodOptions::new())?;
    let shims = || processes::named(processes::SHIM);
    assert_eq!(shims(), [pod.shim()?]);
    let first = pod.run(BUSYBOX, ContainerOptions::new())?;
    let second = pod.run(BUSYBOX, ContainerOptions::new())?;
    assert_eq!(shims(), [pod.shim()?]);
    assert_eq!(first.state()?, State::Running);

    // One network, and apart in everything else.
    let address = first.exec(&["hostname", "-i"]);
    ensure!(address.is_ok(), "exec: {address:?}");
    let ip = pod.ip()?;
    for container in [&first, &second] {
        let links = container.exec(&["ip", "-4", "addr", "show", "eth0"])?;
        assert!(links.stdout.contains(&ip), "{links:?}");
    }
    first.exec(&["touch", "/only-here"])?.ok()?;
    assert_eq!(second.exec(&["test", "-e", "/only-here"])?.status, 1);

    second.stop(0)?;
    assert_eq!(second.state()?, State::Stopped);
    assert_eq!(second.exit_code()?, 137);
    second.remove()?;
    // Its neighbour has noticed nothing.
    assert_eq!(first.exec(&["echo", "here"])?.text()?, "here");
    assert_eq!(shims(), [pod.shim()?]);
    pod.stop()?;
    assert_eq!(first.state()?, State::Stopped);
    pod.remove()?;
    before.wait_for_nothing_left()
}

#[test]
fn execs_in_one_call_and_by_stream_give_output_and_status() -> Result<()> {
    let testbed = Testbed::here()?;
    let Some(cri) = testbed.cri()? else {
        return Ok(());
    };
    let pod = cri.pod(Runtime::Crab, PodOptions::new())?;
    let container = pod.run(BUSYBOX, ContainerOptions::new())?;
    let script = ["sh", "-c", "echo out; echo err >&2; exit 3"];
    // crictl has an exit status of its own, and says that of the command.
    let said = container.exec(&script)?;
    assert_eq!((said.stdout.as_str(), said.status), ("out\n", 1));
    assert!(said.stderr.starts_with("err\n"), "{said:?}");
    assert!(said.stderr.contains("exit code 3"), "{said:?}");
    // In one call it shows what was printed to stdout only if all went well.
    let said = container.exec_sync(&script)?;
    assert_eq!(said.status, 1, "{said:?}");
    assert!(said.stderr.contains("exited with 3: err"), "{said:?}");
    assert_eq!(container.exec_sync(&["echo", "out"])?.text()?, "out");
    let big: String = (1..=100_000).map(|n| format!("{n}\n")).collect();
    let options = ExecOptions::new().stdin(big.clone()).limit(LIMIT);
    let said = container.exec_with(&["cat"], &options)?.ok()?;
    assert!(
        said.stdout == big,
        "{} of {} bytes",
        said.stdout.len(),
        big.len()
    );
    let said = container.exec_sync(&["seq", "1", "100000"])?.ok()?;
    assert_eq!(said.stdout.trim(), big.trim());
    Ok(())
}

#[test]
fn what_a_container_prints_is_in_its_log() -> Result<()> {
    let testbed = Testbed::here()?;
    let Some(cri) = testbed.cri()? else {
        return Ok(());
    };
    let pod = cri.pod(Runtime::Crab, PodOptions::new())?;
    let script = "seq 1 20000; echo to stderr >&2; exit 5";
    let container = pod.run(
        BUSYBOX,
        ContainerOptions::new().command(["sh", "-c", script]),
    )?;
    poll("it has ended", LIMIT, || {
        Ok((container.state()? == State::Stopped).then_some(()))
    })?;
    assert_eq!(container.exit_code()?, 5);
    let expected: String = (1..=20_000).map(|n| format!("{n}\n")).collect();
    let logs = container.logs()?;
    assert!(logs.stdout == expected, "{} bytes", logs.stdout.len());
    assert_eq!(logs.stderr, "to stderr\n");
    Ok(())
}

#[test]
fn the_statistics_of_a_container_are_its_own() -> Result<()> {
    let testbed = Testbed::here()?;
    let Some(cri) = testbed.cri()? else {
        return Ok(());
    };
    if !testbed.has_controller("memory") {
        return crab_integration::skip("this host has no memory controller in this mode");
    }
    let pod = cri.pod(Runtime::Crab, PodOptions::new())?;
    let idle = pod.run(BUSYBOX, ContainerOptions::new())?;
    // 64 MiB of memory, touched.
    let script = "head -c 67108864 /dev/zero | tail -c 67108864 | sleep infinity";
    let busy = pod.run(
        BUSYBOX,
        ContainerOptions::new().command(["sh", "-c", script]),
    )?;
    let memory = |stats: &serde_json::Value| {
        let bytes = &stats["memory"]["usageBytes"]["value"];
        bytes.as_str().and_then(|bytes| bytes.parse::<u64>().ok())
    };
    poll("the memory shows", LIMIT, || {
        let stats = busy.stats()?;
        Ok((memory(&stats) > Some(48 << 20)).then_some(()))
    })?;
    let stats = idle.stats()?;
    ensure!(
        memory(&stats).is_some_and(|bytes| bytes > 0 && bytes < 48 << 20),
        "{stats}"
    );
    ensure!(!stats["cpu"]["usageCoreNanoSeconds"].is_null(), "{stats}");
    Ok(())
}

#[test]
fn each_container_has_turns_of_its_own_and_the_pause_none() -> Result<()> {
    let testbed = Testbed::here()?;
    let Some(cri) = testbed.cri()? else {
        return Ok(());
    };
    let crab = testbed.crab();
    let pod = cri.pod(Runtime::Crab, PodOptions::new())?;
    let one = pod.run(DEBIAN, ContainerOptions::new())?;
    let other = pod.run(DEBIAN, ContainerOptions::new())?;
    for container in [&one, &other] {
        crab.ps_of(container.sandbox())?;
    }
    let last = crab.last_turn(one.sandbox())?;
    one.exec(&["sh", "-c", "echo one >/root/file"])?.ok()?;
    let turn = crab.wait_for_turn_after(one.sandbox(), last)?;
    assert_eq!(turn.class(), Class::Files, "{}", turn.record.reason);
    let kept = turn.number();
    one.exec_sync(&[
        "sh",
        "-c",
        &format!("echo two >/root/file; {}", sleeper(1000)),
    ])?
    .ok()?;
    let turn = crab.wait_for_turn_after(one.sandbox(), Some(kept))?;
    assert_eq!(turn.class(), Class::Full, "{}", turn.record.reason);
    assert_eq!(
        crab.last_turn(other.sandbox())?,
        crab.ps_of(other.sandbox())?.turn.map(|t| t.0)
    );

    crab.rollback(one.sandbox(), kept)?;
    assert_eq!(one.exec(&["cat", "/root/file"])?.text()?, "one");
    assert_eq!(one.state()?, State::Running);
    assert_eq!(other.state()?, State::Running);
    let links = one
        .exec(&["cat", "/sys/class/net/eth0/operstate"])?
        .text()?;
    assert_eq!(links, "up");
    assert!(!pod.pause().store().join("manifests").exists());
    Ok(())
}

#[test]
fn a_stdin_that_is_attached_reaches_the_container() -> Result<()> {
    let testbed = Testbed::here()?;
    let Some(cri) = testbed.cri()? else {
        return Ok(());
    };
    let pod = cri.pod(Runtime::Crab, PodOptions::new())?;
    let options = ContainerOptions::new().command(["sh"]).interactive();
    let container = pod.run(BUSYBOX, options)?;
    let attach = cri.tool(["attach", "-i", container.id()]);
    // It leaves at the end of its own stdin, and may then not see what comes of it.
    attach
        .stdin("echo attached; exit 4\n")
        .limit(LIMIT)
        .run()?
        .ok()?;
    poll("the shell has ended", LIMIT, || {
        Ok((container.state()? == State::Stopped).then_some(()))
    })?;
    assert_eq!(container.exit_code()?, 4);
    assert_eq!(container.logs()?.stdout, "attached\n");
    Ok(())
}
