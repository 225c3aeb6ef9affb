// SPDX-License-Identifier: Apache-2.0
//! Acts of processes, and ways to reach a file from outside.

use super::*;

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
