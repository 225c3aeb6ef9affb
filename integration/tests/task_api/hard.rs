// SPDX-License-Identifier: Apache-2.0

//! What programs and clients do to a shim: deaf, endless, many, or gone at once.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use crab_integration::{
    BUSYBOX, Census, CgroupMode, Client, DEBIAN, RunOptions, Running, Runtime, State, Testbed,
    Tool, poll, processes, skip,
};
use serde_json::json;

use crate::{
    BOTH, LIMIT, Scratch,
    alone::{Alone, Wish},
    calls::{Calls, denied},
    shell, under_both,
};

/// 100 MB that are the same everywhere.
const LOTS: &str = "seq 1 12500000";

#[test]
fn a_hundred_megabytes_arrive_whole() -> Result<()> {
    let testbed = Testbed::here()?;
    let sum = |command: &str| -> Result<String> {
        let line = format!("set -o pipefail; {command} | sha256sum");
        let limit = Duration::from_secs(180);
        Tool::new("bash")
            .args(["-c", &line])
            .limit(limit)
            .run()?
            .text()
    };
    let expected = sum(LOTS)?;
    for client in testbed.clients() {
        let (tool, _guard) = client.run_rm_tool(BUSYBOX, shell(LOTS))?;
        let quoted = |tool: Tool| -> String {
            let words = tool.words().into_iter();
            words.map(|word| format!("'{word}' ")).collect()
        };
        assert_eq!(sum(&quoted(tool))?, expected, "{} run", client.name());
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        let exec = sandbox.exec_tool(&["sh", "-c", LOTS], &Default::default());
        assert_eq!(sum(&quoted(exec))?, expected, "{} exec", client.name());
    }
    Ok(())
}

#[test]
fn a_reader_that_stalls_holds_up_no_end() -> Result<()> {
    under_both(|runtime, sandbox, calls| {
        let dir = Scratch::new()?;
        let fifo = dir.fifo("stdout")?;
        let mut request = calls.exec_request("loud", &["sh", "-c", "while :; do echo more; done"]);
        request.stdout = fifo.display().to_string();
        request.stderr = "/dev/null".into();
        // Somebody has it open, and never reads.
        let reader = fs::File::options().read(true).write(true).open(&fifo)?;
        calls.exec(&request)?.map_err(denied)?;
        let pid = calls.start("loud")?.map_err(denied)?.pid;
        poll("it is held up", LIMIT, || {
            let call = fs::read_to_string(format!("/proc/{pid}/syscall"))?;
            // 1 is write.
            Ok(call.starts_with("1 ").then_some(()))
        })?;
        calls.kill("loud", 9, false)?.map_err(denied)?;
        let end = calls.wait("loud")?.map_err(denied)?;
        assert_eq!(end.exit_status, 137);
        let start = Instant::now();
        calls.delete("loud")?.map_err(denied)?;
        // The other shim waits for ten seconds for its copy to end.
        if runtime == Runtime::Crab {
            ensure!(
                start.elapsed() < Duration::from_secs(5),
                "the delete waited"
            );
        }
        drop(reader);
        assert_eq!(sandbox.sh("exit 7")?.status, 7);
        Ok(())
    })
}

#[test]
fn an_exec_that_ignores_sigterm_is_there_until_it_is_killed() -> Result<()> {
    under_both(|_, sandbox, calls| {
        let script = "trap '' TERM; echo >/deaf; while :; do sleep 0.05; done";
        calls.run("deaf", &["sh", "-c", script])?.map_err(denied)?;
        poll("it is deaf", LIMIT, || {
            Ok((sandbox.sh("test -e /deaf")?.status == 0).then_some(()))
        })?;
        for _ in 0..3 {
            calls.kill("deaf", 15, false)?.map_err(denied)?;
        }
        let state = calls.state("deaf")?.map_err(denied)?;
        assert_eq!(
            format!("{:?}", state.status.enum_value_or_default()),
            "RUNNING"
        );
        calls.kill("deaf", 9, false)?.map_err(denied)?;
        assert_eq!(calls.wait("deaf")?.map_err(denied)?.exit_status, 137);
        Ok(())
    })
}

/// The file that counts the forks that a process's cgroup was refused.
fn refused_forks(testbed: &Testbed, pid: u32) -> Result<PathBuf> {
    let table = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let (mark, mount) = match testbed.cgroup() {
        CgroupMode::V1 => (":pids:", "/sys/fs/cgroup/pids"),
        CgroupMode::V2 => ("::", "/sys/fs/cgroup"),
    };
    let path = table
        .lines()
        .find_map(|line| Some(line.split_once(mark)?.1));
    let path = path.with_context(|| format!("no {mark} in {table}"))?;
    Ok(PathBuf::from(format!("{mount}{path}/pids.events")))
}

