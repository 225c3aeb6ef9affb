// SPDX-License-Identifier: Apache-2.0
//! Events that the kernel did not run a program for: one that comes while the same
//! program runs on the same processor (an interrupt's, or that of a task that took the
//! processor from it) is dropped, and counted by the kernel alone.

#![allow(unsafe_code)] // aya does not read this field; and there may be 70 programs to ask for it

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use aya::programs::{ProgramError, ProgramFd, ProgramInfo};

/// What the kernel says of one program.
#[derive(Debug)]
pub(crate) struct Misses(ProgramFd);

/// BPF_OBJ_GET_INFO_BY_FD, and its member of `union bpf_attr`.
const GET_INFO: libc::c_long = 15;

#[repr(C)]
struct Query {
    fd: u32,
    length: u32,
    info: u64,
}

/// `struct bpf_prog_info` up to `recursion_misses`, its last word.
type Info = [u64; 27];

impl Misses {
    pub(crate) fn of(pin: &Path) -> Result<Self, ProgramError> {
        ProgramInfo::from_pin(pin)?.fd().map(Self)
    }

    /// Since the program was loaded. None where the kernel (before 5.12) does not say.
    pub(crate) fn count(&self) -> io::Result<u64> {
        // All lengths of lists are 0: it gives none.
        let mut info: Info = [0; 27];
        let mut query = Query {
            fd: self.0.as_fd().as_raw_fd().cast_unsigned(),
            length: mem::size_of::<Info>() as u32,
            info: (&raw mut info).addr() as u64,
        };
        // SAFETY: the kernel reads and writes `query`, of the size that it is told, and
        // `info`, of no more than the length that is there; both outlive the call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_bpf,
                GET_INFO,
                &raw mut query,
                mem::size_of::<Query>(),
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(info[26])
    }
}
