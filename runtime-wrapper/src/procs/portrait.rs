// SPDX-License-Identifier: Apache-2.0
//! Processes as they can be told from others that were restored from an image of them.
//!
//! A restored process has another id on the host, other namespaces, other numbers of pipes
//! and devices. What it has in common with the one in the image is its place in the container's
//! tree of processes, its program, what it has open, by name, and what is in its memory. So that is
//! what an image notes, and what is compared with it later.

use std::{
    collections::{BTreeMap, HashMap},
    fmt, fs, io,
    os::unix::ffi::OsStrExt,
    path::Path,
};

use crab_store::{Digest, clip, command_line, escape};
use rustix::fs::{FileType, OFlags};
use serde::{Deserialize, Serialize};

use super::{
    Content, Process, Set,
    read::{field, last_number, look},
};
use crate::foreign::read_start;

/// How many descriptors of one process are noted.
const MAX_OPEN: usize = 1024;
/// How many bytes of a name are kept.
const MAX_NAME: usize = 512;
/// Of how many processes there are portraits.
const MAX_PROCESSES: usize = 4096;
/// How many bytes of names there are in all; beyond, what is open is not noted.
const MAX_NAMES: usize = 2 << 20;

/// What is between the name of something open and its flags.
const FLAGS: &str = " (flags ";

/// All processes of a sandbox at an instant, but those that need no image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Portraits {
    processes: Vec<Portrait>,
    /// Memory and files without a name that they share; nothing if it was not read.
    #[serde(default)]
    shared: Option<Vec<Digest>>,
    /// Why memory was not read.
    #[serde(default)]
    unread: Option<String>,
}

/// One process. Ids are those in the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Portrait {
    pid: u32,
    /// 0 for one that is outside.
    parent: u32,
    group: u32,
    session: u32,
    comm: String,
    command: String,
    program: String,
    directory: String,
    threads: usize,
    uid: String,
    gid: String,
    /// Nothing if it was not noted.
    #[serde(default)]
    open: Option<BTreeMap<i32, String>>,
    /// Nothing if it was not read.
    #[serde(default)]
    memory: Option<MemoryDigest>,
    /// Its id on the host and its start, for as long as it lives.
    #[serde(skip)]
    key: (i32, u64),
}

/// What is in a process's memory: by itself, and near its stacks also without the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryDigest {
    pub(super) pages: Digest,
    /// With those that the kernel may drop: CRIU before 4.2 restores them as any other.
    #[serde(default)]
    pub(super) all_pages: Option<Digest>,
    pub(super) near_stacks: Digest,
    pub(super) timeless: Digest,
}

impl MemoryDigest {
    /// Whether this is what `earlier` was, restored or not.
    fn is(&self, earlier: &Self) -> bool {
        let near = self.near_stacks == earlier.near_stacks || self.timeless == earlier.timeless;
        let pages = self.pages == earlier.pages || Some(self.pages) == earlier.all_pages;
        near && pages
    }
}

/// How a process is not as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessDifference {
    /// Its id in the container.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// In which way.
    pub kind: ProcessDifferenceKind,
}

/// In which way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessDifferenceKind {
    /// It is there and was not.
    Added,
    /// It was there and is not.
    Removed,
    /// It is another in this, a line for each thing.
    Changed(Vec<String>),
}

/// Whether memory is as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemoryVerdict {
    /// Of every process that is in both.
    Same,
    /// Of some it is not.
    Differs,
    /// It is not known, for this reason.
    Unknown(String),
}

impl fmt::Display for MemoryVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same => f.write_str("same"),
            Self::Differs => f.write_str("differs"),
            Self::Unknown(why) => write!(f, "not compared: {why}"),
        }
    }
}