#[test]
fn a_fork_bomb_within_its_limit_can_be_killed() -> Result<()> {
    let testbed = Testbed::here()?;
    if !testbed.has_controller("pids") {
        return skip("containers get no pids controller here");
    }
    for client in testbed.clients() {
        // The first of a daemon's containers makes what all of them share.
        client.run(BUSYBOX, RunOptions::new())?.remove()?;
        let before = Census::take()?;
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        let limit = json!({"pids": {"limit": 40}}).to_string();
        Calls::of(&sandbox)?.update(&limit)?.map_err(denied)?;
        let bomb: Running = sandbox.exec_start(
            &[
                "sh",
                "-c",
                "b() { b | b & }; while :; do b 2>/dev/null; done",
            ],
            &Default::default(),
        )?;
        let refused = refused_forks(&testbed, sandbox.pid()?)?;
        poll("it is at its limit", LIMIT, || {
            let text = fs::read_to_string(&refused)?;
            Ok((!text.starts_with("max 0")).then_some(()))
        })?;
        let inside = sandbox.processes()?;
        sandbox.stop()?;
        drop(bomb);
        for pid in inside {
            processes::wait_gone(pid, LIMIT)?;
        }
        sandbox.remove()?;
        crab_integration::forget_fifos()?;
        before.wait_for_nothing_left().context(client.name())?;
    }
    Ok(())
}

#[test]
fn the_end_of_the_init_is_told_last() -> Result<()> {
    let testbed = Testbed::here()?;
    let events = testbed.events()?;
    let ctr = testbed.ctr();
    for runtime in BOTH {
        // In the host's process namespace the kernel ends nobody with the init.
        for flags in [&["--with-ns", "pid:/proc/1/ns/pid"][..], &[]] {
            let options = RunOptions::new()
                .runtime(runtime)
                .flags(flags.iter().copied());
            let sandbox = ctr.run(BUSYBOX, options)?;
            let calls = Calls::of(&sandbox)?;
            for exec in ["e1", "e2", "e3"] {
                calls.run(exec, &["sleep", "infinity"])?.map_err(denied)?;
            }
            let pids = calls.pids()?.map_err(denied)?.processes;
            assert_eq!(pids.len(), 4);
            calls.kill("", 9, false)?.map_err(denied)?;
            calls.wait("")?.map_err(denied)?;
            // When the init is said to have ended, all have.
            for exec in ["e1", "e2", "e3"] {
                assert_eq!(calls.wait(exec)?.map_err(denied)?.exit_status, 137);
            }
            for process in pids {
                processes::wait_gone(process.pid, LIMIT)?;
            }
            let exits: Vec<String> = events
                .so_far()?
                .iter()
                .filter(|e| e.topic == "/tasks/exit" && e.container() == Some(sandbox.id()))
                .filter_map(|e| Some(e.payload["id"].as_str()?.to_owned()))
                .collect();
            assert_eq!(exits.len(), 4, "{runtime:?} {flags:?}: {exits:?}");
            assert_eq!(exits[3], sandbox.id(), "{runtime:?} {flags:?}: {exits:?}");
        }
    }
    Ok(())
}

#[test]
fn an_end_that_a_dead_shim_has_seen_keeps_its_status() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let events = testbed.events()?;
    let ctr = testbed.ctr();
    let sandbox = ctr.run(BUSYBOX, shell("read x; exit 5"))?;
    let calls = Calls::of(&sandbox)?;
    calls.close_io("")?.map_err(denied)?;
    assert_eq!(calls.wait("")?.map_err(denied)?.exit_status, 5);
    sandbox.wait_for(State::Stopped)?;
    processes::kill(sandbox.shim()?)?;
    // containerd runs `delete`, and publishes what that says.
    poll("containerd has seen the end of the shim", LIMIT, || {
        let all = events.so_far()?;
        let deleted = all
            .iter()
            .any(|e| e.topic == "/tasks/delete" && e.container() == Some(sandbox.id()));
        Ok(deleted.then_some(()))
    })?;
    let statuses: Vec<Option<i64>> = events
        .so_far()?
        .iter()
        .filter(|e| e.is_exit_of_init(&sandbox))
        .map(|e| e.payload["exit_status"].as_i64())
        .collect();
    ensure!(!statuses.is_empty(), "its end was not told");
    assert!(
        statuses.iter().all(|status| *status == Some(5)),
        "{statuses:?}"
    );
    drop(sandbox);
    crab_integration::forget_fifos()
}

#[test]
fn a_client_that_goes_and_comes_back_finds_the_output() -> Result<()> {
    let testbed = Testbed::here()?;
    let sandbox = testbed.ctr().run(BUSYBOX, RunOptions::new())?;
    let calls = Calls::of(&sandbox)?;
    let dir = Scratch::new()?;
    let fifo = dir.fifo("stdout")?;
    let mut request = calls.exec_request("x", &["sh", "-c", "seq 1 200000; exit 3"]);
    request.stdout = fifo.display().to_string();
    calls.exec(&request)?.map_err(denied)?;
    calls.start("x")?.map_err(denied)?;
    // Takes a little, and is gone.
    let head = format!("head -n 1000 {} | tail -n 1", fifo.display());
    let said = Tool::new("bash")
        .args(["-c", &head])
        .limit(LIMIT)
        .run()?
        .text()?;
    assert_eq!(said, "1000");
    // The rest is for the next one, but for what the first had taken into its buffer.
    let tail = Tool::new("tail")
        .args(["-n".to_owned(), "1".to_owned(), fifo.display().to_string()])
        .limit(LIMIT)
        .run()?
        .text()?;
    assert_eq!(tail, "200000");
    assert_eq!(calls.wait("x")?.map_err(denied)?.exit_status, 3);
    calls.delete("x")?.map_err(denied)?;
    Ok(())
}

