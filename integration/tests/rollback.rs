// SPDX-License-Identifier: Apache-2.0

//! A live sandbox goes back to an earlier turn, and stays the same sandbox.

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use crab_integration::{
    Client, Crab, DEBIAN, ExecOptions, RunOptions, Sandbox, State, Testbed, Tool, poll, processes,
    sleeper,
};
use crab_store::{Class, JournalRecord};

const LIMIT: Duration = Duration::from_secs(20);

/// Counts in memory, and answers with the count.
const SERVER: &str = r#"
import os, socket, sys
count = 0
server = socket.socket(socket.AF_UNIX)
server.bind('\0server')
server.listen()
print('ready', flush=True)
while True:
    client, _ = server.accept()
    client.recv(1)
    count += 1
    print('count', count, flush=True)
    client.send(b'%d' % count)
    client.close()
"#;

const ASK: &str = r#"
import socket, time
for attempt in range(500):
    try:
        s = socket.socket(socket.AF_UNIX)
        s.connect('\0server')
        break
    except ConnectionRefusedError:
        time.sleep(0.01)
s.send(b'x')
answer = b''
# To its end: then the server waits again.
while part := s.recv(100):
    answer += part
print(answer.decode())
"#;

fn debian() -> RunOptions {
    RunOptions::new().env("PYTHONDONTWRITEBYTECODE", "1")
}

/// Asks the server inside; also a turn.
fn ask(sandbox: &Sandbox) -> Result<u32> {
    let said = sandbox.exec(&["python3", "-c", ASK])?;
    ensure!(said.status == 0, "nobody answers: {}", said.stderr);
    Ok(said.stdout.trim().parse()?)
}

/// The same, and the number of its turn, which must be of the class.
fn ask_as_turn(crab: &Crab, sandbox: &Sandbox, class: Class) -> Result<(u32, u64)> {
    let (said, turn) = crab.turn(sandbox, &["python3", "-c", ASK])?;
    ensure!(said.status == 0, "nobody answers: {}", said.stderr);
    ensure!(
        turn.class() == class && turn.record.degraded.is_none() && turn.published,
        "{turn:?}"
    );
    Ok((said.stdout.trim().parse()?, turn.number()))
}

fn start_server(crab: &Crab, sandbox: &Sandbox) -> Result<()> {
    let script = format!(
        "cat >/root/server.py <<'E'\n{SERVER}\nE\n\
         setsid python3 /root/server.py </dev/null >/root/log 2>&1 &\n\
         while ! grep -q ready /root/log; do sleep 0.01; done"
    );
    let turn = crab.turn_of(sandbox, Class::Full, &script)?;
    ensure!(turn.record.degraded.is_none(), "{turn:?}");
    Ok(())
}

/// What has to be the same before and after.
#[derive(Debug, PartialEq, Eq)]
struct Identity {
    id: String,
    namespaces: Vec<String>,
    hostname: String,
    addresses: String,
    cgroups: String,
    limits: Vec<String>,
    status: Vec<String>,
    mounts: Vec<String>,
    environment: BTreeSet<Vec<u8>>,
    inspected: String,
}

