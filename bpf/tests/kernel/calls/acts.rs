// SPDX-License-Identifier: Apache-2.0
//! Acts of processes, and ways to reach a file from outside.

use std::io::Write;
use std::net::{TcpListener, TcpStream, UdpSocket};

use super::*;

/// A program whose pages are a memfd's, in a process of its own.
fn run_from_memory(immutable: bool) {
    let name = c"program".as_ptr() as usize;
    let fd = sys(libc::SYS_memfd_create, &[name, 0]);
    did(fd);
    // SAFETY: the fd was just made for us.
    let mut copy = unsafe { File::from_raw_fd(fd as i32) };
    let mut program = File::open("/bin/true").unwrap();
    std::io::copy(&mut program, &mut copy).unwrap();
    if immutable {
        let flags = rustix::fs::IFlags::IMMUTABLE;
        rustix::fs::ioctl_setflags(&copy, flags).unwrap();
    }
    // A program that is open for writing is busy; and this one goes to the child.
    let path = format!("/proc/self/fd/{fd}");
    let to_run = sys(
        libc::SYS_openat,
        &[
            CWD,
            ptr(&CString::new(path).unwrap()),
            libc::O_RDONLY as usize,
        ],
    );
    did(to_run);
    drop(copy);
    let path = format!("/proc/self/fd/{to_run}");
    measured(|| {
        let status = std::process::Command::new(path).status().unwrap();
        assert!(status.success());
    });
}

/// Talks to itself at this address, in a network of its own.
fn network(address: [u8; 4]) {
    let flags = rustix::thread::UnshareFlags::NEWNET;
    // SAFETY: no fd table is unshared, only the network namespace.
    unsafe { rustix::thread::unshare_unsafe(flags) }.unwrap();
    let control = UdpSocket::bind("0.0.0.0:0").unwrap();
    // struct ifreq: the name, then an address or the flags.
    let mut request = [0u8; 40];
    request[..2].copy_from_slice(b"lo");
    let mut set = |number: usize, value: &[u8]| {
        request[16..16 + value.len()].copy_from_slice(value);
        let fd = control.as_raw_fd() as usize;
        did(sys(
            libc::SYS_ioctl,
            &[fd, number, request.as_ptr() as usize],
        ));
    };
    set(
        libc::SIOCSIFFLAGS as usize,
        &(libc::IFF_UP as u16).to_ne_bytes(),
    );
    let [family, _] = (libc::AF_INET as u16).to_ne_bytes();
    let [a, b, c, d] = address;
    set(libc::SIOCSIFADDR as usize, &[family, 0, 0, 0, a, b, c, d]);
    let at = std::net::Ipv4Addr::from(address);
    measured(|| {
        let listener = TcpListener::bind((at, 0)).unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        stream.write_all(b"text").unwrap();
        peer.write_all(b"yes").unwrap();
        let datagrams = UdpSocket::bind((at, 0)).unwrap();
        let own = datagrams.local_addr().unwrap();
        datagrams.send_to(b"text", own).unwrap();
    });
}

/// Acts that the other tests name.
pub(crate) const ACTS: &[(&str, Call)] = &[
    ("fork", |_| {
        measured(|| {
            // SAFETY: the child calls nothing but _exit.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: ends this process at once.
                unsafe { libc::_exit(0) };
            }
            let mut status = 0;
            // SAFETY: waits for the child just made.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
        });
    }),
    ("exec", |_| {
        measured(|| {
            assert!(
                std::process::Command::new("true")
                    .status()
                    .unwrap()
                    .success()
            )
        });
    }),
    ("thread", |_| {
        measured(|| std::thread::spawn(|| ()).join().unwrap())
    }),
    ("crash", |_| {
        measured(|| {
            // SAFETY: the child sets a limit and dies.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let none = libc::rlimit {
                    rlim_cur: 0,
                    rlim_max: 0,
                };
                // SAFETY: no core file where nobody wants one, then the crash.
                unsafe {
                    libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
                    libc::signal(libc::SIGABRT, libc::SIG_DFL);
                    libc::kill(libc::getpid(), libc::SIGABRT);
                    libc::pause();
                    libc::_exit(0);
                }
            }
            let mut status = 0;
            // SAFETY: waits for the child just made.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert!(libc::WIFSIGNALED(status));
        });
    }),
    ("run from memory", |_| run_from_memory(false)),
    ("run from immutable memory", |_| run_from_memory(true)),
    ("network", |_| network([192, 0, 2, 1])),
    ("network by loopback", |_| network([127, 0, 0, 1])),
    ("mount and unmount", |d| {
        let point = d.join("point");
        fs::create_dir(&point).unwrap();
        let flags = rustix::thread::UnshareFlags::NEWNS;
        // SAFETY: no fd table is unshared, only the mount namespace.
        unsafe { rustix::thread::unshare_unsafe(flags) }.unwrap();
        let (none, point) = (c"none", c(&point));
        let private = (libc::MS_REC | libc::MS_PRIVATE) as usize;
        let at = |p: &std::ffi::CStr| p.as_ptr() as usize;
        assert_eq!(
            sys(libc::SYS_mount, &[at(none), at(c"/"), 0, private, 0]),
            0
        );
        measured(|| {
            assert_eq!(
                sys(libc::SYS_mount, &[at(none), at(&point), at(c"tmpfs"), 0, 0]),
                0
            );
            assert_eq!(sys(libc::SYS_umount2, &[at(&point), 0]), 0);
            // OPEN_TREE_CLONE, which counts, and none, which does not.
            assert!(sys(libc::SYS_open_tree, &[CWD, at(&point), 1]) > 0);
            assert!(sys(libc::SYS_open_tree, &[CWD, at(&point), 0]) > 0);
        });
    }),
    ("unlink from its directory", |d| {
        existing(d);
        std::env::set_current_dir(d).unwrap();
        did(measured(|| {
            sys(libc::SYS_unlink, &[c"target".as_ptr() as usize])
        }));
    }),
    ("unlink through a directory fd", |d| {
        existing(d);
        let directory = File::open(d).unwrap();
        did(measured(|| {
            sys(
                libc::SYS_unlinkat,
                &[
                    directory.as_raw_fd() as usize,
                    c"target".as_ptr() as usize,
                    0,
                ],
            )
        }));
    }),
    ("unlink in a chroot", |d| {
        existing(d);
        std::os::unix::fs::chroot(d).unwrap();
        did(measured(|| {
            sys(libc::SYS_unlink, &[c"/target".as_ptr() as usize])
        }));
    }),
    ("chmod of the image's file", |d| {
        let path = c(&d.join("below"));
        did(measured(|| sys(libc::SYS_chmod, &[ptr(&path), 0o640])));
    }),
    ("append to the image's file", |d| {
        let file = OpenOptions::new()
            .append(true)
            .open(d.join("below"))
            .unwrap();
        did(measured(|| {
            sys(libc::SYS_write, &[file.as_raw_fd() as usize, text(), 4])
        }));
    }),
];
