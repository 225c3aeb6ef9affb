// SPDX-License-Identifier: Apache-2.0
//! The same through the 32-bit entry.

use super::*;

const SHARED: u32 = (libc::MAP_SHARED | libc::MAP_32BIT) as u32;

/// The 32-bit entry, with i386's numbers.
pub(crate) const COMPAT_CHANGES: &[(&str, Call)] = &[
    ("32-bit write", |d| {
        on_file(d, |fd| sys32(4, &[fd as u32, low(b"text"), 4]).into())
    }),
    ("32-bit open", |d| {
        let path = low(new(d).as_bytes_with_nul());
        did(measured(|| sys32(5, &[path, libc::O_CREAT as u32, 0o600])).into());
    }),
    ("32-bit unlink", |d| {
        let path = low(c(&existing(d)).as_bytes_with_nul());
        did(measured(|| sys32(10, &[path])).into());
    }),
    ("32-bit mkdir", |d| {
        let path = low(new(d).as_bytes_with_nul());
        did(measured(|| sys32(39, &[path, 0o700])).into());
    }),
    ("32-bit ftruncate64", |d| {
        on_file(d, |fd| sys32(194, &[fd as u32, 1, 0]).into())
    }),
    ("32-bit fchmod", |d| {
        on_file(d, |fd| sys32(94, &[fd as u32, 0o640]).into())
    }),
    ("32-bit unlinkat", |d| {
        let path = low(c(&existing(d)).as_bytes_with_nul());
        did(measured(|| sys32(301, &[libc::AT_FDCWD as u32, path, 0])).into());
    }),
    ("32-bit socketcall bind", |d| {
        let socket = socket();
        let (address, length) = socket_address(&d.join("socket"));
        let address = low(&address);
        let arguments: Vec<u8> = [socket.as_raw_fd() as u32, address, length as u32]
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        let arguments = low(&arguments);
        did(measured(|| sys32(102, &[2, arguments])).into());
    }),
];

/// 32-bit numbers that mean a change as 64-bit ones, and none here.
pub(crate) const COMPAT_HARMLESS: &[(&str, Call)] = &[
    // 20 is writev
    ("32-bit getpid", |_| did(measured(|| sys32(20, &[])).into())),
    // 85 is creat
    ("32-bit readlink", |d| {
        let link = d.join("link");
        symlink("to", &link).unwrap();
        let (path, buffer) = (low(c(&link).as_bytes_with_nul()), low(&[0; 64]));
        did(measured(|| sys32(85, &[path, buffer, 64])).into());
    }),
];

pub(crate) const COMPAT_UNSEEN: &[(&str, Call)] = &[
    ("32-bit mmap2", |d| {
        let file = file(d, "target");
        let fd = file.as_raw_fd() as u32;
        measured(|| stored(sys32(192, &[0, 4096, 3, SHARED, fd])));
    }),
    ("32-bit old mmap", |d| {
        let file = file(d, "target");
        let arguments = [0, 4096, 3, SHARED, file.as_raw_fd() as u32, 0];
        let arguments = low(&arguments.map(u32::to_ne_bytes).concat());
        measured(|| stored(sys32(90, &[arguments])));
    }),
];
