// SPDX-License-Identifier: Apache-2.0

//! The processes: the init, all below it, and what a client has put beside it.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashSet},
    fs::{self, File},
    io::Read,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};

use super::{
    How, add, content,
    net::Sockets,
    probe,
    rules::{self, Window},
    shown,
};
use crate::processes::{children, in_pid_namespace_of};

/// What is read of a command line, in bytes; the kernel allows megabytes.
const LINE: u64 = 128 << 10;
/// Of the status, those that say whose a process is.
const OWNERS: [&str; 3] = ["Uid", "Gid", "Groups"];

/// Those of a sandbox.
#[derive(Debug, Default)]
pub(super) struct Processes(Vec<Process>);

/// One of them.
#[derive(Debug)]
struct Process {
    pid: u32,
    /// In ticks since the host's boot.
    start: u64,
    /// The command lines from the init's to its own, by the rules.
    place: Vec<Vec<u8>>,
    facts: BTreeMap<String, Fact>,
    /// The inodes of its sockets.
    sockets: HashSet<u64>,
    /// Those of the pipes that it writes to, and of the one that is its stdin.
    writes: HashSet<u64>,
    stdin: Option<u64>,
}

/// By what one is found in another state: its place, its start and its pid.
type Known = (Vec<Vec<u8>>, u64, u32);

/// What is known of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fact {
    exact: Vec<u8>,
    normal: Vec<u8>,
}

impl Fact {
    fn get(&self, how: How) -> &[u8] {
        match how {
            How::Exact => &self.exact,
            How::Normal => &self.normal,
        }
    }
}

impl Processes {
    /// Those of an init, which has to be there.
    pub(super) fn of(init: u32, window: &Window) -> Result<Self> {
        let mut all = Vec::new();
        let mut sockets = Sockets::default();
        let mut seen = HashSet::new();
        let first = Process::read(init, &[], &mut sockets, window)?;
        let first = first.context("its init has ended")?;
        let mut waiting = vec![first];
        let mut beside = beside(init).into_iter();
        loop {
            while let Some(process) = waiting.pop() {
                if !seen.insert(process.pid) {
                    continue;
                }
                for child in children(process.pid) {
                    waiting.extend(Process::read(child, &process.place, &mut sockets, window)?);
                }
                all.push(process);
            }
            let Some(pid) = beside.next() else {
                break;
            };
            if !seen.contains(&pid) {
                let place = [b"(beside the init)".to_vec()];
                waiting.extend(Process::read(pid, &place, &mut sockets, window)?);
            }
        }
        let inside: HashSet<u64> = all
            .iter()
            .flat_map(|process: &Process| process.writes.iter().copied())
            .collect();
        for process in &mut all {
            process.rule_stdin(&inside);
        }
        all.sort_by_key(|process: &Process| (process.start, process.pid));
        Ok(Self(all))
    }

    pub(super) fn pids(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|process| process.pid)
    }

    /// Whether one of them has a socket.
    pub(super) fn hold(&self, socket: u64) -> bool {
        self.0
            .iter()
            .any(|process| process.sockets.contains(&socket))
    }

    /// How they differ, a line each.
    pub(super) fn unlike(&self, then: &Self, how: How) -> Vec<String> {
        let mut lines = Vec::new();
        let (now, then) = (self.by_place(how), then.by_place(how));
        let places: BTreeSet<_> = now.keys().chain(then.keys()).collect();
        for place in places {
            let mut now = now.get(place).cloned().unwrap_or_default();
            let mut then = then.get(place).cloned().unwrap_or_default();
            // Of several at one place those belong together that are alike.
            now.retain(|process| {
                let same = then.iter().position(|other| other.is_like(process, how));
                same.map(|at| then.remove(at)).is_none()
            });
            let both = now.len().min(then.len());
            for (now, then) in now.drain(..both).zip(then.drain(..both)) {
                lines.extend(now.lines(then, how));
            }
            lines.extend(
                now.iter()
                    .map(|process| format!("{} is new", process.name())),
            );
            lines.extend(
                then.iter()
                    .map(|process| format!("{} is missing", process.name())),
            );
        }
        lines
    }

    /// Those of one run are known by their pid and their start.
    fn by_place(&self, how: How) -> BTreeMap<Known, Vec<&Process>> {
        let mut all: BTreeMap<_, Vec<&Process>> = BTreeMap::new();
        for process in &self.0 {
            let key = match how {
                How::Exact => (Vec::new(), process.start, process.pid),
                How::Normal => (process.place.clone(), 0, 0),
            };
            all.entry(key).or_default().push(process);
        }
        all
    }

    pub(super) fn add_to(&self, hasher: &mut blake3::Hasher) {
        let mut all: Vec<_> = self.0.iter().map(Process::digest).collect();
        all.sort_unstable();
        add(hasher, b"processes");
        for digest in all {
            add(hasher, &digest);
        }
    }
}

