// SPDX-License-Identifier: Apache-2.0
//! The real crabd on a socket and a pin directory of its own. Needs root and
//! BTF.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crab_api::tracer::{
    Effects, EffectsRequest, Empty, TracerStatus, UnwatchRequest, WatchRequest,
};
use crab_api::tracer_ttrpc::TracerClient;
use crab_api::ttrpc::{self, Code, context};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal, kill_process};

/// After how many idle seconds a crabd exits where one shall: more than may pass between
/// its start and the first call on a machine that is busy with other tests.
const IDLE: u64 = 3;

/// A run directory, a watched tmpfs, a cgroup, and the crabds started there.
struct Host {
    directory: tempfile::TempDir,
    cgroup: PathBuf,
    children: Vec<Child>,
}

impl Host {
    /// None, with the reason printed, only where the kernel has no BTF.
    fn new() -> Option<Self> {
        match crab_bpf::probe() {
            Ok(()) => {}
            Err(reason @ crab_bpf::Unsupported::NoBtf) => {
                println!("skipped: {reason}");
                return None;
            }
            Err(reason) => panic!("{reason}"),
        }
        let directory = tempfile::tempdir().unwrap();
        let files = directory.path().join("files");
        fs::create_dir(&files).unwrap();
        mount("crab-test", &files, "tmpfs", MountFlags::empty(), None).unwrap();
        let unified = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
            .into_iter()
            .map(Path::new)
            .find(|path| path.join("cgroup.procs").exists())
            .expect("a cgroup v2 hierarchy");
        let cgroup = tempfile::Builder::new()
            .prefix("crab-test-")
            .tempdir_in(unified)
            .unwrap()
            .keep();
        Some(Self {
            directory,
            cgroup,
            children: Vec::new(),
        })
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("run/crabd.sock")
    }

    fn pins(&self) -> PathBuf {
        self.directory.path().join("pins")
    }

    fn files(&self) -> PathBuf {
        self.directory.path().join("files")
    }

    fn command(&self, idle_exit: u64) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_crabd"));
        command
            .arg("--socket")
            .arg(self.socket())
            .arg("--pin-dir")
            .arg(self.pins())
            .args(["--idle-exit", &idle_exit.to_string()]);
        command
    }

    /// Starts a crabd and waits until it serves. Its index is for the rest.
    fn start(&mut self, idle_exit: u64) -> usize {
        let child = self.command(idle_exit).spawn().unwrap();
        self.children.push(child);
        self.until("crabd serves", |host| {
            std::os::unix::net::UnixStream::connect(host.socket()).is_ok()
        });
        self.children.len() - 1
    }

    /// The same with a configuration; its log is kept.
    fn start_with(&mut self, config: &str) -> usize {
        let file = self.directory.path().join("config.toml");
        fs::write(&file, config).unwrap();
        let mut command = self.command(0);
        command.env("CRAB_CONFIG", &file).stderr(Stdio::piped());
        self.children.push(command.spawn().unwrap());
        self.until("crabd serves", |host| {
            std::os::unix::net::UnixStream::connect(host.socket()).is_ok()
        });
        self.children.len() - 1
    }

    /// Ends one that was started so; gives what it logged.
    fn log_of(&mut self, crabd: usize) -> String {
        self.signal(crabd, Signal::TERM);
        let mut log = String::new();
        let mut stderr = self.children[crabd].stderr.take().unwrap();
        std::io::Read::read_to_string(&mut stderr, &mut log).unwrap();
        self.ends(crabd);
        log
    }

    fn until(&self, what: &str, true_now: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !true_now(self) {
            assert!(start.elapsed() < Duration::from_secs(30), "never: {what}");
            sleep(Duration::from_millis(10));
        }
    }

    fn signal(&mut self, crabd: usize, signal: Signal) {
        let pid = Pid::from_child(&self.children[crabd]);
        kill_process(pid, signal).unwrap();
    }

    fn ends(&mut self, crabd: usize) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.children[crabd].try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "crabd lives on");
            sleep(Duration::from_millis(10));
        }
    }

    /// As a shim asks for it.
    fn request(&self, shim: u32) -> WatchRequest {
        let mut request = WatchRequest::new();
        request.sandbox = "test/one".to_owned();
        request.cgroup_id = fs::metadata(&self.cgroup).unwrap().ino();
        request.devices = vec![fs::metadata(self.files()).unwrap().dev()];
        request.shim_pid = shim;
        request.init_pid = me();
        request
    }

    /// One change of a file, from outside of the cgroup.
    fn change(&self) {
        fs::write(self.files().join("file"), "text").unwrap();
    }

    fn pinned(&self) -> bool {
        fs::read_dir(self.pins()).is_ok_and(|mut entries| {
            entries.any(|e| e.unwrap().file_name().to_string_lossy().starts_with("set-"))
        })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        if self.pinned() {
            // What a killed crabd leaves is for the next one; here that is us.
            if let Ok(tracer) = crab_bpf::Tracer::open(&self.pins()) {
                let _ = tracer.close_and_unpin();
            }
        }
        let _ = unmount(self.pins(), UnmountFlags::DETACH);
        let _ = unmount(self.files(), UnmountFlags::DETACH);
        let _ = fs::remove_dir(&self.cgroup);
    }
}

