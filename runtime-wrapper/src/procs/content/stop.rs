// SPDX-License-Identifier: Apache-2.0
//! Threads that are stopped by a tracer, because nothing else tells their registers.
//!
//! A tracer is a thread, and what it traces goes on when that thread ends, whatever comes:
//! so everything here is to happen on a thread that ends with it. The stops are not waited
//! for by `wait`, which would take the exits that [`crate::reaper`] collects (and which
//! passes over the stops that it gets to see): asking for the registers tells, too.

#![allow(unsafe_code)] // ptrace and get_robust_list have no safe wrapper

use std::{
    ffi::c_void,
    fs::File,
    io,
    os::unix::fs::FileExt,
    ptr, thread,
    time::{Duration, Instant},
};

/// For how long a frozen thread may take to stop.
pub(super) const LIMIT: Duration = Duration::from_millis(250);

/// `PTRACE_GET_RSEQ_CONFIGURATION` (`linux/ptrace.h`).
const GET_RSEQ: libc::c_uint = 0x420f;
/// The regset of the extended state (`linux/elf.h`).
const NT_X86_XSTATE: usize = 0x202;
/// More than any processor's.
const XSTATE_MAX: usize = 16 << 10;

/// The instruction.
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// Where the kernel writes for a thread that is scheduled (`struct ptrace_rseq_configuration`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rseq {
    pub(super) address: u64,
    pub(super) size: u32,
    pub(super) signature: u32,
    flags: u32,
    pad: u32,
}

/// What only a tracer is told of a stopped thread.
pub(super) struct Traced {
    pub(super) registers: libc::user_regs_struct,
    /// The floating-point and vector registers, as XSAVE lays them out.
    pub(super) extended: Vec<u8>,
    pub(super) rseq: Rseq,
    /// By which signal: another than SIGTRAP if it was stopped already, by its user.
    pub(super) signal: i32,
    /// The instruction that enters the kernel is its next.
    pub(super) is_at_a_call: bool,
    /// Where its list of robust futexes begins.
    pub(super) robust: u64,
}

/// Threads that this thread traces. They go on when it is dropped.
pub(super) struct Stopped {
    tids: Vec<i32>,
}

fn ptrace(request: libc::c_uint, tid: i32, address: usize, data: *mut c_void) -> io::Result<i64> {
    // SAFETY: `data` is null or points to what the request is documented to fill, by all
    // callers in this file.
    let answer = unsafe { libc::ptrace(request, tid, address as *mut c_void, data) };
    match answer {
        -1 => Err(io::Error::last_os_error()),
        answer => Ok(answer),
    }
}

impl Stopped {
    /// Has all of them stop as soon as they may; which they do when they are thawed.
    pub(super) fn ask(tids: &[i32]) -> Result<Self, (i32, io::Error)> {
        let mut stopped = Self { tids: Vec::new() };
        for tid in tids {
            let tid = *tid;
            ptrace(libc::PTRACE_SEIZE, tid, 0, ptr::null_mut()).map_err(|e| (tid, e))?;
            stopped.tids.push(tid);
            ptrace(libc::PTRACE_INTERRUPT, tid, 0, ptr::null_mut()).map_err(|e| (tid, e))?;
        }
        Ok(stopped)
    }

    /// Waits until all have stopped. One that was asleep wakes for this, and waits for a processor.
    pub(super) fn wait(&self, until: Instant) -> Result<(), (i32, io::Error)> {
        for tid in &self.tids {
            while let Err(error) = registers(*tid) {
                let not_yet = error.raw_os_error() == Some(libc::ESRCH);
                if !not_yet || Instant::now() > until {
                    return Err((*tid, error));
                }
                thread::sleep(Duration::from_micros(30));
            }
        }
        Ok(())
    }

    /// What there is to know of one of them.
    pub(super) fn look(&self, tid: i32) -> io::Result<Traced> {
        let registers = registers(tid)?;
        let mut extended = vec![0; XSTATE_MAX];
        let length = regset(tid, NT_X86_XSTATE, &mut extended)?;
        extended.truncate(length);
        let mut rseq = Rseq::default();
        let size = size_of::<Rseq>();
        ptrace(GET_RSEQ, tid, size, ptr::from_mut(&mut rseq).cast())?;
        // SAFETY: a siginfo_t is plain data, for which zeroes are a value.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let data = ptr::from_mut(&mut info).cast();
        ptrace(libc::PTRACE_GETSIGINFO, tid, 0, data)?;
        Ok(Traced {
            is_at_a_call: is_at_a_call(tid, registers.rip)?,
            registers,
            extended,
            rseq,
            signal: info.si_signo,
            robust: robust_list(tid)?,
        })
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for tid in &self.tids {
            // One that has not stopped yet is let go by the end of this thread.
            let _ = ptrace(libc::PTRACE_DETACH, *tid, 0, ptr::null_mut());
        }
    }
}

fn registers(tid: i32) -> io::Result<libc::user_regs_struct> {
    let mut bytes = [0; size_of::<libc::user_regs_struct>()];
    let length = regset(tid, libc::NT_PRSTATUS as usize, &mut bytes)?;
    if length != bytes.len() {
        return Err(io::Error::other("it runs a 32-bit program"));
    }
    // SAFETY: the kernel has filled all of it, and any bytes are such a value.
    Ok(unsafe { ptr::read_unaligned(bytes.as_ptr().cast()) })
}

fn regset(tid: i32, which: usize, into: &mut [u8]) -> io::Result<usize> {
    let mut buffer = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    let data = ptr::from_mut(&mut buffer).cast();
    ptrace(libc::PTRACE_GETREGSET, tid, which, data)?;
    Ok(buffer.iov_len)
}

fn is_at_a_call(tid: i32, counter: u64) -> io::Result<bool> {
    let mut code = [0; SYSCALL.len()];
    File::open(format!("/proc/{tid}/mem"))?.read_exact_at(&mut code, counter)?;
    Ok(code == SYSCALL)
}

fn robust_list(tid: i32) -> io::Result<u64> {
    let (mut head, mut length) = (0u64, 0usize);
    // SAFETY: both are written to, and live until it returns.
    let done = unsafe {
        libc::syscall(
            libc::SYS_get_robust_list,
            tid,
            &raw mut head,
            &raw mut length,
        )
    };
    match done {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(head),
    }
}