impl Identity {
    fn of(sandbox: &Sandbox) -> Result<Self> {
        let pid = sandbox.pid()?;
        let read = |name: &str| {
            let path = format!("/proc/{pid}/{name}");
            fs::read_to_string(&path).with_context(|| format!("read {path}"))
        };
        let cgroups = read("cgroup")?;
        let mut limits: Vec<String> = read("limits")?.lines().map(str::to_owned).collect();
        limits.push(read("oom_score_adj")?);
        for line in cgroups.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next().unwrap_or(""), fields.next().unwrap_or(""));
            for name in [
                "pids.max",
                "memory.limit_in_bytes",
                "memory.max",
                "cpu.shares",
                "cpu.weight",
            ] {
                let first = controllers.split(',').next().unwrap_or("");
                let file = Path::new("/sys/fs/cgroup")
                    .join(first)
                    .join(&path[1..])
                    .join(name);
                if let Ok(value) = fs::read_to_string(&file) {
                    limits.push(format!("{name} {}", value.trim()));
                }
            }
        }
        let kept = [
            "Uid",
            "Gid",
            "Groups",
            "Seccomp",
            "NoNewPrivs",
            "CapEff",
            "CapBnd",
            "CapPrm",
        ];
        let status = read("status")?;
        let status = status.lines().filter(|line| {
            kept.iter()
                .any(|name| line.starts_with(&format!("{name}:")))
        });
        let mounts = read("mountinfo")?;
        let mut mounts: Vec<String> = mounts
            .lines()
            .map(|line| {
                let fields: Vec<&str> = line.split(' ').collect();
                let end = fields.iter().position(|f| *f == "-").unwrap_or(0);
                // Where, how, and what; not the numbers. What runc hides is hidden by
                // some /dev/null, after a restore by the host's.
                match fields[4].starts_with("/proc/") {
                    true => fields[4].to_owned(),
                    false => format!("{} {} {}", fields[4], fields[5], fields[end + 1]),
                }
            })
            .collect();
        mounts.sort();
        let environment = fs::read(format!("/proc/{pid}/environ"))?;
        let inspected = match sandbox.client() {
            Client::Docker => {
                let format = "{{.Id}} {{.State.StartedAt}} {{.State.Status}} {{.RestartCount}} \
                              {{.NetworkSettings.SandboxKey}}";
                sandbox
                    .client()
                    .tool(["inspect", "-f", format, sandbox.name()])
            }
            Client::Ctr { .. } => sandbox.client().tool(["container", "info", sandbox.id()]),
        };
        let within = |command: &[&str]| {
            Tool::new("nsenter")
                .args(["-t", &pid.to_string(), "-n", "-u"])
                .args(command.iter().copied())
                .run()?
                .text()
        };
        Ok(Self {
            id: sandbox.id().to_owned(),
            namespaces: vec![
                fs::read_link(format!("/proc/{pid}/ns/net"))?
                    .display()
                    .to_string(),
            ],
            hostname: within(&["hostname"])?,
            addresses: within(&["ip", "-o", "addr"])?,
            cgroups,
            limits,
            status: status.map(str::to_owned).collect(),
            mounts,
            environment: environment.split(|b| *b == 0).map(<[u8]>::to_vec).collect(),
            inspected: inspected.run()?.text()?,
        })
    }
}

/// Fails with what differs.
fn same(now: &Identity, before: &Identity) -> Result<()> {
    let lines = |identity: &Identity| -> BTreeSet<String> {
        format!("{identity:#?}")
            .lines()
            .map(str::to_owned)
            .collect()
    };
    let (now_lines, before_lines) = (lines(now), lines(before));
    ensure!(
        now == before,
        "it was {:?} and is {:?}",
        before_lines.difference(&now_lines).collect::<Vec<_>>(),
        now_lines.difference(&before_lines).collect::<Vec<_>>()
    );
    Ok(())
}

/// Options with which a sandbox is not like every other.
fn peculiar(testbed: &Testbed, client: Client) -> RunOptions {
    let mut options = debian().env("PECULIAR", "yes");
    if client == testbed.docker() {
        options = options.flags(["--hostname", "peculiar", "--ulimit", "nofile=1234:2345"]);
        options = options.flags(["--oom-score-adj", "500"]);
        for (controller, flags) in [
            ("pids", ["--pids-limit", "77"]),
            ("memory", ["--memory", "256m"]),
        ] {
            if testbed.has_controller(controller) {
                options = options.flags(flags);
            }
        }
    } else if testbed.has_controller("memory") {
        options = options.flags(["--memory-limit", "268435456"]);
    }
    options
}