/// A client with a runtime of its own, so that tests read in a line.
struct Client {
    runtime: tokio::runtime::Runtime,
    client: TracerClient,
}

impl Client {
    fn new(host: &Host) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let client = runtime.block_on(crab_api::connect(&host.socket())).unwrap();
        Self {
            runtime,
            client: TracerClient::new(client),
        }
    }

    fn watch(&self, request: &WatchRequest) -> ttrpc::Result<Effects> {
        self.runtime
            .block_on(self.client.watch(context::with_timeout(0), request))
    }

    fn unwatch(&self, sandbox: &str) -> ttrpc::Result<Empty> {
        let mut request = UnwatchRequest::new();
        request.sandbox = sandbox.to_owned();
        self.runtime
            .block_on(self.client.unwatch(context::with_timeout(0), &request))
    }

    fn effects(&self, sandbox: &str) -> ttrpc::Result<Effects> {
        let mut request = EffectsRequest::new();
        request.sandbox = sandbox.to_owned();
        self.runtime
            .block_on(self.client.effects(context::with_timeout(0), &request))
    }

    fn status(&self) -> TracerStatus {
        self.runtime
            .block_on(self.client.status(context::with_timeout(0), &Empty::new()))
            .unwrap()
    }
}

fn code(result: ttrpc::Result<Effects>) -> (Code, String) {
    match result {
        Err(ttrpc::Error::RpcStatus(status)) => (status.code(), status.message().to_owned()),
        other => panic!("{other:?}"),
    }
}

/// The set that this kernel takes: that at the inodes since Linux 6.13; before, that at the
/// ends of functions, unless nobody may patch them.
fn programs() -> &'static str {
    let types = fs::read("/sys/kernel/btf/vmlinux").unwrap();
    let name = b"\0btf_trace_ctime_ns_xchg\0";
    if types.windows(name.len()).any(|window| window == name) {
        return "tp_btf:inodes";
    }
    let lockdown = fs::read_to_string("/sys/kernel/security/lockdown");
    match lockdown.is_ok_and(|state| !state.contains("[none]")) {
        true => "tp_btf:syscalls",
        false => "fexit:syscalls",
    }
}

fn me() -> u32 {
    std::process::id()
}

