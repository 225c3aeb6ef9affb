// SPDX-License-Identifier: Apache-2.0
//! What a process has open.
//!
//! What waits in a pipe, a socket or a terminal cannot be read without being taken, so such
//! a process cannot be compared: [`Unlike::Waiting`]. Of most other kinds of files the
//! kernel tells all there is (`/proc/<pid>/fdinfo`, proc_pid_fdinfo(5)); one of which it does
//! not is [`Unlike::Opaque`].

#![allow(unsafe_code)] // pidfd_getfd, and ioctls that are asked by number

use std::{
    fs,
    io::{self, ErrorKind},
    mem::size_of,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::Statx,
    process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open},
};

use super::{super::read::look, digests::Hash, objects::Objects};

/// Why descriptors cannot be compared.
#[derive(Debug)]
pub(super) enum Unlike {
    /// Something waits to be read from this one.
    Waiting(i32, String),
    /// The kernel does not tell what is in this one.
    Opaque(i32, String),
    Io(PathBuf, io::Error),
}

/// How often, and after which pause, it is looked again whether something waits: who is
/// at the other end of a pipe may not be in the sandbox.
const LOOKS: usize = 8;
const PAUSE: Duration = Duration::from_micros(250);

/// Files behind which there is nothing but what `fdinfo` says.
const TOLD: [&[u8]; 4] = [
    b"anon_inode:[eventfd]",
    b"anon_inode:[eventpoll]",
    b"anon_inode:[signalfd]",
    b"anon_inode:[pidfd]",
];
/// Memory devices: null, zero, full, random, urandom.
const MEMORY_MAJOR: u32 = 1;
/// Terminals: `/dev/tty` and its like, pseudo-terminals.
const TERMINAL_MAJORS: [u32; 3] = [4, 5, 88];
const PSEUDO_TERMINALS: std::ops::RangeInclusive<u32> = 128..=143;

const O_PATH: u64 = libc::O_PATH as u64;

