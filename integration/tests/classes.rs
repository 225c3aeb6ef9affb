// SPDX-License-Identifier: Apache-2.0

//! What each kind of turn is taken for: `none`, `files`, `processes` or `full`.
//!
//! A table per kind of sandbox. A case is one exec, and so one turn; what it needs is
//! made by another before it. All cases run, and those that came out otherwise are
//! named together.

use std::{fs, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use crab_integration::{
    BUSYBOX, Client, Crab, DEBIAN, RunOptions, Sandbox, Testbed, Tool, Turn, poll, skip, sleeper,
};
use crab_store::Class;

const LIMIT: Duration = Duration::from_secs(20);

/// One turn and what it has to be taken for.
struct Case {
    name: &'static str,
    /// A turn before it, of whatever class; none if empty.
    before: &'static str,
    script: &'static str,
    class: Class,
    /// With what status the script has to end.
    status: i32,
}

const fn case(
    class: Class,
    name: &'static str,
    before: &'static str,
    script: &'static str,
) -> Case {
    Case {
        name,
        before,
        script,
        class,
        status: 0,
    }
}

impl Case {
    const fn ending_with(mut self, status: i32) -> Self {
        self.status = status;
        self
    }

    /// What is wrong with how it came out.
    fn run(&self, crab: &Crab, sandbox: &Sandbox) -> Result<Option<String>> {
        if !self.before.is_empty() {
            let (said, _) = crab.turn(sandbox, &["bash", "-c", self.before])?;
            said.ok().context("what comes before it")?;
        }
        let (said, turn) = crab.turn(sandbox, &["bash", "-c", self.script])?;
        ensure!(
            said.status == self.status,
            "it ended with {}: {} {}",
            said.status,
            said.stdout.trim(),
            said.stderr.trim()
        );
        Ok(self.judge(&turn))
    }

    fn judge(&self, turn: &Turn) -> Option<String> {
        let record = &turn.record;
        if turn.class() != self.class {
            return Some(format!(
                "{} is {} and not {}: {} {:?}",
                self.name, record.class, self.class, record.reason, record.changed
            ));
        }
        if let Some(why) = &record.degraded {
            return Some(format!("{}: files only: {why}", self.name));
        }
        if let Some(why) = &record.unobserved {
            return Some(format!("{}: unobserved: {why}", self.name));
        }
        None
    }
}

fn run_all(crab: &Crab, sandbox: &Sandbox, cases: &[Case]) -> Result<()> {
    let mut wrong = Vec::new();
    for case in cases {
        match case.run(crab, sandbox) {
            Ok(None) => {}
            Ok(Some(why)) => wrong.push(why),
            Err(error) => wrong.push(format!("{}: {error:#}", case.name)),
        }
    }
    ensure!(
        wrong.is_empty(),
        "{} of {} with {}:\n{}",
        wrong.len(),
        cases.len(),
        sandbox.client().name(),
        wrong.join("\n")
    );
    Ok(())
}

/// Nothing is left of what these did, if they did anything.
const NOTHING: &[Case] = &[
    case(Class::None, "a program that does nothing", "", "true"),
    case(
        Class::None,
        "a listing",
        "",
        "ls -laR /etc /usr/lib >/dev/null",
    ),
    case(
        Class::None,
        "a lot of reading",
        "",
        "cat /usr/lib/*/*.so* /usr/bin/* | wc -c",
    ),
    case(Class::None, "a failing command", "", "ls /no/such/file").ending_with(2),
    case(Class::None, "a missing program", "", "no-such-program").ending_with(127),
    case(
        Class::None,
        "processes that come and go",
        "",
        "for i in 1 2 3; do sleep 0.01 & done; wait",
    ),
    case(
        Class::None,
        "pipes and devices",
        "",
        "echo x | cat >/dev/null; echo x >/dev/full || true",
    ),
    case(
        Class::None,
        "a write into procfs",
        "",
        "echo renamed >/proc/self/comm",
    ),
    case(
        Class::None,
        "a temporary file",
        "",
        "echo x >/tmp/x; rm /tmp/x",
    ),
    case(
        Class::None,
        "a temporary file by mktemp",
        "",
        "f=$(mktemp); ls -l / >$f; wc -l $f; rm $f",
    ),
    case(
        Class::None,
        "a temporary tree",
        "",
        "mkdir -p /root/t/u; echo x >/root/t/u/x; rm -r /root/t",
    ),
    case(
        Class::None,
        "a temporary file in memory",
        "",
        "echo x >/dev/shm/t; rm /dev/shm/t",
    ),
    case(
        Class::None,
        "a rename away and back",
        "echo x >/root/away",
        "mv /root/away /root/back; mv /root/back /root/away",
    ),
    case(
        Class::None,
        "a link that is removed again",
        "echo x >/root/one",
        "ln /root/one /root/two; rm /root/two",
    ),
    case(
        Class::None,
        "the mode that it has",
        "echo x >/root/mode; chmod 640 /root/mode",
        "chmod 600 /root/mode; chmod 640 /root/mode",
    ),
    case(
        Class::None,
        "an open for writing without a write",
        "echo x >/root/opened",
        ": >>/root/opened",
    ),
    case(
        Class::None,
        "a write that is not allowed",
        "",
        "setpriv --reuid 65534 --regid 65534 --clear-groups sh -c 'echo x >/root/x'",
    )
    .ending_with(2),
    case(
        Class::None,
        "a socket that is unlinked again",
        "",
        "python3 -c 'import os, socket; s = socket.socket(socket.AF_UNIX); \
         s.bind(\"/root/sock\"); os.unlink(\"/root/sock\")'",
    ),
    case(
        Class::None,
        "an unlinked open file",
        "",
        "python3 -c 'import tempfile; f = tempfile.TemporaryFile(); f.write(b\"x\" * 100000); f.flush()'",
    ),
    case(
        Class::None,
        "a private mapping that is written to",
        "echo private >/root/private",
        "python3 -c 'import mmap, os; f = os.open(\"/root/private\", os.O_RDWR); \
         m = mmap.mmap(f, 0, flags=mmap.MAP_PRIVATE); m[0] = 65'",
    ),
    case(
        Class::None,
        "a shared mapping that is only read",
        "echo shared >/root/shared",
        "python3 -c 'import mmap, os; f = os.open(\"/root/shared\", os.O_RDWR); \
         m = mmap.mmap(f, 0); print(m[:])'",
    ),
];

/// Each of these leaves a change of the files.
const FILES: &[Case] = &[
    case(Class::Files, "a new file", "", "echo x >/root/new"),
    case(Class::Files, "an empty new file", "", ": >/root/empty"),
    case(Class::Files, "an edit", "echo one >/root/edit", "sed -i s/one/two/ /root/edit"),
    case(Class::Files, "an append", "echo x >/root/append", "echo y >>/root/append"),
    case(
        Class::Files,
        "the same size in place",
        "printf aaaa >/root/same",
        "printf b | dd of=/root/same bs=1 seek=2 conv=notrunc status=none",
    ),
    case(Class::Files, "a failing command that wrote", "", "echo x >/root/failed; exit 3").ending_with(3),
    case(Class::Files, "a removal", "echo x >/root/gone", "rm /root/gone"),
    case(Class::Files, "the removal of a file of the image", "", "rm /etc/debian_version"),
    case(Class::Files, "it is made again", "", "echo 99 >/etc/debian_version"),
    case(Class::Files, "the removal of a tree of the image", "", "rm -r /usr/share/perl5"),
    case(Class::Files, "the removal of an empty directory of the image", "", "rmdir /mnt"),
    case(Class::Files, "a new directory", "", "mkdir /root/dir"),
    case(Class::Files, "the removal of a directory", "mkdir /root/dir2", "rmdir /root/dir2"),
    case(Class::Files, "a mode", "echo x >/root/m", "chmod 4711 /root/m"),
    case(Class::Files, "the mode of a file of the image", "", "chmod 600 /etc/passwd"),
    case(Class::Files, "the mode of a directory", "mkdir /root/md", "chmod 1777 /root/md"),
    case(Class::Files, "an owner", "echo x >/root/o", "chown 1234:4321 /root/o"),
    case(Class::Files, "a time", "echo x >/root/time", "touch -d @1000000000.123456789 /root/time"),
    case(Class::Files, "the time of now", "echo x >/root/touch", "touch /root/touch"),
    case(Class::Files, "a symlink", "", "ln -s /nowhere /root/link"),
    case(Class::Files, "another target", "ln -s /a /root/link2", "ln -sf /b /root/link2"),
    case(Class::Files, "a hardlink", "echo x >/root/h1", "ln /root/h1 /root/h2"),
    case(Class::Files, "one name less", "echo x >/root/h3; ln /root/h3 /root/h4", "rm /root/h4"),
    case(Class::Files, "a FIFO", "", "mkfifo /root/fifo"),
    case(Class::Files, "a device", "", "mknod /root/null c 1 3"),
    case(
        Class::Files,
        "a socket",
        "",
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"/root/socket\")'",
    ),
    case(Class::Files, "a rename", "echo x >/root/r1", "mv /root/r1 /root/r2"),
    case(Class::Files, "a rename of a directory", "mkdir /root/d1; echo x >/root/d1/x", "mv /root/d1 /root/d2"),
    case(
        Class::Files,
        "two names exchanged",
        "echo a >/root/xa; echo b >/root/xb",
        "python3 - <<'E'
import ctypes
libc = ctypes.CDLL(None)
assert libc.renameat2(-100, b'/root/xa', -100, b'/root/xb', 2) == 0
E",
    ),
    case(Class::Files, "an extended attribute", "echo x >/root/xattr",
        "python3 -c 'import os; os.setxattr(\"/root/xattr\", \"user.a\", b\"1\")'"),
    case(Class::Files, "another value", "",
        "python3 -c 'import os; os.setxattr(\"/root/xattr\", \"user.a\", b\"2\")'"),
    case(Class::Files, "no extended attribute", "",
        "python3 -c 'import os; os.removexattr(\"/root/xattr\", \"user.a\")'"),
    case(
        Class::Files,
        "a capability",
        "cp /bin/true /root/cap",
        "python3 -c 'import os; os.setxattr(\"/root/cap\", \"security.capability\", \
         bytes.fromhex(\"0100000200200000000000000000000000000000\"))'",
    ),
    case(Class::Files, "a truncation", "echo long >/root/trunc", "truncate -s 2 /root/trunc"),
    case(Class::Files, "a truncation by name", "echo long >/root/trunc2",
        "python3 -c 'import os; os.truncate(\"/root/trunc2\", 1)'"),
    case(Class::Files, "growth by truncation", "echo x >/root/grow", "truncate -s 100000 /root/grow"),
    case(Class::Files, "a sparse file", "", "truncate -s 1G /root/sparse"),
    case(
        Class::Files,
        "data in a sparse file",
        "",
        "printf x | dd of=/root/sparse bs=1 seek=500000000 conv=notrunc status=none",
    ),
    case(Class::Files, "preallocation", "echo x >/root/falloc",
        "python3 -c 'import os; os.posix_fallocate(os.open(\"/root/falloc\", os.O_RDWR), 0, 100000)'"),
    case(
        Class::Files,
        "a punched hole",
        "head -c 100000 /dev/urandom >/root/hole",
        "python3 - <<'E'
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
f = os.open('/root/hole', os.O_RDWR)
assert libc.fallocate(f, 3, ctypes.c_long(4096), ctypes.c_long(8192)) == 0, ctypes.get_errno()
E",
    ),
    case(
        Class::Files,
        "copy_file_range",
        "echo data >/root/c1; echo xxxx >/root/c2",
        "python3 -c 'import os; os.copy_file_range(os.open(\"/root/c1\", os.O_RDONLY), \
         os.open(\"/root/c2\", os.O_RDWR), 4)'",
    ),
    case(
        Class::Files,
        "sendfile",
        "echo data >/root/s1; echo xxxx >/root/s2",
        "python3 -c 'import os; os.sendfile(os.open(\"/root/s2\", os.O_RDWR), \
         os.open(\"/root/s1\", os.O_RDONLY), 0, 4)'",
    ),
    case(
        Class::Files,
        "splice",
        "echo xxxx >/root/sp",
        "python3 -c 'import os; r, w = os.pipe(); os.write(w, b\"data\"); \
         os.splice(r, os.open(\"/root/sp\", os.O_RDWR), 4)'",
    ),
    case(
        Class::Files,
        "vectored and positioned writes",
        "echo xxxx >/root/pw",
        "python3 -c 'import os; f = os.open(\"/root/pw\", os.O_RDWR); os.pwritev(f, [b\"da\", b\"ta\"], 0)'",
    ),
    case(
        Class::Files,
        "a mode by the newest call",
        "echo x >/root/fchmodat2",
        "python3 - <<'E'
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
assert libc.syscall(452, -100, b'/root/fchmodat2', 0o604, 0) == 0, ctypes.get_errno()
E",
    ),
    case(
        Class::Files,
        "an unnamed file that gets a name",
        "",
        "python3 - <<'E'
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
f = os.open('/root', os.O_TMPFILE | os.O_WRONLY)
os.write(f, b'x')
assert libc.linkat(-100, b'/proc/self/fd/%d' % f, -100, b'/root/named', 0x400) == 0, ctypes.get_errno()
E",
    ),
    case(
        Class::Files,
        "a store into a shared mapping",
        "echo xxxx >/root/mapped",
        "python3 -c 'import mmap, os; f = os.open(\"/root/mapped\", os.O_RDWR); \
         m = mmap.mmap(f, 0); m[0:4] = b\"data\"'",
    ),
    case(
        Class::Files,
        "a store after the descriptor was closed",
        "echo xxxx >/root/mapped2",
        "python3 -c 'import mmap, os; f = os.open(\"/root/mapped2\", os.O_RDWR); \
         m = mmap.mmap(f, 0); os.close(f); m[0:4] = b\"data\"; os._exit(0)'",
    ),
    case(Class::Files, "a file in memory", "", "echo x >/dev/shm/file"),
    case(Class::Files, "its removal", "", "rm /dev/shm/file"),
    case(Class::Files, "an existing file emptied and removed", "echo x >/root/existing",
        ">/root/existing; rm /root/existing"),
    case(Class::Files, "the same for a file of the image", "", ">/etc/issue; rm /etc/issue"),
    case(
        Class::Files,
        "a temporary file renamed over an existing one, and that removed",
        "echo x >/root/over",
        "echo y >/root/tmp; mv /root/tmp /root/over; rm /root/over",
    ),
    case(Class::Files, "a file written, linked, and the link removed", "",
        "echo x >/root/la; ln /root/la /root/lb; rm /root/lb"),
    case(Class::Files, "a repository", "",
        "cd /root && git init -q repo && cd repo && echo x >x && git add x && \
         git -c user.name=a -c user.email=a@b -c maintenance.auto=false commit -qm first"),
    case(Class::Files, "a build", "echo 'int main(){return 0;}' >/root/a.c", "gcc -o /root/a /root/a.c && /root/a"),
    case(Class::Files, "a database", "", "sqlite3 /root/db 'create table t(x); insert into t values (1);'"),
    case(Class::Files, "a name that is not UTF-8", "", "touch $'/root/\\xff\\xfe'"),
    case(Class::Files, "a name with a new line", "", "touch $'/root/two\\nlines'"),
];

#[test]
fn what_leaves_nothing_is_none_and_what_leaves_files_is_files() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, debian())?;
        run_all(&crab, &sandbox, NOTHING)?;
        run_all(&crab, &sandbox, FILES)?;
        // And now that there is much to compare.
        run_all(&crab, &sandbox, NOTHING)?;
    }
    Ok(())
}

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

