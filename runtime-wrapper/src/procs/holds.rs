// SPDX-License-Identifier: Apache-2.0
//! What processes hold on to: files, mappings, and what CRIU cannot dump.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use rustix::fs::FileType;

use super::{Process, Set, read::look};

impl Set {
    /// Whether a process maps a file shared and writable, or has an io_uring:
    /// then files may change with no further system call.
    pub fn writes_unseen(&self) -> bool {
        !self.shared_mappings().is_empty() || self.iter().any(holds_io_uring)
    }

    /// What the processes hold on to in the file system: programs, libraries,
    /// open files, working directories, as paths in the container without the
    /// leading slash.
    pub fn references(&self) -> BTreeSet<Vec<u8>> {
        self.processes.values().flat_map(references_of).collect()
    }

    /// The same of each process that matters. What it holds stays what it is while the process does
    /// nothing; but the paths become others where files, or directories above them, are
    /// moved or removed.
    pub fn references_by_process(&self) -> References {
        let each = self.relevant();
        let each = each.map(|process| ((process.pid, process.start), references_of(process)));
        References(each.collect())
    }

    /// Paths that some process maps shared and writable, in the container, without
    /// the leading slash: their content may change without any system call and
    /// without a new time stamp.
    pub fn shared_mappings(&self) -> BTreeSet<Vec<u8>> {
        let mut paths = BTreeSet::new();
        for process in self.processes.values() {
            let maps = fs::read(process.dir().join("maps")).unwrap_or_default();
            for line in maps.split(|byte| *byte == b'\n') {
                if let Some(path) = shared_writable(line) {
                    paths.insert(path);
                }
            }
        }
        paths
    }

    /// The memory that an image of these processes may take, in bytes: what is
    /// resident and not a file's (`statm`'s third field counts file and shared
    /// pages together, so shared memory is left out).
    pub fn image_bytes(&self) -> u64 {
        let pages: u64 = self
            .iter()
            .filter_map(|process| {
                let statm = fs::read_to_string(process.dir().join("statm")).ok()?;
                let mut fields = statm.split_ascii_whitespace().skip(1);
                let resident: u64 = fields.next()?.parse().ok()?;
                let of_files: u64 = fields.next()?.parse().ok()?;
                Some(resident.saturating_sub(of_files))
            })
            .sum();
        pages * rustix::param::page_size() as u64
    }

    /// The files without a name that are open, memory files among them, in bytes: an image
    /// holds their content.
    pub fn nameless_bytes(&self) -> u64 {
        let mut seen = BTreeSet::new();
        let mut bytes: u64 = 0;
        for process in self.iter() {
            let fds = fs::read_dir(process.dir().join("fd"));
            for entry in fds.into_iter().flatten().flatten() {
                let Ok(stat) = look(&entry.path()) else {
                    continue;
                };
                let regular = FileType::from_raw_mode(stat.stx_mode.into()).is_file();
                let file = (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino);
                if regular && stat.stx_nlink == 0 && seen.insert(file) {
                    bytes = bytes.saturating_add(stat.stx_blocks.saturating_mul(512));
                }
            }
        }
        bytes
    }

    /// A process that holds an internet socket: one that the socket tables of its
    /// network namespace list.
    pub fn inet_socket(&self) -> Option<&Process> {
        self.holder_of(inet_inodes)
    }

    /// A process that holds a TCP socket which neither listens nor is closed.
    pub fn connection(&self) -> Option<&Process> {
        self.holder_of(connections)
    }

    /// Whether all are in the network namespace of the init.
    pub fn shares_network(&self, init: i32) -> bool {
        let network = |dir: &Path| fs::read_link(dir.join("ns/net")).ok();
        let inits = network(Path::new(&format!("/proc/{init}")));
        inits.is_some() && self.iter().all(|process| network(&process.dir()) == inits)
    }

