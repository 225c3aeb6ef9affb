// SPDX-License-Identifier: Apache-2.0
//! What agents can be told to do. Each prepares what it needs, then makes the
//! one call that is measured, and checks that it did what it should.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::agent::{NOT_HERE, low, measured, sys, sys32};

mod acts;
mod changes;
mod compat;
mod harmless;
mod waits;

pub(crate) use acts::ACTS;
pub(crate) use changes::CHANGES;
pub(crate) use compat::{COMPAT_CHANGES, COMPAT_HARMLESS, COMPAT_UNSEEN};
pub(crate) use harmless::{BATCHES, HARMLESS, UNSEEN};
use waits::WAITS;

pub(crate) type Call = fn(&Path);

const CWD: usize = libc::AT_FDCWD as usize;

pub(crate) const CALLS: Chain = Chain(&[
    CHANGES,
    HARMLESS,
    UNSEEN,
    BATCHES,
    COMPAT_CHANGES,
    COMPAT_HARMLESS,
    COMPAT_UNSEEN,
    ACTS,
    WAITS,
]);

pub(crate) struct Chain(&'static [&'static [(&'static str, Call)]]);

impl Chain {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &'static (&'static str, Call)> {
        self.0.iter().flat_map(|calls| calls.iter())
    }
}

const XATTR: &std::ffi::CStr = c"trusted.crab";

fn did(result: i64) {
    assert!(
        result >= 0,
        "{}",
        std::io::Error::from_raw_os_error(-result as i32)
    );
}

/// To what mmap of the 32-bit entry gave: it may be negative; the last page is for errors.
fn stored(address: i32) {
    assert!(!(-4095..0).contains(&address), "mmap fails with {address}");
    store(address as u32 as usize as *mut u8);
}

fn fails(result: i64) {
    assert!(result < 0);
}

/// A call that the running kernel may not know; the test then has nothing to see.
fn newer(result: i64) -> i64 {
    if result == -i64::from(libc::ENOSYS) {
        std::process::exit(NOT_HERE);
    }
    result
}

fn c(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

fn ptr(path: &CString) -> usize {
    path.as_ptr() as usize
}

fn text() -> usize {
    b"text".as_ptr() as usize
}

fn vector() -> usize {
    Box::leak(Box::new([text(), 4])).as_ptr() as usize
}

fn new(directory: &Path) -> CString {
    c(&directory.join("new"))
}

fn existing(directory: &Path) -> std::path::PathBuf {
    let path = directory.join("target");
    fs::write(&path, "what was there").unwrap();
    path
}

fn file(directory: &Path, name: &str) -> File {
    let path = directory.join(name);
    fs::write(&path, "what was there").unwrap();
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap()
}

fn on_file(directory: &Path, call: impl FnOnce(usize) -> i64) {
    let file = file(directory, "target");
    did(measured(|| call(file.as_raw_fd() as usize)));
}

fn on_path(directory: &Path, call: impl FnOnce(usize) -> i64) {
    let path = c(&existing(directory));
    did(measured(|| call(ptr(&path))));
}

fn on_new(directory: &Path, call: impl FnOnce(usize, usize) -> i64) {
    let new = new(directory);
    on_path(directory, |path| call(path, ptr(&new)));
}

fn on_two(directory: &Path, call: impl FnOnce(usize, usize) -> i64) {
    fs::write(directory.join("new"), "another").unwrap();
    on_new(directory, call);
}

fn set_xattr(number: i64, path: usize) -> i64 {
    sys(number, &[path, XATTR.as_ptr() as usize, text(), 4, 0])
}

fn with_xattr(directory: &Path, number: i64) {
    let path = c(&existing(directory));
    did(set_xattr(libc::SYS_setxattr, ptr(&path)));
    did(measured(|| {
        sys(number, &[ptr(&path), XATTR.as_ptr() as usize])
    }));
}

fn socket() -> OwnedFd {
    let fd = sys(
        libc::SYS_socket,
        &[libc::AF_UNIX as usize, libc::SOCK_STREAM as usize, 0],
    );
    // SAFETY: the fd was just made for us.
    unsafe { OwnedFd::from_raw_fd(fd as i32) }
}

fn socket_address(path: &Path) -> (Vec<u8>, usize) {
    let mut address = (libc::AF_UNIX as u16).to_ne_bytes().to_vec();
    address.extend_from_slice(c(path).as_bytes_with_nul());
    let length = address.len();
    (address, length)
}

fn map(directory: &Path, flags: i32, mode: i32, then: impl FnOnce(*mut u8)) {
    existing(directory);
    map_at(directory, flags, mode, 0, then);
}

fn map_at(directory: &Path, flags: i32, mode: i32, offset: usize, then: impl FnOnce(*mut u8)) {
    let path = c(&directory.join("target"));
    let fd = sys(libc::SYS_open, &[ptr(&path), mode as usize]);
    let mut protection = libc::PROT_READ as usize;
    if mode == libc::O_RDWR {
        protection |= libc::PROT_WRITE as usize;
    }
    measured(|| {
        let address = sys(
            libc::SYS_mmap,
            &[0, 4096, protection, flags as usize, fd as usize, offset],
        );
        did(address);
        then(address as usize as *mut u8);
    });
}

fn store(at: *mut u8) {
    // SAFETY: the start of a writable mapping of a file that is not empty.
    unsafe { at.write_volatile(b'x') }
}

fn load(at: *mut u8) {
    // SAFETY: the start of a mapping of a file that is not empty.
    unsafe { at.read_volatile() };
}
