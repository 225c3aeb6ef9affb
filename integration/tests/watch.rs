// SPDX-License-Identifier: Apache-2.0

//! Watching a host: what happens in its sandboxes, as it happens and afterwards, and what is counted of
//! it.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    thread::sleep,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use crab_integration::{
    BUSYBOX, Counter, Crab, DEBIAN, EACH_EXEC_A_TURN, RunOptions, Running, Sandbox, Swapped,
    Testbed, Tool, poll, processes,
};
use crab_store::Class;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(20);
const CONFIG: &str = "/etc/crab/config.toml";

/// A host whose crabd tells metrics.
struct Host {
    port: u16,
    _config: Swapped,
}

impl Host {
    fn new() -> Result<Self> {
        // One that is free now.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let config = format!(
            "{EACH_EXEC_A_TURN}[metrics]\nlisten = \"127.0.0.1:{port}\"\n[log]\nformat = \"json\"\n"
        );
        let config = Swapped::with(CONFIG, &config)?;
        // The next one reads it.
        if processes::crabd().is_some() {
            processes::kill_crabd()?;
        }
        Ok(Self {
            port,
            _config: config,
        })
    }

    /// The metrics by their names with labels.
    fn scrape(&self) -> Result<BTreeMap<String, f64>> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        ensure!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        let (_, body) = answer.split_once("\r\n\r\n").context("no body")?;
        let series = body.lines().filter(|line| !line.starts_with('#'));
        series
            .map(|line| {
                let (name, value) = line.rsplit_once(' ').context("no value")?;
                Ok((name.to_owned(), value.parse()?))
            })
            .collect()
    }

    fn until_watched(&self, sandboxes: f64) -> Result<()> {
        poll("they are watched", LIMIT, || {
            // One that is only just coming does not answer.
            let told = self.scrape().unwrap_or_default();
            let watched = told.get("crab_sandboxes_watched") == Some(&sandboxes);
            Ok(watched.then_some(()))
        })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // What is configured for this test is not for the next one.
        let _ = processes::kill_crabd();
    }
}

/// `crab events --follow --json`, into a file.
struct Follower {
    file: PathBuf,
    _dir: tempfile::TempDir,
    _running: Running,
}

impl Follower {
    fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("events");
        let script = format!("exec crab events --follow --json >{}", file.display());
        let running = Tool::new("sh").args(["-c", &script]).start()?;
        // It has begun when it watches.
        let fds = format!("/proc/{}/fdinfo", running.pid());
        poll("events are followed", LIMIT, || {
            let infos = fs::read_dir(&fds)?.flatten();
            let mut infos = infos.flat_map(|info| fs::read_to_string(info.path()));
            Ok(infos.any(|info| info.contains("inotify wd:")).then_some(()))
        })?;
        Ok(Self {
            file,
            _dir: dir,
            _running: running,
        })
    }

    fn of(&self, sandbox: &str) -> Result<Vec<Value>> {
        Ok(events(&fs::read_to_string(&self.file)?)?
            .into_iter()
            .filter(|event| event["sandbox"] == sandbox)
            .collect())
    }

    /// Waits until it has told of that of this sandbox, and gives all of it.
    fn until(&self, sandbox: &str, event: &str) -> Result<Vec<Value>> {
        poll(&format!("{event} of {sandbox} is told"), LIMIT, || {
            let told = self.of(sandbox)?;
            Ok(told.iter().any(|it| it["event"] == event).then_some(told))
        })
    }
}

/// An object in each line.
fn events(text: &str) -> Result<Vec<Value>> {
    // The last line may be on its way.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let parse = |line| serde_json::from_str(line).with_context(|| format!("{line:?}"));
    whole.lines().map(parse).collect()
}

fn names(events: &[Value]) -> Vec<&str> {
    events
        .iter()
        .filter_map(|it| it["event"].as_str())
        .collect()
}

/// What history says happened.
fn told(crab: &Crab, args: &[&str]) -> Result<Vec<Value>> {
    events(&crab.run(&[&["events"], args].concat())?.ok()?.stdout)
}

fn of_turn(events: &[Value], turn: u64) -> Vec<&str> {
    let of_it = events.iter().filter(|it| it["turn"] == turn);
    of_it.filter_map(|it| it["event"].as_str()).collect()
}