#[test]
fn a_watched_sandboxs_effects_are_told() {
    let Some(mut host) = Host::new() else { return };
    host.start(0);
    let client = Client::new(&host);
    let status = client.status();
    assert_eq!(
        (status.programs.as_str(), status.reason.as_str()),
        (programs(), "")
    );

    let first = client.watch(&host.request(me())).unwrap();
    host.change();
    let second = client.effects("test/one").unwrap();
    assert_eq!(second.instance, first.instance);
    assert!(second.files > first.files);
    assert_eq!(client.status().sandboxes, 1);

    // Renewed, it goes on.
    let renewed = client.watch(&host.request(me())).unwrap();
    assert_eq!(renewed, second);

    client.unwatch("test/one").unwrap();
    assert_eq!(code(client.effects("test/one")).0, Code::NOT_FOUND);
    client.unwatch("test/one").unwrap();

    // A watch after a gap is not comparable with the one before.
    let again = client.watch(&host.request(me())).unwrap();
    assert_ne!(again.instance, first.instance);
}

#[test]
fn effects_are_told_fast() {
    let Some(mut host) = Host::new() else { return };
    host.start(0);
    let client = Client::new(&host);
    client.watch(&host.request(me())).unwrap();
    let mut took: Vec<_> = (0..1000)
        .map(|_| {
            let start = Instant::now();
            client.effects("test/one").unwrap();
            start.elapsed()
        })
        .collect();
    took.sort();
    println!("effects: p50 {:?}, p99 {:?}", took[500], took[990]);
    // Where both wait for a processor each time, most are slow: what it takes is seen in those
    // that did not.
    assert!(took[100] < Duration::from_millis(5), "{:?}", took[100]);
}

#[test]
fn counting_goes_on_over_a_killed_crabd() {
    let Some(mut host) = Host::new() else { return };
    let crabd = host.start(0);
    let before = Client::new(&host).watch(&host.request(me())).unwrap();
    host.signal(crabd, Signal::KILL);
    assert_eq!(host.ends(crabd).signal(), Some(9));

    host.change();
    host.start(0);
    let client = Client::new(&host);
    // It knows the cgroup, but not yet by this name.
    assert_eq!(client.status().sandboxes, 1);
    assert_eq!(code(client.effects("test/one")).0, Code::NOT_FOUND);
    let after = client.watch(&host.request(me())).unwrap();
    assert_eq!(after.instance, before.instance);
    assert!(after.files > before.files);
}

#[test]
fn an_inherited_watch_that_nobody_renews_ends() {
    let Some(mut host) = Host::new() else { return };
    let crabd = host.start(0);
    Client::new(&host).watch(&host.request(me())).unwrap();
    host.signal(crabd, Signal::KILL);
    host.ends(crabd);
    let crabd = host.start(IDLE);
    assert!(host.ends(crabd).success());
    assert!(!host.pinned());
}

#[test]
fn a_watch_ends_with_its_shim() {
    let Some(mut host) = Host::new() else { return };
    host.start(0);
    let client = Client::new(&host);
    let mut shim = Command::new("sleep").arg("60").spawn().unwrap();
    client.watch(&host.request(shim.id())).unwrap();
    shim.kill().unwrap();
    shim.wait().unwrap();
    host.until("unwatched", |_| client.status().sandboxes == 0);
    assert_eq!(
        code(client.watch(&host.request(shim.id()))).0,
        Code::INVALID_ARGUMENT
    );
}

#[test]
fn a_second_crabd_leaves_the_first_alone() {
    let Some(mut host) = Host::new() else { return };
    host.start(0);
    let second = host.command(0).output().unwrap();
    assert!(second.status.success());
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(said.contains("another crabd already serves"), "{said}");
    assert_eq!(Client::new(&host).status().programs, programs());
}

