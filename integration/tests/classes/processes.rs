// SPDX-License-Identifier: Apache-2.0

//! What processes do beside turns that do something else: a server that counts in memory, writes
//! when it is told to and idles otherwise, and processes that only sleep.

use anyhow::Result;
use crab_integration::{DEBIAN, RunOptions, Testbed, counter};
use crab_store::Class;

use crate::cases::{Case, case, run_all};

const PROCESSES: &[Case] = &[
    case(
        Class::Full,
        "a server that is started, with its log",
        "",
        "cd /root/cwd; setsid python3 /root/server.py server >/root/log 2>&1 </dev/null & ask server hold",
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
    case(
        Class::Processes,
        "it counts in memory",
        "",
        "ask server count",
    ),
    case(Class::Processes, "it counts again", "", "ask server count"),
    case(Class::None, "it idles again", "", "true"),
    case(
        Class::Files,
        "a file that it does not use",
        "",
        "echo x >/root/other",
    ),
    case(Class::None, "it idled over that", "", "true"),
    case(Class::Full, "it writes", "", "ask server write"),
    case(
        Class::Full,
        "it prints into its log",
        "",
        "ask server print",
    ),
    case(
        Class::Full,
        "it stores into a shared mapping",
        "",
        "ask server store",
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
        "a file that it holds open is moved",
        "",
        "mv /root/held /root/moved",
    ),
    case(
        Class::Full,
        "the directory in which it is is moved",
        "",
        "mv /root/cwd /root/elsewhere",
    ),
    case(Class::None, "it idled over that as well", "", "true"),
    case(
        Class::Full,
        "the directory in which it is is removed",
        "",
        "rmdir /root/elsewhere",
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
        let sandbox = client.run(DEBIAN, RunOptions::without_bytecode())?;
        // With what it holds from its first request on: a file, a shared mapping and its
        // directory.
        let held = "echo held >/root/held; echo mapped >/root/mapped; mkdir /root/cwd";
        crab.turn_of(
            &sandbox,
            Class::Files,
            &format!("{}; {held}", counter::install()),
        )?;
        run_all(&crab, &sandbox, PROCESSES)?;
    }
    Ok(())
}

/// As event loops wait: for so long at most, and when they are interrupted, for what is
/// left of it.
const EVENT_LOOP: &str = r#"
import select, socket
listener = socket.socket(socket.AF_UNIX)
listener.bind("\0loop")
listener.listen()
loop = select.epoll()
loop.register(listener)
count = 0
while True:
    for _ in loop.poll(600):
        client, _ = listener.accept()
        client.recv(1)
        count += 1
        client.sendall(str(count).encode())
        client.close()
"#;

const ASK_LOOP: &str = r#"
import socket
client = socket.socket(socket.AF_UNIX)
client.connect("\0loop")
client.sendall(b"x")
print(client.recv(9).decode())
"#;

#[test]
fn an_event_loop_that_idles_is_unchanged() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::without_bytecode())?;
        sandbox.sh_ok(&format!(
            "cat >/root/loop.py <<'END'\n{EVENT_LOOP}END\ncat >/root/ask.py <<'END'\n{ASK_LOOP}END"
        ))?;
        crab.turn_of(
            &sandbox,
            Class::Processes,
            "setsid python3 /root/loop.py </dev/null >/dev/null 2>&1 & \
             until python3 /root/ask.py 2>/dev/null; do sleep 0.02; done",
        )?;
        for answer in 2..5 {
            crab.turn_of(&sandbox, Class::None, "true")?;
            let ask = format!("test $(python3 /root/ask.py) = {answer}");
            crab.turn_of(&sandbox, Class::Processes, &ask)?;
        }
    }
    Ok(())
}
