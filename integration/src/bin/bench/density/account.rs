// SPDX-License-Identifier: Apache-2.0

//! What of the processors goes to shims, crabd, runc and CRIU.
//!
//! containerd is put into a cgroup of its own, and what it starts is born there: shims, the
//! crabd that a shim starts, every runc and CRIU. What runs in containers is in their
//! cgroups, and who plays the traces stays where it was. So the kernel counts what is wanted,
//! also of programs that last for milliseconds.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use crab_integration::processes;

use crate::figures::Measured;

const CGROUP: &str = "crab-bench-density";
/// In what the kernel tells times of processes, on each architecture that Crab is for.
const USER_HZ: f64 = 100.0;
const CONTAINERD: &str = "containerd";
const SHIMS: [&str; 2] = [processes::SHIM, "containerd-shim-runc-v2"];

/// The cgroup. When dropped, all in it goes back.
pub(super) struct Account {
    dir: PathBuf,
    home: PathBuf,
}

/// What had been spent at some time.
struct Reading {
    at: Instant,
    all: f64,
    containerd: f64,
    shims: f64,
    crabd: f64,
}

/// A part that is under way.
pub(super) struct Open<'a> {
    account: &'a Account,
    before: Reading,
}

/// What a part spent, in percent of all processors.
#[derive(Clone, Copy)]
pub(super) struct Spent {
    pub(super) shims: f64,
    pub(super) crabd: f64,
    /// runc and CRIU.
    pub(super) others: f64,
    containerd: f64,
}

impl Account {
    /// Moves containerd and what it has started into a cgroup.
    pub(super) fn open() -> Result<Self> {
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
        let root = roots
            .into_iter()
            .find(|root| root.join("cgroup.controllers").exists())
            .context("no hierarchy of cgroup v2 is mounted")?;
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
        let home = root.join(own.context("this process is in no cgroup of v2")?);
        let account = Self {
            dir: home.join(CGROUP),
            home,
        };
        match fs::create_dir(&account.dir) {
            // Of a run that was killed.
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| format!("make {}", account.dir.display()));
            }
            _ => {}
        }
        for pid in [CONTAINERD, processes::CRABD]
            .map(processes::named)
            .concat()
        {
            fs::write(account.dir.join("cgroup.procs"), pid.to_string())
                .with_context(|| format!("move process {pid} to {}", account.dir.display()))?;
        }
        Ok(account)
    }

    /// From now on it counts.
    pub(super) fn begin(&self) -> Result<Open<'_>> {
        Ok(Open {
            account: self,
            before: self.read()?,
        })
    }

    fn read(&self) -> Result<Reading> {
        let path = self.dir.join("cpu.stat");
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let used = text
            .lines()
            .find_map(|line| line.strip_prefix("usage_usec "));
        let used: f64 = used
            .and_then(|used| used.parse().ok())
            .with_context(|| format!("{} does not say what was used", path.display()))?;
        let of = |names: &[&str]| -> f64 {
            let pids = names.iter().flat_map(|name| processes::named(name));
            // One may end meanwhile.
            pids.filter_map(|pid| ran(pid).ok()).sum()
        };
        Ok(Reading {
            at: Instant::now(),
            all: used / 1e6,
            containerd: of(&[CONTAINERD]),
            shims: of(&SHIMS),
            crabd: of(&[processes::CRABD]),
        })
    }
}

impl Open<'_> {
    /// What was spent since its beginning; the shims have to be the same.
    pub(super) fn close(self) -> Result<Spent> {
        let (before, after) = (self.before, self.account.read()?);
        let processors = std::thread::available_parallelism()?.get() as f64;
        let time = (after.at - before.at).max(Duration::from_millis(1));
        let percent = |seconds: f64| 100.0 * seconds / (time.as_secs_f64() * processors);
        let known = |of: fn(&Reading) -> f64| of(&after) - of(&before);
        let (containerd, shims, crabd) = (
            known(|r| r.containerd),
            known(|r| r.shims),
            known(|r| r.crabd),
        );
        let others = known(|r| r.all) - containerd - shims - crabd;
        Ok(Spent {
            shims: percent(shims),
            crabd: percent(crabd),
            others: percent(others.max(0.0)),
            containerd: percent(containerd),
        })
    }
}

impl Spent {
    /// Enters it among the details, as that of a part.
    pub(super) fn entered(self, part: &str, measured: &mut Measured) -> Self {
        for (what, value) in [
            ("shims", self.shims),
            ("crabd", self.crabd),
            ("runc and CRIU", self.others),
            ("containerd", self.containerd),
        ] {
            measured.detail(format!("{part}: {what}, % of the processors"), value);
        }
        self
    }
}

/// For how many seconds a process itself was on a processor, its threads that have ended
/// included.
fn ran(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name may hold anything, and ends with the last parenthesis.
    let fields = stat.rsplit_once(')').context("no name")?.1;
    let mut times = fields.split_whitespace().skip(11);
    let mut ticks = || -> Option<f64> { times.next()?.parse().ok() };
    let (user, system) = (ticks().context("no time")?, ticks().context("no time")?);
    Ok((user + system) / USER_HZ)
}

impl Drop for Account {
    fn drop(&mut self) {
        let all = fs::read_to_string(self.dir.join("cgroup.procs")).unwrap_or_default();
        for pid in all.lines() {
            // One may end meanwhile.
            let _ = fs::write(self.home.join("cgroup.procs"), pid);
        }
        if let Err(error) = fs::remove_dir(&self.dir) {
            eprintln!("could not remove {}: {error}", self.dir.display());
        }
    }
}
