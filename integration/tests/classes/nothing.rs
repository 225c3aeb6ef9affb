// SPDX-License-Identifier: Apache-2.0

//! What leaves nothing, whatever it did meanwhile.

use crab_store::Class;

use crate::cases::{Case, case};

/// Nothing is left of what these did, if they did anything.
pub(crate) const NOTHING: &[Case] = &[
    case(Class::None, "a program that does nothing", "", "true").by_counters(),
    case(
        Class::None,
        "a listing",
        "",
        "ls -laR /etc /usr/lib >/dev/null",
    )
    .by_counters(),
    case(
        Class::None,
        "a lot of reading",
        "",
        "cat /usr/lib/*/*.so* /usr/bin/* | wc -c",
    )
    .by_counters(),
    case(Class::None, "a failing command", "", "ls /no/such/file")
        .ending_with(2)
        .by_counters(),
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
        // To write to this one fails, which is what it is for.
        "echo x | cat >/dev/null; echo x >/dev/full || true",
    )
    .by_counters(),
    case(
        Class::None,
        "a write into procfs",
        "",
        "echo renamed >/proc/self/comm",
    )
    .by_counters(),
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
