// SPDX-License-Identifier: Apache-2.0

//! What a process holds open, by kind.

use std::{collections::BTreeMap, fmt, fs, path::Path};

/// How many of each kind: `pipe`, `inotify`, `inotify watch`, `net namespace`, `file`, ...
/// A socket's kind is its family, and its path if it has one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptors(BTreeMap<String, usize>);

/// The descriptors of a process; none if it is gone.
pub fn descriptors(pid: u32) -> Descriptors {
    let mut found = Descriptors::default();
    let dir = Path::new("/proc").join(pid.to_string());
    let sockets = sockets(&dir.join("net"));
    for entry in fs::read_dir(dir.join("fd")).into_iter().flatten().flatten() {
        let Ok(target) = fs::read_link(entry.path()) else {
            continue;
        };
        let target = target.to_string_lossy();
        let kind = match sockets.get(&*target) {
            Some(family) => family.clone(),
            None => kind(&target),
        };
        if kind == "inotify" {
            let info = fs::read_to_string(dir.join("fdinfo").join(entry.file_name()));
            let watches = info.unwrap_or_default();
            let watches = watches.lines().filter(|line| line.starts_with("inotify "));
            found.add("inotify watch", watches.count());
        }
        found.add(&kind, 1);
    }
    found
}

/// The families of the network tables, and in which column each has the socket's inode.
const FAMILIES: [(&str, usize); 6] = [
    ("unix", 6),
    ("netlink", 9),
    ("tcp", 9),
    ("tcp6", 9),
    ("udp", 9),
    ("udp6", 9),
];

/// What the sockets of a network namespace are, by what a link to each says.
fn sockets(net: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for (family, column) in FAMILIES {
        let table = fs::read_to_string(net.join(family)).unwrap_or_default();
        for line in table.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let Some(inode) = fields.get(column) else {
                continue;
            };
            // Of a Unix socket the path, of a netlink socket the protocol.
            let more = match family {
                "unix" => fields.get(column + 1),
                "netlink" => fields.get(1),
                _ => None,
            };
            let kind = match more {
                Some(more) => format!("{family} socket {more}"),
                None => format!("{family} socket"),
            };
            found.insert(format!("socket:[{inode}]"), kind);
        }
    }
    found
}

/// What a link in `/proc/<pid>/fd` says (proc_pid_fd(5)).
fn kind(target: &str) -> String {
    if target.starts_with('/') {
        return "file".into();
    }
    match target.split_once(':') {
        // "anon_inode:inotify", "anon_inode:[eventpoll]"
        Some(("anon_inode", what)) => what.trim_matches(['[', ']']).into(),
        Some((what @ ("socket" | "pipe"), _)) => what.into(),
        // "net:[4026531840]"
        Some((what, _)) => format!("{what} namespace"),
        None => target.into(),
    }
}

impl Descriptors {
    fn add(&mut self, kind: &str, count: usize) {
        if count > 0 {
            *self.0.entry(kind.into()).or_default() += count;
        }
    }

    /// How many of a kind.
    pub fn of(&self, kind: &str) -> usize {
        self.0.get(kind).copied().unwrap_or_default()
    }

    /// How many more there are than there were, for each kind with more.
    pub fn more_than<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = (&'a str, usize)> {
        self.0.iter().filter_map(|(kind, now)| {
            let more = now.saturating_sub(before.of(kind));
            (more > 0).then_some((kind.as_str(), more))
        })
    }
}

impl fmt::Display for Descriptors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self
            .0
            .iter()
            .map(|(kind, count)| format!("{count} {kind}"))
            .collect();
        f.write_str(&all.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::unix::net::UnixStream, process};

    use super::*;

    #[test]
    fn what_this_process_opens_is_seen_by_its_kind() {
        assert_eq!(kind("anon_inode:inotify"), "inotify");
        assert_eq!(kind("anon_inode:[eventpoll]"), "eventpoll");
        assert_eq!(kind("net:[4026531840]"), "net namespace");
        // Of another process, so that no other test of this one disturbs.
        let (one, _other) = UnixStream::pair().unwrap();
        let mut child = process::Command::new("sleep")
            .arg("60")
            .stdin(std::os::fd::OwnedFd::from(one))
            .stdout(File::open("/proc/self/ns/net").unwrap())
            .spawn()
            .unwrap();
        // Between fork and exec it still has all of this process's.
        let seen = crate::poll("it sleeps", std::time::Duration::from_secs(20), || {
            let name = fs::read_to_string(format!("/proc/{}/comm", child.id()))?;
            Ok((name == "sleep\n").then(|| descriptors(child.id())))
        })
        .unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(
            (seen.of("unix socket"), seen.of("net namespace")),
            (1, 1),
            "{seen}"
        );
        let before = Descriptors::default();
        assert!(
            seen.more_than(&before)
                .any(|more| more == ("unix socket", 1))
        );
        assert_eq!(before.more_than(&seen).count(), 0);
    }
}