/// What is in the init's pid namespace and not below it: an exec that has not ended. The
/// namespace has to be the container's own.
fn beside(init: u32) -> Vec<u32> {
    let own = fs::read_to_string(format!("/proc/{init}/status")).is_ok_and(|status| {
        let line = status.lines().find(|line| line.starts_with("NSpid:"));
        line.is_some_and(|line| line.split_ascii_whitespace().last() == Some("1"))
    });
    match own {
        true => in_pid_namespace_of(init),
        false => Vec::new(),
    }
}

/// What a file that never had a name is called: `/tmp/#4711 (deleted)`, by its inode number.
fn without_inode(target: &[u8]) -> Cow<'_, [u8]> {
    let number = || {
        let called = target.strip_suffix(b" (deleted)")?;
        let at = called.iter().rposition(|byte| *byte == b'/')? + 1;
        let digits = called[at..].strip_prefix(b"#")?;
        (!digits.is_empty() && digits.iter().all(u8::is_ascii_digit)).then_some(at)
    };
    match number() {
        Some(at) => Cow::Owned([&target[..at], b"(no name)"].concat()),
        None => Cow::Borrowed(target),
    }
}

impl Process {
    /// Nothing if it has ended.
    fn read(
        pid: u32,
        parent: &[Vec<u8>],
        sockets: &mut Sockets,
        window: &Window,
    ) -> Result<Option<Self>> {
        let dir = PathBuf::from(format!("/proc/{pid}"));
        let Ok(stat) = fs::read(dir.join("stat")) else {
            return Ok(None);
        };
        // Its name, which it chooses, ends at the last parenthesis.
        let stat = String::from_utf8_lossy(&stat).into_owned();
        let fields: Vec<&str> = match stat.rsplit_once(") ") {
            Some((_, fields)) => fields.split(' ').collect(),
            None => return Ok(None),
        };
        if fields
            .first()
            .is_none_or(|state| matches!(*state, "Z" | "X"))
        {
            return Ok(None);
        }
        let start = fields.get(19).and_then(|start| start.trim().parse().ok());
        let mut process = Self {
            pid,
            start: start.context("a process has no start")?,
            place: parent.to_vec(),
            facts: BTreeMap::new(),
            sockets: HashSet::new(),
            writes: HashSet::new(),
            stdin: None,
        };
        match process.fill(&dir, sockets, window) {
            Ok(()) => Ok(Some(process)),
            // It ends whenever it likes.
            Err(_) if fs::read_link(dir.join("exe")).is_err() => Ok(None),
            Err(error) => Err(error.context(format!("read process {pid}"))),
        }
    }

    fn fill(&mut self, dir: &Path, sockets: &mut Sockets, window: &Window) -> Result<()> {
        let mut line = Vec::new();
        File::open(dir.join("cmdline"))?
            .take(LINE)
            .read_to_end(&mut line)?;
        self.place.push(rules::command(&line, window));
        self.tell("command line", line.clone(), rules::command(&line, window));
        for link in ["cwd", "root", "exe"] {
            let target = fs::read_link(dir.join(link))?.into_os_string().into_vec();
            self.tell(link, target.clone(), rules::path(&target, window));
        }
        let status = fs::read(dir.join("status"))?;
        let status = String::from_utf8_lossy(&status).into_owned();
        for line in status.lines() {
            if let Some((name, value)) = line.split_once(':')
                && OWNERS.contains(&name)
            {
                let value = value.trim().as_bytes().to_vec();
                self.tell(name, value.clone(), value);
            }
        }
        for entry in fs::read_dir(dir.join("fd"))? {
            let number = entry?.file_name();
            let number = number.to_str().context("a descriptor without a number")?;
            let (exact, normal) = match self.descriptor(dir, number, sockets, window) {
                Ok(told) => told,
                // Closed meanwhile.
                Err(_) if fs::read_link(dir.join("fd").join(number)).is_err() => continue,
                Err(error) => return Err(error),
            };
            self.tell(&format!("descriptor {number}"), exact, normal);
        }
        if probe::is_one(&line) {
            let memory = probe::memory(self.pid)?;
            let told = match memory {
                Some(digest) => blake3::Hash::from(digest).to_string().into_bytes(),
                None => b"none".to_vec(),
            };
            self.tell("memory of the probe", told.clone(), told);
        }
        Ok(())
    }

