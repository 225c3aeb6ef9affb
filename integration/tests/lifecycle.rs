// SPDX-License-Identifier: Apache-2.0

//! What any shim has to do for `ctr` and `docker`: start, stdio, signals, exit
//! statuses, events, and nothing left behind.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use crab_integration::{
    BUSYBOX, Census, CgroupMode, Client, Counter, DEBIAN, Events, ExecOptions, RunOptions, Sandbox,
    State, Terminal, Testbed, poll, processes, skip, sleeper,
};
use crab_store::Class;

const LIMIT: Duration = Duration::from_secs(20);

fn shell(script: &str) -> RunOptions {
    RunOptions::new().args(["sh", "-c", script])
}

/// How the init of a stopped container ended, as its client says.
fn status_of_init(sandbox: &Sandbox, events: &Events) -> Result<i32> {
    match sandbox.client() {
        Client::Docker => {
            let inspect = ["inspect", "-f", "{{.State.ExitCode}}", sandbox.name()];
            Ok(sandbox.client().tool(inspect).run()?.text()?.parse()?)
        }
        // `ctr` only warns of it.
        Client::Ctr { .. } => {
            let all = events.so_far()?;
            let exit = all.iter().find(|event| event.is_exit_of_init(sandbox));
            let payload = &exit.context("its end was not published")?.payload;
            // A zero is left out.
            let status = payload
                .get("exit_status")
                .and_then(|status| status.as_i64());
            Ok(i32::try_from(status.unwrap_or(0))?)
        }
    }
}

#[test]
fn an_exit_status_reaches_the_client() -> Result<()> {
    let testbed = Testbed::here()?;
    for client in testbed.clients() {
        for status in [0, 3, 255] {
            let script = format!("exit {status}");
            let said = client.run_rm(BUSYBOX, shell(&script))?;
            assert_eq!(said.status, status, "{}: {}", said.command, said.stderr);
        }
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        for status in [0, 3, 255] {
            let said = sandbox.sh(&format!("exit {status}"))?;
            assert_eq!(said.status, status, "{}: {}", said.command, said.stderr);
        }
        let said = sandbox.sh("kill -KILL $$")?;
        assert_eq!(said.status, 137, "{}: {}", said.command, said.stderr);
        let said = sandbox.sh("kill -TERM $$")?;
        assert_eq!(said.status, 143, "{}: {}", said.command, said.stderr);
    }
    Ok(())
}

#[test]
fn a_killed_init_is_137() -> Result<()> {
    let testbed = Testbed::here()?;
    let events = testbed.events()?;
    for client in testbed.clients() {
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        sandbox.kill("KILL")?.ok()?;
        sandbox.wait_for(State::Stopped)?;
        assert_eq!(status_of_init(&sandbox, &events)?, 137, "{}", client.name());

        // Not by way of the client at all.
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        processes::kill(sandbox.pid()?)?;
        sandbox.wait_for(State::Stopped)?;
        assert_eq!(status_of_init(&sandbox, &events)?, 137, "{}", client.name());
    }
    Ok(())
}

#[test]
fn a_program_that_is_missing_is_said_and_leaves_nothing() -> Result<()> {
    let testbed = Testbed::here()?;
    for client in testbed.clients() {
        let before = Census::take()?;
        let said = client.run_rm(BUSYBOX, RunOptions::new().args(["/no/such/program"]))?;
        // What the clients make of it, as under containerd's own shim.
        let (of_run, of_exec) = match client {
            Client::Docker => (127, 126),
            Client::Ctr { .. } => (1, 1),
        };
        assert_eq!(said.status, of_run, "{}: {}", client.name(), said.stderr);
        assert!(said.stderr.contains("/no/such/program"), "{}", said.stderr);
        before.wait_for_nothing_left()?;

        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        let said = sandbox.exec(&["/no/such/program"])?;
        assert_eq!(said.status, of_exec, "{}: {}", client.name(), said.stderr);
        assert!(
            format!("{}{}", said.stdout, said.stderr).contains("/no/such/program"),
            "{} {}",
            said.stdout,
            said.stderr
        );
        // And by the shell inside.
        assert_eq!(sandbox.sh("/no/such/program")?.status, 127);
    }
    Ok(())
}