/// The Debian image, in which Python writes no byte code of its own accord.
fn debian() -> RunOptions {
    RunOptions::new().env("PYTHONDONTWRITEBYTECODE", "1")
}

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
fn what_comes_from_outside_belongs_to_the_next_turn() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let from_outside = |sandbox: &Sandbox, name: &str| -> Result<()> {
        match sandbox.client() {
            Client::Docker => {
                let target = format!("{}:/root/{name}", sandbox.name());
                let copy = sandbox.client().tool(["cp", "/etc/passwd", &target]);
                copy.run()?.ok()?;
            }
            Client::Ctr { .. } => {
                let target = format!("/proc/{}/root/root/{name}", sandbox.pid()?);
                fs::copy("/etc/passwd", target)?;
            }
        }
        Ok(())
    };
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, debian())?;
        crab.turn_of(&sandbox, Class::None, "true")?;
        from_outside(&sandbox, "one")?;
        crab.turn_of(&sandbox, Class::Files, "true")?;
        crab.turn_of(&sandbox, Class::None, "cat /root/one")?;
        // Also a checkpoint on demand takes it.
        from_outside(&sandbox, "two")?;
        let taken = crab.checkpoint(&sandbox)?;
        assert_eq!(taken["class"], "files", "{taken}");
        let taken = crab.checkpoint(&sandbox)?;
        assert_eq!(taken["class"], "none", "{taken}");
        crab.turn_of(&sandbox, Class::None, "cat /root/two")?;
    }
    Ok(())
}

