// SPDX-License-Identifier: Apache-2.0
//! What must count as a change of files.

use super::*;

const EXCHANGE: usize = libc::RENAME_EXCHANGE as usize;

// Newer than the libc crate.
const FCHMODAT2: i64 = 452;
const SETXATTRAT: i64 = 463;
const REMOVEXATTRAT: i64 = 466;
const FILE_SETATTR: i64 = 469;

/// Submits one write of "text" to this file by an io_uring, and waits for it.
fn by_ring(file: usize) -> i64 {
    const SINGLE_MMAP: u32 = 1;
    const SQES: usize = 0x1000_0000;
    const WRITE: u64 = 23;
    // struct io_uring_params: flags and features are words 2 and 5; struct io_sqring_offsets
    // begins at word 10 with head, tail, ring_mask, ring_entries, flags, dropped, array.
    let mut parameters = [0u32; 30];
    let ring = sys(
        libc::SYS_io_uring_setup,
        &[1, parameters.as_mut_ptr() as usize],
    );
    if ring < 0 {
        // kernel.io_uring_disabled, or not compiled in.
        std::process::exit(NOT_HERE);
    }
    assert!(parameters[5] & SINGLE_MMAP != 0);
    let ring = ring as usize;
    let both = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let map = |at| {
        let shared = libc::MAP_SHARED as usize;
        let address = sys(libc::SYS_mmap, &[0, 4096, both, shared, ring, at]);
        did(address);
        address as usize as *mut u8
    };
    let (queue, entries) = (map(0), map(SQES));
    // struct io_uring_sqe: opcode in the first byte and fd in the upper half of the first
    // word, offset, address, length.
    let entry = [WRITE | (file as u64) << 32, 0, text() as u64, 4];
    // SAFETY: both are pages shared with the kernel, larger than what is written to them,
    // and it looks only when told.
    unsafe {
        entries.cast::<[u64; 4]>().write_volatile(entry);
        queue
            .add(parameters[16] as usize)
            .cast::<u32>()
            .write_volatile(0);
        queue
            .add(parameters[11] as usize)
            .cast::<u32>()
            .write_volatile(1);
    }
    sys(libc::SYS_io_uring_enter, &[ring, 1, 1, 1, 0, 0])
}

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
    ("fallocate to punch a hole", |d| {
        let flags = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as usize;
        on_file(d, |fd| sys(libc::SYS_fallocate, &[fd, flags, 0, 4]))
    }),
    ("fallocate beyond the end", |d| {
        let flags = libc::FALLOC_FL_KEEP_SIZE as usize;
        on_file(d, |fd| {
            sys(libc::SYS_fallocate, &[fd, flags, 1 << 20, 4096])
        })
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
    ("linkat of a nameless file", |d| {
        let flags = (libc::O_TMPFILE | libc::O_RDWR) as usize;
        let directory = c(d);
        let fd = sys(libc::SYS_openat, &[CWD, ptr(&directory), flags, 0o600]);
        did(fd);
        let path = CString::new(format!("/proc/self/fd/{fd}")).unwrap();
        let (new, follow) = (new(d), libc::AT_SYMLINK_FOLLOW as usize);
        did(measured(|| {
            sys(libc::SYS_linkat, &[CWD, ptr(&path), CWD, ptr(&new), follow])
        }));
    }),
    ("setxattr of an access list", |d| {
        // struct posix_acl_xattr_header, then entries of tag, permissions and id.
        let mut list = 2u32.to_ne_bytes().to_vec();
        for (tag, permissions, id) in [(1u16, 6u16, u32::MAX), (2, 6, 1), (4, 4, u32::MAX)]
            .into_iter()
            .chain([(0x10, 6, u32::MAX), (0x20, 4, u32::MAX)])
        {
            list.extend(tag.to_ne_bytes());
            list.extend(permissions.to_ne_bytes());
            list.extend(id.to_ne_bytes());
        }
        on_path(d, |p| {
            let name = c"system.posix_acl_access".as_ptr() as usize;
            let list = (list.as_ptr() as usize, list.len());
            sys(libc::SYS_setxattr, &[p, name, list.0, list.1, 0])
        });
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
            // With those that it has: ext4 would else have to store the file in another way.
            let mut flags: libc::c_long = 0;
            did(sys(
                libc::SYS_ioctl,
                &[fd, 0x8008_6601, &raw mut flags as usize],
            ));
            flags |= 0x80; // FS_NOATIME_FL
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
    ("io_uring_enter", |d| on_file(d, by_ring)),
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
