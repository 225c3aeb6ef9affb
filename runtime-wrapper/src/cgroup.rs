// SPDX-License-Identifier: Apache-2.0
//! A container's cgroup: its identity, its members, and the freezer.
//!
//! runc puts a container into a directory of the same path in every hierarchy
//! that is mounted: the v1 controllers, and the v2 hierarchy, which on a hybrid
//! host is mounted at `/sys/fs/cgroup/unified` without controllers. The inode of
//! the v2 directory is the cgroup id that BPF programs see, in both modes.
//!
//! The freezer is v1's where a v1 freezer is mounted (runc and CRIU then use
//! that one too), else v2's `cgroup.freeze`.
//!
//! Invariant: whoever freezes holds a [`Frozen`], and a container that is left
//! frozen is thawed when it is dropped: a failed dump must not leave one behind.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use thiserror::Error;

use crate::stat::{self, Stat};

/// Why a cgroup could not be found, read, frozen or thawed.
#[derive(Debug, Error)]
pub enum CgroupError {
    /// The process is in no cgroup v2 that is mounted here.
    #[error("process {pid} is in no cgroup v2 directory below {root}")]
    NoUnified {
        /// The process.
        pid: i32,
        /// Where v2 was looked for.
        root: PathBuf,
    },
    /// No cgroup v2 hierarchy is mounted.
    #[error("no cgroup v2 hierarchy is mounted below /sys/fs/cgroup")]
    NotMounted,
    /// A file of the cgroup could not be read or written.
    #[error("{verb} {path}: {source}")]
    Io {
        /// "read" or "write".
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The freezer did not reach the state in time.
    #[error("{path} is not {wanted} after {waited_ms} ms")]
    Timeout {
        /// The cgroup.
        path: PathBuf,
        /// "frozen", "thawed" or "empty".
        wanted: &'static str,
        /// How long it was waited, in milliseconds.
        waited_ms: u128,
    },
}

impl CgroupError {
    /// A process of it could not be read.
    pub(crate) fn of_process(pid: i32) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            verb: "read",
            path: format!("/proc/{pid}").into(),
            source,
        }
    }

    /// The cgroup is not there any more: it went before its file was opened (`ENOENT`), or after
    /// that (`ENODEV`).
    pub fn is_gone(&self) -> bool {
        self.errno()
            .is_some_and(|errno| matches!(errno, libc::ENOENT | libc::ENODEV))
    }

    fn errno(&self) -> Option<i32> {
        match self {
            Self::Io { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

/// When v1's freezer has not frozen everything in this time, it may never: a thread in
/// execve waits, and does not freeze, for its fellows to die, who are frozen already and do
/// not (`de_thread` in the kernel; `runc init` does so right after each exec has started).
/// Thawed for a moment, they die. runc's own freezer does the same.
const STUCK: Duration = Duration::from_millis(20);
/// The moment.
const LET_GO: Duration = Duration::from_millis(5);

fn read(path: &Path) -> Result<String, CgroupError> {
    fs::read_to_string(path).map_err(|source| CgroupError::Io {
        verb: "read",
        path: path.to_path_buf(),
        source,
    })
}

fn write(path: &Path, text: &str) -> Result<(), CgroupError> {
    fs::write(path, text).map_err(|source| CgroupError::Io {
        verb: "write",
        path: path.to_path_buf(),
        source,
    })
}

/// Where the v2 hierarchy and, if there is one, the v1 freezer are mounted.
fn mounts() -> Result<(PathBuf, Option<PathBuf>), CgroupError> {
    let base = Path::new("/sys/fs/cgroup");
    let unified = [base.to_path_buf(), base.join("unified")]
        .into_iter()
        .find(|dir| dir.join("cgroup.controllers").exists())
        .ok_or(CgroupError::NotMounted)?;
    let freezer = base.join("freezer");
    let freezer = (unified != base && freezer.join("cgroup.procs").exists()).then_some(freezer);
    Ok((unified, freezer))
}

/// The path of a process's cgroup in one hierarchy, from `/proc/<pid>/cgroup`
/// (see cgroups(7)): the v2 line is `0::<path>`, a v1 line
/// `<n>:<controllers>:<path>`. `controller` is empty for v2.
pub fn path_of(table: &str, controller: &str) -> Option<String> {
    table.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let here = if controller.is_empty() {
            controllers.is_empty()
        } else {
            controllers.split(',').any(|c| c == controller)
        };
        here.then(|| path.to_string())
    })
}

/// One container's cgroup.
#[derive(Debug, Clone)]
pub struct Cgroup {
    unified: PathBuf,
    freezer: Option<PathBuf>,
    id: u64,
}

impl Cgroup {
    /// The cgroup in which the process is.
    ///
    /// # Errors
    /// When the process is gone, or the hierarchies are not where they are
    /// expected.
    pub fn of_process(pid: i32) -> Result<Self, CgroupError> {
        let (unified, freezer) = mounts()?;
        let table = read(Path::new(&format!("/proc/{pid}/cgroup")))?;
        let below = |root: &Path, path: &str| root.join(path.trim_start_matches('/'));
        let dir = path_of(&table, "")
            .map(|path| below(&unified, &path))
            .filter(|dir| dir.join("cgroup.procs").exists())
            .ok_or_else(|| CgroupError::NoUnified {
                pid,
                root: unified.clone(),
            })?;
        let freezer = freezer.and_then(|root| {
            path_of(&table, "freezer")
                .map(|path| below(&root, &path))
                .filter(|dir| dir.join("freezer.state").exists())
        });
        Self::found(dir, freezer)
    }

    /// The cgroup at this path, the same in each hierarchy; nothing if there is none.
    ///
    /// # Errors
    /// When the hierarchies are not where they are expected.
    pub fn at(path: &str) -> Result<Option<Self>, CgroupError> {
        let (unified, freezer) = mounts()?;
        let below = |root: PathBuf| root.join(path.trim_start_matches('/'));
        let dir = below(unified);
        if !dir.join("cgroup.procs").exists() {
            return Ok(None);
        }
        let freezer = freezer
            .map(below)
            .filter(|dir| dir.join("freezer.state").exists());
        Self::found(dir, freezer).map(Some)
    }

    fn found(unified: PathBuf, freezer: Option<PathBuf>) -> Result<Self, CgroupError> {
        let id = fs::metadata(&unified)
            .map_err(|source| CgroupError::Io {
                verb: "read",
                path: unified.clone(),
                source,
            })?
            .ino();
        Ok(Self {
            unified,
            freezer,
            id,
        })
    }

    /// Whether there are processes in the v2 cgroup at this path, or in one below it; also where
    /// that cannot be read.
    pub fn is_in_use(path: &str) -> bool {
        let populated = |dir: &Path| match read(&dir.join("cgroup.events")) {
            Ok(events) => events.lines().any(|line| line == "populated 1"),
            Err(error) => !error.is_gone(),
        };
        mounts().is_ok_and(|(unified, _)| populated(&unified.join(path.trim_start_matches('/'))))
    }

    /// Takes a restored container's processes to the v2 cgroup that the runtime has made
    /// for them, and is at `path`. runc 1.1 has CRIU put them back where the dumped ones
    /// were, and then freezes and counts an empty one.
    ///
    /// # Errors
    /// When they cannot be moved.
    pub fn gather(init: i32, path: &str) -> Result<(), CgroupError> {
        let (unified, _) = mounts()?;
        let below = |path: &str| unified.join(path.trim_start_matches('/'));
        let to = below(path);
        let table = read(Path::new(&format!("/proc/{init}/cgroup")))?;
        let Some(now) = path_of(&table, "").filter(|now| now != path) else {
            return Ok(());
        };
        let from = below(&now);
        // The first, so that none of its children begins there any more.
        write(&to.join("cgroup.procs"), &init.to_string())?;
        loop {
            let left = read(&from.join("cgroup.procs"))?;
            let mut ours = Vec::new();
            for pid in left.lines().filter_map(|line| line.parse().ok()) {
                if descends_from(pid, init).map_err(CgroupError::of_process(pid))? {
                    ours.push(pid);
                }
            }
            if ours.is_empty() {
                break;
            }
            for pid in ours {
                match write(&to.join("cgroup.procs"), &pid.to_string()) {
                    // It has ended meanwhile.
                    Err(_) if is_zombie(pid) => {}
                    moved => moved?,
                }
            }
        }
        // Made by CRIU, or another's that still lives.
        let _ = fs::remove_dir(from);
        Ok(())
    }

    /// The directory whose freezer is used.
    pub(crate) fn freezer(&self) -> &Path {
        self.freezer.as_deref().unwrap_or(&self.unified)
    }

    /// The cgroup v2 id, as `bpf_get_current_cgroup_id` returns it.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Whether the cgroup bears a container's id, as runc names it: the last part
    /// of the path, or a systemd scope `<prefix>-<id>.scope`. A pid from a file may be
    /// another process's by now.
    pub fn names(&self, id: &str) -> bool {
        self.unified
            .file_name()
            .is_some_and(|name| is_named(&name.to_string_lossy(), id))
    }

    /// Every process in the cgroup and in cgroups below it.
    ///
    /// # Errors
    /// When the cgroup is gone ([`CgroupError::is_gone`]), or something of it cannot be read.
    pub fn processes(&self) -> Result<Vec<i32>, CgroupError> {
        let mut pids = Vec::new();
        let mut dirs = vec![self.unified.clone()];
        while let Some(dir) = dirs.pop() {
            let below = dir != self.unified;
            match read(&dir.join("cgroup.procs")) {
                Ok(text) => pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok())),
                // A child cgroup may go while we walk; ours may not.
                Err(error) if below && error.is_gone() => continue,
                // A threaded one: its processes show in the parent.
                Err(error) if below && error.errno() == Some(libc::EOPNOTSUPP) => continue,
                Err(error) => return Err(error),
            }
            match directories(&dir) {
                Err(error) if below && error.is_gone() => {}
                found => dirs.extend(found?),
            }
        }
        pids.sort_unstable();
        pids.dedup();
        Ok(pids)
    }

    /// Whether the cgroup is frozen.
    ///
    /// # Errors
    /// When the freezer cannot be read.
    pub fn is_frozen(&self) -> Result<bool, CgroupError> {
        match &self.freezer {
            Some(dir) => Ok(read(&dir.join("freezer.state"))?.trim() == "FROZEN"),
            None => Ok(read(&self.unified.join("cgroup.events"))?
                .lines()
                .any(|line| line == "frozen 1")),
        }
    }

    fn request(&self, frozen: bool) -> Result<(), CgroupError> {
        match &self.freezer {
            Some(dir) => write(
                &dir.join("freezer.state"),
                if frozen { "FROZEN" } else { "THAWED" },
            ),
            None => write(
                &self.unified.join("cgroup.freeze"),
                if frozen { "1" } else { "0" },
            ),
        }
    }

    fn reach(&self, frozen: bool, limit: Duration) -> Result<(), CgroupError> {
        let start = Instant::now();
        let mut pause = Duration::from_micros(50);
        let mut since_thaw = start;
        self.request(frozen)?;
        while self.is_frozen()? != frozen {
            if start.elapsed() > limit {
                return Err(CgroupError::Timeout {
                    path: self.unified.clone(),
                    wanted: if frozen { "frozen" } else { "thawed" },
                    waited_ms: start.elapsed().as_millis(),
                });
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(2));
            if self.freezer.is_some() {
                if frozen && since_thaw.elapsed() > STUCK {
                    self.request(false)?;
                    thread::sleep(LET_GO);
                    since_thaw = Instant::now();
                }
                // v1 goes to FREEZING and stays there if a task was in the
                // middle of a fork; writing again makes it look again.
                self.request(frozen)?;
            }
        }
        Ok(())
    }

    /// Freezes every process of the cgroup, and returns when all are. One that is
    /// frozen already (paused by its user) stays so when the guard is gone.
    ///
    /// Not between the two halves of a vfork, if it can be helped: the parent waits for
    /// the child's exec in the kernel, where the freezers take it for frozen, and a
    /// tracer cannot stop it before that. CRIU would wait for it in vain.
    ///
    /// # Errors
    /// When they are not all frozen within `limit` (one may be in an
    /// uninterruptible call); then they are thawed again.
    pub fn freeze(&self, limit: Duration) -> Result<Frozen, CgroupError> {
        let guard = Frozen {
            cgroup: self.clone(),
            since: Instant::now(),
            thaw: !self.is_frozen()?,
        };
        self.reach(true, limit)?;
        let start = Instant::now();
        while guard.thaw && start.elapsed() < VFORK_LIMIT && self.is_in_vfork() {
            self.reach(false, limit)?;
            // Until the child has had a CPU.
            thread::sleep(Duration::from_millis(1));
            self.reach(true, limit)?;
        }
        Ok(guard)
    }

    /// Whether a thread of a frozen process waits for its vfork.
    fn is_in_vfork(&self) -> bool {
        self.processes()
            .unwrap_or_default()
            .into_iter()
            .filter_map(|pid| stat::threads(pid).ok())
            .flatten()
            .filter_map(|(_, thread)| fs::read_to_string(thread.join("syscall")).ok())
            .any(|call| is_vfork(&call))
    }

    /// Thaws the cgroup, and returns when it is.
    ///
    /// # Errors
    /// When it is still frozen after a second.
    pub fn thaw(&self) -> Result<(), CgroupError> {
        self.reach(false, Duration::from_secs(1))
    }

    /// Sends SIGKILL to every process of the cgroup and waits until none is
    /// left but zombies.
    ///
    /// # Errors
    /// When some are still there after `limit`, or that cannot be told.
    pub fn kill(&self, limit: Duration) -> Result<(), CgroupError> {
        let start = Instant::now();
        loop {
            let alive = match self.kill_once() {
                Ok(alive) => alive.then(|| CgroupError::Timeout {
                    path: self.unified.clone(),
                    wanted: "empty",
                    waited_ms: start.elapsed().as_millis(),
                }),
                // With all that was in it. systemd removes a scope that is empty.
                Err(error) if error.is_gone() => None,
                // Who could not be looked for may be there.
                Err(error) => Some(error),
            };
            match alive {
                None => return Ok(()),
                Some(error) if start.elapsed() > limit => return Err(error),
                Some(_) => thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Whether there was anything to kill.
    fn kill_once(&self) -> Result<bool, CgroupError> {
        let kill_file = self.unified.join("cgroup.kill");
        if kill_file.exists() {
            // Also reaches what forks meanwhile (Linux 5.14).
            write(&kill_file, "1")?;
        }
        let mut alive = false;
        for pid in self.processes()? {
            if is_zombie(pid) {
                continue;
            }
            alive = true;
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        Ok(alive)
    }
}

/// The directories in one.
fn directories(dir: &Path) -> Result<Vec<PathBuf>, CgroupError> {
    let failed = |source| CgroupError::Io {
        verb: "read",
        path: dir.to_path_buf(),
        source,
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        // The hierarchy tells it with the name.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// Whether a process that lives is below another in the tree of processes.
fn descends_from(pid: i32, ancestor: i32) -> io::Result<bool> {
    let mut next = Stat::of(pid)?.filter(|stat| !stat.has_ended());
    while let Some(stat) = next {
        if stat.parent == ancestor {
            return Ok(true);
        }
        next = match stat.parent {
            ..=1 => None,
            parent => Stat::of(parent)?,
        };
    }
    Ok(false)
}

/// Whether `/proc/<pid>/syscall` tells of a process that is being made: that blocks only
/// for a vfork's sake.
fn is_vfork(call: &str) -> bool {
    let number = call.split(' ').next().and_then(|word| word.parse().ok());
    number.is_some_and(|number: libc::c_long| VFORK_CALLS.contains(&number))
}

#[cfg(target_arch = "x86_64")]
const VFORK_CALLS: [libc::c_long; 3] = [libc::SYS_vfork, libc::SYS_clone, libc::SYS_clone3];
#[cfg(not(target_arch = "x86_64"))]
const VFORK_CALLS: [libc::c_long; 2] = [libc::SYS_clone, libc::SYS_clone3];

/// For how long a better instant to freeze is looked for. A child that takes longer to its
/// exec hangs in something.
const VFORK_LIMIT: Duration = Duration::from_millis(100);

fn is_named(directory: &str, id: &str) -> bool {
    directory == id
        || directory
            .strip_suffix(".scope")
            .and_then(|name| name.strip_suffix(id))
            .is_some_and(|prefix| prefix.is_empty() || prefix.ends_with(['-', ':']))
}

/// How long what was frozen may take to be so again.
const AGAIN: Duration = Duration::from_millis(500);

/// Whether a process has ended and only waits to be reaped, or is gone. One that cannot be looked
/// at lives.
fn is_zombie(pid: i32) -> bool {
    Stat::of(pid).is_ok_and(|stat| stat.is_none_or(|stat| stat.has_ended()))
}

/// A frozen container. Thawed by [`Frozen::thaw`], or when dropped.
#[derive(Debug)]
pub struct Frozen {
    cgroup: Cgroup,
    since: Instant,
    /// Whether it is ours to thaw.
    thaw: bool,
}

impl Frozen {
    /// Thaws the container and checks that it is thawed; tells for how long it
    /// was frozen.
    ///
    /// # Errors
    /// When it stays frozen.
    pub fn thaw(mut self) -> Result<Duration, CgroupError> {
        if std::mem::take(&mut self.thaw) {
            self.cgroup.thaw()?;
        }
        Ok(self.since.elapsed())
    }

    /// Does something that has threads stop in another way, who have been told to. v1's freezer
    /// lets none stop as long as it holds it, v2's does.
    ///
    /// # Errors
    /// When v1's cannot be thawed, or frozen again.
    pub(crate) fn while_stopping<T>(&self, wait: impl FnOnce() -> T) -> Result<T, CgroupError> {
        if self.cgroup.freezer.is_none() {
            return Ok(wait());
        }
        self.cgroup.reach(false, AGAIN)?;
        let waited = wait();
        self.cgroup.reach(true, AGAIN)?;
        Ok(waited)
    }

    /// Thaws it, come what may.
    ///
    /// # Errors
    /// When it stays frozen.
    pub(crate) fn let_go(&self) -> Result<(), CgroupError> {
        self.cgroup.reach(false, AGAIN)
    }

    /// Waits until all that has been stopped in another way is frozen again.
    ///
    /// # Errors
    /// When it is not.
    pub(crate) fn again(&self) -> Result<(), CgroupError> {
        self.cgroup.reach(true, AGAIN)
    }

    /// Lets it be frozen from now on.
    pub fn leave_frozen(mut self) {
        self.thaw = false;
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if self.thaw
            && let Err(error) = self.cgroup.thaw()
        {
            tracing::error!(%error, "a container may be left frozen");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_v2_line_has_no_controllers_and_a_v1_line_may_have_several() {
        let table = "9:name=systemd:/x\n6:freezer:/default/a\n5:cpu,cpuacct:/c\n0::/default/b\n";
        assert_eq!(path_of(table, "").as_deref(), Some("/default/b"));
        assert_eq!(path_of(table, "freezer").as_deref(), Some("/default/a"));
        assert_eq!(path_of(table, "cpuacct").as_deref(), Some("/c"));
        assert_eq!(path_of(table, "memory"), None);
    }

    #[test]
    fn a_vfork_is_known_by_its_call() {
        let of = |number: libc::c_long| format!("{number} 0x0 0x7ffd 0x7ffe 0x7f00\n");
        assert!(is_vfork(&of(libc::SYS_clone3)));
        assert!(!is_vfork(&of(libc::SYS_wait4)));
        assert!(!is_vfork("running\n"));
        assert!(!is_vfork("-1 0x7ffd 0x7f00\n"));
        assert!(!is_vfork(""));
    }

    #[test]
    fn a_path_may_hold_colons() {
        assert_eq!(path_of("0::/a:b/c", "").as_deref(), Some("/a:b/c"));
    }

    #[test]
    fn a_name_that_only_contains_the_id_is_anothers() {
        assert!(is_named("web", "web"));
        assert!(is_named("cri-containerd-web.scope", "web"));
        assert!(!is_named("web2", "web"));
        assert!(!is_named("cri-containerd-myweb.scope", "web"));
    }

    #[test]
    fn children_of_children_descend() {
        let own = std::process::id() as i32;
        let parent = Stat::of(own).unwrap().unwrap().parent;
        assert!(descends_from(own, parent).unwrap());
        assert!(!descends_from(parent, own).unwrap());
        let mut child = std::process::Command::new("sleep")
            .arg("9")
            .spawn()
            .unwrap();
        assert!(descends_from(child.id() as i32, parent).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_cgroup_that_is_gone_is_empty_and_one_that_cannot_be_read_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| Cgroup {
            unified: dir.path().join(name),
            freezer: None,
            id: 1,
        };
        assert!(at("gone").processes().unwrap_err().is_gone());
        at("gone").kill(Duration::ZERO).unwrap();
        // A directory: its open succeeds, and its read fails.
        fs::create_dir_all(dir.path().join("odd/cgroup.procs")).unwrap();
        let error = at("odd").kill(Duration::ZERO).unwrap_err();
        assert!(!error.is_gone(), "{error}");
        // Of a child that cannot be read nothing is passed over either.
        fs::create_dir(dir.path().join("whole")).unwrap();
        fs::write(dir.path().join("whole/cgroup.procs"), "7\n").unwrap();
        assert_eq!(at("whole").processes().unwrap(), [7]);
        fs::create_dir_all(dir.path().join("whole/child/cgroup.procs")).unwrap();
        assert!(at("whole").processes().is_err());
    }

    #[test]
    fn our_own_process_is_no_zombie() {
        assert!(!is_zombie(std::process::id() as i32));
    }
}