/// By class, and checkpoints that are durable.
fn counted(crab: &Crab, sandboxes: &[&Sandbox]) -> Result<BTreeMap<String, f64>> {
    let mut counts = BTreeMap::new();
    for sandbox in sandboxes {
        for turn in crab.turns(sandbox)?.turns {
            let class = turn.class();
            let series = format!("crab_turns_total{{class=\"{class}\"}}");
            *counts.entry(series).or_default() += 1.0;
            if turn.is_whole() && turn.record.checkpoint == Some(turn.record.turn) {
                let series =
                    format!("crab_checkpoints_total{{class=\"{class}\",outcome=\"durable\"}}");
                *counts.entry(series).or_default() += 1.0;
            }
        }
    }
    Ok(counts)
}

/// That what was counted between two scrapes is what turns there were.
fn differ(
    before: &BTreeMap<String, f64>,
    after: &BTreeMap<String, f64>,
    turns: [&BTreeMap<String, f64>; 2],
) -> Option<String> {
    let of = |counts: &BTreeMap<String, f64>, name: &String| counts.get(name).copied();
    turns[1].keys().find_map(|name| {
        let counted = of(after, name)? - of(before, name)?;
        let were = of(turns[1], name)? - of(turns[0], name).unwrap_or_default();
        (counted != were).then(|| format!("{name}: {counted} counted of {were}"))
    })
}

