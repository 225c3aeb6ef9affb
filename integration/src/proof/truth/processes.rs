// SPDX-License-Identifier: Apache-2.0

//! The processes: which there are, what is in their memory, where each of their threads
//! stands, and what the kernel holds for them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    os::unix::{ffi::OsStringExt, fs::FileExt},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::{Context, Result};

use crate::processes::children;

/// Lines of `/proc/<pid>/status` that are part of what a process is.
const STATUS: [&str; 20] = [
    "Name",
    "Umask",
    "PPid",
    "Uid",
    "Gid",
    "Groups",
    "NSpid",
    "NSpgid",
    "NSsid",
    "Threads",
    "SigPnd",
    "ShdPnd",
    "SigBlk",
    "SigIgn",
    "SigCgt",
    "CapInh",
    "CapPrm",
    "CapEff",
    "NoNewPrivs",
    "Seccomp",
];
/// Fields of `/proc/<pid>/stat` after the name: priority, niceness, real-time priority
/// and scheduling policy, by their place behind the closing parenthesis.
const SCHEDULING: [usize; 4] = [15, 16, 37, 38];

/// How often a thread that runs is looked at again, and after how long.
const AWAKE: u32 = 100;
const PAUSE: Duration = Duration::from_millis(1);

/// Those of a sandbox, but its init and those that have ended.
#[derive(Debug, Default)]
pub struct Processes(BTreeMap<u32, Process>);

/// What is known of one, by the name under which a difference is told.
#[derive(Debug, Default, PartialEq, Eq)]
struct Process {
    facts: BTreeMap<String, Vec<u8>>,
    /// What it holds: its program, its directory, what it has open or mapped.
    held: BTreeSet<Vec<u8>>,
}

impl Processes {
    /// Those below an init.
    pub fn of(init: u32) -> Result<Self> {
        let mut all = BTreeMap::new();
        let mut parents = vec![init];
        while let Some(parent) = parents.pop() {
            for child in children(parent) {
                parents.push(child);
                if let Some(process) = Process::read(child)? {
                    all.insert(child, process);
                }
            }
        }
        Ok(Self(all))
    }

    /// What differs, a line each.
    pub(super) fn changed(&self, before: &Self) -> Vec<String> {
        let mut changed = Vec::new();
        for (pid, now) in &self.0 {
            match before.0.get(pid) {
                None => changed.push(format!("{} is new", now.name())),
                Some(then) => {
                    let keys: BTreeSet<_> = now.facts.keys().chain(then.facts.keys()).collect();
                    let unlike = keys
                        .into_iter()
                        .filter(|key| now.facts.get(*key) != then.facts.get(*key));
                    let unlike: Vec<&str> = unlike.map(String::as_str).collect();
                    if !unlike.is_empty() {
                        changed.push(format!("{} has another {}", now.name(), unlike.join(", ")));
                    }
                }
            }
        }
        for (pid, then) in &before.0 {
            if !self.0.contains_key(pid) {
                changed.push(format!("{} has ended", then.name()));
            }
        }
        changed
    }

