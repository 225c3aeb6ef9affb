// SPDX-License-Identifier: Apache-2.0

//! Sockets: what a descriptor is, and what is listened at.

use std::{
    collections::HashMap,
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
};

use anyhow::{Context, Result};

use super::{processes::Processes, rules, shown};

/// A TCP socket that listens; the same number of a UDP socket says that it has no peer
/// (`include/net/tcp_states.h`).
const LISTENS: u8 = 0x0a;
const NO_PEER: u8 = 0x07;
/// A Unix socket that listens (`__SO_ACCEPTCON`).
const ACCEPTS: u64 = 0x1_0000;

/// Those of each network namespace that was asked for.
#[derive(Debug, Default)]
pub(super) struct Sockets(HashMap<PathBuf, HashMap<u64, Socket>>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Socket {
    Internet {
        kind: &'static str,
        own: SocketAddr,
        peer: SocketAddr,
        state: u8,
    },
    Unix {
        kind: &'static str,
        path: Vec<u8>,
        listens: bool,
    },
}

/// What the container's network namespace listens at, sorted. Where that is the host's, what its
/// own processes do.
pub(super) fn listening(init: u32, processes: &Processes) -> Result<Vec<String>> {
    let namespace = |of: &str| fs::read_link(format!("/proc/{of}/ns/net"));
    let own = namespace(&init.to_string()).context("find its network namespace")?;
    let is_hosts = own == namespace("self").context("find our network namespace")?;
    let mut all = Vec::new();
    for (inode, socket) in table(init) {
        if socket.listens() && (!is_hosts || processes.hold(inode)) {
            let told = rules::words(socket.told().1.as_bytes());
            let told = String::from_utf8_lossy(&told).into_owned();
            all.push(told.trim_end_matches(" listening").to_owned());
        }
    }
    all.sort();
    Ok(all)
}

impl Sockets {
    /// What a process's socket is, exactly and by the rules.
    pub(super) fn told(&mut self, pid: u32, inode: u64) -> (String, String) {
        let namespace = fs::read_link(format!("/proc/{pid}/ns/net")).unwrap_or_default();
        let table = self.0.entry(namespace).or_insert_with(|| table(pid));
        match table.get(&inode) {
            Some(socket) => socket.told(),
            // Of another family, or bound to nothing.
            None => ("socket".into(), "socket".into()),
        }
    }
}

/// All sockets of a process's network namespace, by inode.
fn table(pid: u32) -> HashMap<u64, Socket> {
    let read = |name: &str| fs::read(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
    let mut all = HashMap::new();
    for kind in ["tcp", "tcp6", "udp", "udp6"] {
        let table = read(kind);
        let table = String::from_utf8_lossy(&table);
        all.extend(table.lines().filter_map(|line| internet(kind, line)));
    }
    // A path may have any bytes in it, also those that end a line.
    let table = read("unix");
    all.extend(table.split(|byte| *byte == b'\n').filter_map(unix));
    all
}

fn internet(kind: &'static str, line: &str) -> Option<(u64, Socket)> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let socket = Socket::Internet {
        kind,
        own: address(fields.get(1)?)?,
        peer: address(fields.get(2)?)?,
        state: u8::from_str_radix(fields.get(3)?, 16).ok()?,
    };
    Some((fields.get(9)?.parse().ok()?, socket))
}

/// The kernel prints each word of an address in the processor's own order.
fn address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let mut bytes = Vec::new();
    for at in (0..address.len()).step_by(8) {
        let word = u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    let address = match <[u8; 4]>::try_from(&bytes[..]) {
        Ok(four) => IpAddr::V4(Ipv4Addr::from(four)),
        Err(_) => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[..]).ok()?)),
    };
    Some(SocketAddr::new(
        address,
        u16::from_str_radix(port, 16).ok()?,
    ))
}

