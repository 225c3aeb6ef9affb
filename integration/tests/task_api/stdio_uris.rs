// SPDX-License-Identifier: Apache-2.0

//! Where a client may want its stdio: files and log drivers.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

use anyhow::{Context, Result, ensure};
use crab_integration::{
    BUSYBOX, Census, Client, DEBIAN, ExecOptions, RunOptions, Runtime, State, Testbed, poll,
    processes,
};

use crate::{
    BOTH, LIMIT, Scratch,
    calls::{Calls, denied},
    shell, under_both,
};

/// A log driver: a script that keeps its notes in the directory in which it is.
struct Driver {
    dir: Scratch,
    program: PathBuf,
}

/// Writes down how it was started and what it gets, and says when it has all.
const KEEPS: &str = r#"
    env >"$dir/env"
    printf '%s\n' "$@" >"$dir/args"
    cat <&3 >"$dir/out" &
    cat <&4 >"$dir/err" &
    exec 3<&- 4<&-
    echo >&5
    exec 5>&-
    wait
    echo all >"$dir/end"
"#;

impl Driver {
    fn new(script: &str) -> Result<Self> {
        let dir = Scratch::new()?;
        let program = dir.path().join("driver");
        // It has no environment to find programs by but what bash makes up. Where it writes
        // to is not taken from the URI: the other shim hands that over in any order.
        fs::write(
            &program,
            format!("#!/bin/bash\ndir=${{0%/*}}\necho $$ >\"$dir/pid\"\n{script}"),
        )?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        Ok(Self { dir, program })
    }

    fn uri(&self) -> String {
        let (program, dir) = (self.program.display(), self.dir.path().display());
        format!("binary://{program}?to={dir}&more=a+b%2Fc")
    }

    fn options(&self, args: &str) -> RunOptions {
        shell(args).flags(["--log-uri", &self.uri()])
    }

    fn has(&self, name: &str) -> Result<String> {
        let path = self.dir.path().join(name);
        fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    }

    fn is_gone(&self) -> Result<()> {
        processes::wait_gone(self.has("pid")?.trim().parse()?, LIMIT)
    }
}

#[test]
fn a_log_driver_gets_all_output_and_is_told_whose() -> Result<()> {
    let testbed = Testbed::here()?;
    let ctr = testbed.ctr();
    for runtime in BOTH {
        let driver = Driver::new(KEEPS)?;
        let options = driver
            .options("seq 1 300000; seq 1 1000 >&2; exit 7")
            .runtime(runtime);
        let (tool, guard) = ctr.run_rm_tool(BUSYBOX, options)?;
        let said = tool.limit(LIMIT).run()?;
        if runtime == Runtime::Crab {
            assert_eq!(said.status, 7, "{}", said.stderr);
        } else if said.status != 7 {
            // runc, which seals itself anew there, is sometimes kept from it by the kernel.
            eprintln!("containerd's own shim: {}", said.stderr);
            continue;
        }
        let dir = driver.dir.path().display();
        let args = driver.has("args")?;
        let (to, more) = (format!("to\n{dir}\n"), "more\na b/c\n");
        let any_order = runtime == Runtime::Stock && args == format!("{more}{to}");
        assert!(any_order || args == format!("{to}{more}"), "{args}");
        let env = driver.has("env")?;
        let has = |line: &str| env.lines().any(|l| l == line);
        assert!(has("CONTAINER_NAMESPACE=default"), "{env}");
        assert!(has(&format!("CONTAINER_ID={}", guard.id())), "{env}");
        // Nothing of the shim's own.
        assert!(!env.contains("TTRPC_ADDRESS"), "{env}");
        // The other shim may end its driver before that has read everything.
        if runtime == Runtime::Crab {
            let lines = |last: u32| (1..=last).map(|n| format!("{n}\n")).collect::<String>();
            assert!(driver.has("out")? == lines(300_000), "stdout is not whole");
            assert!(driver.has("err")?.ends_with(&lines(1000)));
            assert_eq!(driver.has("end")?, "all\n");
        }
        driver.is_gone()?;
    }
    Ok(())
}

#[test]
fn an_exec_has_a_log_driver_of_its_own() -> Result<()> {
    let testbed = Testbed::here()?;
    under_both(|runtime, sandbox, _| {
        let driver = Driver::new(KEEPS)?;
        let exec = [
            "task",
            "exec",
            "--exec-id",
            "e1",
            "--log-uri",
            &driver.uri(),
        ];
        let args = [sandbox.id(), "sh", "-c", "echo out; echo err >&2; exit 4"];
        let said = testbed.ctr().tool(exec).args(args).limit(LIMIT).run()?;
        assert!(driver.has("env")?.contains("CONTAINER_ID=e1\n"));
        // Under the other shim it now and then ends of SIGPIPE.
        if runtime == Runtime::Crab {
            assert_eq!(said.status, 4, "{}", said.stderr);
            assert_eq!(driver.has("out")?, "out\n");
            assert_eq!(driver.has("err")?, "err\n");
        }
        driver.is_gone()?;
        Ok(())
    })
}