/// Waits for a word, does what it says, and answers.
const SERVER: &str = r#"
import mmap, os, socket
held = open('/root/held', 'r+')
mapped = mmap.mmap(os.open('/root/mapped', os.O_RDWR), 0)
count = 0
server = socket.socket(socket.AF_UNIX)
server.bind('\0server')
server.listen()
while True:
    client, _ = server.accept()
    word = client.recv(100).decode()
    if word == 'count':
        count += 1
    elif word == 'write':
        open('/root/written', 'a').write('x')
    elif word == 'print':
        print('printed', flush=True)
    elif word == 'store':
        mapped[0] = (mapped[0] + 1) % 256
    client.send(str(count).encode())
    client.close()
"#;

/// `ask WORD` inside, and the server's start.
const ASK: &str = r#"#!/usr/bin/python3
import socket, sys, time
for attempt in range(200):
    try:
        s = socket.socket(socket.AF_UNIX)
        s.connect('\0server')
        break
    except ConnectionRefusedError:
        time.sleep(0.02)
s.send(sys.argv[1].encode())
answer = b''
# To its end: then the server waits again.
while part := s.recv(100):
    answer += part
print(answer.decode())
"#;

fn prepare_server(crab: &Crab, sandbox: &Sandbox) -> Result<()> {
    crab.turn_of(
        sandbox,
        Class::Files,
        &format!(
            "cat >/root/server.py <<'E'\n{SERVER}\nE\ncat >/bin/ask <<'E'\n{ASK}\nE\n\
             chmod +x /bin/ask; echo held >/root/held; echo mapped >/root/mapped; mkdir /root/cwd"
        ),
    )?;
    Ok(())
}