impl Portraits {
    /// Of the processes of a set, which are frozen. Memory is added by [`Self::add_memory`].
    ///
    /// # Errors
    /// When one cannot be read, or there are too many.
    pub fn of(set: &Set) -> io::Result<Self> {
        let mut numbers = Numbers::default();
        if set.iter().count() > MAX_PROCESSES {
            return Err(io::Error::other(format!(
                "there are more than {MAX_PROCESSES} processes"
            )));
        }
        let portrait = |process| io::Result::Ok((Portrait::of(process)?, process));
        let mut all: Vec<(Portrait, &Process)> =
            set.iter().map(portrait).collect::<Result<_, _>>()?;
        // In an order that a restore keeps, by which what is shared is numbered.
        all.sort_unstable_by_key(|(portrait, _)| portrait.pid);
        let mut left = MAX_NAMES;
        let mut processes = Vec::with_capacity(all.len());
        for (mut portrait, process) in all {
            if left > 0 {
                let open = open(&process.dir(), &mut numbers)?;
                let names = open.values().map(String::len).sum();
                left = left.saturating_sub(names);
                portrait.open = Some(open);
            }
            processes.push(portrait);
        }
        Ok(Self {
            processes,
            shared: None,
            unread: Some("it was not read".into()),
        })
    }

    /// Adds what they held at the same instant, or why that is not known.
    pub fn add_memory(&mut self, content: Result<&Content, String>) {
        match content {
            Ok(content) => {
                for portrait in &mut self.processes {
                    portrait.memory = content.memory_of(portrait.key);
                }
                let mut shared: Vec<Digest> = content.shared().collect();
                shared.sort_unstable();
                self.shared = Some(shared);
                self.unread = None;
            }
            Err(why) => self.unread = Some(why),
        }
    }

    fn by_pid(&self) -> BTreeMap<u32, &Portrait> {
        let all = self.processes.iter();
        all.map(|portrait| (portrait.pid, portrait)).collect()
    }

    /// How many processes there are.
    pub fn len(&self) -> usize {
        self.processes.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// How these, of now, differ from earlier ones, and whether memory does.
    pub fn since(&self, earlier: &Self) -> (Vec<ProcessDifference>, MemoryVerdict) {
        let mut differences = Vec::new();
        let mut memory = match (&earlier.unread, &self.unread) {
            _ if earlier.is_empty() || self.is_empty() => MemoryVerdict::Same,
            (Some(why), _) => MemoryVerdict::Unknown(format!("not recorded, as {why}")),
            (None, Some(why)) => MemoryVerdict::Unknown(why.clone()),
            (None, None) => MemoryVerdict::Same,
        };
        let (now, before) = (self.by_pid(), earlier.by_pid());
        let mut untold = None;
        for (pid, portrait) in &now {
            let Some(before) = before.get(pid) else {
                differences.push(portrait.differs(ProcessDifferenceKind::Added));
                continue;
            };
            let mut changed = portrait.unlike(before);
            match (&portrait.memory, &before.memory) {
                (Some(now), Some(before)) if !now.is(before) => {
                    changed.push("memory".into());
                    memory = MemoryVerdict::Differs;
                }
                (Some(_), Some(_)) => {}
                // One that is ignored, or too much for a look.
                (_, before) => {
                    untold.get_or_insert((*pid, &portrait.comm, before.is_none()));
                }
            }
            if !changed.is_empty() {
                differences.push(portrait.differs(ProcessDifferenceKind::Changed(changed)));
            }
        }
        let gone = before.iter().filter(|(pid, _)| !now.contains_key(pid));
        differences.extend(gone.map(|(_, it)| it.differs(ProcessDifferenceKind::Removed)));
        differences.sort_by_key(|difference| difference.pid);
        if let (Some(now), Some(before)) = (&self.shared, &earlier.shared)
            && now != before
        {
            memory = MemoryVerdict::Differs;
        }
        if let (MemoryVerdict::Same, Some((pid, comm, at_capture))) = (&memory, untold) {
            let when = if at_capture { "recorded" } else { "read" };
            let comm = escape(comm.as_bytes());
            memory =
                MemoryVerdict::Unknown(format!("that of {comm} (process {pid}) was not {when}"));
        }
        (differences, memory)
    }
}

impl Portrait {
    /// But for what it has open.
    fn of(process: &Process) -> io::Result<Self> {
        let proc = process.dir();
        let status = fs::read(proc.join("status"))?;
        let inner = |name: &str| last_number(&status, name).unwrap_or(0);
        let levels = levels(&status);
        let parent = fs::read(format!("/proc/{}/status", process.parent)).ok();
        let parent = parent.filter(|status| self::levels(status) == levels);
        let link = |name: &str| {
            let link = fs::read_link(proc.join(name))?;
            io::Result::Ok(clip(&escape(link.as_os_str().as_bytes()), MAX_NAME))
        };
        let ids = |name: &str| field(&status, name).unwrap_or_default();
        Ok(Self {
            pid: inner("NSpid:"),
            parent: parent
                .and_then(|status| last_number(&status, "NSpid:"))
                .unwrap_or(0),
            group: inner("NSpgid:"),
            session: inner("NSsid:"),
            comm: process.comm.clone(),
            command: clip(&command_line(&process.args), MAX_NAME),
            program: link("exe")?,
            directory: link("cwd")?,
            threads: process.threads.len(),
            uid: ids("Uid:"),
            gid: ids("Gid:"),
            open: None,
            memory: None,
            key: (process.pid, process.start),
        })
    }

