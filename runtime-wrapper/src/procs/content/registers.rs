// SPDX-License-Identifier: Apache-2.0
//! What a thread's registers hold that its program can get to see.

use std::ops::Range;

use super::{
    clock::Clock,
    digests::{Making, Pair},
    stop::Traced,
};

/// `-ERESTARTSYS`, `-ERESTARTNOINTR`, `-ERESTARTNOHAND`, `-ERESTART_RESTARTBLOCK`
/// (`linux/errno.h` of the kernel): the call was interrupted and will be made again, and
/// never returns these.
const AGAIN: [i64; 4] = [-512, -513, -514, -516];

/// Of an XSAVE area: what is left to the software, and the header. Neither is a register's.
const NO_REGISTER: Range<usize> = 464..576;

/// A thread, stopped in the kernel or on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Registers {
    /// The system call in which it is, also if it was interrupted in it and goes on; negative
    /// if in none.
    call: i64,
    pub(super) stack: u64,
    counter: u64,
    digest: Pair,
}

/// The calls that go on as `restart_syscall` when they were interrupted.
const RESTARTED: [i64; 4] = [
    libc::SYS_poll,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_futex,
];

impl Registers {
    pub(super) fn of(traced: &Traced, earlier: Option<&Self>, clock: &Clock) -> Self {
        let regs = &traced.registers;
        let (mut call, mut result, mut counter) = (regs.orig_rax as i64, regs.rax as i64, regs.rip);
        if call >= 0 && traced.is_at_a_call && [call, libc::SYS_restart_syscall].contains(&result) {
            // It is on its way back into the call in which it was interrupted.
            counter += 2;
            result = AGAIN[0];
        }
        let mut digest = Making::new(clock);
        if call >= 0 && AGAIN.contains(&result) {
            result = 0;
        }
        // The instruction that enters the kernel overwrites these two.
        let (rcx, r11) = if call >= 0 {
            (0, 0)
        } else {
            (regs.rcx, regs.r11)
        };
        let words = [
            result as u64,
            regs.rbx,
            rcx,
            regs.rdx,
            regs.rsi,
            regs.rdi,
            regs.rbp,
            regs.rsp,
            regs.r8,
            regs.r9,
            regs.r10,
            r11,
            regs.r12,
            regs.r13,
            regs.r14,
            regs.r15,
            counter,
            regs.eflags,
            regs.cs,
            regs.ss,
            regs.ds,
            regs.es,
            regs.fs,
            regs.gs,
            regs.fs_base,
            regs.gs_base,
        ];
        let general: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        digest.update(&general);
        let extended = &traced.extended;
        digest.update(&extended[..NO_REGISTER.start.min(extended.len())]);
        digest.update(extended.get(NO_REGISTER.end..).unwrap_or_default());
        let rseq = traced.rseq;
        let others = [
            rseq.address,
            u64::from(rseq.size),
            u64::from(rseq.signature),
            traced.robust,
            traced.signal as u64,
        ];
        let others: Vec<u8> = others.iter().flat_map(|word| word.to_ne_bytes()).collect();
        digest.update(&others);
        if call == libc::SYS_restart_syscall
            && let Some(earlier) = earlier
            && RESTARTED.contains(&earlier.call)
            && (earlier.stack, earlier.counter) == (regs.rsp, counter)
        {
            // By the same instruction, so it is the same.
            call = earlier.call;
        }
        Self {
            call,
            stack: regs.rsp,
            counter,
            digest: digest.finish(),
        }
    }

    /// Where the kernel writes into the memory of a thread that does nothing: which
    /// processor it is on, and how much is left of its wait.
    pub(super) fn written_by_the_kernel(&self, traced: &Traced) -> Vec<Range<u64>> {
        let mut ranges = Vec::new();
        let Traced {
            rseq, registers, ..
        } = traced;
        if rseq.address != 0 {
            // cpu_id_start and cpu_id; node_id, mm_cid and what later kernels add.
            // What is between is the program's: where its critical section is.
            ranges.push(rseq.address..rseq.address + 8);
            let end = u64::from(rseq.size).max(28);
            ranges.push(rseq.address + 20..rseq.address + end);
        }
        // An instant until which it waits, or what is left of its time when it is
        // interrupted.
        let time = match self.call {
            libc::SYS_select | libc::SYS_pselect6 => registers.r8,
            libc::SYS_ppoll => registers.rdx,
            libc::SYS_nanosleep => registers.rsi,
            libc::SYS_clock_nanosleep if registers.rsi & 1 == 1 => registers.rdx,
            libc::SYS_clock_nanosleep => registers.r10,
            libc::SYS_futex if is_until(registers.rsi) => registers.r10,
            _ => 0,
        };
        if time != 0 {
            ranges.push(time..time.saturating_add(16));
        }
        ranges
    }

    /// Whether nothing that it can get to see is another.
    pub(super) fn are(&self, before: &Self) -> bool {
        self.call == before.call && self.stack == before.stack && self.digest.is(&before.digest)
    }
}

/// Whether a futex operation waits until an instant: `FUTEX_WAIT_BITSET`,
/// `FUTEX_LOCK_PI`, `FUTEX_WAIT_REQUEUE_PI`, `FUTEX_LOCK_PI2`.
fn is_until(operation: u64) -> bool {
    matches!(operation & 0x7f, 9 | 6 | 11 | 13)
}