const PROCESSES: &[Case] = &[
    case(
        Class::Full,
        "a server that is started, with its log",
        "",
        "cd /root/cwd; setsid python3 /root/server.py >/root/log 2>&1 </dev/null & ask hello",
    ),
    case(
        Class::None,
        "nothing, beside a server that idles",
        "",
        "true",
    ),
    case(
        Class::None,
        "reading, beside a server that idles",
        "",
        "ls -laR /etc >/dev/null",
    ),
    case(
        Class::None,
        "a look at it",
        "",
        "ps ax | grep -q server.py; cat /proc/*/status >/dev/null",
    ),
    case(
        Class::None,
        "a temporary file, beside it",
        "",
        "echo x >/tmp/x; rm /tmp/x",
    ),
    case(Class::Processes, "it counts in memory", "", "ask count"),
    case(Class::Processes, "it counts again", "", "ask count"),
    case(Class::None, "it idles again", "", "true"),
    case(
        Class::Files,
        "a file that it does not use",
        "",
        "echo x >/root/other",
    ),
    case(Class::None, "it idled over that", "", "true"),
    case(Class::Full, "it writes", "", "ask write"),
    case(Class::Full, "it prints into its log", "", "ask print"),
    case(
        Class::Full,
        "it stores into a shared mapping",
        "",
        "ask store",
    ),
    case(Class::None, "it idles with a shared mapping", "", "true"),
    case(
        Class::Full,
        "a file that it holds open is written to",
        "",
        "echo more >>/root/held",
    ),
    case(Class::None, "it idled over that, too", "", "true"),
    case(Class::Full, "its log is emptied", "", ">/root/log"),
    case(
        Class::Full,
        "the directory in which it is is removed",
        "",
        "rmdir /root/cwd",
    ),
    case(
        Class::Processes,
        "it is killed",
        "",
        "pkill -9 -f '[s]erver.py'; while pgrep -f '[s]erver.py'; do :; done",
    ),
    case(Class::None, "it is gone", "", "true"),
    case(
        Class::Processes,
        "a process that only sleeps",
        "",
        "setsid sleep 1000 </dev/null >/dev/null 2>&1 & \
         until grep -qs '^230 ' /proc/$!/syscall; do :; done",
    ),
    case(Class::None, "it sleeps on", "", "true"),
    case(
        Class::Processes,
        "one more",
        "",
        "setsid sleep 1001 </dev/null >/dev/null 2>&1 & \
         until grep -qs '^230 ' /proc/$!/syscall; do :; done",
    ),
    case(
        Class::Processes,
        "one less",
        "",
        "pkill -f '[s]leep 1001'; while pgrep -f '[s]leep 1001'; do :; done",
    ),
    case(
        Class::Full,
        "one that is killed, and a file",
        "",
        "pkill -f '[s]leep 1000'; while pgrep -f '[s]leep 1000'; do :; done; echo x >/root/both",
    ),
    case(
        Class::Processes,
        "a program of one's own",
        "cp /bin/sleep /root/own",
        "setsid /root/own 1000 </dev/null >/dev/null 2>&1 & \
         until grep -qs '^230 ' /proc/$!/syscall; do :; done",
    ),
    case(
        Class::Full,
        "its file is removed while it runs",
        "",
        "rm /root/own",
    ),
    case(Class::None, "it runs on", "", "true"),
    case(
        Class::Processes,
        "and is ended",
        "",
        "pkill -x own; while pgrep -f '/root/[o]wn'; do :; done",
    ),
];

