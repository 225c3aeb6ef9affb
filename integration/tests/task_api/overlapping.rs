// SPDX-License-Identifier: Apache-2.0

//! A call comes while another is at work. Or a client gives one up while the runtime still works
//! on it, as one does whose deadline is over, or that is killed: the container must not be left
//! between two states.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use containerd_shim_protos::{
    api::{Empty, StartRequest},
    protobuf::well_known_types::any::Any,
    shim::oci::Options,
};
use crab_integration::{Runtime, Testbed, poll, processes};

use crate::{
    BOTH, LIMIT, Scratch,
    alone::{Alone, Wish, runc_options},
    calls::denied,
};

/// runc, of which one verb waits until it is let go.
struct HeldBack {
    dir: Scratch,
    program: PathBuf,
}

impl HeldBack {
    fn new(verb: &str) -> Result<Self> {
        let dir = Scratch::new()?;
        let program = dir.path().join("held-back");
        let script = format!(
            "#!/bin/sh\ncase \" $* \" in *\" {verb} \"*)\n\
             : >{0}/called\nuntil [ -e {0}/go ]; do sleep 0.02; done;;\nesac\nexec runc \"$@\"\n",
            dir.path().display()
        );
        fs::write(&program, script)?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        Ok(Self { dir, program })
    }

    fn options(&self) -> Result<Option<Any>> {
        let binary_name = self.program.display().to_string();
        let options = Options {
            binary_name,
            ..Default::default()
        };
        Ok(Some(runc_options(&options)?))
    }

    fn was_called(&self) -> bool {
        self.dir.path().join("called").exists()
    }

    fn let_go(&self) -> Result<()> {
        Ok(fs::write(self.dir.path().join("go"), "")?)
    }
}

/// When a call is given up, after it took so long to come to it: that took shims and runtimes
/// that were started, and the call starts one.
fn longer_than(preparing: Duration) -> Duration {
    Duration::from_millis(300) + preparing * 3
}

/// A container whose init, or an exec of which, can be started, by a runtime that is held
/// back then.
fn to_be_started(testbed: &Testbed, shim: Runtime, exec: &str) -> Result<(HeldBack, Alone)> {
    let runtime = HeldBack::new(if exec.is_empty() { "start" } else { "exec" })?;
    let wish = Wish {
        options: runtime.options()?,
        ..Wish::default()
    };
    if exec.is_empty() {
        return Ok((runtime, Alone::created(testbed, shim, &wish)?));
    }
    let alone = Alone::running(testbed, shim, &wish)?;
    let request = alone.calls.exec_request(exec, &["sleep", "infinity"]);
    let _: Empty = alone.calls.exec(&request)?.map_err(denied)?;
    Ok((runtime, alone))
}

#[test]
fn a_start_that_is_given_up_is_carried_out() -> Result<()> {
    let testbed = Testbed::here()?;
    for exec in ["", "e"] {
        let began = Instant::now();
        let (runtime, alone) = to_be_started(&testbed, Runtime::Crab, exec)?;
        let request = StartRequest {
            id: alone.calls.id.clone(),
            exec_id: exec.into(),
            ..Default::default()
        };
        let longer = longer_than(began.elapsed());
        alone.calls.give_up("Start", &request, longer)?;
        ensure!(runtime.was_called(), "{exec:?}: it was given up too early");
        runtime.let_go()?;
        poll("it runs", LIMIT, || {
            let state = alone.calls.state(exec)?.map_err(denied)?;
            Ok((format!("{:?}", state.status.enum_value()) == "Ok(RUNNING)").then_some(()))
        })?;
        // The end of the init is told after that of every exec.
        alone.calls.kill("", 9, false)?.map_err(denied)?;
        let end = alone.calls.wait("")?.map_err(denied)?;
        ensure!(end.exit_status == 137, "{exec:?}: {}", end.exit_status);
        alone.calls.delete("")?.map_err(denied)?;
    }
    Ok(())
}