#[test]
fn stdout_and_stderr_arrive_apart_and_whole() -> Result<()> {
    let testbed = Testbed::here()?;
    let script = "seq 1 300000; seq 1 200000 >&2; echo end; exit 7";
    let lines = |last: u32| (1..=last).map(|n| format!("{n}\n")).collect::<String>();
    let (stdout, stderr) = (lines(300_000) + "end\n", lines(200_000));
    assert!(stdout.len() > 1 << 20 && stderr.len() > 1 << 20);
    for client in testbed.clients() {
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        for said in [client.run_rm(BUSYBOX, shell(script))?, sandbox.sh(script)?] {
            assert_eq!(said.status, 7, "{}", said.command);
            assert!(
                said.stdout == stdout && said.stderr == stderr,
                "{}: {} of {} bytes, {} of {} on stderr",
                said.command,
                said.stdout.len(),
                stdout.len(),
                said.stderr.len(),
                stderr.len()
            );
        }
    }
    Ok(())
}

#[test]
fn stdin_reaches_the_program_and_ends_with_its_end() -> Result<()> {
    let testbed = Testbed::here()?;
    let big: String = (1..=200_000).map(|n| format!("{n}\n")).collect();
    for client in testbed.clients() {
        let interactive = match client {
            Client::Docker => RunOptions::new().flags(["-i"]),
            // `ctr run` always hands its own on.
            Client::Ctr { .. } => RunOptions::new(),
        };
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        for input in ["one line\n", "no end of line", &big] {
            let (tool, _guard) = client.run_rm_tool(BUSYBOX, interactive.clone().args(["cat"]))?;
            let said = tool.stdin(input).limit(LIMIT).run()?.ok()?;
            assert!(said.stdout == input, "{}", said.command);
            let options = ExecOptions::new().stdin(input).limit(LIMIT);
            let said = sandbox.exec_with(&["cat"], &options)?.ok()?;
            assert!(said.stdout == input, "{}", said.command);
        }
    }
    Ok(())
}

#[test]
fn a_stdin_that_is_empty_or_not_read_ends_too() -> Result<()> {
    let testbed = Testbed::here()?;
    // `ctr` itself cannot tell an end that comes before its Create is answered.
    let docker = testbed.docker();
    let (tool, _guard) =
        docker.run_rm_tool(BUSYBOX, RunOptions::new().flags(["-i"]).args(["cat"]))?;
    assert_eq!(tool.limit(LIMIT).run()?.ok()?.stdout, "");
    for client in testbed.clients() {
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        if client == docker {
            let options = ExecOptions::new().stdin("").limit(LIMIT);
            assert_eq!(sandbox.exec_with(&["cat"], &options)?.ok()?.stdout, "");
        }
        // No stdin at all reads as its end.
        assert_eq!(sandbox.exec(&["cat", "/dev/null"])?.ok()?.stdout, "");
        let input = vec![b'x'; 1 << 20];
        let options = ExecOptions::new().stdin(input).limit(LIMIT);
        let said = sandbox.exec_with(&["sh", "-c", "exec <&-; echo deaf"], &options)?;
        assert_eq!(said.ok()?.stdout, "deaf\n");
    }
    Ok(())
}

fn shows_size(terminal: &mut Terminal, rows: u16, columns: u16) -> Result<Option<()>> {
    thread::sleep(Duration::from_millis(50));
    terminal.send("stty size\n")?;
    thread::sleep(Duration::from_millis(50));
    let shown = format!("{rows} {columns}\r");
    Ok(terminal.seen().contains(&shown).then_some(()))
}

fn uses_the_terminal(mut terminal: Terminal) -> Result<()> {
    // Not as it is echoed, but as it is printed.
    terminal.send("echo at $((6*7)); tty\n")?;
    terminal.wait_for("at 42")?;
    terminal.wait_for("/dev/pts/")?;
    // The client tells the size after the start.
    poll("the terminal has its first size", LIMIT, || {
        shows_size(&mut terminal, 31, 97)
    })?;
    // It listens for changes only after that: one that comes between is lost, with any
    // runtime. So the window is moved until it was seen.
    poll("the terminal has its second size", LIMIT, || {
        terminal.resize(44, 121)?;
        terminal.resize(43, 121)?;
        shows_size(&mut terminal, 43, 121)
    })?;
    // One line: what is typed while a program starts may be lost to its ^C.
    terminal.send(
        "bash -c 'trap \"echo told; exit 8\" INT; echo waits $((6*8)); sleep 1000'; exit $(($?+1))\n",
    )?;
    terminal.wait_for("waits 48")?;
    terminal.send("\x03")?;
    terminal.wait_for("told\r")?;
    assert_eq!(terminal.wait()?, 9);
    Ok(())
}