#[test]
fn turns_of_every_class_are_told_as_they_happen_and_counted() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let host = Host::new()?;
    if !Path::new("/var/lib/crab/FORMAT").exists() {
        // Or it is not known when it follows.
        let args = RunOptions::new().args(["true"]);
        testbed.ctr().run_rm(BUSYBOX, args)?.ok()?;
    }
    let follower = Follower::start()?;
    let sandbox = testbed.ctr().run(DEBIAN, RunOptions::without_bytecode())?;
    let id = sandbox.sandbox_id();
    let started = follower.until(&id, "checkpoint-durable")?;
    ensure!(
        names(&started)
            == [
                "sandbox-started",
                "checkpoint-captured",
                "checkpoint-durable"
            ],
        "{started:?}"
    );
    host.until_watched(1.0)?;
    // What is told may be a second old.
    sleep(Duration::from_millis(1100));
    let before = host.scrape()?;
    let turns = [&counted(&crab, &[&sandbox])?, &BTreeMap::new()];

    let none = crab.turn_of(&sandbox, Class::None, "true")?;
    let files = crab.turn_of(&sandbox, Class::Files, "echo hello >/root/f")?;
    let mut last = files.number();
    if testbed.driver().keeps_processes() {
        let counter = Counter::start(&crab, &sandbox, 1)?;
        let (_, processes) = counter.tell("count")?;
        let (_, full) = counter.ask()?;
        ensure!(processes.class() == Class::Processes, "{processes:?}");
        ensure!(full.class() == Class::Full, "{full:?}");
        has_spans(&crab, &sandbox, &full.record)?;
        last = full.number();
    }
    // One that begins while events are followed, of another client.
    let other = testbed.docker().run(BUSYBOX, RunOptions::new())?;
    follower.until(&other.sandbox_id(), "sandbox-started")?;
    crab.wait_for_turn(&other, 0)?;
    crab.rollback(&sandbox, files.number())?;

    let after = poll("all is counted", LIMIT, || {
        let after = host.scrape()?;
        let now = counted(&crab, &[&sandbox, &other])?;
        Ok(match differ(&before, &after, [turns[0], &now]) {
            // Sizes are looked at less often.
            None if after["crab_store_bytes"] > 0.0 => Some(after),
            _ => None,
        })
    })
    .with_context(|| {
        let now = counted(&crab, &[&sandbox, &other]);
        let after = host.scrape();
        format!("{before:?}\n{after:?}\n{now:?}")
    })?;
    host.until_watched(2.0)?;
    let rollbacks = |counts: &BTreeMap<String, f64>| {
        let of = |kind| counts[&format!("crab_rollbacks_total{{kind=\"{kind}\"}}")];
        of("warm") + of("cold")
    };
    ensure!(rollbacks(&after) - rollbacks(&before) == 1.0, "{after:?}");
    ensure!(after["crab_stored_bytes_total"] > before["crab_stored_bytes_total"]);
    ensure!(!after.keys().any(|name| name.contains(sandbox.id())));

    // A sandbox that is removed while events are followed.
    let other_id = other.sandbox_id();
    other.remove()?;
    follower.until(&other_id, "sandbox-ended")?;
    let told_now = follower.until(&id, "rolled-back")?;
    ensure!(
        of_turn(&told_now, none.number()) == ["turn-opened", "turn-closed"],
        "{told_now:?}"
    );
    let steps = [
        "turn-opened",
        "turn-closed",
        "checkpoint-captured",
        "checkpoint-durable",
    ];
    ensure!(of_turn(&told_now, last) == steps, "{told_now:?}");
    // What is read afterwards is what was told, and no more.
    let mut read = told(&crab, &[&id, "--json"])?;
    let mut told_now = follower.of(&id)?;
    for events in [&mut read, &mut told_now] {
        events.sort_by_key(ToString::to_string);
    }
    ensure!(read == told_now, "{read:?}\n{told_now:?}");
    // From a turn on.
    let since = told(&crab, &[&id, "--json", "--since", &last.to_string()])?;
    ensure!(names(&since).starts_with(&["turn-opened"]), "{since:?}");
    ensure!(since[0]["turn"] == last, "{since:?}");
    // A trace each.
    let traces = told(&crab, &[&id, "--format", "otlp"])?;
    let roots = traces
        .iter()
        .filter(|trace| trace["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["name"] == "turn");
    let turns = crab.turns(&sandbox)?.turns.len();
    ensure!(roots.count() == turns, "{turns} turns: {traces:?}");
    logs_are_for_programs(Path::new("/run/crab/crabd.log"))
}

/// That the parts of a capture took place one after the other.
fn has_spans(crab: &Crab, sandbox: &Sandbox, record: &crab_store::TurnRecord) -> Result<()> {
    let spans = &record.spans;
    let [decide, capture, frozen, publish] =
        [spans.decide, spans.capture, spans.frozen, spans.publish];
    let (decide, capture) = (decide.context("decide")?, capture.context("capture")?);
    let (frozen, publish) = (frozen.context("frozen")?, publish.context("publish")?);
    ensure!(decide.end_us().abs_diff(capture.at_us) <= 2, "{spans:?}");
    ensure!(capture.at_us <= frozen.at_us + 2, "{spans:?}");
    ensure!(frozen.end_us() <= capture.end_us() + 2, "{spans:?}");
    ensure!(publish.at_us >= frozen.end_us(), "{spans:?}");
    ensure!(decide.at_us + 2000 >= record.ended_ms * 1000, "{record:?}");
    let turn = record.turn.to_string();
    let said = crab.run(&["show", &sandbox.sandbox_id(), &turn])?.ok()?;
    ensure!(
        said.stdout.contains("frozen       after"),
        "{}",
        said.stdout
    );
    Ok(())
}

/// That what crabd has logged since it began is an object in each line.
fn logs_are_for_programs(log: &Path) -> Result<()> {
    let log = fs::read_to_string(log)?;
    let lines = log.lines().rev().map(serde_json::from_str::<Value>);
    let lines: Vec<Value> = lines.map_while(Result::ok).collect();
    let watching = lines.iter().find(|line| line["message"] == "watching");
    let watching = watching.with_context(|| format!("no line in JSON: {log}"))?;
    ensure!(watching["level"] == "INFO", "{watching}");
    ensure!(watching["sandbox"].is_string(), "{watching}");
    Ok(())
}

#[test]
fn metrics_are_refused_where_other_hosts_could_read_them() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let flag = Tool::new("crabd")
        .args(["--metrics", "0.0.0.0:9464"])
        .run()?;
    ensure!(flag.status == 2, "{flag:?}");
    ensure!(
        flag.stderr.contains("an address of this host alone"),
        "{flag:?}"
    );
    let _config = Swapped::with(CONFIG, "[metrics]\nlisten = \"0.0.0.0:9464\"\n")?;
    let refusal = testbed.crab().refusal(&["ps"])?;
    ensure!(
        refusal.line.contains("config.toml:2: metrics.listen"),
        "{}",
        refusal.line
    );
    Ok(())
}

#[test]
fn who_follows_ends_with_whoever_reads_it() -> Result<()> {
    Testbed::here()?;
    // Nothing happens meanwhile that could be written into the closed pipe.
    let script = "crab events --follow | true; echo ${PIPESTATUS[0]}";
    let said = Tool::new("bash").args(["-c", script]).limit(LIMIT).run()?;
    ensure!(said.clone().text()? == "0", "{said:?}");
    ensure!(said.stderr.is_empty(), "{said:?}");
    Ok(())
}