    /// The paths that some process holds.
    pub(super) fn held(&self) -> BTreeSet<Vec<u8>> {
        let all = self.0.values();
        all.flat_map(|process| process.held.iter().cloned())
            .collect()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The call in which a thread is blocked, with its arguments and its place. One that wakes up
/// ever so often is met awake now and then.
fn call_of(thread: &Path) -> Result<String> {
    let path = thread.join("syscall");
    let mut call = fs::read_to_string(&path)?;
    for _ in 0..AWAKE {
        if call.trim() != "running" {
            break;
        }
        thread::sleep(PAUSE);
        call = fs::read_to_string(&path)?;
    }
    Ok(call)
}

impl Process {
    /// Nothing if it has ended.
    fn read(pid: u32) -> Result<Option<Self>> {
        let dir = PathBuf::from(format!("/proc/{pid}"));
        let Ok(stat) = fs::read_to_string(dir.join("stat")) else {
            return Ok(None);
        };
        let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
        if fields.starts_with(['Z', 'X']) {
            return Ok(None);
        }
        let mut process = Self::default();
        process
            .read_facts(&dir, fields)
            .and_then(|()| process.read_descriptors(&dir))
            .and_then(|()| process.read_memory(&dir))
            .with_context(|| format!("read process {pid}"))?;
        Ok(Some(process))
    }

    fn name(&self) -> String {
        let line = self
            .facts
            .get("command line")
            .map_or(&b""[..], Vec::as_slice);
        String::from_utf8_lossy(line)
            .trim_end_matches('\0')
            .replace('\0', " ")
    }

    fn tell(&mut self, what: &str, bytes: impl Into<Vec<u8>>) {
        self.facts.insert(what.to_owned(), bytes.into());
    }

    fn read_facts(&mut self, dir: &Path, stat: &str) -> Result<()> {
        for (what, file) in [
            ("command line", "cmdline"),
            ("limits", "limits"),
            ("timers", "timers"),
            ("oom_score_adj", "oom_score_adj"),
        ] {
            self.tell(what, fs::read(dir.join(file))?);
        }
        let status = fs::read_to_string(dir.join("status"))?;
        for line in status.lines() {
            let name = line.split(':').next().unwrap_or_default();
            if STATUS.contains(&name) {
                self.tell(name, line);
            }
        }
        let fields: Vec<&str> = stat.split(' ').collect();
        let scheduling = SCHEDULING.map(|at| fields.get(at).copied().unwrap_or_default());
        self.tell("scheduling", scheduling.join(" "));
        for link in ["exe", "cwd", "root"] {
            let target = fs::read_link(dir.join(link))?.into_os_string().into_vec();
            self.held.insert(target.clone());
            self.tell(link, target);
        }
        for thread in fs::read_dir(dir.join("task"))? {
            let thread = thread?;
            let call = call_of(&thread.path())?;
            // Stack and instruction. Not the call, which has another number when it goes
            // on after an interruption.
            let place: Vec<&str> = call.trim().rsplit(' ').take(2).collect();
            let name = format!("place of thread {}", thread.file_name().display());
            self.tell(&name, place.join(" "));
        }
        Ok(())
    }

    /// With the content of those files that only descriptors lead to.
    fn read_descriptors(&mut self, dir: &Path) -> Result<()> {
        for descriptor in fs::read_dir(dir.join("fd"))? {
            let descriptor = descriptor?;
            let number = descriptor.file_name();
            let target = fs::read_link(descriptor.path())?
                .into_os_string()
                .into_vec();
            let info = fs::read(dir.join("fdinfo").join(&number))?;
            let nameless = target.ends_with(b" (deleted)");
            let name = format!("descriptor {}", number.display());
            self.held.insert(target.clone());
            self.tell(&name, [target, info].concat());
            if nameless {
                let path = descriptor.path();
                let content =
                    fs::read(&path).with_context(|| format!("read {}", path.display()))?;
                self.tell(&format!("content of {name}"), content);
            }
        }
        Ok(())
    }

    /// Every page that it may write to, whether it ever has.
    fn read_memory(&mut self, dir: &Path) -> Result<()> {
        let maps = fs::read_to_string(dir.join("maps"))?;
        let memory = File::open(dir.join("mem"))?;
        for line in maps.lines() {
            let mut fields = line.split_ascii_whitespace();
            let range = fields.next().context("a mapping without a range")?;
            let may = fields.next().context("a mapping without permissions")?;
            if let Some(path) = fields.nth(3) {
                self.held.insert(path.as_bytes().to_vec());
            }
            if !may.contains('w') {
                continue;
            }
            let (start, end) = range.split_once('-').context("a range without an end")?;
            let (start, end) = (
                u64::from_str_radix(start, 16)?,
                u64::from_str_radix(end, 16)?,
            );
            let mut bytes = vec![0; (end - start) as usize];
            // Behind the end of its file a mapping has none.
            match memory.read_exact_at(&mut bytes, start) {
                Ok(()) => self.tell(&format!("memory at {range}"), bytes),
                Err(_) => self.tell(&format!("memory at {range}"), "cannot be read"),
            }
        }
        self.tell("mappings", maps);
        Ok(())
    }
}