#[test]
fn a_terminal_works_and_follows_its_window() -> Result<()> {
    let testbed = Testbed::here()?;
    for client in testbed.clients() {
        let flags = match client {
            Client::Docker => "-it",
            Client::Ctr { .. } => "-t",
        };
        let options = RunOptions::new().flags([flags]).args(["bash", "--norc"]);
        let (tool, _guard) = client.run_rm_tool(DEBIAN, options)?;
        uses_the_terminal(Terminal::start(&tool, 31, 97)?).context("run")?;

        let sandbox = client.run(DEBIAN, RunOptions::new())?;
        let options = ExecOptions::new().flags([flags]);
        let tool = sandbox.exec_tool(&["bash", "--norc"], &options);
        uses_the_terminal(Terminal::start(&tool, 31, 97)?).context("exec")?;
    }
    Ok(())
}

/// Whether the cgroup of a process is frozen, by either freezer.
fn is_frozen(pid: u32) -> Result<bool> {
    let memberships = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    for line in memberships.lines() {
        let path = line
            .splitn(3, ':')
            .nth(2)
            .context("a line without a path")?;
        // In v2 mode the hierarchies of v1 are there, and not to be seen.
        let v1 = fs::read_to_string(format!("/sys/fs/cgroup/freezer{path}/freezer.state"));
        if line.contains(":freezer:") && v1.is_ok_and(|state| state.trim() == "FROZEN") {
            return Ok(true);
        }
        if line.starts_with("0::") {
            for root in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
                let events = fs::read_to_string(format!("{root}{path}/cgroup.events"));
                if events.is_ok_and(|events| events.contains("frozen 1")) {
                    return Ok(true);
                }
            }
        }
    }
    Ok(false)
}

#[test]
fn pause_stops_a_container_and_resume_lets_it_go_on() -> Result<()> {
    let testbed = Testbed::here()?;
    for client in testbed.clients() {
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        let pid = sandbox.pid()?;
        assert!(!is_frozen(pid)?);
        let pause = match client {
            Client::Docker => client.tool(["pause", sandbox.name()]),
            Client::Ctr { .. } => client.tool(["task", "pause", sandbox.id()]),
        };
        pause.run()?.ok()?;
        assert_eq!(sandbox.state()?, State::Paused);
        assert!(is_frozen(pid)?);
        let resume = match client {
            Client::Docker => client.tool(["unpause", sandbox.name()]),
            Client::Ctr { .. } => client.tool(["task", "resume", sandbox.id()]),
        };
        resume.run()?.ok()?;
        assert_eq!(sandbox.state()?, State::Running);
        assert!(!is_frozen(pid)?);
        assert_eq!(sandbox.sh_ok("echo alive")?, "alive");
        assert_eq!(sandbox.pid()?, pid);
    }
    Ok(())
}

#[test]
fn a_paused_container_can_be_killed_and_removed() -> Result<()> {
    let testbed = Testbed::here()?;
    let client = testbed.ctr();
    let sandbox = client.run(BUSYBOX, RunOptions::new())?;
    client.tool(["task", "pause", sandbox.id()]).run()?.ok()?;
    let removed = client.tool(["task", "rm", "-f", sandbox.id()]).run()?;
    // Whatever that says, the guard must be able to remove it.
    drop(sandbox);
    let left = client.tool(["container", "ls", "-q"]).run()?.text()?;
    assert_eq!(left, "", "{}", removed.stderr);
    Ok(())
}

#[test]
fn the_processes_of_a_container_are_listed() -> Result<()> {
    let testbed = Testbed::here()?;
    for client in testbed.clients() {
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        sandbox.sh_ok(&sleeper(1000))?;
        let mut inside = sandbox.processes()?;
        assert_eq!(inside.len(), 2);
        let said = match client {
            Client::Docker => client.tool(["top", sandbox.name(), "-o", "pid"]),
            Client::Ctr { .. } => client.tool(["task", "ps", sandbox.id()]),
        };
        let said = said.run()?.ok()?.stdout;
        let mut listed: Vec<u32> = said
            .lines()
            .filter_map(|line| line.split_whitespace().next()?.parse().ok())
            .collect();
        listed.sort_unstable();
        inside.sort_unstable();
        assert_eq!(listed, inside, "{said}");
    }
    Ok(())
}