#[test]
fn a_terminals_output_goes_to_the_log_driver() -> Result<()> {
    under_both(|runtime, _, shim| {
        // `ctr` itself shows a terminal only on its own.
        let driver = Driver::new(KEEPS)?;
        let mut exec = shim.exec_request("e1", &["sh", "-c", "tty; exit 5"]);
        exec.terminal = true;
        exec.stdout = driver.uri();
        shim.exec(&exec)?.map_err(denied)?;
        shim.start("e1")?.map_err(denied)?;
        let end = shim.wait("e1")?.map_err(denied)?;
        assert_eq!(end.exit_status, 5);
        shim.delete("e1")?.map_err(denied)?;
        if runtime == Runtime::Stock {
            // It may end its driver before that has read everything.
            return Ok(());
        }
        poll("the driver has the output", LIMIT, || {
            // It may still be starting.
            let out = driver.has("out").unwrap_or_default();
            Ok((out.starts_with("/dev/pts/") && out.ends_with("\r\n")).then_some(()))
        })?;
        assert_eq!(driver.has("err").unwrap_or_default(), "");
        Ok(())
    })
}

#[test]
fn a_log_driver_that_dies_costs_its_output_and_nothing_else() -> Result<()> {
    let testbed = Testbed::here()?;
    let ctr = testbed.ctr();
    // Before it has said anything, which counts as ready, and after it has read a little.
    for script in ["exit 1", "echo >&5; head -c 10 <&3 >/dev/null; kill -9 $$"] {
        let driver = Driver::new(script)?;
        let (tool, _guard) = ctr.run_rm_tool(
            BUSYBOX,
            driver.options("for i in 1 2 3; do seq 1 100000; done; seq 1 9 >&2; exit 6"),
        )?;
        let said = tool.limit(LIMIT).run()?;
        assert_eq!(said.status, 6, "{}", said.stderr);
        driver.is_gone()?;
    }
    Ok(())
}

#[test]
fn a_log_driver_that_reads_nothing_holds_up_no_end() -> Result<()> {
    let testbed = Testbed::here()?;
    let events = testbed.events()?;
    let ctr = testbed.ctr();
    let before = Census::take()?;
    // Deaf even to being asked to end.
    let driver = Driver::new("trap '' TERM; echo >&5; exec sleep 1000")?;
    let sandbox = ctr.run(BUSYBOX, driver.options("while :; do echo more; done"))?;
    sandbox.stop()?;
    assert_eq!(events.exits_of_init(&sandbox)?, 1);
    sandbox.remove()?;
    driver.is_gone()?;
    before.wait_for_nothing_left()
}

#[test]
fn a_log_driver_that_cannot_be_is_an_error_and_leaves_nothing() -> Result<()> {
    let testbed = Testbed::here()?;
    let ctr = testbed.ctr();
    let before = Census::take()?;
    for (uri, why) in [
        ("binary:///no/such/driver", "/no/such/driver"),
        // This one has to say that it is ready.
        ("binary-v2:///bin/true", "/bin/true"),
        ("tcp://10.0.0.1/x", "tcp://"),
    ] {
        let (tool, _guard) = ctr.run_rm_tool(BUSYBOX, shell("true").flags(["--log-uri", uri]))?;
        let said = tool.limit(LIMIT).run()?;
        assert_eq!(said.status, 1, "{uri}");
        assert!(said.stderr.contains(why), "{uri}: {}", said.stderr);
    }
    before.wait_for_nothing_left()
}

#[test]
fn a_file_is_appended_to_and_made_with_its_directories() -> Result<()> {
    let testbed = Testbed::here()?;
    let ctr = testbed.ctr();
    for runtime in BOTH {
        let dir = Scratch::new()?;
        let file = dir.path().join("new/and new/log");
        let uri = format!("file://{}", file.display()).replace(' ', "%20");
        for status in [3, 0] {
            let script = format!("echo out; echo err >&2; exit {status}");
            let options = shell(&script).flags(["--log-uri", &uri]).runtime(runtime);
            let said = ctr.run_rm(BUSYBOX, options)?;
            assert_eq!(said.status, status, "{}", said.stderr);
        }
        let text = fs::read_to_string(&file)?;
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["err", "err", "out", "out"], "{runtime:?}");
        let mode = |path: &std::path::Path| -> Result<u32> {
            Ok(fs::metadata(path)?.permissions().mode() & 0o777)
        };
        assert_eq!(mode(&file)?, 0o644);
        assert_eq!(mode(&dir.path().join("new"))?, 0o755);
    }
    Ok(())
}