    /// What a descriptor is, exactly and by the rules.
    fn descriptor(
        &mut self,
        dir: &Path,
        number: &str,
        sockets: &mut Sockets,
        window: &Window,
    ) -> Result<(Vec<u8>, Vec<u8>)> {
        let link = dir.join("fd").join(number);
        let target = fs::read_link(&link)?.into_os_string().into_vec();
        let info = fs::read_to_string(dir.join("fdinfo").join(number))?;
        let field = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name));
            line.map(str::trim).unwrap_or_default().to_owned()
        };
        let flags = u32::from_str_radix(&field("flags:"), 8).unwrap_or_default();
        let access = match flags & 0o3 {
            0 => "read",
            1 => "written",
            _ => "read and written",
        };
        let (mut exact, mut normal) = (target.clone(), target.clone());
        let inode = |kind: &str| {
            let text = std::str::from_utf8(&target).ok()?;
            let number = text.strip_prefix(kind)?.strip_prefix(":[")?;
            number.strip_suffix(']')?.parse::<u64>().ok()
        };
        if let Some(inode) = inode("socket") {
            self.sockets.insert(inode);
            let (told, ruled) = sockets.told(self.pid, inode);
            exact.extend(format!(" {told}").bytes());
            normal = rules::words(ruled.as_bytes());
        } else if let Some(pipe) = inode("pipe") {
            match access {
                "read" if number == "0" => self.stdin = Some(pipe),
                "read" => {}
                _ => drop(self.writes.insert(pipe)),
            }
            normal = b"pipe".to_vec();
        } else if target.starts_with(b"/") {
            normal = rules::path(without_inode(&target).as_ref(), window);
            // The place itself, which neither blocks nor does anything, for what it is.
            let place = openat(CWD, &link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
            let about = fstat(&place)?;
            if FileType::from_raw_mode(about.st_mode).is_file() {
                let at = format!(" at {}", field("pos:"));
                exact.extend(at.bytes());
                normal.extend(at.bytes());
                // What has no name is to be had only here.
                if about.st_nlink == 0
                    && let Some(file) = content::open(&place)?
                {
                    let read = content::read(
                        &file,
                        about.st_size as u64,
                        Some(window),
                        &mut HashSet::new(),
                    )?;
                    exact.extend(format!(" with {}", blake3::Hash::from(read.exact)).bytes());
                    normal.extend(format!(" with {}", blake3::Hash::from(read.normal)).bytes());
                }
            }
        } else if !target.starts_with(b"anon_inode:") {
            // `net:[4026531840]` and its like.
            let kind = target.split(|byte| *byte == b':').next();
            normal = kind.unwrap_or_default().to_vec();
        }
        for told in [&mut exact, &mut normal] {
            told.extend(format!(", {access}").bytes());
        }
        Ok((exact, normal))
    }

    /// What its stdin is by the rules, if nobody inside has the other end.
    fn rule_stdin(&mut self, written_inside: &HashSet<u64>) {
        let from_outside = self.stdin.map(|pipe| !written_inside.contains(&pipe));
        if let Some(fact) = self.facts.get_mut("descriptor 0")
            && let Some(ruled) = rules::stdin(&fact.normal, from_outside)
        {
            fact.normal = ruled;
        }
    }

    fn tell(&mut self, what: &str, exact: Vec<u8>, normal: Vec<u8>) {
        self.facts.insert(what.to_owned(), Fact { exact, normal });
    }

    fn is_like(&self, other: &Self, how: How) -> bool {
        self.facts.len() == other.facts.len()
            && self.facts.iter().all(|(what, fact)| {
                let other = other.facts.get(what);
                other.is_some_and(|other| other.get(how) == fact.get(how))
            })
    }

    fn lines(&self, then: &Self, how: How) -> Vec<String> {
        let mut lines = Vec::new();
        let what: BTreeSet<_> = self.facts.keys().chain(then.facts.keys()).collect();
        for what in what {
            let get = |process: &Self| {
                let fact = process.facts.get(what);
                fact.map_or("none".to_owned(), |fact| shown(fact.get(how)))
            };
            let (now, before) = (get(self), get(then));
            if now != before {
                let name = self.name();
                lines.push(format!("{name} has another {what}: {now}, not {before}"));
            }
        }
        lines
    }

    /// By its command line and that of its parent.
    fn name(&self) -> String {
        let mut last = self.place.iter().rev().map(|line| {
            let words = line.strip_suffix(b"\0").unwrap_or(line);
            let words: Vec<u8> = words
                .iter()
                .map(|byte| if *byte == 0 { b' ' } else { *byte })
                .collect();
            shown(&words).chars().take(120).collect::<String>()
        });
        let own = last.next().unwrap_or_default();
        match last.next() {
            Some(parent) => format!("process `{own}` below `{parent}`"),
            None => format!("process `{own}`"),
        }
    }

    fn digest(&self) -> super::Digest {
        let mut hasher = blake3::Hasher::new();
        for line in &self.place {
            add(&mut hasher, line);
        }
        for (what, fact) in &self.facts {
            add(&mut hasher, what.as_bytes());
            add(&mut hasher, &fact.normal);
        }
        hasher.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_without_a_name_is_called_by_its_inode() {
        assert_eq!(*without_inode(b"/tmp/#4711 (deleted)"), *b"/tmp/(no name)");
        for other in [
            "/tmp/#4711",
            "/tmp/# (deleted)",
            "/tmp/#47a (deleted)",
            "/tmp/a (deleted)",
        ] {
            assert_eq!(*without_inode(other.as_bytes()), *other.as_bytes());
        }
    }
}