#[test]
fn of_many_started_at_once_one_serves() {
    let Some(mut host) = Host::new() else { return };
    for _ in 0..6 {
        let child = host.command(0).stderr(Stdio::null()).spawn().unwrap();
        host.children.push(child);
    }
    let start = Instant::now();
    loop {
        let ended = host
            .children
            .iter_mut()
            .filter_map(|child| child.try_wait().unwrap())
            .inspect(|status| assert!(status.success()))
            .count();
        if ended == 5 {
            break;
        }
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "{ended} of 5 gave way"
        );
        sleep(Duration::from_millis(10));
    }
    Client::new(&host).watch(&host.request(me())).unwrap();
}

#[test]
fn idle_it_unpins_everything_and_exits() {
    let Some(mut host) = Host::new() else { return };
    let crabd = host.start(IDLE);
    let client = Client::new(&host);
    client.watch(&host.request(me())).unwrap();
    sleep(Duration::from_secs(IDLE + 2));
    assert_eq!(client.status().sandboxes, 1);
    client.unwatch("test/one").unwrap();
    assert!(host.ends(crabd).success());
    assert!(!host.pins().exists());
    assert!(!host.socket().exists());
}

#[test]
fn sigterm_leaves_the_programs_only_while_a_sandbox_needs_them() {
    let Some(mut host) = Host::new() else { return };
    let crabd = host.start(0);
    let before = Client::new(&host).watch(&host.request(me())).unwrap();
    host.signal(crabd, Signal::TERM);
    assert!(host.ends(crabd).success());
    assert!(host.pinned());
    assert!(!host.socket().exists());

    host.change();
    let crabd = host.start(0);
    let client = Client::new(&host);
    let after = client.watch(&host.request(me())).unwrap();
    assert_eq!(after.instance, before.instance);
    assert!(after.files > before.files);
    client.unwatch("test/one").unwrap();
    host.signal(crabd, Signal::TERM);
    assert!(host.ends(crabd).success());
    assert!(!host.pinned());
}

#[test]
fn a_host_that_cannot_trace_is_told_why() {
    let Some(mut host) = Host::new() else { return };
    // A file where the pins should go.
    fs::write(host.pins(), "").unwrap();
    host.start(0);
    let client = Client::new(&host);
    let status = client.status();
    assert_eq!(status.programs, "none");
    assert!(status.reason.contains("pins"), "{}", status.reason);
    assert!(!status.reason.contains('\n'));
    let (refused, why) = code(client.watch(&host.request(me())));
    assert_eq!(refused, Code::FAILED_PRECONDITION);
    assert!(why.contains(&status.reason), "{why}");
    assert_eq!(
        code(client.effects("test/one")).0,
        Code::FAILED_PRECONDITION
    );
}

#[test]
fn switched_off_it_counts_nothing_and_removes_what_an_earlier_one_left_counting() {
    const OFF: &str = "[inspector]\nenabled = false\n";
    let Some(mut host) = Host::new() else { return };
    let crabd = host.start(0);
    Client::new(&host).watch(&host.request(me())).unwrap();
    host.signal(crabd, Signal::KILL);
    host.ends(crabd);
    assert!(host.pinned());

    let crabd = host.start_with(OFF);
    let client = Client::new(&host);
    let status = client.status();
    assert_eq!((status.programs.as_str(), status.sandboxes), ("off", 0));
    assert!(status.reason.contains("switched off"), "{}", status.reason);
    let (refused, why) = code(client.watch(&host.request(me())));
    assert_eq!(refused, Code::FAILED_PRECONDITION);
    assert!(why.contains(&status.reason), "{why}");
    // For whom it stays: it schedules captures, too.
    assert_eq!(client.status().sandboxes, 1);
    assert!(!host.pins().exists());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(host.pins().to_str().unwrap()), "{mounts}");
    let log = host.log_of(crabd);
    let said = log.lines().filter(|line| line.contains("not counting"));
    assert_eq!(said.count(), 1, "{log}");
    assert!(log.contains("removed=1"), "{log}");

    // Where there is nothing to remove, nor any place for it; and switched on again.
    let crabd = host.start_with(OFF);
    assert!(host.log_of(crabd).contains("removed=0"));
    assert!(!host.pins().exists());
    host.start_with("");
    Client::new(&host).watch(&host.request(me())).unwrap();
    assert_eq!(Client::new(&host).status().programs, programs());
}

