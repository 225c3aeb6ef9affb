// SPDX-License-Identifier: Apache-2.0

//! Each call's answers in each state, beside those of containerd's own shim.

use anyhow::{Result, ensure};
use containerd_shim_protos::{protobuf::Message, shim::oci::ProcessDetails};
use crab_integration::{BUSYBOX, RunOptions, Runtime, State, Testbed};
use serde_json::json;

use crate::{
    BOTH,
    alone::{Alone, Wish},
    calls::{Calls, denied},
    compare::{compare, compare_alone, end, gone, state},
};

#[test]
fn create_makes_a_process_that_does_not_run_yet() -> Result<()> {
    compare_alone(&Wish::default(), |alone, said| {
        let request = alone.request(&Wish::default())?;
        let calls = &alone.calls;
        said.note_as("state before", calls.state(""), state)?;
        said.note_as("create", calls.create(&request), |r| {
            (r.pid > 0).to_string()
        })?;
        said.note_as("state", calls.state(""), state)?;
        said.note("pause", calls.pause())?;
        said.note("resume", calls.resume())?;
        said.note("stats", calls.stats())?;
        said.note_as("pids", calls.pids(), |r| r.processes.len().to_string())?;
        said.note("update", calls.update("{}"))?;
        said.note("exec", calls.run("early", &["sh", "-c", "exit 6"]))?;
        said.note_as("its end", calls.wait("early"), end)?;
        // The other shim may tell or not tell that its process was killed.
        said.note("delete", calls.delete(""))?;
        said.note_as("state after", calls.state(""), state)
    })
}

#[test]
fn create_without_a_program_is_an_error_and_can_be_tried_again() -> Result<()> {
    let wish = Wish {
        args: &["/no/such/program"],
        ..Wish::default()
    };
    compare_alone(&wish, |alone, said| {
        let request = alone.request(&wish)?;
        for _ in 0..2 {
            let answer = alone.calls.create(&request)?.map_err(|no| no.message);
            said.say(answer.expect_err("it was created"));
            said.note_as("state", alone.calls.state(""), state)?;
        }
        Ok(())
    })
}

#[test]
fn a_second_create_is_refused_and_harms_nothing() -> Result<()> {
    let testbed = Testbed::here()?;
    for runtime in BOTH {
        let alone = Alone::running(&testbed, runtime, &Wish::default())?;
        let again = alone.calls.create(&alone.request(&Wish::default())?)?;
        // The other one leaves it to runc to find out, and forgets the mounts of the first.
        ensure!(again.is_err(), "{runtime:?}");
        if runtime == Runtime::Crab {
            assert_eq!(
                again.map_err(|no| no.code).err().as_deref(),
                Some("ALREADY_EXISTS")
            );
            let still = alone.calls.state("")?.map_err(denied)?;
            assert!(state(still).starts_with("RUNNING"));
        }
    }
    Ok(())
}

#[test]
fn start_starts_once() -> Result<()> {
    compare(|calls, sandbox, said| {
        said.note("the init again", calls.start(""))?;
        said.note("an exec that is none", calls.start("none"))?;
        said.note(
            "add",
            calls.exec(&calls.exec_request("x", &["sleep", "infinity"])),
        )?;
        said.note_as("start", calls.start("x"), |r| (r.pid > 0).to_string())?;
        said.note("start again", calls.start("x"))?;
        said.note("kill", calls.kill("x", 9, false))?;
        said.note_as("wait", calls.wait("x"), end)?;
        said.note("start after its end", calls.start("x"))?;
        said.note("another container", Calls::of_another(sandbox)?.start(""))
    })
}

#[test]
fn a_start_that_fails_says_why_and_leaves_an_exec_to_be_deleted() -> Result<()> {
    compare(|calls, _, said| {
        for (exec, args) in [("a", "/no/such"), ("b", "nosuch"), ("c", "/etc")] {
            let started = calls
                .run(exec, &[args])?
                .map_err(|no| (no.code, no.message));
            said.say(format!("{:?}", started.expect_err("it was started")));
            said.note("kill", calls.kill(exec, 9, false))?;
            said.note("delete", calls.delete(exec))?;
            said.note_as("state", calls.state(exec), state)?;
        }
        Ok(())
    })
}