#[test]
fn a_sandbox_that_only_holds_files_goes_back_and_stays_the_same() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let events = testbed.events()?;
    for client in testbed.clients() {
        let mut options = peculiar(&testbed, client);
        if client == testbed.docker() {
            // Not where CRIU is needed: it cannot read the limits of another user's or
            // group's process on a machine that lacks CAP_SYS_RESOURCE.
            options = options.flags(["--user", "0:7"]);
        }
        let sandbox = client.run(DEBIAN, options)?;
        // What somebody did to its network is not lost with its processes.
        let pid = sandbox.pid()?.to_string();
        Tool::new("nsenter")
            .args([
                "-t",
                &pid,
                "-n",
                "ip",
                "addr",
                "add",
                "10.9.8.7/32",
                "dev",
                "lo",
            ])
            .run()?
            .ok()?;
        let before = Identity::of(&sandbox)?;
        assert!(before.addresses.contains("10.9.8.7"), "{before:?}");

        let one = crab.turn_of(&sandbox, Class::Files, "echo one >/root/f; rm /etc/issue")?;
        let two = crab.turn_of(
            &sandbox,
            Class::Files,
            "echo two >/root/f; echo x >/etc/issue",
        )?;
        let three = crab.turn_of(&sandbox, Class::None, "cat /root/f")?;

        let done = crab.rollback(&sandbox, one.number())?;
        assert_eq!(done["checkpoint"], one.number());
        assert_eq!(done["processes"], false);
        assert_eq!(
            sandbox.sh_ok("cat /root/f; ls /etc/issue 2>/dev/null | wc -l")?,
            "one\n0"
        );
        same(&Identity::of(&sandbox)?, &before)?;
        assert_eq!(sandbox.state()?, State::Running);
        assert_eq!(crab.ps_of(&sandbox)?.state, "running");

        // Turns that were left are still there to go to, and numbers go on.
        let four = crab.turn_of(&sandbox, Class::Files, "echo four >/root/f")?;
        assert!(four.number() > three.number());
        crab.rollback(&sandbox, three.number())?;
        assert_eq!(sandbox.sh_ok("cat /root/f /etc/issue")?, "two\nx");
        let turns = crab.turns(&sandbox)?;
        let left: Vec<u64> = turns
            .turns
            .iter()
            .filter(|t| t.left)
            .map(|t| t.number())
            .collect();
        assert!(
            left.contains(&four.number()) && !left.contains(&one.number()),
            "{left:?}"
        );
        let rollbacks = turns.events.iter().filter_map(|event| match event {
            JournalRecord::Rollback(record) => Some((record.asked.0, record.checkpoint.0)),
            _ => None,
        });
        assert_eq!(
            rollbacks.collect::<Vec<_>>(),
            [(one.number(), one.number()), (three.number(), two.number())]
        );
        crab.rollback(&sandbox, 0)?;
        assert_eq!(sandbox.sh_ok("ls /root | wc -l")?, "0");
        same(&Identity::of(&sandbox)?, &before)?;
        assert_eq!(events.exits_of_init(&sandbox)?, 0, "containerd saw an exit");
    }
    Ok(())
}

#[test]
fn a_live_server_goes_back_with_its_memory_and_its_files() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let events = testbed.events()?;
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, peculiar(&testbed, client))?;
        start_server(&crab, &sandbox)?;
        let before = Identity::of(&sandbox)?;
        assert_eq!(ask_as_turn(&crab, &sandbox, Class::Full)?.0, 1);
        let (count, second) = ask_as_turn(&crab, &sandbox, Class::Full)?;
        assert_eq!(count, 2);
        assert_eq!(ask_as_turn(&crab, &sandbox, Class::Full)?.0, 3);
        crab.turn_of(
            &sandbox,
            Class::Files,
            "echo later >/root/later; echo x >/dev/shm/later",
        )?;

        for round in 0..3 {
            let done = crab.rollback(&sandbox, second)?;
            assert_eq!(done["processes"], true, "round {round}");
            assert_eq!(
                sandbox
                    .sh_ok("ls /root /dev/shm | tr '\\n' ' '; grep -c . /root/log")?
                    .trim(),
                "/dev/shm: /root: log server.py 3".replace("/dev/shm: ", "/dev/shm:  "),
                "round {round}"
            );
            assert_eq!(ask(&sandbox)?, 3, "round {round}");
            assert_eq!(ask(&sandbox)?, 4, "round {round}");
            assert_eq!(sandbox.sh_ok("tail -n 1 /root/log")?, "count 4");
            same(&Identity::of(&sandbox)?, &before)?;
        }
        assert_eq!(sandbox.state()?, State::Running);
        assert_eq!(events.exits_of_init(&sandbox)?, 0, "containerd saw an exit");

        // To before it was started.
        crab.rollback(&sandbox, 0)?;
        assert_eq!(sandbox.processes()?.len(), 1);
        same(&Identity::of(&sandbox)?, &before)?;
    }
    Ok(())
}

