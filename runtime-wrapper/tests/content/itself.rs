// SPDX-License-Identifier: Apache-2.0

//! A process that does one thing to itself.

use crate::harness::Subject;

const READ: &[i64] = &[libc::SYS_read];

/// Does what each line says.
const OBEYS: &str = "\
import ctypes, mmap, os, signal, sys, threading, time
keep = []
libc = ctypes.CDLL(None)
while True:
    line = b''
    while not line.endswith(b'\\n'):
        line += os.read(0, 1)
    exec(line)
";

#[test]
fn what_a_process_does_to_itself_is_seen() {
    let mut subject = Subject::python("itself", OBEYS);
    subject.do_now("pass", READ);
    for (does, part) in [
        ("keep.append(1)", "memory"),
        ("os.environ['A'] = 'b'", "memory"),
        ("libc.prctl(15, b'other', 0, 0, 0)", "state"),
        (
            "keep.append(os.open('/etc/passwd', os.O_RDONLY))",
            "open files",
        ),
        ("os.lseek(keep[-1], 5, 0)", "open files"),
        ("os.chdir('/usr')", "state"),
        ("os.umask(0o77)", "state"),
        (
            "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])",
            "state",
        ),
        ("signal.signal(signal.SIGUSR2, signal.SIG_IGN)", "state"),
        ("keep.append(mmap.mmap(-1, 1 << 20))", "mappings"),
        ("keep[-1].madvise(mmap.MADV_DONTFORK)", "mappings"),
        ("keep[-1][4096] = 7", "memory or files without a name"),
        ("keep.append(os.memfd_create('m'))", "open files"),
        ("os.write(keep[-1], b'x')", "open files"),
        (
            "os.pwrite(keep[-1], b'y', 0)",
            "memory or files without a name",
        ),
        (
            "threading.Thread(target=time.sleep, args=(1000,)).start()",
            "threads",
        ),
    ] {
        let before = subject.look();
        subject.do_now(does, READ);
        let change = subject.change_since(&before);
        // What it has read is another line than before, at least.
        assert!(change.contains(part), "{does}: {change}");
    }
}

/// Machine code that waits for 10 ms in a `poll` of nothing, does what `counts` says, and
/// so on.
fn in_a_register(name: &str, counts: &[u8]) -> (Subject, String) {
    let poll = [
        0xb8, 7, 0, 0, 0, // mov eax, 7
        0x31, 0xff, 0x31, 0xf6, // xor edi, edi; xor esi, esi
        0xba, 10, 0, 0, 0, // mov edx, 10
        0x0f, 0x05, // syscall
    ];
    let mut code = [&poll[..], counts].concat();
    let back = -(code.len() as i8 + 2);
    code.extend([0xeb, back as u8]);
    let script = format!(
        "import ctypes, mmap\n\
         m = mmap.mmap(-1, 4096, prot=7)\n\
         m.write(bytes({code:?}))\n\
         at = ctypes.addressof(ctypes.c_char.from_buffer(m))\n\
         ctypes.CFUNCTYPE(None, ctypes.c_double, ctypes.c_double)(at)(0.0, 1.0)"
    );
    let subject = Subject::python(name, &script);
    let polls = [libc::SYS_poll, libc::SYS_restart_syscall];
    subject.wait_for(&polls);
    subject.let_it_run(5, &polls);
    let before = subject.look();
    subject.let_it_run(5, &polls);
    let change = subject.change_since(&before);
    (subject, change)
}

#[test]
fn a_counter_that_is_only_in_a_register_is_seen() {
    let (_idle, change) = in_a_register("idle", &[]);
    assert_eq!(change, "nothing");
    // inc r12
    let (_counts, change) = in_a_register("r12", &[0x49, 0xff, 0xc4]);
    assert!(change.starts_with("threads of"), "{change}");
    // addsd xmm0, xmm1
    let (_adds, change) = in_a_register("xmm0", &[0xf2, 0x0f, 0x58, 0xc1]);
    assert!(change.starts_with("threads of"), "{change}");
}