#[test]
fn state_follows_the_init() -> Result<()> {
    compare(|calls, sandbox, said| {
        said.note_as("running", calls.state(""), state)?;
        said.note("pause", calls.pause())?;
        said.note_as("paused", calls.state(""), state)?;
        said.note("resume", calls.resume())?;
        said.note_as("resumed", calls.state(""), state)?;
        said.note("kill", calls.kill("", 9, false))?;
        said.note_as("wait", calls.wait(""), end)?;
        said.note_as("stopped", calls.state(""), state)?;
        said.note_as("no exec", calls.state("none"), state)?;
        said.note_as("no container", Calls::of_another(sandbox)?.state(""), state)
    })
}

#[test]
fn state_follows_an_exec() -> Result<()> {
    compare(|calls, _, said| {
        let script = "sleep infinity & wait";
        said.note(
            "add",
            calls.exec(&calls.exec_request("x", &["sh", "-c", script])),
        )?;
        said.note_as("added", calls.state("x"), state)?;
        said.note("start", calls.start("x"))?;
        said.note_as("running", calls.state("x"), state)?;
        said.note("pause", calls.pause())?;
        // What is in a paused container is paused.
        said.note_as("paused", calls.state("x"), state)?;
        said.note("resume", calls.resume())?;
        said.note("kill", calls.kill("x", 15, false))?;
        said.note_as("wait", calls.wait("x"), end)?;
        said.note_as("ended", calls.state("x"), state)?;
        said.note_as("delete", calls.delete("x"), gone)?;
        said.note_as("deleted", calls.state("x"), state)
    })
}

#[test]
fn wait_tells_the_end_as_often_as_it_is_asked() -> Result<()> {
    compare(|calls, sandbox, said| {
        said.note("run", calls.run("x", &["sh", "-c", "exit 7"]))?;
        for _ in 0..3 {
            said.note_as("exec", calls.wait("x"), end)?;
        }
        said.note("no exec", calls.wait("none"))?;
        said.note("kill", calls.kill("", 15, false))?;
        said.note("kill", calls.kill("", 9, false))?;
        for _ in 0..3 {
            said.note_as("init", calls.wait(""), end)?;
        }
        said.note("no container", Calls::of_another(sandbox)?.wait(""))
    })
}

#[test]
fn kill_finds_what_lives_and_says_what_does_not() -> Result<()> {
    compare(|calls, sandbox, said| {
        said.note("no signal", calls.kill("", 0, false))?;
        said.note("no such signal", calls.kill("", 400, false))?;
        said.note("no exec", calls.kill("none", 9, false))?;
        said.note(
            "no container",
            Calls::of_another(sandbox)?.kill("", 9, false),
        )?;
        said.note(
            "add",
            calls.exec(&calls.exec_request("x", &["sleep", "infinity"])),
        )?;
        said.note("one that is not started", calls.kill("x", 9, false))?;
        said.note("start", calls.start("x"))?;
        // `all` is for the init only.
        said.note("exec, all", calls.kill("x", 9, true))?;
        said.note_as("its end", calls.wait("x"), end)?;
        said.note_as("the init lives", calls.state(""), state)?;
        said.note("an exec that has ended", calls.kill("x", 9, false))?;
        said.note("run", calls.run("y", &["sleep", "infinity"]))?;
        said.note("all", calls.kill("", 9, true))?;
        said.note_as("exec", calls.wait("y"), end)?;
        said.note_as("init", calls.wait(""), end)?;
        said.note("an init that has ended", calls.kill("", 9, false))?;
        said.note("again", calls.kill("", 15, false))
    })
}

#[test]
fn a_paused_container_can_be_killed() -> Result<()> {
    compare(|calls, _, said| {
        said.note("pause", calls.pause())?;
        said.note("kill", calls.kill("", 9, false))?;
        said.note_as("wait", calls.wait(""), end)?;
        said.note_as("state", calls.state(""), state)
    })
}