#[test]
fn an_init_that_is_the_server_goes_back_and_its_output_goes_on() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let events = testbed.events()?;
    for client in testbed.clients() {
        let options = debian().args(["python3", "-c", SERVER]);
        let sandbox = client.run(DEBIAN, options)?;
        assert_eq!(ask_as_turn(&crab, &sandbox, Class::Processes)?.0, 1);
        let (count, second) = ask_as_turn(&crab, &sandbox, Class::Processes)?;
        assert_eq!(count, 2);
        assert_eq!(ask(&sandbox)?, 3);
        let mut printed = vec!["ready", "count 1", "count 2", "count 3"];
        for round in 0..3 {
            crab.rollback(&sandbox, second)?;
            assert_eq!(ask(&sandbox)?, 3, "round {round}");
            assert_eq!(ask(&sandbox)?, 4, "round {round}");
            printed.extend(["count 3", "count 4"]);
            if client == testbed.docker() {
                poll("its output is in the log", LIMIT, || {
                    let logs = sandbox.logs()?.stdout;
                    Ok((logs.lines().eq(printed.iter().copied())).then_some(()))
                })
                .with_context(|| format!("round {round}"))?;
            }
        }
        assert_eq!(events.exits_of_init(&sandbox)?, 0, "containerd saw an exit");
        // Its end is still told, once.
        processes::kill(sandbox.pid()?)?;
        sandbox.wait_for(State::Stopped)?;
        assert_eq!(events.exits_of_init(&sandbox)?, 1);
    }
    Ok(())
}

#[test]
fn an_exec_that_runs_ends_with_137() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, debian())?;
        let one = crab.turn_of(&sandbox, Class::Files, "echo one >/root/f")?;
        let script = "echo two >/root/f; echo runs; exec sleep 1000";
        let running = sandbox.exec_start(&["sh", "-c", script], &ExecOptions::new())?;
        poll("it runs", LIMIT, || {
            let file = format!("/proc/{}/root/root/f", sandbox.pid()?);
            Ok((fs::read_to_string(file)? == "two\n").then_some(()))
        })?;
        crab.rollback(&sandbox, one.number())?;
        let ended = running.wait()?;
        assert_eq!(
            (ended.status, ended.stdout.as_str()),
            (137, "runs\n"),
            "{}",
            ended.stderr
        );
        assert_eq!(sandbox.sh_ok("cat /root/f")?, "one");
        // What it did is not lost: it is a turn of its own.
        let left = crab.wait_for_turn_after(&sandbox, Some(one.number()))?;
        crab.rollback(&sandbox, left.number())?;
        assert_eq!(sandbox.sh_ok("cat /root/f")?, "two");
    }
    Ok(())
}

fn sleepers(sandbox: &Sandbox) -> Result<Vec<String>> {
    let inside: BTreeSet<u32> = sandbox.processes()?.into_iter().collect();
    let mut found: Vec<String> = processes::all()
        .into_iter()
        .filter(|(pid, words)| inside.contains(pid) && words[0] == "sleep")
        .map(|(_, words)| words[1].clone())
        .filter(|how_long| how_long != "infinity")
        .collect();
    found.sort();
    Ok(found)
}

#[test]
fn cycles_of_exec_checkpoint_and_rollback_go_on_for_ever() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, debian())?;
        let mut expected = Vec::new();
        let mut turns = Vec::new();
        for cycle in 1..=5 {
            let script = format!("{}; echo {cycle} >/root/{cycle}", sleeper(1000 + cycle));
            let turn = crab.turn_of(&sandbox, Class::Full, &script)?;
            ensure!(turn.record.degraded.is_none(), "cycle {cycle}: {turn:?}");
            turns.push(turn.number());
            expected.push((1000 + cycle).to_string());
            assert_eq!(crab.checkpoint(&sandbox)?["class"], "none", "cycle {cycle}");
            crab.turn_of(
                &sandbox,
                Class::Full,
                "pkill -f '^sleep 100'; while pgrep -f '^sleep 100'; do :; done; rm -r /root",
            )?;
            crab.rollback(&sandbox, turn.number())
                .with_context(|| format!("cycle {cycle}"))?;
            assert_eq!(sleepers(&sandbox)?, expected, "cycle {cycle}");
            assert_eq!(sandbox.sh_ok("ls /root | wc -l")?, cycle.to_string());
        }
        for (at, turn) in turns.iter().enumerate() {
            crab.rollback(&sandbox, *turn)?;
            assert_eq!(sleepers(&sandbox)?, expected[..=at], "turn {turn}");
        }
    }
    Ok(())
}