#[test]
fn metrics_have_numbers_in_them() -> Result<()> {
    let testbed = Testbed::here()?;
    let client = testbed.ctr();
    let sandbox = client.run(BUSYBOX, RunOptions::new())?;
    sandbox.sh_ok(&sleeper(1000))?;
    let said = client.tool(["task", "metrics", sandbox.id()]).run()?.ok()?;
    let number = |name: &str| -> Option<u64> {
        let line = said
            .stdout
            .lines()
            .find(|line| line.split_whitespace().next() == Some(name))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    // A controller that there is none of says nothing but 0.
    if testbed.has_controller("pids") {
        assert_eq!(number("pids.current"), Some(2), "{}", said.stdout);
    }
    let (memory, cpu) = match testbed.cgroup() {
        CgroupMode::V1 => ("memory.usage_in_bytes", "cpuacct.usage"),
        CgroupMode::V2 => ("memory.usage", "cpu.usage_usec"),
    };
    if testbed.has_controller("memory") {
        let memory = number(memory).with_context(|| format!("no {memory}"))?;
        assert!(memory > 4096, "{}", said.stdout);
    }
    let cpu = number(cpu).with_context(|| format!("no {cpu}"))?;
    assert!(cpu > 0, "{}", said.stdout);
    Ok(())
}

/// What a file of a process's cgroup says.
fn cgroup_file(mode: CgroupMode, pid: u32, controller: &str, name: &str) -> Result<String> {
    let memberships = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let (owner, mount) = match mode {
        CgroupMode::V1 => (controller, format!("/sys/fs/cgroup/{controller}")),
        CgroupMode::V2 => ("", "/sys/fs/cgroup".to_owned()),
    };
    let path = memberships
        .lines()
        .map(|line| line.splitn(3, ':').collect::<Vec<_>>())
        .find(|line| line[1].split(',').any(|one| one == owner))
        .with_context(|| format!("process {pid} is in no cgroup of {owner:?}"))?[2]
        .to_owned();
    let file = format!("{mount}{path}/{name}");
    let text = fs::read_to_string(&file).with_context(|| format!("read {file}"))?;
    Ok(text.trim().to_owned())
}

#[test]
fn limits_can_be_updated_while_it_runs() -> Result<()> {
    let testbed = Testbed::here()?;
    let mode = testbed.cgroup();
    let client = testbed.docker();
    let sandbox = client.run(BUSYBOX, RunOptions::new())?;
    let pid = sandbox.pid()?;
    if testbed.has_controller("pids") {
        let args = ["update", "--pids-limit", "37", sandbox.name()];
        client.tool(args).run()?.ok()?;
        assert_eq!(cgroup_file(mode, pid, "pids", "pids.max")?, "37");
    } else {
        skip("containers get no pids controller here")?;
    }
    if testbed.has_controller("memory") {
        let args = [
            "update",
            "--memory",
            "64m",
            "--memory-swap",
            "-1",
            sandbox.name(),
        ];
        client.tool(args).run()?.ok()?;
        let file = match mode {
            CgroupMode::V1 => "memory.limit_in_bytes",
            CgroupMode::V2 => "memory.max",
        };
        let limit = cgroup_file(mode, pid, "memory", file)?;
        assert_eq!(limit, (64 << 20).to_string());
    } else {
        skip("containers get no memory controller here")?;
    }
    assert_eq!(sandbox.sh_ok("echo alive")?, "alive");
    Ok(())
}

#[test]
fn the_standard_checkpoint_leaves_the_container_running() -> Result<()> {
    let testbed = Testbed::here()?;
    let client = testbed.ctr();
    // The second is one that CRIU has to dump.
    for options in [RunOptions::new(), shell("sleep infinity & wait")] {
        let sandbox = client.run(DEBIAN, options)?;
        let pid = sandbox.pid()?;
        client
            .tool(["task", "checkpoint", sandbox.id()])
            .run()?
            .ok()?;
        assert_eq!(sandbox.state()?, State::Running);
        assert_eq!(sandbox.pid()?, pid);
        assert!(!is_frozen(pid)?);
        assert_eq!(sandbox.sh_ok("echo alive")?, "alive");
    }
    Ok(())
}

#[test]
fn docker_keeps_logs_and_stops() -> Result<()> {
    let testbed = Testbed::here()?;
    let events = testbed.events()?;
    let docker = testbed.docker();
    let script = "trap 'echo told; exit 5' TERM; echo out; echo err >&2; \
                  while :; do sleep 0.01; done";
    let sandbox = docker.run(BUSYBOX, shell(script))?;
    poll("the logs have both lines", LIMIT, || {
        let logs = sandbox.logs()?;
        Ok((logs.stdout == "out\n" && logs.stderr == "err\n").then_some(()))
    })?;
    docker.tool(["stop", sandbox.name()]).run()?.ok()?;
    assert_eq!(sandbox.state()?, State::Stopped);
    assert_eq!(status_of_init(&sandbox, &events)?, 5);
    assert_eq!(sandbox.logs()?.stdout, "out\ntold\n");

    // Deaf to SIGTERM: killed when the time is over.
    let sandbox = docker.run(BUSYBOX, shell("trap '' TERM; while :; do sleep 1; done"))?;
    docker
        .tool(["stop", "-t", "1", sandbox.name()])
        .run()?
        .ok()?;
    assert_eq!(status_of_init(&sandbox, &events)?, 137);
    docker.tool(["start", sandbox.name()]).run()?.ok()?;
    assert_eq!(sandbox.sh_ok("echo again")?, "again");
    docker.tool(["rm", "-f", sandbox.name()]).run()?.ok()?;
    assert_eq!(sandbox.state()?, State::Gone);
    Ok(())
}

#[test]
fn an_init_that_ends_at_once_is_not_lost() -> Result<()> {
    let testbed = Testbed::here()?;
    let events = testbed.events()?;
    for client in testbed.clients() {
        for status in [0, 4, 0, 4, 0] {
            let sandbox = client.run(BUSYBOX, shell(&format!("exit {status}")))?;
            sandbox.wait_for(State::Stopped)?;
            assert_eq!(status_of_init(&sandbox, &events)?, status);
            assert_eq!(events.exits_of_init(&sandbox)?, 1);
        }
    }
    Ok(())
}

/// The topics that concern one container, in order, with the process.
fn topics(events: &Events, id: &str) -> Result<Vec<String>> {
    let all = events.so_far()?;
    let field = |event: &crab_integration::Event, name: &str| {
        event
            .payload
            .get(name)
            .and_then(|value| value.as_str().map(str::to_owned))
            .unwrap_or_default()
    };
    Ok(all
        .iter()
        .filter(|event| event.topic.starts_with("/tasks/") && event.container() == Some(id))
        .map(|event| {
            let topic = event.topic.trim_start_matches("/tasks/").to_owned();
            match (field(event, "id"), field(event, "exec_id")) {
                (process, _) if !process.is_empty() && process != id => {
                    format!("{topic} {process}")
                }
                (_, exec) if !exec.is_empty() => format!("{topic} {exec}"),
                _ => topic,
            }
        })
        .collect())
}

#[test]
fn events_come_in_order_and_once() -> Result<()> {
    let testbed = Testbed::here()?;
    let events = testbed.events()?;
    let ctr = testbed.ctr();
    let sandbox = ctr.run(BUSYBOX, RunOptions::new())?;
    let id = sandbox.id().to_owned();
    let exec = ["task", "exec", "--exec-id", "x1", &id, "true"];
    ctr.tool(exec).run()?.ok()?;
    ctr.tool(["task", "pause", &id]).run()?.ok()?;
    ctr.tool(["task", "resume", &id]).run()?.ok()?;
    sandbox.stop()?;
    sandbox.remove()?;
    assert_eq!(
        topics(&events, &id)?,
        [
            "create",
            "start",
            "exec-added x1",
            "exec-started x1",
            "exit x1",
            "paused",
            "resumed",
            "exit",
            "delete",
        ]
    );
    Ok(())
}

#[test]
fn containers_that_come_and_go_leave_nothing() -> Result<()> {
    let testbed = Testbed::here()?;
    for client in testbed.clients() {
        let before = Census::take()?;
        for round in 0..20 {
            if round % 4 == 0 {
                let sandbox = client.run(BUSYBOX, RunOptions::new())?;
                sandbox.sh_ok("echo x >/root/x; setsid sleep 1000 </dev/null >/dev/null 2>&1 &")?;
            } else {
                let said = client.run_rm(BUSYBOX, shell("echo x >/root/x; exit 3"))?;
                assert_eq!(said.status, 3, "{}", said.stderr);
            }
        }
        before.wait_for_nothing_left().context(client.name())?;
    }
    Ok(())
}

/// FIFOs are `ctr`'s own, which deletes them with the task: where containerd has
/// deleted it, they are left, under any shim.
fn forget_fifos() -> Result<()> {
    fs::remove_dir_all("/run/containerd/fifo").context("remove the FIFOs of ctr")
}

#[test]
fn a_killed_shim_is_cleaned_up_after_and_its_history_stays() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let events = testbed.events()?;
    let ctr = testbed.ctr();
    let before = Census::take()?;
    let sandbox = ctr.run(DEBIAN, RunOptions::new())?;
    sandbox.sh_ok(&sleeper(1000))?;
    crab.turn_of(&sandbox, Class::Files, "echo kept >/root/kept")?;
    let inside = sandbox.processes()?;
    let pid = sandbox.pid()?;
    processes::kill(sandbox.shim()?)?;
    // containerd asks for it by running the shim's `delete`.
    poll("containerd has seen the end", LIMIT, || {
        Ok((events.exits_of_init(&sandbox)? > 0).then_some(()))
    })?;
    for pid in inside {
        processes::wait_gone(pid, LIMIT)?;
    }
    assert!(!Path::new(&format!("/proc/{pid}/ns/net")).exists());
    let turns = crab.turns(&sandbox)?;
    assert_eq!(turns.damaged, 0);
    ensure!(
        turns
            .turns
            .iter()
            .any(|turn| turn.published && turn.class() == Class::Files),
        "the published checkpoint is gone: {turns:?}"
    );
    assert_eq!(events.exits_of_init(&sandbox)?, 1);
    drop(sandbox);
    forget_fifos()?;
    before.wait_for_nothing_left()
}