#[test]
fn switched_off_it_says_what_of_an_earlier_one_it_cannot_remove() {
    let Some(mut host) = Host::new() else { return };
    let owner = crab_bpf::Tracer::open(&host.pins()).unwrap();
    host.start_with("[inspector]\nenabled = false\n");
    let status = Client::new(&host).status();
    assert_eq!(status.programs, "none");
    for words in ["switched off", "stay attached", "pins is in use"] {
        assert!(status.reason.contains(words), "{}", status.reason);
    }
    owner.close_and_unpin().unwrap();
}

#[test]
fn nobody_else_can_reach_it() {
    let Some(mut host) = Host::new() else { return };
    host.start(0);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(host.socket().parent().unwrap()), 0o700);
    assert_eq!(mode(&host.socket()), 0o600);
    assert_eq!(mode(&host.pins()), 0o700);
}

#[test]
fn one_that_takes_over_ends_the_other_and_counting_goes_on() {
    let Some(mut host) = Host::new() else { return };
    let first = host.start(0);
    let before = Client::new(&host).watch(&host.request(me())).unwrap();
    let child = host.command(0).arg("--take-over").spawn().unwrap();
    host.children.push(child);
    assert!(host.ends(first).success());
    host.change();
    host.until("the second serves", |host| {
        std::os::unix::net::UnixStream::connect(host.socket()).is_ok()
    });
    let after = Client::new(&host).watch(&host.request(me())).unwrap();
    assert_eq!(after.instance, before.instance);
    assert!(after.files > before.files);
}

#[test]
fn one_that_takes_over_kills_what_does_not_end() {
    let Some(mut host) = Host::new() else { return };
    let first = host.start(0);
    let before = Client::new(&host).watch(&host.request(me())).unwrap();
    host.signal(first, Signal::STOP);
    let child = host.command(0).arg("--take-over").spawn().unwrap();
    host.children.push(child);
    assert_eq!(host.ends(first).signal(), Some(9));
    // Its socket is still there, and nobody listens on it until the second does.
    host.until("the second serves", |host| {
        std::os::unix::net::UnixStream::connect(host.socket()).is_ok()
    });
    let after = Client::new(&host).watch(&host.request(me())).unwrap();
    assert_eq!(after.instance, before.instance);
}

#[test]
fn it_takes_all_descriptors_that_are_to_be_had() {
    let Some(mut host) = Host::new() else { return };
    let program = host.command(0);
    let mut command = Command::new("bash");
    command.args([
        "-euc",
        "ulimit -Sn 1000; ulimit -Hn 2000; exec \"$0\" \"$@\"",
    ]);
    command.arg(program.get_program()).args(program.get_args());
    host.children.push(command.spawn().unwrap());
    host.until("crabd serves", |host| {
        std::os::unix::net::UnixStream::connect(host.socket()).is_ok()
    });
    let limits = fs::read_to_string(format!("/proc/{}/limits", host.children[0].id())).unwrap();
    let files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .unwrap();
    let limit: Vec<&str> = files.split_ascii_whitespace().skip(3).take(2).collect();
    assert_eq!(limit, ["2000", "2000"], "{limits}");
}

#[test]
fn its_starter_is_told_when_it_serves_and_when_it_stops() {
    let Some(mut host) = Host::new() else { return };
    let path = host.directory.path().join("notify");
    let told = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    told.set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    let next = || {
        let mut buffer = [0; 64];
        let size = told.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..size]).into_owned()
    };
    let child = host.command(0).env("NOTIFY_SOCKET", &path).spawn().unwrap();
    host.children.push(child);
    assert_eq!(next(), "READY=1");
    assert!(std::os::unix::net::UnixStream::connect(host.socket()).is_ok());
    host.signal(0, Signal::TERM);
    assert_eq!(next(), "STOPPING=1");
    assert!(host.ends(0).success());
}

