// SPDX-License-Identifier: Apache-2.0
//! What a test needs of the host, each guard undone when dropped: a pin
//! directory, a watched tmpfs, a cgroup, and agents to act in it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crab_bpf::{
    CgroupId, Device, Effects, OpenError, Programs, Spared, Tracer, Unsupported, probe,
};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::agent;

pub(crate) struct World {
    agents: Vec<Child>,
    pub(crate) cgroup: Cgroup,
    /// The watched superblock.
    pub(crate) tmpfs: Mounted,
    /// Holds the mount points and the pins.
    pub(crate) directory: tempfile::TempDir,
    pub(crate) tracer: Option<Tracer>,
    pub(crate) programs: Programs,
    /// Calls may still be counted when it is left.
    attended: bool,
    _alone: Option<MutexGuard<'static, ()>>,
}

/// Who attaches or detaches programs at functions begins another period for all others.
static PATCHING: Mutex<()> = Mutex::new(());

/// Only this set.
const ONLY: &str = "CRAB_TEST_PROGRAMS";

/// Where each world that has a set at functions finds it as the one before has left it, and
/// leaves it: to load it, and to detach it even more, takes most of a minute under emulation.
const KEPT: &str = "CRAB_TEST_KEPT_PINS";

/// One for each set of programs that this kernel takes.
pub(crate) fn worlds() -> impl Iterator<Item = World> {
    let only = std::env::var(ONLY).ok();
    let wanted =
        move |programs: &Programs| only.as_ref().is_none_or(|only| programs.name() == only);
    let sets = Programs::BY_COST.into_iter().filter(wanted);
    sets.filter_map(|programs| {
        println!("with {programs}");
        World::of(programs)
    })
}

fn has_tracepoint(name: &str) -> bool {
    let name = format!("\0btf_trace_{name}\0");
    let types = fs::read("/sys/kernel/btf/vmlinux").unwrap();
    types
        .windows(name.len())
        .any(|window| window == name.as_bytes())
}

/// Whether the kernel lets nobody patch its text (lockdown).
fn text_is_locked() -> bool {
    let directory = tempfile::tempdir().unwrap();
    let _mounted = Mounted::securityfs(&directory.path().join("security"));
    // A kernel that has no lockdown has no such file.
    fs::read_to_string(directory.path().join("security/lockdown"))
        .is_ok_and(|state| !state.contains("[none]"))
}

impl World {
    /// None, with the reason printed, only where the kernel has not got what the set needs.
    fn of(programs: Programs) -> Option<Self> {
        match probe() {
            Ok(()) => {}
            Err(reason @ Unsupported::NoBtf) => {
                println!("skipped: {reason}");
                return None;
            }
            Err(reason) => panic!("{reason}"),
        }
        if programs == Programs::Inodes && !has_tracepoint("ctime_ns_xchg") {
            println!("skipped: {programs} needs Linux 6.13");
            return None;
        }
        if programs == Programs::Exits && text_is_locked() {
            // Nor can it be had there: scripts/test runs them in a machine of its own.
            println!("left out: {programs} needs a kernel whose text may be patched");
            return None;
        }
        let alone = (programs == Programs::Exits).then(|| {
            let alone = PATCHING.lock();
            alone.unwrap_or_else(std::sync::PoisonError::into_inner)
        });
        let directory = tempfile::tempdir().unwrap();
        let tmpfs = Mounted::tmpfs(&directory.path().join("tmpfs"));
        let mut world = Self {
            agents: Vec::new(),
            cgroup: Cgroup::new(),
            tmpfs,
            directory,
            tracer: None,
            programs,
            attended: false,
            _alone: alone,
        };
        world.open();
        let (id, device) = (world.cgroup.id(), world.tmpfs.device());
        world.tracer().watch(id, &[device]).unwrap();
        Some(world)
    }

    fn kept_pins(&self) -> Option<PathBuf> {
        let kept = std::env::var_os(KEPT).map(PathBuf::from);
        kept.filter(|_| self.programs == Programs::Exits)
    }

    pub(crate) fn pin_dir(&self) -> PathBuf {
        let own = || self.directory.path().join("pins");
        self.kept_pins().unwrap_or_else(own)
    }