fn unix(line: &[u8]) -> Option<(u64, Socket)> {
    let mut rest = line;
    let mut field = || {
        let begin = rest.iter().position(|byte| *byte != b' ')?;
        let end = rest[begin..].iter().position(|byte| *byte == b' ');
        let end = end.map_or(rest.len(), |end| begin + end);
        let field = std::str::from_utf8(&rest[begin..end]).ok()?;
        rest = &rest[end..];
        Some(field)
    };
    let mut fields = [""; 7];
    for place in &mut fields {
        *place = field()?;
    }
    let flags = u64::from_str_radix(fields[3], 16).ok()?;
    let socket = Socket::Unix {
        kind: match fields[4] {
            "0001" => "stream",
            "0002" => "datagram",
            "0005" => "seqpacket",
            _ => return None,
        },
        path: rest.strip_prefix(b" ").unwrap_or_default().to_vec(),
        listens: flags & ACCEPTS != 0,
    };
    Some((fields[6].parse().ok()?, socket))
}

impl Socket {
    fn listens(&self) -> bool {
        match self {
            Self::Internet { kind, state, .. } if kind.starts_with("tcp") => *state == LISTENS,
            Self::Internet { state, .. } => *state == NO_PEER,
            Self::Unix { listens, .. } => *listens,
        }
    }

    /// Exactly, and by the rules.
    fn told(&self) -> (String, String) {
        match self {
            Self::Internet {
                kind, own, peer, ..
            } => {
                let listens = self.listens();
                let ruled = |address: &SocketAddr| match rules::is_chosen(address.port()) {
                    true if !listens => format!("{}:(chosen)", address.ip()),
                    _ => address.to_string(),
                };
                match listens {
                    true => (format!("{kind} {own}"), format!("{kind} {}", ruled(own))),
                    false => (
                        format!("{kind} {own} to {peer}"),
                        format!("{kind} {} to {}", ruled(own), ruled(peer)),
                    ),
                }
            }
            Self::Unix {
                kind,
                path,
                listens,
            } => {
                let mut told = format!("unix {kind}");
                if !path.is_empty() {
                    told += &format!(" {}", shown(path));
                }
                if *listens {
                    told += " listening";
                }
                (told.clone(), told)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: &str = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0000000000000000 100 0 0 10 0";
    const TO: &str = "   1: 0100007F:C000 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0000000000000000 20 4 30 10 -1";
    const SIX: &str = "   0: 00000000000000000000000001000000:0050 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 9 1";

    #[test]
    fn an_address_is_told_and_a_chosen_port_is_not() {
        let (inode, socket) = internet("tcp", TCP).unwrap();
        assert_eq!((inode, socket.listens()), (4711, true));
        assert_eq!(socket.told().1, "tcp 127.0.0.1:8080");
        let (_, socket) = internet("tcp", TO).unwrap();
        assert!(!socket.listens());
        assert_eq!(socket.told().0, "tcp 127.0.0.1:49152 to 127.0.0.1:8080");
        assert_eq!(socket.told().1, "tcp 127.0.0.1:(chosen) to 127.0.0.1:8080");
        let (_, socket) = internet("tcp6", SIX).unwrap();
        assert_eq!(socket.told().1, "tcp6 [::1]:80");
        assert!(internet("tcp", "  sl  local_address rem_address").is_none());
    }

    #[test]
    fn the_port_that_is_listened_at_counts_whatever_it_is() {
        let (_, one) = internet("tcp", &TCP.replace("1F90", "C000")).unwrap();
        let (_, other) = internet("tcp", &TCP.replace("1F90", "C001")).unwrap();
        assert_ne!(one.told().1, other.told().1);
    }

    #[test]
    fn a_unix_socket_is_known_by_its_path() {
        let line = b"0000000000000000: 00000002 00000000 00010000 0001 01 4711 /tmp/a b";
        let (inode, socket) = unix(line).unwrap();
        assert_eq!((inode, socket.listens()), (4711, true));
        assert_eq!(socket.told().1, "unix stream /tmp/a b listening");
        let line = b"0000000000000000: 00000003 00000000 00000000 0001 03  4712";
        let (_, socket) = unix(line).unwrap();
        assert_eq!(socket.told().1, "unix stream");
        let line = b"0000000000000000: 00000002 00000000 00010000 0005 01 4713 @name";
        let (_, socket) = unix(line).unwrap();
        assert_eq!(socket.told().1, "unix seqpacket @name listening");
        assert!(unix(b"Num RefCount Protocol Flags Type St Inode Path").is_none());
    }
}