#[test]
fn a_turn_that_does_not_exist_is_refused_and_nothing_is_touched() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, debian())?;
        crab.turn_of(&sandbox, Class::Files, "echo one >/root/f")?;
        let running = sandbox.exec_start(&["sleep", "1000"], &ExecOptions::new())?;
        let inside = poll("the exec runs", LIMIT, || {
            let inside = sandbox.processes()?;
            Ok((sleepers(&sandbox)? == ["1000"]).then_some(inside))
        })?;
        let pid = sandbox.pid()?;
        for turn in ["3", "999", "18446744073709551615"] {
            let refusal = crab.refusal(&["rollback", &sandbox.sandbox_id(), "--turn", turn])?;
            assert_eq!(refusal.code, 3, "{}", refusal.line);
        }
        // The one that is open has not ended, so there is nothing to go back to.
        crab.refusal(&["rollback", &sandbox.sandbox_id(), "--turn", "2"])?;
        assert_eq!(sandbox.pid()?, pid);
        let now = sandbox.processes()?;
        ensure!(
            inside.iter().all(|pid| now.contains(pid)),
            "a process was killed"
        );
        drop(running);
        assert_eq!(sandbox.sh_ok("cat /root/f")?, "one");
    }
    Ok(())
}

#[test]
fn a_paused_or_stopped_sandbox_is_refused() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let client = testbed.docker();
    let sandbox = client.run(DEBIAN, debian())?;
    let one = crab.turn_of(&sandbox, Class::Files, "echo one >/root/f")?;
    let turn = one.number().to_string();
    let rollback = ["rollback", sandbox.name(), "--turn", &turn];
    client.tool(["pause", sandbox.name()]).run()?.ok()?;
    let refusal = crab.refusal(&rollback)?;
    assert_eq!(refusal.code, 4, "{}", refusal.line);
    assert!(refusal.line.contains("paused"), "{}", refusal.line);
    let refusal = crab.refusal(&["checkpoint", sandbox.name()])?;
    assert!(refusal.line.contains("paused"), "{}", refusal.line);
    client.tool(["unpause", sandbox.name()]).run()?.ok()?;
    sandbox.stop()?;
    let refusal = crab.refusal(&rollback)?;
    assert_eq!(refusal.code, 4, "{}", refusal.line);
    assert!(refusal.line.contains("crab restore"), "{}", refusal.line);
    Ok(())
}

/// A program of the host, replaced for a while by one that fails when it is told to.
struct Saboteur {
    program: &'static str,
    trigger: &'static str,
}

impl Saboteur {
    /// In the place of a program: it fails once for each line that is written to
    /// `trigger`, where its arguments have the word.
    fn replace(program: &'static str, trigger: &'static str, word: &str) -> Result<Self> {
        let real = format!("{program}.real");
        fs::rename(program, &real).with_context(|| format!("move {program}"))?;
        let script = format!(
            "#!/bin/sh\n\
             case \" $* \" in *' {word} '*)\n\
             if [ -s {trigger} ]; then sed -i 1d {trigger}; echo sabotage >&2; exit 1; fi;;\n\
             esac\n\
             exec {real} \"$@\"\n"
        );
        // Never half written.
        let new = format!("{program}.new");
        fs::write(&new, script)?;
        fs::set_permissions(&new, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        fs::rename(&new, program)?;
        Ok(Self { program, trigger })
    }

    fn fail(&self, times: usize) -> Result<()> {
        fs::write(self.trigger, "x\n".repeat(times)).context("arm the saboteur")
    }

    /// How many failures are left.
    fn left(&self) -> Result<usize> {
        Ok(fs::read_to_string(self.trigger)?.lines().count())
    }
}

impl Drop for Saboteur {
    fn drop(&mut self) {
        let _ = fs::rename(format!("{}.real", self.program), self.program);
        let _ = fs::remove_file(self.trigger);
    }
}

#[test]
fn a_restore_that_fails_half_way_leaves_the_sandbox_as_it_was() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let events = testbed.events()?;
    let criu = Saboteur::replace("/usr/sbin/criu", "/run/criu-fails", "swrk")?;
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, debian())?;
        start_server(&crab, &sandbox)?;
        let (_, first) = ask_as_turn(&crab, &sandbox, Class::Full)?;
        assert_eq!(ask_as_turn(&crab, &sandbox, Class::Full)?.0, 2);
        crab.turn_of(
            &sandbox,
            Class::Files,
            "echo kept >/root/kept; echo kept >/dev/shm/kept",
        )?;
        // Nothing is left to be dumped, so that what fails is a restore.
        assert_eq!(crab.checkpoint(&sandbox)?["class"], "none");
        let before = Identity::of(&sandbox)?;

        criu.fail(1)?;
        let turn = first.to_string();
        let refusal = crab.refusal(&["rollback", &sandbox.sandbox_id(), "--turn", &turn])?;
        assert_eq!(criu.left()?, 0, "nothing was restored: {}", refusal.line);
        assert!(refusal.line.contains("as it was"), "{}", refusal.line);
        assert_eq!(sandbox.state()?, State::Running);
        assert_eq!(sandbox.sh_ok("cat /root/kept /dev/shm/kept")?, "kept\nkept");
        assert_eq!(ask(&sandbox)?, 3);
        same(&Identity::of(&sandbox)?, &before)?;
        assert_eq!(events.exits_of_init(&sandbox)?, 0, "containerd saw an exit");
        // And now it works.
        crab.rollback(&sandbox, first)?;
        assert_eq!(ask(&sandbox)?, 2);
        assert_eq!(sandbox.sh_ok("ls /root/kept 2>/dev/null | wc -l")?, "0");
    }
    Ok(())
}