    pub(crate) fn open(&mut self) {
        // A test beside this one may have forked: until its child execs, it
        // holds the lock of a tracer that is closed here.
        let deadline = Instant::now() + Duration::from_secs(5);
        self.tracer = loop {
            match Tracer::open_first_of(&self.pin_dir(), &[self.programs]) {
                Err(OpenError::Busy { .. }) if Instant::now() < deadline => {
                    sleep(Duration::from_millis(5));
                }
                opened => break Some(opened.unwrap()),
            }
        };
    }

    pub(crate) fn tracer(&mut self) -> &mut Tracer {
        self.tracer.as_mut().unwrap()
    }

    /// Has completed calls counted, but those of these processes.
    pub(crate) fn attend(&mut self, duration: Duration, spared: &[u32]) {
        let namespace = fs::metadata("/proc/self/ns/pid").unwrap().ino();
        let spared = Spared {
            pid_namespace: namespace as u32,
            pids: spared.to_vec(),
        };
        let cgroup = self.cgroup.id();
        self.attended = true;
        self.tracer().attend(cgroup, &spared, duration).unwrap();
    }

    pub(crate) fn effects(&self) -> Effects {
        self.tracer
            .as_ref()
            .unwrap()
            .effects(self.cgroup.id())
            .unwrap()
    }

    /// Runs `call` in a new process, and gives what was counted for its
    /// measured part.
    pub(crate) fn run(&mut self, call: &str, seat: Seat<'_>, directory: &Path) -> Effects {
        self.run_if_known(call, seat, directory)
            .unwrap_or_else(|| panic!("the kernel has no {call}"))
    }

    /// The same for a call that the kernel need not have.
    pub(crate) fn run_if_known(
        &mut self,
        call: &str,
        seat: Seat<'_>,
        directory: &Path,
    ) -> Option<Effects> {
        let mut agent = self.start(call, seat, directory);
        look(self.tmpfs.path());
        look(directory);
        let before = self.effects();
        agent.go_on();
        if !agent.reaches("after") {
            let status = self.agents[agent.index].wait().unwrap();
            assert_eq!(status.code(), Some(agent::NOT_HERE), "{call}");
            println!("skipped: this kernel has no {call}");
            return None;
        }
        let after = self.effects();
        agent.go_on();
        self.finish(agent);
        Some(difference(&after, &before))
    }

    /// Starts `call` and waits until it is about to be measured.
    pub(crate) fn start(&mut self, call: &str, seat: Seat<'_>, directory: &Path) -> Agent {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["agent::agent", "--exact", "--nocapture", "--test-threads=1"])
            .env(agent::CALL, call)
            .env(agent::DIRECTORY, directory)
            .env(
                agent::CGROUP,
                match seat {
                    Seat::Inside => self.cgroup.0.as_os_str(),
                    Seat::Below(cgroup) => cgroup.0.as_os_str(),
                    Seat::Outside => "".as_ref(),
                },
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut agent = Agent {
            index: self.agents.len(),
            to: child.stdin.take().unwrap(),
            from: BufReader::new(child.stdout.take().unwrap()),
        };
        self.agents.push(child);
        assert!(agent.reaches("before"), "{call} was not prepared");
        agent
    }

    pub(crate) fn pid(&self, agent: &Agent) -> u32 {
        self.agents[agent.index].id()
    }

    pub(crate) fn finish(&mut self, agent: Agent) {
        let status = self.agents[agent.index].wait().unwrap();
        assert!(status.success(), "the agent failed");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for agent in &mut self.agents {
            let _ = agent.kill();
            let _ = agent.wait();
        }
        if self.tracer.is_none() {
            self.tracer = Tracer::open_first_of(&self.pin_dir(), &[self.programs]).ok();
        }
        if self.kept_pins().is_some() && !self.attended {
            if let Some(tracer) = &mut self.tracer {
                for cgroup in tracer.watched() {
                    tracer.unwatch(cgroup).unwrap();
                }
            }
            wait_for_detaching(1);
            return;
        }
        if let Some(tracer) = self.tracer.take() {
            let closed = tracer.close_and_unpin();
            if !std::thread::panicking() {
                closed.unwrap();
            }
        }
        if self.programs == Programs::Exits {
            wait_for_detaching(0);
        }
    }
}

/// The kernel detaches later what is unpinned, which begins another period for who came
/// meanwhile: waits until so many sets are left.
fn wait_for_detaching(left: usize) {
    let sets = || {
        let programs = aya::programs::loaded_programs().flatten();
        programs.filter(|p| p.name() == b"patch_ends").count()
    };
    let start = Instant::now();
    while sets() > left && start.elapsed() < Duration::from_secs(60) {
        sleep(Duration::from_millis(10));
    }
}

/// Where an agent acts from.
#[derive(Clone, Copy)]
pub(crate) enum Seat<'a> {
    Inside,
    Below(&'a Cgroup),
    Outside,
}

pub(crate) struct Agent {
    index: usize,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Agent {
    /// False if it ends instead.
    pub(crate) fn reaches(&mut self, point: &str) -> bool {
        let mut line = String::new();
        while self.from.read_line(&mut line).unwrap() > 0 {
            // The harness talks on the same pipe.
            if line.trim_end().ends_with(&format!("@{point}")) {
                return true;
            }
            line.clear();
        }
        false
    }

    pub(crate) fn go_on(&mut self) {
        self.to.write_all(b"\n").unwrap();
    }
}

pub(crate) struct Mounted(PathBuf);

impl Mounted {
    pub(crate) fn tmpfs(at: &Path) -> Self {
        fs::create_dir(at).unwrap();
        mount("crab-test", at, "tmpfs", MountFlags::empty(), None).unwrap();
        Self(at.to_path_buf())
    }

