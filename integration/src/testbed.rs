// SPDX-License-Identifier: Apache-2.0

//! The host that everything runs on: one made by `scripts/testbed`.

use std::{
    env, fs,
    io::Write,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::{
    client::Client,
    command::{Output, Tool},
    crab::Crab,
    driver::Driver,
    events::Events,
};

/// The small image: busybox and nothing else.
pub const BUSYBOX: &str = "busybox";
/// The image that an agent would get: bash, git, gcc, python3, tmux, sqlite3.
pub const DEBIAN: &str = "debian";

const SERVICES: &str = "scripts/lib/testbed-services.sh";

/// How the host lays out its cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupMode {
    /// v1 controllers, and a v2 hierarchy beside them.
    V1,
    /// v2 alone.
    V2,
}

/// The host of a test. Where there is none, tests must not pass: they fail with
/// a line that says what to run instead.
#[derive(Clone, Copy, Debug)]
pub struct Testbed {
    cgroup: CgroupMode,
    driver: Driver,
}

impl Testbed {
    /// The host that this process runs on.
    pub fn here() -> Result<Self> {
        let cgroup = match env::var("TESTBED_CGROUP").as_deref() {
            Ok("v1") => CgroupMode::V1,
            Ok("v2") => CgroupMode::V2,
            _ => bail!(
                "this is no test host (TESTBED_CGROUP is not v1 or v2): \
                 run it with scripts/testbed run -- COMMAND"
            ),
        };
        if !rustix::process::geteuid().is_root() {
            bail!("only root can drive the test host");
        }
        let driver = Driver::of_this_run()?;
        Ok(Self { cgroup, driver })
    }

    /// For tests that stop or change what others need: one of them at a time in this
    /// process.
    pub fn alone(&self) -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        // One that failed has left its guards' work done.
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The OCI runtime that Crab drives here.
    pub fn driver(&self) -> Driver {
        self.driver
    }

    /// How cgroups are laid out here.
    pub fn cgroup(&self) -> CgroupMode {
        self.cgroup
    }

    /// Whether containers get a cgroup controller here: in v2 mode, the machine may
    /// keep it for itself.
    pub fn has_controller(&self, name: &str) -> bool {
        match self.cgroup {
            CgroupMode::V1 => Path::new("/sys/fs/cgroup").join(name).is_dir(),
            CgroupMode::V2 => fs::read_to_string("/sys/fs/cgroup/cgroup.controllers")
                .is_ok_and(|all| all.split_whitespace().any(|one| one == name)),
        }
    }

    /// containerd, by `ctr`, in the namespace `default`.
    pub fn ctr(&self) -> Client {
        Client::ctr(self.cgroup, "default")
    }

    /// containerd, by `ctr`, in another namespace.
    pub(crate) fn ctr_in(&self, namespace: &'static str) -> Client {
        Client::ctr(self.cgroup, namespace)
    }

    /// Docker.
    pub fn docker(&self) -> Client {
        Client::docker()
    }

    /// Both clients.
    pub fn clients(&self) -> [Client; 2] {
        [self.ctr(), self.docker()]
    }

    /// The `crab` command.
    pub fn crab(&self) -> Crab {
        Crab::new()
    }

    /// Begins to collect what containerd publishes.
    pub fn events(&self) -> Result<Events> {
        Events::start()
    }

    /// Starts, stops, restarts or kills (by SIGKILL) a daemon: `verb` is one of
    /// `start`, `stop`, `restart`, `kill`, and `daemon` is `containerd` or
    /// `dockerd`.
    pub fn service(&self, verb: &str, daemon: &str) -> Result<Output> {
        self.service_with(&[], verb, daemon)
    }

    /// The same with variables of its environment, `NAME=VALUE`.
    pub(crate) fn service_with(&self, env: &[&str], verb: &str, daemon: &str) -> Result<Output> {
        // By the repository that this was built from where it is to be seen,
        // which is so in a test host.
        let root = env::var("TESTBED_SRC").unwrap_or_else(|_| "/src".into());
        Tool::new("env")
            .args(env.iter().copied())
            .args(["bash", &format!("{root}/{SERVICES}"), verb, daemon])
            .run()?
            .ok()
            .with_context(|| format!("{verb} {daemon}"))
    }

    /// Has the shims that are started from now on listen to who asks for steps to fail, however
    /// they were built; until this is dropped.
    pub fn with_fault_points(&self) -> Result<FaultPoints> {
        self.service_with(&["CRAB_FAULT_POINTS=1"], "restart", "containerd")?;
        Ok(FaultPoints(*self))
    }

    /// The kernel's release and the number of processors, for figures.
    pub fn machine(&self) -> String {
        let uname = rustix::system::uname();
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        format!(
            "Linux {}, {cpus} processors",
            uname.release().to_string_lossy()
        )
    }
}

/// That shims listen to who asks for steps to fail.
#[derive(Debug)]
pub struct FaultPoints(Testbed);

impl Drop for FaultPoints {
    fn drop(&mut self) {
        if let Err(error) = self.0.service("restart", "containerd") {
            eprintln!("containerd was not restarted: {error:#}");
        }
    }
}

/// Whether this host has a client that Debian has not. Where it could not be built, the
/// test that asks is skipped, which is said; where nothing tells why it is missing, that
/// is an error.
pub(crate) fn has_client(program: &str) -> Result<bool> {
    if let Ok(why) = env::var("CRAB_TESTBED_NO_CLIENTS") {
        skip(&format!("there is no {program}: {why}"))?;
        return Ok(false);
    }
    let path = env::var_os("PATH").unwrap_or_default();
    if env::split_paths(&path).any(|dir| dir.join(program).is_file()) {
        return Ok(true);
    }
    bail!("there is no {program} on PATH, and scripts/testbed has not said why")
}

/// Says that a test, or a part of it, cannot run here, and why. `scripts/test` counts
/// it: the file that it names is where these lines are collected.
pub fn skip(why: &str) -> Result<()> {
    let test = thread::current().name().unwrap_or("a test").to_owned();
    println!("{test} skipped: {why}");
    if let Some(path) = env::var_os("CRAB_TEST_SKIPPED") {
        let mut file = fs::File::options().create(true).append(true).open(path)?;
        writeln!(file, "{test}: {why}")?;
    }
    Ok(())
}

/// A time limit, on a host that may be slower by far than the machines that it is meant
/// for: `CRAB_TEST_PATIENCE` says how many times.
pub(crate) fn patient(limit: Duration) -> Duration {
    let times = env::var("CRAB_TEST_PATIENCE").ok();
    limit * times.and_then(|times| times.parse().ok()).unwrap_or(1)
}

/// Waits for something that lasts for some milliseconds only.
pub fn catch(what: &str, limit: Duration, mut is_now: impl FnMut() -> bool) -> Result<()> {
    let deadline = Instant::now() + patient(limit);
    while !is_now() {
        if Instant::now() > deadline {
            bail!("{what} was not seen within {limit:?}");
        }
        thread::sleep(Duration::from_micros(100));
    }
    Ok(())
}

/// Asks until there is an answer; `what` names it when there is none in time.
pub fn poll<T>(
    what: &str,
    limit: Duration,
    mut ask: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + patient(limit);
    loop {
        // The last question is asked after the deadline.
        let late = Instant::now() >= deadline;
        if let Some(answer) = ask().with_context(|| format!("wait until {what}"))? {
            return Ok(answer);
        }
        if late {
            bail!("waited for {limit:?} until {what}");
        }
        thread::sleep(Duration::from_millis(5));
    }
}
