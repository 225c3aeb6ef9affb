// SPDX-License-Identifier: Apache-2.0

//! A real process in a real cgroup, in whatever hierarchies this host has.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crab_runtime::{
    cgroup::Cgroup,
    procs::{Content, ContentError, Set},
};

pub(crate) const LIMIT: u64 = 256 << 20;
const FREEZE_LIMIT: Duration = Duration::from_secs(5);

/// The directories of a cgroup, gone with it.
struct Directories(Vec<PathBuf>);

impl Directories {
    fn make(name: &str) -> Self {
        let base = Path::new("/sys/fs/cgroup");
        let roots = [base.into(), base.join("unified"), base.join("freezer")];
        let roots = roots.into_iter().filter(|root: &PathBuf| {
            root.join("cgroup.procs").exists() && root.join("cgroup.procs").is_file()
        });
        let dirs: Vec<PathBuf> = roots.map(|root| root.join(name)).collect();
        assert!(!dirs.is_empty(), "no cgroup hierarchy is mounted");
        for dir in &dirs {
            fs::create_dir(dir).unwrap();
        }
        Self(dirs)
    }
}

impl Drop for Directories {
    fn drop(&mut self) {
        for dir in &self.0 {
            let start = Instant::now();
            // Until the kernel has done with what was in it.
            while fs::remove_dir(dir).is_err() && start.elapsed() < FREEZE_LIMIT {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// A program alone in a cgroup. Killed when it is dropped.
pub(crate) struct Subject {
    pub(crate) child: Child,
    pub(crate) cgroup: Cgroup,
    stdin: Option<ChildStdin>,
    _directories: Directories,
}

impl Subject {
    pub(crate) fn start(name: &str, command: &mut Command) -> Self {
        let directories = Directories::make(&format!("crab-content-{}-{name}", std::process::id()));
        // A file that the tests' own output goes to would move beneath it.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        for dir in &directories.0 {
            fs::write(dir.join("cgroup.procs"), child.id().to_string()).unwrap();
        }
        let cgroup = Cgroup::of_process(child.id() as i32).unwrap();
        Self {
            stdin: child.stdin.take(),
            child,
            cgroup,
            _directories: directories,
        }
    }

    /// Python that does what each line of its stdin says, and says so on its stdout.
    pub(crate) fn python(name: &str, script: &str) -> Self {
        let mut command = Command::new("python3");
        command.args(["-S", "-c", script]).stdin(Stdio::piped());
        Self::start(name, &mut command)
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub(crate) fn say(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// Says it, and waits until it has been done.
    pub(crate) fn do_now(&mut self, line: &str, calls: &[i64]) {
        let done = tempfile::NamedTempFile::new().unwrap();
        let path = done.path().display();
        self.say(&format!("{line}; os.unlink('{path}')"));
        let start = Instant::now();
        while done.path().exists() {
            assert!(start.elapsed() < Duration::from_secs(30), "it does not");
            thread::sleep(Duration::from_millis(1));
        }
        self.wait_for(calls);
    }

    fn in_call(&self, calls: &[i64]) -> bool {
        let call = fs::read_to_string(format!("/proc/{}/syscall", self.pid())).unwrap();
        let call = call.split(' ').next().unwrap();
        calls.iter().any(|number| number.to_string() == call)
    }

    pub(crate) fn wait_for_state(&self, state: char) {
        let start = Instant::now();
        let path = format!("/proc/{}/stat", self.pid());
        while !fs::read_to_string(&path)
            .unwrap()
            .contains(&format!(") {state} "))
        {
            assert!(start.elapsed() < Duration::from_secs(30), "not {state}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until it is in one of these calls.
    pub(crate) fn wait_for(&self, calls: &[i64]) {
        let start = Instant::now();
        while !self.in_call(calls) {
            assert!(start.elapsed() < Duration::from_secs(30), "it never waits");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until it has run so many times more, which it does by itself.
    pub(crate) fn let_it_run(&self, times: u64, calls: &[i64]) {
        let slices = || {
            let text = fs::read_to_string(format!("/proc/{}/schedstat", self.pid())).unwrap();
            text.split_ascii_whitespace()
                .nth(2)
                .unwrap()
                .parse::<u64>()
                .unwrap()
        };
        let before = slices();
        while slices() < before + times {
            thread::sleep(Duration::from_millis(1));
        }
        self.wait_for(calls);
    }

    pub(crate) fn look_within(
        &self,
        earlier: Option<&Content>,
        limit: u64,
    ) -> Result<Content, ContentError> {
        let frozen = self.cgroup.freeze(FREEZE_LIMIT).unwrap();
        let set = Set::of(&self.cgroup, None).unwrap();
        let content = Content::of(&self.cgroup, &frozen, &set, earlier, limit);
        let hung = matches!(content, Err(ContentError::Hung));
        assert!(hung || self.cgroup.is_frozen().unwrap(), "it runs");
        frozen.thaw().unwrap();
        content
    }

    pub(crate) fn look(&self) -> Content {
        self.look_within(None, LIMIT).unwrap()
    }

    /// What of it is another than before.
    pub(crate) fn change_since(&self, before: &Content) -> String {
        let now = self.look_within(Some(before), LIMIT).unwrap();
        now.since(before)
            .map_or("nothing".into(), |changed| changed.to_string())
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