#[test]
fn delete_takes_what_has_ended_once() -> Result<()> {
    compare_alone(&Wish::default(), |alone, said| {
        let calls = &alone.calls;
        let request = alone.request(&Wish::default())?;
        said.note("create", calls.create(&request))?;
        said.note("start", calls.start(""))?;
        said.note("a running init", calls.delete(""))?;
        said.note("run", calls.run("x", &["sleep", "infinity"]))?;
        said.note("a running exec", calls.delete("x"))?;
        said.note("no exec", calls.delete("none"))?;
        said.note("kill", calls.kill("x", 9, false))?;
        said.note_as("wait", calls.wait("x"), end)?;
        said.note_as("exec", calls.delete("x"), gone)?;
        said.note("again", calls.delete("x"))?;
        said.note("add", calls.exec(&calls.exec_request("y", &["true"])))?;
        said.note_as("one that is not started", calls.delete("y"), gone)?;
        said.note("pause", calls.pause())?;
        said.note("a paused init", calls.delete(""))?;
        said.note("resume", calls.resume())?;
        said.note("kill", calls.kill("", 9, false))?;
        said.note_as("wait", calls.wait(""), end)?;
        said.note_as("init", calls.delete(""), gone)?;
        said.note("again", calls.delete(""))?;
        said.note_as("state", calls.state(""), state)
    })
}

#[test]
fn exec_adds_and_says_what_is_wrong() -> Result<()> {
    compare(|calls, sandbox, said| {
        let request = calls.exec_request("x", &["true"]);
        said.note("add", calls.exec(&request))?;
        said.note("the same id", calls.exec(&request))?;
        let mut broken = calls.exec_request("broken", &["true"]);
        if let Some(spec) = broken.spec.as_mut() {
            spec.value = b"{\"args\":".to_vec();
        }
        said.note("no JSON", calls.exec(&broken))?;
        said.note(
            "its id is free",
            calls.exec(&calls.exec_request("broken", &["true"])),
        )?;
        said.note("pause", calls.pause())?;
        said.note(
            "in a paused one",
            calls.exec(&calls.exec_request("p", &["true"])),
        )?;
        said.note("start in a paused one", calls.start("x"))?;
        said.note("resume", calls.resume())?;
        said.note(
            "no container",
            Calls::of_another(sandbox)?.run("x", &["true"]),
        )?;
        said.note("add", calls.exec(&calls.exec_request("late", &["true"])))?;
        said.note("kill", calls.kill("", 9, false))?;
        said.note_as("wait", calls.wait(""), end)?;
        said.note(
            "in a stopped one",
            calls.exec(&calls.exec_request("s", &["true"])),
        )?;
        said.note("start in a stopped one", calls.start("late"))
    })
}

#[test]
fn pids_name_the_execs_that_are_known() -> Result<()> {
    compare(|calls, sandbox, said| {
        said.note(
            "run",
            calls.run("x", &["sh", "-c", "sleep 1000 & sleep infinity"]),
        )?;
        // The child of the exec is nobody's.
        let known = crab_integration::poll("three processes are there", crate::LIMIT, || {
            let all = calls.pids()?.map_err(denied)?.processes;
            Ok((all.len() == 3).then_some(all))
        })?;
        let init = sandbox.pid()?;
        for process in known {
            let exec = match process.info.as_ref() {
                Some(any) => {
                    let details = ProcessDetails::parse_from_bytes(&any.value)?;
                    format!("{} {}", any.type_url, details.exec_id)
                }
                None if process.pid == init => "the init".into(),
                None => "nobody's".into(),
            };
            said.say(exec);
        }
        said.sort();
        said.note("no container", Calls::of_another(sandbox)?.pids())?;
        said.note("kill", calls.kill("", 9, false))?;
        said.note_as("wait", calls.wait(""), end)?;
        said.note_as("stopped", calls.pids(), |r| r.processes.len().to_string())
    })
}