#[test]
fn a_check_tells_what_would_count_and_leaves_nothing() {
    let Some(mut host) = Host::new() else { return };
    host.start(0);
    let dir = host.directory.path().join("tmp");
    fs::create_dir(&dir).unwrap();
    let check = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_crabd"));
        command.arg("--check").env("TMPDIR", &dir).output().unwrap()
    };
    let said = check();
    assert!(said.status.success(), "{said:?}");
    assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), programs());
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(dir.to_str().unwrap()), "{mounts}");
    // The one that runs is as it was.
    assert_eq!(Client::new(&host).status().programs, programs());
}

#[test]
fn a_broken_configuration_is_said_once_and_crabd_serves() {
    let Some(mut host) = Host::new() else {
        return;
    };
    let crabd = host.start_with("log_level = 'loud'\n\nstorr = '/a'\n");
    let log = host.log_of(crabd);
    let of: Vec<&str> = log.lines().filter(|line| line.contains("ERROR")).collect();
    let [line] = of[..] else {
        panic!("{log}");
    };
    let says = |text: &str| assert!(line.contains(text), "{line}");
    says("the default configuration is in force: cannot use the configuration ");
    says("config.toml:1: log_level");
    says("line 3: there is no setting");
    let crabd = host.start_with("log_level = 'error'\n");
    assert_eq!(host.log_of(crabd), "");
}

#[test]
fn a_mount_inside_is_told_and_so_is_what_may_have_passed_meanwhile() {
    let Some(mut host) = Host::new() else { return };
    let crabd = host.start(0);
    let mut inside = Command::new("unshare")
        .args(["-m", "sh", "-c"])
        .arg("echo 0 > $0/cgroup.procs; echo; while read what; do $what; echo; done")
        .arg(&host.cgroup)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut to = inside.stdin.take().unwrap();
    let mut from = std::io::BufReader::new(inside.stdout.take().unwrap());
    let mut answer = || std::io::BufRead::read_line(&mut from, &mut String::new()).unwrap();
    answer();
    let mut act = |what: &str| {
        std::io::Write::write_all(&mut to, format!("{what}\n").as_bytes()).unwrap();
        answer();
    };
    let mut request = host.request(me());
    request.init_pid = inside.id();

    let client = Client::new(&host);
    let mut last = client.watch(&request).unwrap();
    let mut counts = |what: &str| {
        act(what);
        let now = client.effects("test/one").unwrap();
        assert_eq!(now.lost, last.lost);
        let before = std::mem::replace(&mut last, now);
        last.mounts > before.mounts
    };
    // The other tests' mounts are in its namespace, too, and go when they end.
    assert!((0..20).any(|_| !counts("true")));
    assert!(counts("mount -t tmpfs none /tmp"));
    assert!(counts("umount /tmp"));
    assert!((0..20).any(|_| !counts("true")));

    host.signal(crabd, Signal::KILL);
    host.ends(crabd);
    act("mount -t tmpfs none /tmp");
    host.start(0);
    let after = Client::new(&host).watch(&request).unwrap();
    assert_eq!(after.instance, last.instance);
    assert!(after.mounts > last.mounts, "while no crabd was there");
    drop(to);
    inside.wait().unwrap();
}

#[test]
fn where_mounts_cannot_be_asked_for_there_may_always_have_been_one() {
    let Some(mut host) = Host::new() else { return };
    host.start(0);
    let client = Client::new(&host);
    let mut request = host.request(me());
    request.init_pid = 0;
    let first = client.watch(&request).unwrap();
    let second = client.effects("test/one").unwrap();
    let unseen = programs() == "tp_btf:inodes";
    assert_eq!(second.mounts > first.mounts, unseen);
}