#[test]
fn what_processes_do_is_told_from_what_files_do() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, debian())?;
        prepare_server(&crab, &sandbox)?;
        run_all(&crab, &sandbox, PROCESSES)?;
    }
    Ok(())
}

#[test]
fn what_runs_between_turns_belongs_to_the_next() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, debian())?;
        // It ends by itself, with no turn.
        crab.turn_of(
            &sandbox,
            Class::Processes,
            "setsid sleep 0.3 </dev/null >/dev/null 2>&1 &",
        )?;
        poll("it has ended", LIMIT, || {
            Ok((sandbox.processes()?.len() == 1).then_some(()))
        })?;
        crab.turn_of(&sandbox, Class::Processes, "true")?;
        crab.turn_of(&sandbox, Class::None, "true")?;
        // One that never rests.
        crab.turn_of(
            &sandbox,
            Class::Full,
            "setsid sh -c 'while :; do date +%N >/root/date; sleep 0.02; done' \
             </dev/null >/dev/null 2>&1 & \
             until [ -e /root/date ]; do sleep 0.01; done",
        )?;
        for _ in 0..2 {
            let written = || {
                fs::read(format!("/proc/{}/root/root/date", sandbox.pid()?))
                    .context("read the date")
            };
            let before = written()?;
            poll("it has written", LIMIT, || {
                Ok((written()? != before).then_some(()))
            })?;
            crab.turn_of(&sandbox, Class::Full, "true")?;
        }
    }
    Ok(())
}