    /// A process that holds one of the sockets that `list` finds in its network tables.
    fn holder_of(&self, list: impl Fn(&Path) -> BTreeSet<u64>) -> Option<&Process> {
        let mut inet: BTreeMap<PathBuf, BTreeSet<u64>> = BTreeMap::new();
        self.iter().find(|process| {
            let proc = process.dir();
            let net = proc.join("net");
            let mut sockets: BTreeSet<u64> = sockets_of(&proc).collect();
            if sockets.is_empty() {
                return false;
            }
            // First, because it is short: the kernel goes through every bucket of its
            // hash tables to list TCP and UDP, which takes milliseconds.
            for inode in inodes_in(&net.join("unix"), UNIX_INODE) {
                sockets.remove(&inode);
            }
            if sockets.is_empty() {
                return false;
            }
            let Ok(namespace) = fs::read_link(proc.join("ns/net")) else {
                return false;
            };
            let listed = inet.entry(namespace).or_insert_with(|| list(&net));
            sockets.iter().any(|inode| listed.contains(inode))
        })
    }

    /// Whether the init has still to execute the container's program: runc's start answers
    /// when it has told it to.
    pub fn has_yet_to_begin(&self, init: i32) -> bool {
        let mut all = self.processes.values();
        all.any(|process| process.pid == init && process.comm == RUNC_INIT)
    }
}

/// What runc's process in a container calls itself (its nsexec.c).
const RUNC_INIT: &str = "runc:[2:INIT]";

pub(super) const IO_URING: &[u8] = b"anon_inode:[io_uring]";

/// What the descriptors of a process lead to.
pub(super) fn targets(process: &Process) -> impl Iterator<Item = PathBuf> + use<> {
    let all = fs::read_dir(process.dir().join("fd")).into_iter().flatten();
    all.flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
}

/// In which field of `/proc/net/unix` and of the internet tables the inode is
/// (proc_pid_net(5)).
const UNIX_INODE: usize = 6;
const INET_INODE: usize = 9;
const TCP_STATE: usize = 3;

/// The inodes in a socket table, after its line of headings.
fn inodes_in(table: &Path, field: usize) -> Vec<u64> {
    fs::read_to_string(table)
        .unwrap_or_default()
        .lines()
        .skip(1)
        .filter_map(|line| line.split_ascii_whitespace().nth(field)?.parse().ok())
        .collect()
}

/// Of the TCP sockets in the tables, those in a state other than closed (7) and
/// listening (10).
fn connections(net: &Path) -> BTreeSet<u64> {
    let rows = ["tcp", "tcp6"].map(|table| fs::read_to_string(net.join(table)).unwrap_or_default());
    rows.iter()
        .flat_map(|table| table.lines().skip(1))
        .filter_map(|row| {
            let fields: Vec<&str> = row.split_ascii_whitespace().collect();
            let state = *fields.get(TCP_STATE)?;
            let inode = fields.get(INET_INODE)?.parse().ok()?;
            (!matches!(state, "07" | "0A")).then_some(inode)
        })
        .collect()
}

fn inet_inodes(net: &Path) -> BTreeSet<u64> {
    ["tcp", "tcp6", "udp", "udp6", "raw", "raw6"]
        .iter()
        .flat_map(|table| inodes_in(&net.join(table), INET_INODE))
        .collect()
}

pub(super) fn sockets_of(proc: &Path) -> impl Iterator<Item = u64> + use<> {
    descriptors(proc, "socket").map(|(_, inode)| inode)
}

