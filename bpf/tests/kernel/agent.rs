// SPDX-License-Identifier: Apache-2.0
//! The process that acts: this test binary again, told by its environment what
//! to call. It stops before and after the measured call for the test to look.

use std::fs;
use std::io::{BufRead, Write};

use crate::calls::CALLS;

pub(crate) const CALL: &str = "CRAB_TEST_CALL";
pub(crate) const CGROUP: &str = "CRAB_TEST_CGROUP";
pub(crate) const DIRECTORY: &str = "CRAB_TEST_DIRECTORY";

/// Exit code of an agent whose call this kernel does not have.
pub(crate) const NOT_HERE: i32 = 77;

/// Not a test of its own: does nothing where no call is asked for.
#[test]
fn agent() {
    let Some(name) = std::env::var_os(CALL) else {
        return;
    };
    let name = name.into_string().unwrap();
    let cgroup = std::env::var(CGROUP).unwrap();
    if !cgroup.is_empty() {
        fs::write(format!("{cgroup}/cgroup.procs"), "0").unwrap();
    }
    let (_, call) = CALLS
        .iter()
        .find(|(known, _)| *known == name)
        .unwrap_or_else(|| panic!("no call {name:?}"));
    call(std::env::var(DIRECTORY).unwrap().as_ref());
}

/// Runs what is to be counted, alone.
pub(crate) fn measured<T>(call: impl FnOnce() -> T) -> T {
    stop("before");
    let result = call();
    stop("after");
    result
}

fn stop(point: &str) {
    println!("@{point}");
    std::io::stdout().flush().unwrap();
    std::io::stdin()
        .lock()
        .read_line(&mut String::new())
        .unwrap();
}

/// A system call as it is, with no library between. The result is -errno on
/// failure.
pub(crate) fn sys(number: i64, arguments: &[usize]) -> i64 {
    let mut a = [0; 6];
    a[..arguments.len()].copy_from_slice(arguments);
    // SAFETY: every pointer that the callers pass comes from a buffer that is
    // alive across the call and as large as they say.
    let result = unsafe { libc::syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]) };
    if result < 0 {
        return -i64::from(std::io::Error::last_os_error().raw_os_error().unwrap());
    }
    result
}

/// The same through the 32-bit entry, which a 64-bit process may use: with
/// i386's numbers, and pointers below 4 GiB (see [`low`]).
pub(crate) fn sys32(number: u32, arguments: &[u32]) -> i32 {
    let mut a = [0; 5];
    a[..arguments.len()].copy_from_slice(arguments);
    let result: i32;
    // SAFETY: as above; rbx and rbp (the sixth argument, an offset) belong to LLVM and
    // are put back, and the kernel clobbers r8-r11 on this entry.
    unsafe {
        std::arch::asm!(
            "xchg rbx, {first}",
            "push rbp",
            "xor ebp, ebp",
            "int 0x80",
            "pop rbp",
            "xchg rbx, {first}",
            first = inout(reg) u64::from(a[0]) => _,
            inout("eax") number => result,
            in("ecx") a[1],
            in("edx") a[2],
            in("esi") a[3],
            in("edi") a[4],
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    result
}

/// A copy of `bytes` at an address that a 32-bit call can name, never freed.
pub(crate) fn low(bytes: &[u8]) -> u32 {
    // SAFETY: a new private mapping; it is large enough and nobody else has it.
    unsafe {
        let page = libc::mmap(
            std::ptr::null_mut(),
            bytes.len().max(1),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT,
            -1,
            0,
        );
        assert_ne!(page, libc::MAP_FAILED);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), page.cast(), bytes.len());
        u32::try_from(page as usize).unwrap()
    }
}