#[test]
fn an_init_that_works_is_a_process_like_any_other() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let init = "import signal, time\n\
                n = 0\n\
                def count(*_):\n    global n\n    n += 1\n\
                signal.signal(signal.SIGUSR1, count)\n\
                while True: signal.pause()";
    for client in testbed.clients() {
        let options = debian().args(["python3", "-c", init]);
        let sandbox = client.run(DEBIAN, options)?;
        let handles = format!("/proc/{}/status", sandbox.pid()?);
        poll("it handles its signal", LIMIT, || {
            let status = fs::read_to_string(&handles)?;
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            let caught = u64::from_str_radix(caught.context("no SigCgt")?.trim(), 16)?;
            Ok((caught & (1 << 9) != 0).then_some(()))
        })?;
        let (_, first) = crab.turn(&sandbox, &["true"])?;
        // It has begun since the checkpoint before its start.
        assert_eq!(first.class(), Class::Processes, "{}", first.record.reason);
        assert_eq!(first.record.degraded, None);
        crab.turn_of(&sandbox, Class::None, "true")?;
        crab.turn_of(&sandbox, Class::Processes, "kill -USR1 1")?;
        crab.turn_of(&sandbox, Class::None, "true")?;
        crab.turn_of(&sandbox, Class::Files, "echo x >/root/x")?;
    }
    Ok(())
}