#[test]
fn a_terminal_and_one_stream_alone_may_go_to_a_file() -> Result<()> {
    let testbed = Testbed::here()?;
    // The other shim takes neither.
    let sandbox = testbed.ctr().run(BUSYBOX, RunOptions::new())?;
    let shim = Calls::of(&sandbox)?;
    let dir = Scratch::new()?;
    let run = |exec: &str, terminal: bool, streams: [&str; 2]| -> Result<()> {
        let mut request = shim.exec_request(exec, &["sh", "-c", "echo out; echo err >&2"]);
        request.terminal = terminal;
        let uri = |name: &str| match name {
            "" => String::new(),
            name => format!("file://{}/{name}", dir.path().display()),
        };
        [request.stdout, request.stderr] = streams.map(uri);
        shim.exec(&request)?.map_err(denied)?;
        shim.start(exec)?.map_err(denied)?;
        shim.wait(exec)?.map_err(denied)?;
        shim.delete(exec)?.map_err(denied)?;
        Ok(())
    };
    let wrote = |name: &str, text: &str| {
        poll(&format!("{name} is whole"), LIMIT, || {
            Ok((fs::read_to_string(dir.path().join(name))? == text).then_some(()))
        })
    };
    run("t", true, ["terminal", ""])?;
    wrote("terminal", "out\r\nerr\r\n")?;
    run("e", false, ["", "only-err"])?;
    wrote("only-err", "err\n")?;
    run("o", false, ["only-out", ""])?;
    wrote("only-out", "out\n")
}

#[test]
fn when_a_process_is_deleted_all_of_its_output_is_written() -> Result<()> {
    let testbed = Testbed::here()?;
    let sandbox = testbed.ctr().run(BUSYBOX, RunOptions::new())?;
    let shim = Calls::of(&sandbox)?;
    let dir = Scratch::new()?;
    for n in 0..20 {
        let file = dir.path().join(format!("log{n}"));
        // As much as a pipe holds, and one who goes on holding it.
        let script = "sleep 1000 & head -c 60000 /dev/zero";
        let mut request = shim.exec_request("x", &["sh", "-c", script]);
        request.stdout = format!("file://{}", file.display());
        shim.exec(&request)?.map_err(denied)?;
        shim.start("x")?.map_err(denied)?;
        shim.wait("x")?.map_err(denied)?;
        shim.delete("x")?.map_err(denied)?;
        assert_eq!(fs::metadata(&file)?.len(), 60000);
    }
    Ok(())
}

#[test]
fn a_rollback_keeps_the_log_driver() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let driver = Driver::new(KEEPS)?;
    // Not one that only holds the container open: it comes back by CRIU.
    let script = "n=0; while :; do n=$((n+1)); echo $n; sleep 0.05; done";
    let options = driver.options(script);
    let sandbox = testbed.ctr().run(DEBIAN, options)?;
    let turn = crab.turn_of(&sandbox, crab_store::Class::Full, "echo x >/root/x")?;
    let numbers = || -> Result<Vec<u64>> {
        let out = driver.has("out")?;
        // The last line may not be whole.
        let whole = out.rsplit_once('\n').map_or("", |(whole, _)| whole);
        Ok(whole.lines().map(str::parse).collect::<Result<_, _>>()?)
    };
    let count = numbers()?.len();
    poll("it counts on after the checkpoint", LIMIT, || {
        Ok((numbers()?.len() > count + 20).then_some(()))
    })?;
    // Once and again: each time there are new pipes.
    for _ in 0..3 {
        crab.rollback(&sandbox, turn.number())?;
        let count = numbers()?.len();
        poll("it counts on after the rollback", LIMIT, || {
            Ok((numbers()?.len() > count + 20).then_some(()))
        })?;
    }
    let all = numbers()?;
    let back = all.windows(2).filter(|pair| pair[1] <= pair[0]).count();
    ensure!(back == 3, "it went back {back} times: {all:?}");
    assert_eq!(sandbox.state()?, State::Running);
    sandbox.remove()?;
    assert_eq!(driver.has("end")?, "all\n");
    driver.is_gone()
}

#[test]
fn what_the_runtime_says_of_a_failure_is_said_once() -> Result<()> {
    let testbed = Testbed::here()?;
    for client in testbed.clients() {
        let of_run = |runtime| -> Result<String> {
            let options = RunOptions::new().args(["/no/such"]).runtime(runtime);
            let said = client.run_rm(BUSYBOX, options)?;
            Ok(format!("{} {}{}", said.status, said.stdout, said.stderr))
        };
        assert_eq!(of_run(Runtime::Crab)?, of_run(Runtime::Stock)?);
        let of_exec = |runtime| -> Result<String> {
            let sandbox = client.run(BUSYBOX, RunOptions::new().runtime(runtime))?;
            let mut all = String::new();
            for (args, cwd) in [
                ("/no/such", "/"),
                ("nosuch", "/"),
                ("/etc", "/"),
                ("true", "/none"),
            ] {
                let flags = match client {
                    Client::Docker => ["-w", cwd],
                    Client::Ctr { .. } => ["--cwd", cwd],
                };
                let options = ExecOptions::new().flags(flags).limit(LIMIT);
                let said = sandbox.exec_with(&[args], &options)?;
                all += &format!("{} {}{}", said.status, said.stdout, said.stderr);
            }
            Ok(all)
        };
        assert_eq!(of_exec(Runtime::Crab)?, of_exec(Runtime::Stock)?);
    }
    Ok(())
}