#[test]
fn a_container_in_the_middle_of_a_checkpoint_is_removed_at_once() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        // Into the dump, to catch CRIU at various work: it holds processes that are
        // to die, and waits for them.
        for pause in [0, 3, 10, 25, 50, 90] {
            let before = Census::take()?;
            let sandbox = client.run(DEBIAN, RunOptions::new())?;
            let counter = Counter::start(&crab, &sandbox, 16)?;
            let _exec = counter.ask_only()?;
            let images = Path::new("/run/crab/staging").join(sandbox.sandbox_id());
            poll("a dump is under way", LIMIT, || {
                Ok(images.exists().then_some(()))
            })?;
            thread::sleep(Duration::from_millis(pause));
            let start = Instant::now();
            sandbox.remove()?;
            let took = start.elapsed();
            ensure!(
                took < Duration::from_secs(4),
                "{} took {took:?} ({pause} ms into a dump)",
                client.name()
            );
            before.wait_for_nothing_left()?;
        }
    }
    Ok(())
}

#[test]
fn an_end_while_containerd_is_away_is_told_when_it_is_back() -> Result<()> {
    let testbed = Testbed::here()?;
    let ctr = testbed.ctr();
    let before = Census::take()?;
    let sandbox = ctr.run(BUSYBOX, RunOptions::new())?;
    let other = ctr.run(BUSYBOX, RunOptions::new())?;
    let (pid, shim, lives) = (sandbox.pid()?, sandbox.shim()?, other.pid()?);
    testbed.service("stop", "dockerd")?;
    testbed.service("kill", "containerd")?;
    processes::kill(pid)?;
    processes::wait_gone(pid, LIMIT)?;
    testbed.service("start", "containerd")?;
    testbed.service("start", "dockerd")?;
    // containerd 1.7 removes the task of one that it finds stopped.
    poll("containerd knows the end", LIMIT, || {
        Ok(matches!(sandbox.state()?, State::Stopped | State::Gone).then_some(()))
    })?;
    sandbox.remove()?;
    processes::wait_gone(shim, LIMIT)?;
    // One that ran on is still the same, and still told of.
    assert_eq!(other.pid()?, lives);
    assert_eq!(other.sh_ok("echo alive")?, "alive");
    let events = testbed.events()?;
    other.stop()?;
    assert_eq!(events.exits_of_init(&other)?, 1);
    drop(other);
    forget_fifos()?;
    before.wait_for_nothing_left()
}