#[test]
fn a_process_that_cannot_be_dumped_is_said_and_files_are_kept() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        // A dump would end it.
        let script = format!("echo x >/root/x; {}", sleeper(1000));
        let turn = crab.turn_of(&sandbox, Class::Full, &script)?;
        let degraded = turn.record.degraded.unwrap_or_default();
        assert!(degraded.contains("busybox sleep"), "{degraded}");
        assert!(turn.published);
        assert_eq!(sandbox.processes()?.len(), 2);
        let restored = crab.rollback(&sandbox, turn.record.turn.0)?;
        assert_eq!(restored["processes"], false);
        assert_eq!(sandbox.sh_ok("cat /root/x")?, "x");
    }
    Ok(())
}

#[test]
fn execs_that_overlap_are_one_turn() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, debian())?;
        let script = "echo began >/root/began; while [ ! -e /root/end ]; do sleep 0.01; done";
        let first = sandbox.exec_start(&["sh", "-c", script], &Default::default())?;
        let root = format!("/proc/{}/root/root", sandbox.pid()?);
        poll("it has begun", LIMIT, || {
            Ok(fs::exists(format!("{root}/began"))?.then_some(()))
        })?;
        sandbox.sh_ok("true")?;
        assert!(crab.turns(&sandbox)?.open.is_some());
        sandbox.sh_ok("echo x >/root/end")?;
        first.wait()?.ok()?;
        let turn = crab.wait_for_turn(&sandbox, 1)?;
        assert_eq!(turn.class(), Class::Files, "{}", turn.record.reason);
        crab.turn_of(&sandbox, Class::None, "true")?;
        assert_eq!(crab.last_turn(&sandbox)?, Some(2));
    }
    Ok(())
}

#[test]
fn nothing_is_taken_from_what_other_containers_and_the_host_do() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let ctr = testbed.ctr();
    let quiet = ctr.run(DEBIAN, RunOptions::new())?;
    let busy = ctr.run(DEBIAN, RunOptions::new())?;
    crab.turn_of(&quiet, Class::None, "true")?;
    crab.turn_of(&busy, Class::Files, "echo x >/root/x")?;
    Tool::new("sh")
        .args(["-c", "echo x >/root/of-the-host"])
        .run()?
        .ok()?;
    crab.turn_of(&quiet, Class::None, "true")?;
    let Some(turn) = crab.last_turn(&quiet)? else {
        bail!("no turn is recorded");
    };
    assert_eq!(turn, 2);
    Ok(())
}