/// The descriptors of a process (its directory in `/proc`) that are of a kind which
/// has no name in the file system, "pipe" or "socket": number and inode.
pub fn descriptors(proc: &Path, kind: &str) -> impl Iterator<Item = (i32, u64)> + use<> {
    let prefix = format!("{kind}:[");
    fs::read_dir(proc.join("fd"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(move |entry| {
            let target = fs::read_link(entry.path()).ok()?;
            let inode = target.to_str()?.strip_prefix(&prefix)?.strip_suffix(']')?;
            let number = entry.file_name().to_str()?.parse().ok()?;
            Some((number, inode.parse().ok()?))
        })
}

/// Paths by process, in the container and without the leading slash.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct References(BTreeMap<(i32, u64), BTreeSet<Vec<u8>>>);

impl References {
    /// A path by which a process of both holds something now, and did not earlier.
    pub fn moved_since<'a>(&'a self, earlier: &'a Self) -> Option<&'a [u8]> {
        self.0.iter().find_map(|(process, now)| {
            let before = earlier.0.get(process)?;
            now.difference(before).next().map(Vec::as_slice)
        })
    }
}

fn references_of(process: &Process) -> BTreeSet<Vec<u8>> {
    let proc = process.dir();
    let links = ["exe", "cwd", "root"].map(|link| proc.join(link));
    let listed = ["fd", "map_files"].into_iter().flat_map(|dir| {
        let entries = fs::read_dir(proc.join(dir)).into_iter().flatten().flatten();
        entries.map(|entry| entry.path())
    });
    let mut paths = BTreeSet::new();
    for link in links.into_iter().chain(listed) {
        let target = fs::read_link(link).map(|target| target.into_os_string().into_vec());
        let Some(path) = target
            .as_ref()
            .ok()
            .and_then(|path| path.strip_prefix(b"/"))
        else {
            continue;
        };
        // A file may be called so, too.
        if let Some(before) = path.strip_suffix(b" (deleted)") {
            paths.insert(before.to_vec());
        }
        paths.insert(path.to_vec());
    }
    paths
}

/// The path of a line of `/proc/<pid>/maps` if the mapping is shared and may be
/// written: `start-end perms offset dev inode path`.
fn shared_writable(line: &[u8]) -> Option<Vec<u8>> {
    let mut fields = line.splitn(6, |byte| *byte == b' ');
    let perms = fields.nth(1)?;
    if perms.get(1) != Some(&b'w') || perms.get(3) != Some(&b's') {
        return None;
    }
    let path = fields.nth(3)?.trim_ascii_start();
    // What has no name (any more) is in no tree: memfd, SysV and anonymous memory.
    path.strip_prefix(b"/")
        .filter(|path| !path.ends_with(b" (deleted)"))
        .map(<[u8]>::to_vec)
}

fn holds_io_uring(process: &Process) -> bool {
    targets(process).any(|target| target.as_os_str().as_bytes() == IO_URING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shared_and_writable_mappings_of_files_count() {
        let line = b"7f00-7f01 rw-s 00000000 00:2d 17                         /data/db file";
        assert_eq!(
            shared_writable(line).as_deref(),
            Some(b"data/db file".as_slice())
        );
        for line in [
            b"7f00-7f01 rw-p 00000000 00:2d 17   /data/db".as_slice(),
            b"7f00-7f01 r--s 00000000 00:2d 17   /data/db",
            b"7f00-7f01 rw-s 00000000 00:00 0 ",
            b"7f00-7f01 rw-s 00000000 00:01 5   /memfd:x (deleted)",
            b"",
        ] {
            assert_eq!(shared_writable(line), None);
        }
    }

    #[test]
    fn our_own_listening_socket_is_in_the_tables_and_a_unix_one_is_not() {
        let proc = Path::new("/proc/self");
        let listed = |proc: &Path| {
            let listed = inet_inodes(&proc.join("net"));
            sockets_of(proc).filter(|i| listed.contains(i)).count()
        };
        let before = listed(proc);
        let unix = std::os::unix::net::UnixDatagram::unbound().unwrap();
        assert_eq!(listed(proc), before);
        let inode = std::os::unix::fs::MetadataExt::ino(
            &fs::metadata(format!(
                "/proc/self/fd/{}",
                std::os::fd::AsRawFd::as_raw_fd(&unix)
            ))
            .unwrap(),
        );
        assert!(inodes_in(&proc.join("net/unix"), UNIX_INODE).contains(&inode));
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(listed(proc), before + 1);
        let connected = |proc: &Path| {
            let connected = connections(&proc.join("net"));
            sockets_of(proc).filter(|i| connected.contains(i)).count()
        };
        assert_eq!(connected(proc), 0, "one that listens is not connected");
        let _stream = std::net::TcpStream::connect(tcp.local_addr().unwrap()).unwrap();
        assert_eq!(connected(proc), 1);
    }
}