    fn differs(&self, kind: ProcessDifferenceKind) -> ProcessDifference {
        ProcessDifference {
            pid: self.pid,
            comm: self.comm.clone(),
            kind,
        }
    }

    /// What of it is another than before, memory left out.
    fn unlike(&self, before: &Self) -> Vec<String> {
        let numbers = [
            ("parent", self.parent as usize, before.parent as usize),
            ("process group", self.group as usize, before.group as usize),
            ("session", self.session as usize, before.session as usize),
            ("threads", self.threads, before.threads),
        ];
        let numbers = numbers
            .into_iter()
            .filter(|(_, now, before)| now != before)
            .map(|(what, now, before)| format!("{what}: {before} -> {now}"));
        let texts = [
            ("name", &self.comm, &before.comm),
            ("command", &self.command, &before.command),
            ("program", &self.program, &before.program),
            ("directory", &self.directory, &before.directory),
            ("user", &self.uid, &before.uid),
            ("group", &self.gid, &before.gid),
        ];
        let texts = texts
            .into_iter()
            .filter(|(_, now, before)| now != before)
            .map(|(what, now, before)| format!("{what}: {before} -> {now}"));
        let mut unlike: Vec<String> = numbers.chain(texts).collect();
        let (Some(open), Some(opened)) = (&self.open, &before.open) else {
            return unlike;
        };
        for (number, now) in open {
            match opened.get(number) {
                None => unlike.push(format!("descriptor {number}: none -> {now}")),
                Some(before) if !same_file(before, now) => {
                    unlike.push(format!("descriptor {number}: {before} -> {now}"));
                }
                Some(_) => {}
            }
        }
        let gone = opened.iter().filter(|(it, _)| !open.contains_key(it));
        unlike
            .extend(gone.map(|(number, before)| format!("descriptor {number}: {before} -> none")));
        unlike
    }
}

/// Whether two descriptors are told alike, but for a flag that means nothing to a 64-bit
/// process: a terminal that `ioctl(TIOCGPTPEER)` gave is without it (kernel, `ptm_open_peer`),
/// and has it when CRIU has opened it by name.
fn same_file(one: &str, other: &str) -> bool {
    let parts = |told: &str| -> Option<(String, u32)> {
        let (what, flags) = told.rsplit_once(FLAGS)?;
        let flags = u32::from_str_radix(flags.strip_suffix(')')?, 8).ok()?;
        Some((what.to_owned(), flags & !OFlags::LARGEFILE.bits()))
    };
    one == other || parts(one).is_some_and(|one| parts(other) == Some(one))
}

/// In how many pid namespaces it is.
fn levels(status: &[u8]) -> usize {
    field(status, "NSpid:").map_or(0, |ids| ids.split(' ').count())
}

/// Numbers things in the order in which they are met, as their own numbers are others after a
/// restore.
#[derive(Default)]
struct Numbers(HashMap<Vec<u8>, usize>);

impl Numbers {
    fn of(&mut self, name: &[u8]) -> usize {
        let next = self.0.len() + 1;
        *self.0.entry(name.to_vec()).or_insert(next)
    }
}

/// How much of `/proc/<pid>/fdinfo/<fd>` is read, in bytes.
const FDINFO: usize = 256;

/// What a process has open.
fn open(proc: &Path, numbers: &mut Numbers) -> io::Result<BTreeMap<i32, String>> {
    let dir = proc.join("fd");
    let mut open: Vec<i32> = fs::read_dir(&dir)?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    open.sort_unstable();
    open.truncate(MAX_OPEN);
    let mut told = BTreeMap::new();
    for number in open {
        let path = dir.join(number.to_string());
        let name = fs::read_link(&path)?;
        // What is told here comes first; of an inotify or epoll descriptor all that it
        // watches would follow, however much that is.
        let info = read_start(&proc.join(format!("fdinfo/{number}")), FDINFO)?;
        let is_file = || {
            let stat = look(&path)?;
            let mode = u32::from(stat.stx_mode);
            io::Result::Ok(FileType::from_raw_mode(mode) == FileType::RegularFile)
        };
        let flags = field(&info, "flags:").unwrap_or_default();
        let name = name.as_os_str().as_bytes();
        let mut what = thing(name, numbers);
        if name.starts_with(b"/") && is_file()? {
            let at = field(&info, "pos:").unwrap_or_default();
            what.push_str(&format!(" at {at}"));
        }
        told.insert(number, format!("{what}{FLAGS}{flags})"));
    }
    Ok(told)
}

fn thing(name: &[u8], numbers: &mut Numbers) -> String {
    for kind in ["pipe", "socket"] {
        if name.starts_with(format!("{kind}:[").as_bytes()) {
            return format!("{kind} {}", numbers.of(name));
        }
    }
    if !name.starts_with(b"/memfd:") && name.ends_with(b" (deleted)") {
        // A restore gives it another name before it takes that away.
        return "a removed file".into();
    }
    clip(&escape(name), MAX_NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn portrait(pid: u32) -> Portrait {
        Portrait {
            pid,
            parent: 1,
            group: pid,
            session: pid,
            comm: "x".into(),
            command: "x -y".into(),
            program: "/bin/x".into(),
            directory: "/".into(),
            threads: 1,
            uid: "0 0 0 0".into(),
            gid: "0 0 0 0".into(),
            open: Some(BTreeMap::from([(0, "/dev/null (flags 02)".into())])),
            memory: Some(memory(1, 2, 3)),
            key: (0, 0),
        }
    }

    fn memory(pages: u8, near: u8, timeless: u8) -> MemoryDigest {
        MemoryDigest {
            pages: Digest([pages; 32]),
            all_pages: None,
            near_stacks: Digest([near; 32]),
            timeless: Digest([timeless; 32]),
        }
    }

    fn all(processes: Vec<Portrait>) -> Portraits {
        Portraits {
            processes,
            shared: Some(Vec::new()),
            unread: None,
        }
    }

    #[test]
    fn the_same_processes_under_other_ids_of_the_host_are_the_same() {
        let mut restored = portrait(7);
        restored.key = (99, 5);
        let before = all(vec![portrait(7)]);
        let text = serde_json::to_string(&before).unwrap();
        let read: Portraits = serde_json::from_str(&text).unwrap();
        assert_eq!(
            all(vec![restored]).since(&read),
            (Vec::new(), MemoryVerdict::Same)
        );
    }

    #[test]
    fn what_differs_is_told_by_name() {
        let mut changed = portrait(7);
        changed.parent = 3;
        changed.open = Some(BTreeMap::from([(4, "pipe 1 (flags 01)".into())]));
        changed.memory = Some(memory(9, 2, 3));
        let now = all(vec![changed, portrait(9)]);
        let (differences, verdict) = now.since(&all(vec![portrait(7), portrait(8)]));
        let kinds: Vec<_> = differences.iter().map(|it| (it.pid, &it.kind)).collect();
        assert_eq!(verdict, MemoryVerdict::Differs);
        assert_eq!(
            kinds[1..],
            [
                (8, &ProcessDifferenceKind::Removed),
                (9, &ProcessDifferenceKind::Added)
            ]
        );
        let ProcessDifferenceKind::Changed(lines) = kinds[0].1 else {
            panic!("{kinds:?}");
        };
        assert_eq!(
            *lines,
            [
                "parent: 1 -> 3",
                "descriptor 4: none -> pipe 1 (flags 01)",
                "descriptor 0: /dev/null (flags 02) -> none",
                "memory"
            ]
        );
    }

    #[test]
    fn a_terminal_that_was_opened_in_another_way_is_the_same() {
        for (before, now, same) in [
            ("/dev/pts/0 (flags 02)", "/dev/pts/0 (flags 0100002)", true),
            (
                "/dev/pts/0 (flags 02000002)",
                "/dev/pts/0 (flags 02100002)",
                true,
            ),
            ("/dev/pts/0 (flags 02)", "/dev/pts/0 (flags 0102002)", false),
            ("/dev/pts/0 (flags 02)", "/dev/pts/1 (flags 02)", false),
            ("/a (flags 02", "/a (flags 0100002", false),
        ] {
            assert_eq!(same_file(before, now), same, "{before} and {now}");
        }
    }

    #[test]
    fn memory_that_was_not_recorded_is_neither_same_nor_different() {
        let mut before = all(vec![portrait(7)]);
        before.processes[0].memory = None;
        before.unread = Some("they hold too much".into());
        let (differences, verdict) = all(vec![portrait(7)]).since(&before);
        assert!(differences.is_empty());
        assert_eq!(
            verdict.to_string(),
            "not compared: not recorded, as they hold too much"
        );
    }

    #[test]
    fn memory_of_a_process_that_is_ignored_is_not_called_the_same() {
        let two = || all(vec![portrait(7), portrait(8)]);
        for (in_image, now) in [(true, false), (false, true), (true, true)] {
            let (mut before, mut after) = (two(), two());
            if in_image {
                before.processes[1].memory = None;
            }
            if now {
                after.processes[1].memory = None;
            }
            let (differences, verdict) = after.since(&before);
            assert!(differences.is_empty());
            let when = if in_image { "recorded" } else { "read" };
            let told = format!("not compared: that of x (process 8) was not {when}");
            assert_eq!(verdict.to_string(), told);
            // What is known of the others counts.
            after.processes[0].memory = Some(memory(9, 2, 3));
            assert_eq!(after.since(&before).1, MemoryVerdict::Differs);
        }
    }

    #[test]
    fn only_the_time_near_a_stack_may_be_another() {
        assert!(memory(1, 2, 3).is(&memory(1, 9, 3)));
        assert!(memory(1, 2, 3).is(&memory(1, 2, 9)));
        assert!(!memory(1, 2, 3).is(&memory(1, 8, 9)));
        assert!(!memory(1, 2, 3).is(&memory(2, 2, 3)));
        // What may be dropped was kept by a restore, or not.
        let mut droppable = memory(1, 2, 3);
        droppable.all_pages = Some(Digest([4; 32]));
        assert!(memory(1, 2, 3).is(&droppable) && memory(4, 2, 3).is(&droppable));
        assert!(!memory(5, 2, 3).is(&droppable));
    }

    #[test]
    fn what_is_shared_has_the_number_of_its_first_mention() {
        let mut numbers = Numbers::default();
        let names: [&[u8]; 4] = [b"pipe:[77]", b"socket:[5]", b"pipe:[77]", b"/x (deleted)"];
        let told: Vec<String> = names.iter().map(|name| thing(name, &mut numbers)).collect();
        assert_eq!(told, ["pipe 1", "socket 2", "pipe 1", "a removed file"]);
    }
}
