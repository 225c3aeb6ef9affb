// SPDX-License-Identifier: Apache-2.0
//! What must count as nothing, or as unseen.

use super::*;

/// Calls that change no file, or not the sandbox's.
pub(crate) const HARMLESS: &[(&str, Call)] = &[
    ("getpid", |_| did(measured(|| sys(libc::SYS_getpid, &[])))),
    ("read", |d| {
        let mut buffer = [0u8; 4];
        on_file(d, |fd| {
            sys(libc::SYS_read, &[fd, buffer.as_mut_ptr() as usize, 4])
        });
    }),
    ("open to read", |d| {
        on_path(d, |p| sys(libc::SYS_open, &[p, 0]))
    }),
    ("openat2 to read", |d| {
        let how = [0u64; 3];
        on_path(d, |p| {
            sys(libc::SYS_openat2, &[CWD, p, how.as_ptr() as usize, 24])
        });
    }),
    ("stat", |d| {
        let mut buffer = [0u8; 256];
        on_path(d, |p| {
            sys(libc::SYS_stat, &[p, buffer.as_mut_ptr() as usize])
        });
    }),
    ("write of nothing", |d| {
        on_file(d, |fd| sys(libc::SYS_write, &[fd, text(), 0]))
    }),
    ("write to a pipe", |_| {
        let (_reader, writer) = rustix::pipe::pipe().unwrap();
        did(measured(|| {
            sys(libc::SYS_write, &[writer.as_raw_fd() as usize, text(), 4])
        }));
    }),
    ("write to a socket", |_| {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        did(measured(|| {
            sys(libc::SYS_write, &[one.as_raw_fd() as usize, text(), 4])
        }));
    }),
    ("write to a fifo file", |d| {
        let path = new(d);
        assert_eq!(
            sys(
                libc::SYS_mknod,
                &[ptr(&path), libc::S_IFIFO as usize | 0o600]
            ),
            0
        );
        let fd = sys(libc::SYS_open, &[ptr(&path), libc::O_RDWR as usize]);
        did(measured(|| sys(libc::SYS_write, &[fd as usize, text(), 4])));
    }),
    ("open and write of a device", |d| {
        let path = new(d);
        let null = libc::makedev(1, 3) as usize;
        assert_eq!(
            sys(
                libc::SYS_mknod,
                &[ptr(&path), libc::S_IFCHR as usize | 0o600, null]
            ),
            0
        );
        let flags = (libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC) as usize;
        did(measured(|| {
            let fd = sys(libc::SYS_open, &[ptr(&path), flags, 0o600]);
            sys(libc::SYS_write, &[fd as usize, text(), 4])
        }));
    }),
    ("write to another file system", |_| {
        // Not /tmp: that may be a tmpfs of the tests'.
        let fd = sys(libc::SYS_memfd_create, &[c"elsewhere".as_ptr() as usize, 0]);
        did(measured(|| sys(libc::SYS_write, &[fd as usize, text(), 4])));
    }),
    ("write to procfs", |_| {
        let file = OpenOptions::new()
            .write(true)
            .open("/proc/self/comm")
            .unwrap();
        did(measured(|| {
            sys(libc::SYS_write, &[file.as_raw_fd() as usize, text(), 4])
        }));
    }),
    ("unlink of nothing", |d| {
        fails(measured(|| sys(libc::SYS_unlink, &[ptr(&new(d))])))
    }),
    ("mkdir of what exists", |d| {
        fails(measured(|| sys(libc::SYS_mkdir, &[ptr(&c(d)), 0o700])))
    }),
    ("open of nothing", |d| {
        fails(measured(|| sys(libc::SYS_open, &[ptr(&new(d)), 1])))
    }),
    ("create of what exists", |d| {
        let flags = (libc::O_CREAT | libc::O_EXCL) as usize;
        let path = c(&existing(d));
        fails(measured(|| {
            sys(libc::SYS_open, &[ptr(&path), flags, 0o600])
        }));
    }),
    ("write to a closed fd", |_| {
        fails(measured(|| sys(libc::SYS_write, &[999, text(), 4])))
    }),
    ("bind of an abstract socket", |_| {
        let socket = socket();
        let address = *b"\x01\0\0crab-test";
        did(measured(|| {
            sys(
                libc::SYS_bind,
                &[socket.as_raw_fd() as usize, address.as_ptr() as usize, 12],
            )
        }));
    }),
    ("private map", |d| {
        map(d, libc::MAP_PRIVATE, libc::O_RDWR, |_| ())
    }),
    ("shared map of what was opened to read", |d| {
        map(d, libc::MAP_SHARED, libc::O_RDONLY, |_| ())
    }),
    ("ioctl to get flags", |d| {
        on_file(d, |fd| {
            let mut flags: libc::c_long = 0;
            sys(libc::SYS_ioctl, &[fd, 0x8008_6601, &raw mut flags as usize])
        });
    }),
];

/// What can write with no further call.
pub(crate) const UNSEEN: &[(&str, Call)] = &[
    ("store to a shared map", |d| {
        map(d, libc::MAP_SHARED, libc::O_RDWR, store)
    }),
    ("store to a validated shared map", |d| {
        map(d, libc::MAP_SHARED_VALIDATE, libc::O_RDWR, store)
    }),
    ("store to a shared map after a load", |d| {
        map(d, libc::MAP_SHARED, libc::O_RDWR, |at| {
            load(at);
            store(at);
        });
    }),
    ("store to a shared map of a hole after a load", |d| {
        let path = existing(d);
        let file = OpenOptions::new().write(true).open(path).unwrap();
        let hole = 1 << 20;
        file.set_len(hole + 4096).unwrap();
        map_at(d, libc::MAP_SHARED, libc::O_RDWR, hole as usize, |at| {
            load(at);
            store(at);
        });
    }),
    ("store to a shared map that is gone", |d| {
        map(d, libc::MAP_SHARED, libc::O_RDWR, |at| {
            store(at);
            did(sys(libc::SYS_munmap, &[at as usize, 4096]));
        });
    }),
    ("store to a shared map of faulted pages", |d| {
        let populate = libc::MAP_SHARED | libc::MAP_POPULATE;
        map(d, populate, libc::O_RDWR, store);
    }),
    ("hole through a shared map", |d| {
        map(d, libc::MAP_SHARED, libc::O_RDWR, |at| {
            let remove = libc::MADV_REMOVE as usize;
            did(sys(libc::SYS_madvise, &[at as usize, 4096, remove]));
        });
    }),
];

/// What is an instance through which writes are named elsewhere.
pub(crate) const BATCHES: &[(&str, Call)] = &[
    ("io_uring_setup", |_| {
        let mut parameters = [0u8; 120];
        let made = measured(|| {
            sys(
                libc::SYS_io_uring_setup,
                &[1, parameters.as_mut_ptr() as usize],
            )
        });
        if made < 0 {
            // kernel.io_uring_disabled, or not compiled in.
            std::process::exit(NOT_HERE);
        }
    }),
    ("io_setup", |_| {
        let mut context = 0usize;
        did(measured(|| {
            sys(libc::SYS_io_setup, &[1, &raw mut context as usize])
        }));
    }),
];