#[test]
fn pause_and_resume_only_as_it_stands() -> Result<()> {
    compare(|calls, sandbox, said| {
        said.note("resume a running one", calls.resume())?;
        said.note("pause", calls.pause())?;
        said.note("pause again", calls.pause())?;
        said.note("start a paused one", calls.start(""))?;
        said.note("resume", calls.resume())?;
        said.note("resume again", calls.resume())?;
        said.note("no container", Calls::of_another(sandbox)?.pause())?;
        said.note("no container", Calls::of_another(sandbox)?.resume())?;
        said.note("kill", calls.kill("", 9, false))?;
        said.note_as("wait", calls.wait(""), end)?;
        said.note("pause a stopped one", calls.pause())?;
        said.note("resume a stopped one", calls.resume())
    })
}

#[test]
fn resize_needs_no_terminal() -> Result<()> {
    compare(|calls, sandbox, said| {
        said.note("an init without one", calls.resize("", 80, 25))?;
        said.note("no exec", calls.resize("none", 80, 25))?;
        said.note(
            "no container",
            Calls::of_another(sandbox)?.resize("", 80, 25),
        )?;
        said.note("run", calls.run("x", &["true"]))?;
        said.note_as("wait", calls.wait("x"), end)?;
        said.note("an exec that has ended", calls.resize("x", 80, 25))
    })
}

#[test]
fn close_io_may_come_at_any_time() -> Result<()> {
    compare(|calls, sandbox, said| {
        said.note("an init without stdin", calls.close_io(""))?;
        said.note("no container", Calls::of_another(sandbox)?.close_io(""))?;
        said.note("add", calls.exec(&calls.exec_request("x", &["true"])))?;
        said.note("one that is not started", calls.close_io("x"))?;
        said.note("start", calls.start("x"))?;
        said.note_as("wait", calls.wait("x"), end)?;
        said.note("one that has ended", calls.close_io("x"))?;
        said.note("again", calls.close_io("x"))
    })
}

#[test]
fn update_sets_limits_or_says_why_not() -> Result<()> {
    compare(|calls, sandbox, said| {
        let limit = json!({"pids": {"limit": 77}}).to_string();
        said.note("update", calls.update(&limit))?;
        said.note("nothing to be set", calls.update("{}"))?;
        said.note("no JSON", calls.update("{"))?;
        said.note("no container", Calls::of_another(sandbox)?.update(&limit))?;
        said.note("kill", calls.kill("", 9, false))?;
        said.note_as("wait", calls.wait(""), end)?;
        said.note("a stopped one", calls.update(&limit))
    })
}

#[test]
fn update_without_resources_is_refused() -> Result<()> {
    let testbed = Testbed::here()?;
    // The other shim dies of it.
    let sandbox = testbed.ctr().run(BUSYBOX, RunOptions::new())?;
    let calls = Calls::of(&sandbox)?;
    let no = calls.update_nothing()?.expect_err("it was done");
    assert_eq!(no.code, "INVALID_ARGUMENT");
    assert_eq!(sandbox.sh("exit 7")?.status, 7);
    Ok(())
}

#[test]
fn stats_outlive_the_init_until_the_delete() -> Result<()> {
    compare(|calls, sandbox, said| {
        let kind = |r: containerd_shim_protos::api::StatsResponse| r.stats.type_url.clone();
        said.note_as("stats", calls.stats(), kind)?;
        said.note("no container", Calls::of_another(sandbox)?.stats())?;
        said.note("kill", calls.kill("", 9, false))?;
        said.note_as("wait", calls.wait(""), end)?;
        said.note_as("of a stopped one", calls.stats(), kind)
    })
}

#[test]
fn connect_tells_the_pids_and_shutdown_waits_for_the_last_container() -> Result<()> {
    compare(|calls, sandbox, said| {
        let shim = sandbox.shim()?;
        let init = sandbox.pid()?;
        let show = |r: containerd_shim_protos::api::ConnectResponse| {
            format!("{} {}", r.shim_pid == shim, r.task_pid == init)
        };
        said.note_as("connect", calls.connect(), show)?;
        said.note_as("no container", Calls::of_another(sandbox)?.connect(), show)?;
        said.note("shutdown", calls.shutdown())?;
        said.note_as("it still serves", calls.connect(), show)?;
        said.say(format!("{:?}", sandbox.state()? == State::Running));
        Ok(())
    })
}
