// SPDX-License-Identifier: Apache-2.0

//! Writes that are not made by the usual system calls.

use anyhow::Result;
use crab_integration::{DEBIAN, RunOptions, Sandbox, Testbed, skip};
use crab_store::Class;

/// A write by an io_uring: no system call tells of it.
const URING: &str = r#"
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int argc, char **argv) {
    struct io_uring_params p = {0};
    int ring = syscall(__NR_io_uring_setup, 4, &p);
    if (ring < 0) { perror("io_uring_setup"); return 77; }
    int all = PROT_READ | PROT_WRITE;
    char *sq = mmap(0, p.sq_off.array + p.sq_entries * 4, all, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    struct io_uring_sqe *e = mmap(0, p.sq_entries * sizeof *e, all, MAP_SHARED, ring, IORING_OFF_SQES);
    int file = open(argv[1], O_RDWR);
    e->opcode = IORING_OP_WRITE;
    e->fd = file;
    e->addr = (unsigned long)"ring";
    e->len = 4;
    *(unsigned *)(sq + p.sq_off.array) = 0;
    __atomic_store_n((unsigned *)(sq + p.sq_off.tail), 1, __ATOMIC_RELEASE);
    if (syscall(__NR_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) != 1) return 1;
    return 0;
}
"#;

/// A write by the 32-bit entry, with a number that is another call in 64-bit.
const INT80: &str = r#"
static char path[] = "/root/int80", text[] = "32";
static int call(int n, long a, long b, long c) {
    int r;
    __asm__ volatile("int $0x80" : "=a"(r) : "a"(n), "b"(a), "c"(b), "d"(c) : "memory", "r8", "r9", "r10", "r11");
    return r;
}
int main(void) {
    int file = call(5, (long)path, 2, 0);
    return file < 0 ? 77 : call(4, file, (long)text, 2) != 2;
}
"#;

/// Its first thread ends, and `/proc/<pid>` shows no memory and no descriptor any more;
/// the second goes on: it counts what it reads, and stores on demand into a mapped file.
const HEADLESS: &str = r#"
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>
static volatile int count;
static void *serve(void *unused) {
    int fifo = open("/root/fifo", O_RDWR);
    int file = open("/root/map", O_RDWR);
    volatile char *map = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    char byte;
    close(file);
    while (read(fifo, &byte, 1) == 1) {
        count++;
        if (byte == 's') map[0]++;
    }
    return 0;
}
int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, serve, 0);
    pthread_exit(0);
}
"#;

fn compile(sandbox: &Sandbox, name: &str, source: &str, flags: &str) -> Result<()> {
    let script = format!("cat >/root/{name}.c <<'SOURCE'\n{source}\nSOURCE\n");
    sandbox.sh_ok(&format!(
        "{script}gcc {flags} -o /root/{name} /root/{name}.c"
    ))?;
    Ok(())
}

#[test]
fn a_write_past_the_usual_system_calls_is_seen() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    // Docker's seccomp profile forbids io_uring.
    let sandbox = testbed.ctr().run(DEBIAN, RunOptions::new())?;
    compile(&sandbox, "ring", URING, "")?;
    compile(&sandbox, "entry32", INT80, "-no-pie")?;
    crab.turn(
        &sandbox,
        &[
            "sh",
            "-c",
            "echo xxxx >/root/ringed; echo xxxx >/root/int80",
        ],
    )?;
    for (command, file, content) in [
        (&["/root/ring", "/root/ringed"][..], "/root/ringed", "ring"),
        (&["/root/entry32"], "/root/int80", "32xx"),
    ] {
        let (said, turn) = crab.turn(&sandbox, command)?;
        if matches!(said.status, 77 | 139) {
            skip(&format!("{}: {}", said.command, said.stderr.trim()))?;
            continue;
        }
        said.ok()?;
        assert_eq!(
            turn.class(),
            Class::Files,
            "{command:?}: {}",
            turn.record.reason
        );
        assert_eq!(sandbox.sh_ok(&format!("cat {file}"))?, content);
    }
    Ok(())
}

#[test]
fn a_process_without_its_first_thread_is_seen() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let sandbox = testbed.ctr().run(DEBIAN, RunOptions::new())?;
    compile(&sandbox, "headless", HEADLESS, "-pthread")?;
    sandbox.sh_ok("mkfifo /root/fifo; echo 0 >/root/map")?;
    // The first thread has ended, and the second is in read.
    let waits = "until p=/proc/$(pgrep -x headless); grep -qs '^State:.Z' $p/status && \
                 grep -qs '^0 ' $p/task/*/syscall; do :; done";
    let turn = crab.turn_of(
        &sandbox,
        Class::Processes,
        &format!("setsid /root/headless </dev/null >/dev/null 2>&1 & {waits}"),
    )?;
    let degraded = turn.record.degraded.unwrap_or_default();
    assert!(degraded.contains("without its first thread"), "{degraded}");
    crab.turn_of(&sandbox, Class::None, "true")?;
    let counts = format!("printf c >/root/fifo; {waits}");
    crab.turn_of(&sandbox, Class::Processes, &counts)?;
    let stores = format!("printf s >/root/fifo; until grep -q 1 /root/map; do :; done; {waits}");
    crab.turn_of(&sandbox, Class::Full, &stores)?;
    crab.turn_of(&sandbox, Class::None, "true")?;
    Ok(())
}
