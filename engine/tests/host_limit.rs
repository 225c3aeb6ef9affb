// SPDX-License-Identifier: Apache-2.0

//! The limit that the host has for the checkpoints of all its sandboxes, kept by a real crabd in a
//! real store. The shim here removes with a real writer, and has no container.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::sleep,
    time::{Duration, Instant},
};

use crab_api::{
    paths,
    sandbox::{CollectRequest, CollectResponse},
    sandbox_ttrpc,
    ttrpc::{self, asynchronous::Server},
};
use crab_store::*;
use rustix::process::{Pid, Signal, kill_process};

const PATIENCE: Duration = Duration::from_secs(120);
/// What a checkpoint takes at least.
const SIZE: usize = 100_000;

/// A store, and a crabd that knows of a limit for it.
struct Host {
    directory: tempfile::TempDir,
    crabd: Option<Child>,
}

impl Host {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            crabd: None,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn store(&self) -> Store {
        Store::create(self.path("store")).unwrap()
    }

    fn taken(&self) -> u64 {
        let store = self.store();
        store.bytes_of(&store.sandboxes().unwrap())
    }

    fn start(&mut self, limit: u64) {
        let config = format!(
            "store = {:?}\nrun_dir = {:?}\n[retention]\nhost_max_bytes = {limit}\n",
            self.path("store"),
            self.path("run"),
        );
        fs::write(self.path("config.toml"), config).unwrap();
        let crabd = Command::new(env!("CARGO_BIN_EXE_crabd"))
            // Not counted: there is nothing to count.
            .args(["--pin-dir", "/proc/none", "--idle-exit", "0"])
            .env("CRAB_CONFIG", self.path("config.toml"))
            .stderr(Stdio::from(
                fs::File::create(self.path("crabd.log")).unwrap(),
            ))
            .spawn()
            .unwrap();
        self.crabd = Some(crabd);
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("crabd.log")).unwrap()
    }

    fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < PATIENCE, "never: {what}\n{}", self.log());
            sleep(Duration::from_millis(50));
        }
    }

    /// Tells crabd to end, and waits for it.
    fn end(&mut self) {
        let mut crabd = self.crabd.take().unwrap();
        kill_process(Pid::from_child(&crabd), Signal::TERM).unwrap();
        assert!(crabd.wait().unwrap().success(), "{}", self.log());
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(mut crabd) = self.crabd.take() {
            let _ = crabd.kill();
            let _ = crabd.wait();
        }
    }
}

/// Bytes that cannot be made smaller.
fn noise(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..SIZE).map(|_| next()).collect()
}

/// Publishes checkpoints of these turns, with nothing in common.
fn history(writer: &SandboxWriter, seed: u64, turns: std::ops::Range<u64>) {
    for turn in turns {
        let mut pack = writer.begin().unwrap();
        let content = noise(seed * 1000 + turn);
        let Content { size, segments } = pack.put_stream(&mut &*content).unwrap();
        let entry = |path: &str, kind| TreeEntry {
            path: path.into(),
            kind,
            mode: 0o755,
            uid: 0,
            gid: 0,
            mtime: Time::default(),
            xattrs: Vec::new(),
        };
        let file = EntryKind::File {
            size,
            content: segments,
        };
        let entries = vec![entry("", EntryKind::Dir), entry("f", file)];
        let upper = pack.put_tree(&Tree { entries }).unwrap();
        let spec = pack.put(b"{}").unwrap();
        let manifest = Manifest {
            sandbox: writer.store().id().clone(),
            turn: TurnId(turn),
            class: Class::Files,
            created_ms: 1_700_000_000_000 + turn,
            parent: None,
            files: FileImage {
                turn: TurnId(turn),
                upper,
                whole: false,
                tmpfs: Vec::new(),
            },
            processes: None,
            degraded: None,
            spec,
            packs: Vec::new(),
            bytes_stored: 0,
            bytes_raw: 0,
            machine: None,
        };
        pack.publish(manifest).unwrap();
        let record = TurnRecord {
            command: "date > now".to_owned(),
            began_ms: 1_700_000_000_000 + turn,
            ended_ms: 1_700_000_000_001 + turn,
            exit: Some(0),
            class: Class::Files,
            reason: "1 file changed".to_owned(),
            checkpoint: Some(TurnId(turn)),
            files_changed: 1,
            ..TurnRecord::new(TurnId(turn), Trigger::Exec)
        };
        let record = JournalRecord::Turn(record);
        writer.append(record, Durability::Lazy).unwrap();
    }
}

