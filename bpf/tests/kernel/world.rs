// SPDX-License-Identifier: Apache-2.0
//! What a test needs of the host, each guard undone when dropped: a pin
//! directory, a watched tmpfs, a cgroup, and agents to act in it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
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
}

/// One for each set of programs that this kernel takes.
pub(crate) fn worlds() -> impl Iterator<Item = World> {
    Programs::BY_COST.into_iter().filter_map(|programs| {
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
        let directory = tempfile::tempdir().unwrap();
        let tmpfs = Mounted::tmpfs(&directory.path().join("tmpfs"));
        let mut world = Self {
            agents: Vec::new(),
            cgroup: Cgroup::new(),
            tmpfs,
            directory,
            tracer: None,
            programs,
        };
        world.open();
        let (id, device) = (world.cgroup.id(), world.tmpfs.device());
        world.tracer().watch(id, &[device]).unwrap();
        Some(world)
    }

    pub(crate) fn pin_dir(&self) -> PathBuf {
        self.directory.path().join("pins")
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
        if let Some(tracer) = self.tracer.take() {
            let closed = tracer.close_and_unpin();
            if !std::thread::panicking() {
                closed.unwrap();
            }
        }
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