#[test]
fn where_there_is_no_way_back_it_is_said_and_restore_helps() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let events = testbed.events()?;
    let criu = Saboteur::replace("/usr/sbin/criu", "/run/criu-fails", "swrk")?;
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, debian())?;
        start_server(&crab, &sandbox)?;
        let (_, first) = ask_as_turn(&crab, &sandbox, Class::Full)?;
        assert_eq!(ask_as_turn(&crab, &sandbox, Class::Full)?.0, 2);
        assert_eq!(crab.checkpoint(&sandbox)?["class"], "none");
        criu.fail(100)?;
        let turn = first.to_string();
        let refusal = crab.refusal(&["rollback", &sandbox.sandbox_id(), "--turn", &turn])?;
        assert!(refusal.line.contains("crab restore"), "{}", refusal.line);
        sandbox.wait_for(State::Stopped)?;
        assert_eq!(events.exits_of_init(&sandbox)?, 1);
        criu.fail(0)?;
        crab.restore(&sandbox, None)?;
        assert_eq!(sandbox.state()?, State::Running);
        assert_eq!(ask(&sandbox)?, 3);
        crab.rollback(&sandbox, first)?;
        assert_eq!(ask(&sandbox)?, 2);
    }
    Ok(())
}

#[test]
fn an_init_that_cannot_be_started_again_leaves_the_sandbox_as_it_was() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let events = testbed.events()?;
    let runc = Saboteur::replace("/usr/sbin/runc", "/run/runc-fails", "create")?;
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, debian())?;
        let one = crab.turn_of(&sandbox, Class::Files, "echo one >/root/f")?;
        crab.turn_of(&sandbox, Class::Files, "echo two >/root/f")?;
        runc.fail(1)?;
        let turn = one.number().to_string();
        let refusal = crab.refusal(&["rollback", &sandbox.sandbox_id(), "--turn", &turn])?;
        assert_eq!(runc.left()?, 0, "nothing was created: {}", refusal.line);
        assert!(refusal.line.contains("as it was"), "{}", refusal.line);
        assert_eq!(sandbox.state()?, State::Running);
        assert_eq!(sandbox.sh_ok("cat /root/f")?, "two");
        assert_eq!(events.exits_of_init(&sandbox)?, 0, "containerd saw an exit");
        crab.rollback(&sandbox, one.number())?;
        assert_eq!(sandbox.sh_ok("cat /root/f")?, "one");
    }
    Ok(())
}

#[test]
fn a_sandbox_at_a_terminal_goes_back() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let docker = testbed.docker();
    let options = debian().flags(["-it"]).args(["bash", "--norc"]);
    let sandbox = docker.run(DEBIAN, options)?;
    let one = crab.turn_of(&sandbox, Class::Full, "echo one >/root/f")?;
    crab.turn_of(&sandbox, Class::Files, "echo two >/root/f")?;
    crab.rollback(&sandbox, one.number())?;
    assert_eq!(sandbox.sh_ok("cat /root/f")?, "one");
    // Somebody who attaches finds it.
    let tool = docker.tool(["attach", "--detach-keys", "ctrl-x", sandbox.name()]);
    let mut terminal = crab_integration::Terminal::start(&tool, 24, 80)?;
    terminal.send("echo attached $((6*7))\n")?;
    terminal.wait_for("attached 42")?;
    let Some(degraded) = &one.record.degraded else {
        return Ok(());
    };
    // A checkpoint without its terminal has to say so.
    if !degraded.starts_with("files only: ") {
        bail!("{degraded}");
    }
    Ok(())
}