    fn securityfs(at: &Path) -> Self {
        fs::create_dir(at).unwrap();
        mount("crab-test", at, "securityfs", MountFlags::empty(), None).unwrap();
        Self(at.to_path_buf())
    }

    /// An overlay whose layers are on `on`.
    pub(crate) fn overlay(at: &Path, on: &Path) -> Self {
        for layer in ["lower", "upper", "work"] {
            fs::create_dir(on.join(layer)).unwrap();
        }
        fs::write(on.join("lower/below"), "from the image").unwrap();
        fs::create_dir(at).unwrap();
        let on = on.to_str().unwrap();
        let options = format!("lowerdir={on}/lower,upperdir={on}/upper,workdir={on}/work");
        let options = std::ffi::CString::new(options).unwrap();
        mount(
            "crab-test",
            at,
            "overlay",
            MountFlags::empty(),
            Some(options.as_c_str()),
        )
        .unwrap();
        Self(at.to_path_buf())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn device(&self) -> Device {
        Device::from_st_dev(fs::metadata(&self.0).unwrap().dev())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

pub(crate) struct Cgroup(PathBuf);

impl Cgroup {
    pub(crate) fn new() -> Self {
        let unified = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
            .into_iter()
            .map(Path::new)
            .find(|path| path.join("cgroup.procs").exists())
            .expect("a cgroup v2 hierarchy");
        let unique = tempfile::Builder::new()
            .prefix("crab-test-")
            .tempdir_in(unified)
            .unwrap();
        Self(unique.keep())
    }

    pub(crate) fn child(&self, name: &str) -> Self {
        let path = self.0.join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// And waits until it is so.
    pub(crate) fn freeze(&self, frozen: bool) {
        let word = if frozen { "1" } else { "0" };
        fs::write(self.0.join("cgroup.freeze"), word).unwrap();
        let wanted = format!("frozen {word}");
        let events = || fs::read_to_string(self.0.join("cgroup.events")).unwrap();
        let start = Instant::now();
        while !events().contains(&wanted) {
            assert!(start.elapsed() < Duration::from_secs(20), "never {wanted}");
            sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn id(&self) -> CgroupId {
        CgroupId(fs::metadata(&self.0).unwrap().ino())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Its processes are gone from it a moment after they were reaped.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            sleep(Duration::from_millis(10));
        }
    }
}

/// What who compares does at an epoch: reads the times of every file.
pub(crate) fn look(directory: &Path) {
    fs::metadata(directory).unwrap();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if fs::symlink_metadata(&path).unwrap().is_dir() {
            look(&path);
        }
    }
}

pub(crate) fn difference(after: &Effects, before: &Effects) -> Effects {
    Effects {
        files: after.files - before.files,
        processes: after.processes - before.processes,
        mounts: after.mounts - before.mounts,
        unseen: after.unseen - before.unseen,
        lost: after.lost - before.lost,
        calls: after.calls - before.calls,
        connected: after.connected - before.connected,
        listened: after.listened - before.listened,
        sent: after.sent - before.sent,
    }
}
