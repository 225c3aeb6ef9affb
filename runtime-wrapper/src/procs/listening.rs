// SPDX-License-Identifier: Apache-2.0
//! Where processes wait for others to come: their sockets in the tables of their
//! network namespace (proc_pid_net(5)).

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
};

use super::{Set, holds::sockets_of};

/// A socket that waits for others to come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listening {
    /// `tcp`, `udp` or `unix`.
    pub protocol: &'static str,
    /// Address and port, or a path; an abstract name begins with `@`.
    pub address: Vec<u8>,
    /// The name of a process that holds it.
    pub comm: String,
}

impl Set {
    /// The sockets of these processes that listen, or, for UDP, are bound.
    pub fn listening(&self) -> Vec<Listening> {
        let mut tables: BTreeMap<PathBuf, Table> = BTreeMap::new();
        let mut found = Vec::new();
        for process in self.iter() {
            let proc = process.dir();
            let sockets: BTreeSet<u64> = sockets_of(&proc).collect();
            if sockets.is_empty() {
                continue;
            }
            let Ok(namespace) = fs::read_link(proc.join("ns/net")) else {
                continue;
            };
            let table = tables
                .entry(namespace)
                .or_insert_with(|| Table::of(&proc.join("net")));
            found.extend(sockets.iter().filter_map(|inode| {
                let (protocol, address) = table.0.get(inode)?;
                Some(Listening {
                    protocol,
                    address: address.clone(),
                    comm: process.comm.clone(),
                })
            }));
        }
        found
    }
}

/// The listening sockets of a network namespace, by inode.
struct Table(BTreeMap<u64, (&'static str, Vec<u8>)>);

impl Table {
    fn of(net: &Path) -> Self {
        let mut sockets = BTreeMap::new();
        for (name, protocol, state) in [
            ("tcp", "tcp", LISTEN),
            ("tcp6", "tcp", LISTEN),
            ("udp", "udp", UNCONNECTED),
            ("udp6", "udp", UNCONNECTED),
        ] {
            let table = fs::read_to_string(net.join(name)).unwrap_or_default();
            let listed = table.lines().skip(1).filter_map(|line| inet(line, state));
            sockets.extend(listed.map(|(inode, address)| (inode, (protocol, address))));
        }
        let table = fs::read(net.join("unix")).unwrap_or_default();
        let listed = table.split(|byte| *byte == b'\n').skip(1).filter_map(unix);
        sockets.extend(listed.map(|(inode, address)| (inode, ("unix", address))));
        Self(sockets)
    }
}

/// `TCP_LISTEN` and `TCP_CLOSE`, as the tables have them.
const LISTEN: &str = "0A";
const UNCONNECTED: &str = "07";

/// Inode and address of a line of an internet table that is in this state.
fn inet(line: &str, state: &str) -> Option<(u64, Vec<u8>)> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    if *fields.get(3)? != state {
        return None;
    }
    let (address, port) = fields.get(1)?.split_once(':')?;
    let port = u16::from_str_radix(port, 16)
        .ok()
        .filter(|port| *port > 0)?;
    let mut bytes = Vec::new();
    // Words in the host's own order.
    for at in (0..address.len()).step_by(8) {
        let word = u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?;
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    let address = match <[u8; 4]>::try_from(bytes.as_slice()) {
        Ok(four) => IpAddr::V4(Ipv4Addr::from(four)),
        Err(_) => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes.as_slice()).ok()?)),
    };
    let address = SocketAddr::new(address, port).to_string();
    Some((fields.get(9)?.parse().ok()?, address.into_bytes()))
}

/// The same for a unix socket that others connect to: `number: count protocol flags type
/// state inode path`, the inode padded on its left.
fn unix(line: &[u8]) -> Option<(u64, Vec<u8>)> {
    let fields: Vec<&[u8]> = line.splitn(7, |byte| *byte == b' ').collect();
    let flags = u64::from_str_radix(std::str::from_utf8(fields.get(3)?).ok()?, 16).ok()?;
    if flags & ACCEPTS == 0 {
        return None;
    }
    let rest = fields.get(6)?.trim_ascii_start();
    // Without a path nobody can connect.
    let blank = rest.iter().position(|byte| *byte == b' ')?;
    let inode = std::str::from_utf8(&rest[..blank]).ok()?.parse().ok()?;
    Some((inode, rest[blank + 1..].to_vec()))
}

/// `__SO_ACCEPTCON`
const ACCEPTS: u64 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_listens_is_found() {
        let line = "  0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 0 100 0 0 10 0";
        assert_eq!(inet(line, LISTEN), Some((4242, b"127.0.0.1:8080".to_vec())));
        assert_eq!(inet(line, UNCONNECTED), None);
        let line = "  1: 00000000000000000000000001000000:0050 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 7 1";
        assert_eq!(inet(line, LISTEN), Some((7, b"[::1]:80".to_vec())));
        let line = b"0000000000000000: 00000002 00000000 00010000 0001 01    77 /run/a b.sock";
        assert_eq!(unix(line), Some((77, b"/run/a b.sock".to_vec())));
        let line = b"0000000000000000: 00000003 00000000 00000000 0001 03 1677";
        assert_eq!(unix(line), None);
        assert_eq!(unix(b""), None);
        assert_eq!(inet("", LISTEN), None);
    }

    #[test]
    fn our_own_sockets_are_in_the_table() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string().into_bytes();
        let table = Table::of(Path::new("/proc/self/net"));
        let found = sockets_of(Path::new("/proc/self"))
            .filter_map(|inode| table.0.get(&inode))
            .any(|(protocol, at)| *protocol == "tcp" && *at == address);
        assert!(found, "{:?}", table.0);
    }
}
