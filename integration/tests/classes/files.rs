// SPDX-License-Identifier: Apache-2.0

//! What leaves a change of the files, and what leaves nothing in the same sandbox.

use anyhow::Result;
use crab_integration::{DEBIAN, RunOptions, Testbed};
use crab_store::Class;

use crate::{
    cases::{Case, case, run_all},
    nothing::NOTHING,
};

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
        let sandbox = client.run(DEBIAN, RunOptions::without_bytecode())?;
        run_all(&crab, &sandbox, NOTHING)?;
        run_all(&crab, &sandbox, FILES)?;
        // And now that there is much to compare.
        run_all(&crab, &sandbox, NOTHING)?;
    }
    Ok(())
}
