// SPDX-License-Identifier: Apache-2.0
//! The metrics of the real crabd, over its own HTTP: what they say, and that nobody who asks for them
//! can do harm.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crab_store::{
    CaptureFailed, Class, Durability, FailureKind, JournalRecord, SandboxId, Store, Trigger,
    TurnId, TurnRecord,
};
use rustix::process::{Pid, Signal, kill_process};

/// How long whatever is waited for may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A crabd with directories of its own.
struct Crabd {
    directory: tempfile::TempDir,
    child: Child,
    log: Receiver<String>,
}

impl Crabd {
    fn start(config: &str, arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let config = format!(
            "store = {:?}\nrun_dir = {:?}\n{config}",
            path("store"),
            path("run")
        );
        fs::write(path("config.toml"), config).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_crabd"))
            .env("CRAB_CONFIG", path("config.toml"))
            // Not counted: there is nothing to count.
            .args(["--pin-dir", "/proc/none"])
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (send, log) = channel();
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        Self {
            directory,
            child,
            log,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The first line of the log that has these words.
    fn says(&self, words: &str) -> String {
        loop {
            let line = self.log.recv_timeout(LIMIT);
            let line = line.unwrap_or_else(|_| panic!("it never says: {words}"));
            if line.contains(words) {
                return line;
            }
        }
    }

    fn address(&self) -> SocketAddr {
        let line = self.says("metrics at http://");
        let (_, rest) = line.split_once("http://").unwrap();
        rest.split_once('/').unwrap().0.parse().unwrap()
    }

    fn until_ended(&mut self) {
        let start = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < LIMIT, "crabd lives on");
            sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Crabd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let host = "Host: localhost\r\nConnection: close\r\n\r\n";
    stream
        .write_all(format!("{request}{host}").as_bytes())
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn scrape(address: SocketAddr) -> String {
    let answer = ask(address, "GET /metrics HTTP/1.1\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("text/plain; version=0.0.4"), "{answer}");
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

fn value(text: &str, series: &str) -> Option<f64> {
    let series = format!("{series} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&series))?;
    line.parse().ok()
}

fn until(address: SocketAddr, series: &str, expected: f64) -> String {
    let start = Instant::now();
    loop {
        let text = scrape(address);
        if value(&text, series) == Some(expected) {
            return text;
        }
        assert!(
            start.elapsed() < LIMIT,
            "{series} is never {expected}: {text}"
        );
        sleep(Duration::from_millis(100));
    }
}

fn turn(number: u64, class: Class) -> JournalRecord {
    JournalRecord::Turn(TurnRecord {
        command: "secret-of-a-sandbox".to_owned(),
        ended_ms: 1,
        class,
        checkpoint: (class != Class::None).then_some(TurnId(number)),
        ..TurnRecord::new(TurnId(number), Trigger::Exec)
    })
}

#[test]
fn turns_are_counted_from_their_journals_from_its_own_beginning_on() {
    let config = "[metrics]\nlisten = \"127.0.0.1:0\"\n[log]\nformat = \"json\"\n\
                  [retention]\nhost_max_bytes = 1000000\n";
    let mut crabd = Crabd::start(config, &["--idle-exit", "0"]);
    // Its log is for programs.
    let line = crabd.says("metrics at http://");
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["level"], "INFO");
    let address = line["message"].as_str().unwrap();
    let (_, address) = address.split_once("http://").unwrap();
    let address = address.split_once('/').unwrap().0.parse().unwrap();
    let before = scrape(address);
    for (series, expected) in [
        (r#"crab_turns_total{class="full"}"#, 0.0),
        ("crab_sandboxes_watched", 0.0),
        (r#"crab_jobs{state="queued"}"#, 0.0),
        ("crab_store_limit_bytes", 1_000_000.0),
    ] {
        assert_eq!(value(&before, series), Some(expected), "{series}");
    }
    assert_eq!(
        value(&before, r#"crab_programs_info{programs="none"}"#),
        Some(1.0)
    );
    assert!(value(&before, "process_resident_memory_bytes").unwrap() > 0.0);
    assert!(value(&before, "process_start_time_seconds").unwrap() > 1e9);
    // A store that is made while it serves.
    let store = Store::create(crabd.path("store")).unwrap();
    let id = SandboxId::new("default", "a-name").unwrap();
    let writer = store.writer(&id).unwrap();
    let append = |record| writer.append(record, Durability::Lazy).unwrap();
    append(turn(1, Class::Full));
    append(turn(2, Class::None));
    append(JournalRecord::CaptureFailed(CaptureFailed {
        at_ms: 1,
        turn: TurnId(2),
        reason: String::new(),
        kind: FailureKind::NoSpace,
    }));
    until(address, r#"crab_turns_total{class="none"}"#, 1.0);
    append(turn(3, Class::Full));
    let text = until(address, r#"crab_turns_total{class="full"}"#, 2.0);
    let lost = r#"crab_checkpoints_total{class="unknown",outcome="no_space"}"#;
    assert_eq!(value(&text, lost), Some(1.0));
    // Who reads them learns nothing of single sandboxes.
    assert!(
        !text.contains("a-name") && !text.contains("secret"),
        "{text}"
    );
    let open = ask(
        address,
        "GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\n",
    );
    assert!(open.contains("application/openmetrics-text; version=1.0.0"));
    assert!(open.ends_with("# EOF\n"), "{open}");
    let not_found = ask(address, "GET / HTTP/1.1\r\n");
    assert!(not_found.starts_with("HTTP/1.1 404"), "{not_found}");
    let refused = ask(address, "POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n");
    assert!(refused.starts_with("HTTP/1.1 405"), "{refused}");
    // It ends when it is told to, with the thread that answers.
    kill_process(Pid::from_child(&crabd.child), Signal::TERM).unwrap();
    crabd.until_ended();
}

#[test]
fn slow_and_hostile_clients_hold_up_nobody_for_long() {
    let crabd = Crabd::start("", &["--idle-exit", "0", "--metrics", "127.0.0.1:0"]);
    let address = crabd.address();
    // More than may be connected: some that say nothing, some that never come to an end, and some that
    // say what is no HTTP.
    let mut held = Vec::new();
    for number in 0..20 {
        let mut stream = TcpStream::connect(address).unwrap();
        let said: &[u8] = match number % 3 {
            0 => b"",
            1 => b"GET /metrics HTTP/1.1\r\nX: ",
            _ => b"\x16\x03\x01\xff\xff\r\n\r\n",
        };
        let _ = stream.write_all(said);
        held.push(stream);
    }
    let mut large = TcpStream::connect(address).unwrap();
    let _ = large.write_all(&vec![b'a'; 1 << 20]);
    let start = Instant::now();
    let text = scrape(address);
    let took = start.elapsed();
    assert!(text.contains("crab_sandboxes_watched 0"));
    assert!(took < Duration::from_secs(30), "{took:?}");
    // What crabd is there for goes on.
    UnixStream::connect(crabd.path("run/crabd.sock")).unwrap();
    drop((held, large));
}

#[test]
fn where_its_port_is_taken_it_says_so_and_serves() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let crabd = Crabd::start("", &["--idle-exit", "0", "--metrics", &address]);
    let line = crabd.says("no metrics");
    assert!(line.contains("Address already in use"), "{line}");
    assert!(line.contains("metrics.listen"), "{line}");
    UnixStream::connect(crabd.path("run/crabd.sock")).unwrap();
}

#[test]
fn who_scrapes_keeps_no_crabd_that_nobody_needs() {
    let arguments = ["--idle-exit", "2", "--metrics", "127.0.0.1:0"];
    let mut crabd = Crabd::start("", &arguments);
    let address = crabd.address();
    let start = Instant::now();
    while crabd.child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < LIMIT, "crabd lives on");
        if let Ok(mut stream) = TcpStream::connect(address) {
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n");
        }
        sleep(Duration::from_millis(200));
    }
}

#[test]
fn without_being_asked_for_there_are_none() {
    let crabd = Crabd::start("", &["--idle-exit", "0"]);
    crabd.says("serving");
    let tcp = |file: &str| fs::read_to_string(format!("/proc/{}/net/{file}", crabd.child.id()));
    let inodes: Vec<String> = fs::read_dir(format!("/proc/{}/fd", crabd.child.id()))
        .unwrap()
        .flatten()
        .filter_map(|fd| {
            let target = fs::read_link(fd.path()).ok()?;
            let target = target.to_str()?.strip_prefix("socket:[")?;
            Some(target.trim_end_matches(']').to_owned())
        })
        .collect();
    let listening = tcp("tcp").unwrap() + &tcp("tcp6").unwrap_or_default();
    let its = listening.lines().any(|line| {
        let inode = line.split_whitespace().nth(9);
        inode.is_some_and(|inode| inodes.iter().any(|own| own == inode))
    });
    assert!(!its, "it listens at a port");
    let threads = fs::read_dir(format!("/proc/{}/task", crabd.child.id())).unwrap();
    let names = threads
        .flatten()
        .map(|it| fs::read_to_string(it.path().join("comm")));
    assert!(names.flatten().all(|name| name.trim() != "metrics"));
}
