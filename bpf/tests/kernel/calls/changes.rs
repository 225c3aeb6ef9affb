// SPDX-License-Identifier: Apache-2.0
//! What must count as a change of files.

use super::*;

const EXCHANGE: usize = libc::RENAME_EXCHANGE as usize;

// Newer than the libc crate.
const FCHMODAT2: i64 = 452;
const SETXATTRAT: i64 = 463;
const REMOVEXATTRAT: i64 = 466;
const FILE_SETATTR: i64 = 469;

/// Changes that must count as `files`.
pub(crate) const CHANGES: &[(&str, Call)] = &[
    ("write", |d| {
        on_file(d, |fd| sys(libc::SYS_write, &[fd, text(), 4]))
    }),
    ("pwrite64", |d| {
        on_file(d, |fd| sys(libc::SYS_pwrite64, &[fd, text(), 4, 1]))
    }),
    ("writev", |d| {
        on_file(d, |fd| sys(libc::SYS_writev, &[fd, vector(), 1]))
    }),
    ("pwritev", |d| {
        on_file(d, |fd| sys(libc::SYS_pwritev, &[fd, vector(), 1, 1, 0]))
    }),
    ("pwritev2", |d| {
        on_file(d, |fd| sys(libc::SYS_pwritev2, &[fd, vector(), 1, 1, 0, 0]))
    }),
    ("ftruncate", |d| {
        on_file(d, |fd| sys(libc::SYS_ftruncate, &[fd, 1]))
    }),
    ("fallocate", |d| {
        on_file(d, |fd| sys(libc::SYS_fallocate, &[fd, 0, 0, 9000]))
    }),
    ("sendfile", |d| {
        let from = file(d, "from");
        on_file(d, |fd| {
            sys(libc::SYS_sendfile, &[fd, from.as_raw_fd() as usize, 0, 4])
        });
    }),
    ("copy_file_range", |d| {
        let from = file(d, "from");
        on_file(d, |fd| {
            sys(
                libc::SYS_copy_file_range,
                &[from.as_raw_fd() as usize, 0, fd, 0, 4, 0],
            )
        });
    }),
    ("splice", |d| {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&writer, b"text").unwrap();
        on_file(d, |fd| {
            sys(
                libc::SYS_splice,
                &[reader.as_raw_fd() as usize, 0, fd, 0, 4, 0],
            )
        });
    }),
    ("open to truncate", |d| {
        on_path(d, |p| {
            sys(
                libc::SYS_open,
                &[p, (libc::O_WRONLY | libc::O_TRUNC) as usize],
            )
        });
    }),
    ("openat to create", |d| {
        let path = new(d);
        did(measured(|| {
            sys(
                libc::SYS_openat,
                &[CWD, ptr(&path), libc::O_CREAT as usize, 0o600],
            )
        }));
    }),
    ("openat of a nameless file", |d| {
        let flags = (libc::O_TMPFILE | libc::O_RDWR) as usize;
        let path = c(d);
        did(measured(|| {
            sys(libc::SYS_openat, &[CWD, ptr(&path), flags, 0o600])
        }));
    }),
    ("openat2 to create", |d| {
        let (path, how) = (new(d), [libc::O_CREAT as u64, 0o600, 0]);
        did(measured(|| {
            sys(
                libc::SYS_openat2,
                &[CWD, ptr(&path), how.as_ptr() as usize, 24],
            )
        }));
    }),
    ("creat", |d| {
        let path = new(d);
        did(measured(|| sys(libc::SYS_creat, &[ptr(&path), 0o600])));
    }),
    ("fchmod", |d| {
        on_file(d, |fd| sys(libc::SYS_fchmod, &[fd, 0o640]))
    }),
    ("fchmod of a directory", |d| {
        let directory = File::open(d).unwrap();
        did(measured(|| {
            sys(libc::SYS_fchmod, &[directory.as_raw_fd() as usize, 0o755])
        }));
    }),
    ("fchown", |d| {
        on_file(d, |fd| sys(libc::SYS_fchown, &[fd, 1, 1]))
    }),
    ("fsetxattr", |d| {
        on_file(d, |fd| {
            sys(
                libc::SYS_fsetxattr,
                &[fd, XATTR.as_ptr() as usize, text(), 4, 0],
            )
        })
    }),
    ("fremovexattr", |d| {
        on_file(d, |fd| {
            assert_eq!(
                sys(
                    libc::SYS_fsetxattr,
                    &[fd, XATTR.as_ptr() as usize, text(), 4, 0]
                ),
                0
            );
            sys(libc::SYS_fremovexattr, &[fd, XATTR.as_ptr() as usize])
        });
    }),
    ("futimens", |d| {
        on_file(d, |fd| sys(libc::SYS_utimensat, &[fd, 0, 0, 0]))
    }),
    ("ioctl to set flags", |d| {
        on_file(d, |fd| {
            let flags: libc::c_long = 0x80; // FS_NOATIME_FL
            sys(
                libc::SYS_ioctl,
                &[fd, 0x4008_6602, &raw const flags as usize],
            )
        });
    }),
    ("truncate", |d| {
        on_path(d, |p| sys(libc::SYS_truncate, &[p, 1]))
    }),
    ("rename", |d| {
        on_two(d, |p, q| sys(libc::SYS_rename, &[p, q]))
    }),
    ("renameat", |d| {
        on_two(d, |p, q| sys(libc::SYS_renameat, &[CWD, p, CWD, q]))
    }),
    ("renameat2", |d| {
        on_two(d, |p, q| {
            sys(libc::SYS_renameat2, &[CWD, p, CWD, q, EXCHANGE])
        })
    }),
    ("link", |d| on_new(d, |p, q| sys(libc::SYS_link, &[p, q]))),
    ("linkat", |d| {
        on_new(d, |p, q| sys(libc::SYS_linkat, &[CWD, p, CWD, q, 0]))
    }),
    ("symlink", |d| {
        on_new(d, |p, q| sys(libc::SYS_symlink, &[p, q]))
    }),
    ("symlinkat", |d| {
        on_new(d, |p, q| sys(libc::SYS_symlinkat, &[p, CWD, q]))
    }),
    ("mkdir", |d| {
        on_new(d, |_, q| sys(libc::SYS_mkdir, &[q, 0o700]))
    }),
    ("mkdirat", |d| {
        on_new(d, |_, q| sys(libc::SYS_mkdirat, &[CWD, q, 0o700]))
    }),
    ("mknod", |d| {
        on_new(d, |_, q| {
            sys(libc::SYS_mknod, &[q, libc::S_IFIFO as usize | 0o600])
        })
    }),
    ("mknodat", |d| {
        on_new(d, |_, q| {
            sys(libc::SYS_mknodat, &[CWD, q, libc::S_IFREG as usize])
        })
    }),
    ("rmdir", |d| {
        let path = new(d);
        assert_eq!(sys(libc::SYS_mkdir, &[ptr(&path), 0o700]), 0);
        did(measured(|| sys(libc::SYS_rmdir, &[ptr(&path)])));
    }),
    ("unlink", |d| on_path(d, |p| sys(libc::SYS_unlink, &[p]))),
    ("unlinkat", |d| {
        on_path(d, |p| sys(libc::SYS_unlinkat, &[CWD, p, 0]))
    }),
    ("chmod", |d| {
        on_path(d, |p| sys(libc::SYS_chmod, &[p, 0o640]))
    }),
    ("fchmodat", |d| {
        on_path(d, |p| sys(libc::SYS_fchmodat, &[CWD, p, 0o640]))
    }),
    ("fchmodat2", |d| {
        on_path(d, |p| newer(sys(FCHMODAT2, &[CWD, p, 0o640, 0])))
    }),
    ("chown", |d| {
        on_path(d, |p| sys(libc::SYS_chown, &[p, 1, 1]))
    }),
    ("lchown", |d| {
        on_path(d, |p| sys(libc::SYS_lchown, &[p, 1, 1]))
    }),
    ("fchownat", |d| {
        on_path(d, |p| sys(libc::SYS_fchownat, &[CWD, p, 1, 1, 0]))
    }),
    ("utime", |d| on_path(d, |p| sys(libc::SYS_utime, &[p, 0]))),
    ("utimes", |d| on_path(d, |p| sys(libc::SYS_utimes, &[p, 0]))),
    ("futimesat", |d| {
        on_path(d, |p| sys(libc::SYS_futimesat, &[CWD, p, 0]))
    }),
    ("utimensat", |d| {
        on_path(d, |p| sys(libc::SYS_utimensat, &[CWD, p, 0, 0]))
    }),
    ("setxattr", |d| {
        on_path(d, |p| set_xattr(libc::SYS_setxattr, p))
    }),
    ("lsetxattr", |d| {
        on_path(d, |p| set_xattr(libc::SYS_lsetxattr, p))
    }),
    ("removexattr", |d| with_xattr(d, libc::SYS_removexattr)),
    ("lremovexattr", |d| with_xattr(d, libc::SYS_lremovexattr)),
    ("setxattrat", |d| {
        on_path(d, |p| {
            let value = [text() as u64, 4];
            newer(sys(
                SETXATTRAT,
                &[
                    CWD,
                    p,
                    0,
                    XATTR.as_ptr() as usize,
                    value.as_ptr() as usize,
                    16,
                ],
            ))
        });
    }),
    ("removexattrat", |d| {
        on_path(d, |p| {
            set_xattr(libc::SYS_setxattr, p);
            newer(sys(REMOVEXATTRAT, &[CWD, p, 0, XATTR.as_ptr() as usize]))
        });
    }),
    ("file_setattr", |d| {
        on_path(d, |p| {
            let attributes = [0u64; 3];
            newer(sys(
                FILE_SETATTR,
                &[CWD, p, attributes.as_ptr() as usize, 24, 0],
            ))
        });
    }),
    ("bind of a socket file", |d| {
        let socket = socket();
        let (address, length) = socket_address(&d.join("socket"));
        did(measured(|| {
            sys(
                libc::SYS_bind,
                &[
                    socket.as_raw_fd() as usize,
                    address.as_ptr() as usize,
                    length,
                ],
            )
        }));
    }),
    ("io_submit", |d| {
        let file = file(d, "target");
        let mut context = 0usize;
        assert_eq!(sys(libc::SYS_io_setup, &[1, &raw mut context as usize]), 0);
        // struct iocb: data, key, opcode 1 (pwrite) in the upper half of the
        // third word's first 16 bits, fd, buffer, bytes, offset.
        let mut block = [0u64; 8];
        block[2] = 1 | (file.as_raw_fd() as u64) << 32;
        block[3] = text() as u64;
        block[4] = 4;
        let list = [block.as_ptr()];
        did(measured(|| {
            sys(libc::SYS_io_submit, &[context, 1, list.as_ptr() as usize])
        }));
    }),
];