#[test]
fn stdin_is_closed_once_and_for_all() -> Result<()> {
    under_both(|_, sandbox, calls| {
        let dir = Scratch::new()?;
        let fifo = dir.fifo("stdin")?;
        let mut request = calls.exec_request("x", &["sh", "-c", "cat >/got; exit 4"]);
        request.stdin = fifo.display().to_string();
        request.stdout = "/dev/null".into();
        request.stderr = "/dev/null".into();
        calls.exec(&request)?.map_err(denied)?;
        // Opened as clients do: before there is a reader.
        let writer = fs::File::options().read(true).write(true).open(&fifo)?;
        calls.start("x")?.map_err(denied)?;
        std::io::Write::write_all(&mut &writer, b"one line\n")?;
        poll("it was read", LIMIT, || {
            let got = sandbox.sh("cat /got")?.stdout;
            Ok((got == "one line\n").then_some(()))
        })?;
        let state = calls.state("x")?.map_err(denied)?;
        assert_eq!(
            format!("{:?}", state.status.enum_value_or_default()),
            "RUNNING"
        );
        drop(writer);
        calls.close_io("x")?.map_err(denied)?;
        assert_eq!(calls.wait("x")?.map_err(denied)?.exit_status, 4);
        calls.close_io("x")?.map_err(denied)?;
        Ok(())
    })
}

#[test]
fn a_stdin_that_is_gone_is_at_its_end() -> Result<()> {
    let testbed = Testbed::here()?;
    let wish = Wish {
        args: &["cat"],
        ..Wish::default()
    };
    let alone = Alone::start(&testbed, Runtime::Crab, &wish)?;
    let mut request = alone.request(&wish)?;
    request.stdin = "/no/such/fifo".into();
    alone.calls.create(&request)?.map_err(denied)?;
    alone.calls.start("")?.map_err(denied)?;
    let end = alone.calls.wait("")?.map_err(denied)?;
    assert_eq!(end.exit_status, 0);
    Ok(())
}

#[test]
fn a_rollback_needs_no_reader() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    // `ctr run -d` leaves FIFOs behind that nobody reads: it stands in a write.
    let options = shell("while :; do echo more; done");
    let sandbox = testbed.ctr().run(DEBIAN, options)?;
    let turn = crab.turn_of(&sandbox, crab_store::Class::Full, "echo x >/root/x")?;
    for _ in 0..2 {
        crab.rollback(&sandbox, turn.number())?;
        assert_eq!(sandbox.state()?, State::Running);
        // By its status: `ctr` loses an exec's output now and then, under any shim.
        assert_eq!(sandbox.sh("grep -qx x /root/x")?.status, 0);
    }
    sandbox.stop()
}

#[test]
fn a_shim_keeps_nothing_of_its_execs() -> Result<()> {
    let testbed = Testbed::here()?;
    let sandbox = testbed.ctr().run(BUSYBOX, RunOptions::new())?;
    let calls = Calls::of(&sandbox)?;
    let shim = sandbox.shim()?;
    let count =
        |what: &str| -> Result<usize> { Ok(fs::read_dir(format!("/proc/{shim}/{what}"))?.count()) };
    let once = |n: u32| -> Result<()> {
        let exec = format!("e{n}");
        let mut request = calls.exec_request(&exec, &["sh", "-c", "exit 3"]);
        request.terminal = n.is_multiple_of(2);
        request.stdout = "file:///dev/null".into();
        calls.exec(&request)?.map_err(denied)?;
        calls.start(&exec)?.map_err(denied)?;
        assert_eq!(calls.wait(&exec)?.map_err(denied)?.exit_status, 3);
        calls.delete(&exec)?.map_err(denied)?;
        Ok(())
    };
    for n in 0..4 {
        once(n)?;
    }
    let descriptors = count("fd")?;
    for n in 4..54 {
        once(n)?;
    }
    poll("descriptors and threads are as before", LIMIT, || {
        // Threads that block end by themselves when they have nothing to do.
        Ok((count("fd")? <= descriptors && count("task")? <= 8).then_some(()))
    })
    .with_context(|| format!("{descriptors} became {:?}", count("fd")))
}

#[test]
fn stopping_a_deaf_container_is_quick_for_docker() -> Result<()> {
    let testbed = Testbed::here()?;
    let docker = testbed.docker();
    ensure!(docker == Client::Docker);
    let sandbox = docker.run(BUSYBOX, shell("trap '' TERM; while :; do sleep 1; done"))?;
    let start = Instant::now();
    docker
        .tool(["stop", "-t", "1", sandbox.name()])
        .run()?
        .ok()?;
    ensure!(start.elapsed() < LIMIT, "it took {:?}", start.elapsed());
    assert_eq!(sandbox.state()?, State::Stopped);
    Ok(())
}