/// Reads all of them; what is in files without a name is for the objects.
pub(super) fn read(
    pid: i32,
    proc: &Path,
    objects: &mut Objects,
    hash: &mut Hash,
) -> Result<(), Unlike> {
    let dir = proc.join("fd");
    let failed = |path: &Path| {
        let path = path.to_path_buf();
        move |error: io::Error| Unlike::Io(path, error)
    };
    let mut numbers = Vec::new();
    for entry in fs::read_dir(&dir).map_err(failed(&dir))? {
        let name = entry.map_err(failed(&dir))?.file_name();
        numbers.extend(name.to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    numbers.sort_unstable();
    let process = Pid::from_raw(pid)
        .ok_or(io::Error::from(ErrorKind::NotFound))
        .and_then(|pid| Ok(pidfd_open(pid, PidfdFlags::empty())?))
        .map_err(failed(&dir))?;
    for number in numbers {
        let path = dir.join(number.to_string());
        let name = fs::read_link(&path).map_err(failed(&path))?;
        let name = name.as_os_str().as_bytes();
        let stat = look(&path).map_err(failed(&path))?;
        let info_path = proc.join(format!("fdinfo/{number}"));
        let info = fs::read(&info_path).map_err(failed(&info_path))?;
        hash.word(number as u64);
        hash.text(name);
        hash.word(super::device(&stat));
        hash.word(stat.stx_ino);
        hash.text(&told(&info));
        if flags(&info) & O_PATH != 0 {
            continue;
        }
        let copy = || {
            pidfd_getfd(&process, number, PidfdGetfdFlags::empty())
                .map_err(|error| Unlike::Io(path.clone(), error.into()))
        };
        let shown = || String::from_utf8_lossy(name).into_owned();
        match kind(name, &stat) {
            Kind::Told => {}
            Kind::File => {
                if stat.stx_nlink == 0 {
                    objects.add(proc, &path, &stat).map_err(failed(&path))?;
                }
            }
            Kind::Queue => {
                let copy = copy()?;
                if !is_drained(&copy, false).map_err(failed(&path))? {
                    return Err(Unlike::Waiting(number, shown()));
                }
                hash.word(u64::from(events(&copy).map_err(failed(&path))?.bits()));
            }
            Kind::Socket => {
                let copy = copy()?;
                if !is_drained(&copy, true).map_err(failed(&path))? {
                    return Err(Unlike::Waiting(number, shown()));
                }
                socket(&copy, hash).map_err(failed(&path))?;
            }
            Kind::Terminal => {
                let copy = copy()?;
                if !is_drained(&copy, false).map_err(failed(&path))? {
                    return Err(Unlike::Waiting(number, shown()));
                }
                terminal(&copy, hash).map_err(failed(&path))?;
            }
            Kind::Opaque => return Err(Unlike::Opaque(number, shown())),
        }
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Told,
    File,
    Queue,
    Socket,
    Terminal,
    Opaque,
}

fn kind(name: &[u8], stat: &Statx) -> Kind {
    // First, as later kernels take these for regular files.
    if name.starts_with(b"anon_inode:") {
        return match name {
            b"anon_inode:inotify" => Kind::Queue,
            b"anon_inode:[timerfd]" => Kind::Told,
            name if TOLD.contains(&name) => Kind::Told,
            _ => Kind::Opaque,
        };
    }
    match u32::from(stat.stx_mode) & libc::S_IFMT {
        libc::S_IFREG | libc::S_IFDIR | libc::S_IFLNK => Kind::File,
        libc::S_IFIFO => Kind::Queue,
        libc::S_IFSOCK => Kind::Socket,
        libc::S_IFCHR => match stat.stx_rdev_major {
            MEMORY_MAJOR => Kind::Told,
            major if TERMINAL_MAJORS.contains(&major) => Kind::Terminal,
            major if PSEUDO_TERMINALS.contains(&major) => Kind::Terminal,
            _ => Kind::Opaque,
        },
        _ => Kind::Opaque,
    }
}

fn flags(info: &[u8]) -> u64 {
    let mut lines = info.split(|byte| *byte == b'\n');
    lines
        .find_map(|line| std::str::from_utf8(line.strip_prefix(b"flags:")?).ok())
        .and_then(|octal| u64::from_str_radix(octal.trim(), 8).ok())
        .unwrap_or(0)
}

/// `fdinfo`, but of how much is left until a timer goes off only whether it will.
fn told(info: &[u8]) -> Vec<u8> {
    let lines = info.split(|byte| *byte == b'\n').map(|line| {
        let Some(left) = line.strip_prefix(b"it_value: ") else {
            return line;
        };
        match left {
            b"(0, 0)" => line,
            _ => b"it_value: armed",
        }
    });
    let lines: Vec<&[u8]> = lines.collect();
    lines.join(&b'\n')
}

/// Whether nothing waits to be read, nor, of a socket, to be read by its peer. Of what
/// cannot be asked, something does.
fn is_drained(copy: &OwnedFd, is_socket: bool) -> io::Result<bool> {
    for look in 0..LOOKS {
        if look > 0 {
            thread::sleep(PAUSE);
        }
        let events = events(copy)?;
        // At its end it is always ready, and says how much there is before that.
        let bytes = number(copy, libc::FIONREAD as libc::Ioctl).unwrap_or(0);
        let ended = events.intersects(PollFlags::HUP | PollFlags::RDHUP);
        let sent = if is_socket {
            // A listening one has none.
            number(copy, libc::TIOCOUTQ as libc::Ioctl).unwrap_or(0)
        } else {
            0
        };
        if bytes == 0 && sent == 0 && (ended || !events.intersects(PollFlags::IN | PollFlags::PRI))
        {
            return Ok(true);
        }
    }
    Ok(false)
}

fn events(copy: &OwnedFd) -> io::Result<PollFlags> {
    let all = PollFlags::IN | PollFlags::PRI | PollFlags::RDHUP;
    let mut asked = [PollFd::new(copy, all)];
    poll(
        &mut asked,
        Some(&Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        }),
    )?;
    Ok(asked[0].revents())
}

/// What an ioctl answers that gives a number.
fn number(copy: &OwnedFd, request: libc::Ioctl) -> io::Result<i32> {
    let mut answer: libc::c_int = 0;
    // SAFETY: both requests that it is called with write one int.
    match unsafe { libc::ioctl(copy.as_raw_fd(), request, &raw mut answer) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(answer),
    }
}

/// Names, options that make a difference to its peers, and how far a TCP connection has got.
fn socket(copy: &OwnedFd, hash: &mut Hash) -> io::Result<()> {
    hash.word(u64::from(events(copy)?.bits()));
    for option in [
        libc::SO_DOMAIN,
        libc::SO_TYPE,
        libc::SO_PROTOCOL,
        libc::SO_ACCEPTCONN,
        libc::SO_REUSEADDR,
        libc::SO_REUSEPORT,
        libc::SO_KEEPALIVE,
        libc::SO_BROADCAST,
        libc::SO_PASSCRED,
        libc::SO_SNDBUF,
        libc::SO_RCVBUF,
        libc::SO_RCVTIMEO,
        libc::SO_SNDTIMEO,
        libc::SO_LINGER,
        libc::SO_MARK,
        libc::SO_PRIORITY,
    ] {
        hash.text(&answer(copy, libc::SOL_SOCKET, option));
    }
    for ask in [libc::getsockname, libc::getpeername] {
        let mut name = [0u8; size_of::<libc::sockaddr_storage>()];
        let mut length = name.len() as libc::socklen_t;
        // SAFETY: it writes at most `length` bytes to the name, and the length.
        let done = unsafe { ask(copy.as_raw_fd(), name.as_mut_ptr().cast(), &raw mut length) };
        // One that is not connected has no peer.
        let length = if done == 0 { length as usize } else { 0 };
        hash.text(&name[..length.min(name.len())]);
    }
    let info = answer(copy, libc::IPPROTO_TCP, libc::TCP_INFO);
    // State; bytes acknowledged and received (`struct tcp_info`).
    hash.text(&info[..info.len().min(1)]);
    hash.text(info.get(120..136).unwrap_or_default());
    Ok(())
}

/// An option of a socket; empty where it has none.
fn answer(copy: &OwnedFd, level: i32, option: i32) -> Vec<u8> {
    let mut value = vec![0u8; 256];
    let mut length = value.len() as libc::socklen_t;
    // SAFETY: it writes at most `length` bytes to the value, and the length.
    let done = unsafe {
        libc::getsockopt(
            copy.as_raw_fd(),
            level,
            option,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    value.truncate(if done == 0 { length as usize } else { 0 });
    value
}

fn terminal(copy: &OwnedFd, hash: &mut Hash) -> io::Result<()> {
    hash.text(format!("{:?}", rustix::termios::tcgetattr(copy)?).as_bytes());
    let size = rustix::termios::tcgetwinsize(copy)?;
    hash.word(u64::from(size.ws_row) << 16 | u64::from(size.ws_col));
    Ok(())
}