#[test]
fn a_container_whose_create_is_given_up_goes_and_its_shim_with_it() -> Result<()> {
    let testbed = Testbed::here()?;
    for shut_down_meanwhile in [false, true] {
        let began = Instant::now();
        let runtime = HeldBack::new("create")?;
        let wish = Wish {
            options: runtime.options()?,
            ..Wish::default()
        };
        let alone = Alone::start(&testbed, Runtime::Crab, &wish)?;
        let shim = alone.shim()?;
        let request = alone.request(&wish)?;
        let longer = longer_than(began.elapsed());
        alone.calls.give_up("Create", &request, longer)?;
        ensure!(runtime.was_called(), "it was given up too early");
        if shut_down_meanwhile {
            // As containerd does next, and only once.
            alone.calls.shutdown()?.map_err(denied)?;
            ensure!(processes::is_alive(shim), "it has left a container behind");
            runtime.let_go()?;
            processes::wait_gone(shim, LIMIT)?;
        } else {
            runtime.let_go()?;
            // What of it was mounted has gone as well, so that it cannot be made again.
            poll("the id is free", LIMIT, || {
                let no = alone.calls.create(&request)?.expect_err("it was created");
                Ok((no.code != "ALREADY_EXISTS").then_some(()))
            })?;
            alone.calls.shutdown()?.map_err(denied)?;
            processes::wait_gone(shim, LIMIT)?;
        }
    }
    Ok(())
}

#[test]
fn a_kill_that_comes_during_a_start_waits_for_it() -> Result<()> {
    let testbed = Testbed::here()?;
    for (runtime, exec) in BOTH.into_iter().flat_map(|r| [(r, ""), (r, "e")]) {
        let (held_back, alone) = to_be_started(&testbed, runtime, exec)?;
        thread::scope(|scope| -> Result<()> {
            let start = scope.spawn(|| alone.calls.start(exec));
            let called = poll("the runtime is called", LIMIT, || {
                Ok(held_back.was_called().then_some(()))
            });
            let kill = scope.spawn(|| alone.calls.kill(exec, 9, false));
            // It comes before the start is over, or nothing is shown.
            thread::sleep(Duration::from_millis(200));
            held_back.let_go()?;
            called?;
            let [start, kill] = [
                start.join().map(|said| said.map(|said| said.map(drop))),
                kill.join().map(|said| said.map(|said| said.map(drop))),
            ];
            for (what, said) in [("Start", start), ("Kill", kill)] {
                let said = said.map_err(|_| anyhow!("{what} panicked"))??;
                said.map_err(denied)
                    .with_context(|| format!("{runtime:?}: {what} {exec:?}"))?;
            }
            Ok(())
        })?;
        let end = alone.calls.wait(exec)?.map_err(denied)?;
        ensure!(end.exit_status == 137, "{runtime:?}: {}", end.exit_status);
    }
    Ok(())
}

#[test]
fn an_exec_that_is_killed_leaves_its_container_paused() -> Result<()> {
    let testbed = Testbed::here()?;
    for runtime in BOTH {
        let alone = Alone::running(&testbed, runtime, &Wish::default())?;
        let pid = alone.calls.state("")?.map_err(denied)?.pid;
        alone
            .calls
            .run("e", &["sleep", "infinity"])?
            .map_err(denied)?;
        alone.calls.pause()?.map_err(denied)?;
        alone.calls.kill("e", 9, false)?.map_err(denied)?;
        // Under cgroup v2 one that is killed is thawed to die.
        poll("the others stand still", LIMIT, || {
            Ok(processes::is_frozen(pid)?.then_some(()))
        })
        .with_context(|| format!("{runtime:?}"))?;
        alone.calls.resume()?.map_err(denied)?;
        let end = alone.calls.wait("e")?.map_err(denied)?;
        ensure!(end.exit_status == 137, "{runtime:?}: {}", end.exit_status);
        ensure!(!processes::is_frozen(pid)?, "{runtime:?}: it stands still");
    }
    Ok(())
}