fn checkpoints(store: &Store, id: &SandboxId) -> Vec<u64> {
    let checkpoints = store.sandbox(id).unwrap().checkpoints().unwrap();
    checkpoints.into_iter().map(|turn| turn.0).collect()
}

/// A shim that removes as the real one does.
struct Shim {
    writer: Arc<SandboxWriter>,
    asked: AtomicU64,
}

#[async_trait::async_trait]
impl sandbox_ttrpc::Sandbox for Shim {
    async fn collect(
        &self,
        _: &ttrpc::asynchronous::TtrpcContext,
        request: CollectRequest,
    ) -> ttrpc::Result<CollectResponse> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let wanted = Wanted {
            limits: Limits {
                bytes: request.max_bytes,
                ..Limits::default()
            },
            ..Wanted::default()
        };
        let done = self.writer.collect(&wanted).unwrap();
        Ok(CollectResponse {
            kept: done.kept,
            bytes_freed: done.bytes_freed,
            ..Default::default()
        })
    }
}

#[test]
fn a_host_comes_below_its_limit_and_what_must_stay_stays() {
    let mut host = Host::new();
    let store = host.store();
    let [gone, live]: [SandboxId; 2] = ["test/gone", "test/live"].map(|id| id.parse().unwrap());
    {
        let writer = store.writer(&gone).unwrap();
        history(&writer, 1, 0..6);
        let name = "good".parse().unwrap();
        writer.store().set_tag(&name, TurnId(1), 1).unwrap();
    }
    let writer = Arc::new(store.writer(&live).unwrap());
    history(&writer, 2, 0..6);
    let shim = Arc::new(Shim {
        writer: writer.clone(),
        asked: AtomicU64::new(0),
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let run = host.path("run");
    fs::create_dir_all(paths::sandbox_dir(&run, "test", "live")).unwrap();
    let address = format!("unix://{}", host.path("shim.sock").display());
    fs::write(paths::sandbox_address(&run, "test", "live"), &address).unwrap();
    let mut server = runtime.block_on(async {
        let mut server = Server::new()
            .bind(&address)
            .unwrap()
            .register_service(sandbox_ttrpc::create_sandbox(shim.clone()));
        server.start().await.unwrap();
        server
    });
    let one = host.taken() / 12;

    // Room for all but two: the one that is gone has four that may go.
    let limit = 11 * one;
    host.start(limit);
    host.until("it is below its limit", || host.taken() <= limit);
    host.until("it is told", || host.log().contains("the host's limit"));
    let left = checkpoints(&store, &gone);
    assert!(left.contains(&1) && left.contains(&5), "{left:?}");
    assert!((2..6).contains(&left.len()), "{left:?}");
    assert_eq!(checkpoints(&store, &live), [0, 1, 2, 3, 4, 5]);
    assert_eq!(shim.asked.load(Ordering::Relaxed), 0);

    // More comes than the one that is gone has to give: the live one gives, too.
    history(&writer, 2, 6..16);
    host.until("it is below its limit again", || host.taken() <= limit);
    assert_eq!(checkpoints(&store, &gone), [1, 5]);
    let left = checkpoints(&store, &live);
    assert!(left.contains(&15) && !left.contains(&0), "{left:?}");
    assert!(shim.asked.load(Ordering::Relaxed) > 0);
    host.end();

    // What must stay is more than is allowed.
    host.start(one);
    host.until("it says so", || {
        host.log().contains("retention.host_max_bytes allows")
    });
    assert_eq!(checkpoints(&store, &gone), [1, 5]);
    assert_eq!(checkpoints(&store, &live), [15]);
    // And does not try it all the time.
    let asked = shim.asked.load(Ordering::Relaxed);
    let spent = processor_time(&host);
    sleep(Duration::from_secs(6));
    assert_eq!(shim.asked.load(Ordering::Relaxed), asked);
    let spent = processor_time(&host) - spent;
    assert!(spent < Duration::from_millis(300), "{spent:?} in 6 s");
    host.end();
    for id in [&gone, &live] {
        let checked = store.sandbox(id).unwrap().check(&mut |_, _| ()).unwrap();
        assert!(checked.is_whole(), "{checked:?}");
    }
    runtime.block_on(server.shutdown()).unwrap();
}

/// What crabd has spent, to a hundredth of a second.
fn processor_time(host: &Host) -> Duration {
    let pid = host.crabd.as_ref().unwrap().id();
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).unwrap();
    let fields = stat.rsplit(')').next().unwrap().split_whitespace();
    let ticks: u64 = fields
        .skip(11)
        .take(2)
        .map(|f| f.parse::<u64>().unwrap())
        .sum();
    Duration::from_millis(ticks * 10)
}
