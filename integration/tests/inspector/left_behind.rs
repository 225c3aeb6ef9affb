// SPDX-License-Identifier: Apache-2.0

//! What processes that earlier turns have left do by themselves, between turns.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use crab_integration::{DEBIAN, RunOptions, Sandbox, Testbed, poll, processes};
use crab_store::Class;
use rustix::process::Signal;

const LIMIT: Duration = Duration::from_secs(20);

/// In the call in which it waits for a signal (34 is pause), and nothing else to do.
fn waits(pid: u32) -> Result<()> {
    poll("it waits for a signal", LIMIT, || {
        let call = fs::read_to_string(format!("/proc/{pid}/syscall"))?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        Ok((call.starts_with("34 ") && stat.contains(") S ")).then_some(()))
    })
}

/// The process that a script has left, which waits.
fn left(sandbox: &Sandbox, init: u32) -> Result<u32> {
    let all = sandbox.processes()?;
    let pid = all.into_iter().find(|pid| *pid != init);
    let pid = pid.context("nothing is left in the sandbox")?;
    waits(pid)?;
    Ok(pid)
}

/// A daemon whose standard output is a file, and which prints, or becomes another program,
/// when the host signals it: no call of a turn's own.
const DAEMON: &str = r#"
import os, signal
def prints(*_):
    print("printed", flush=True)
def becomes(*_):
    os.execv("/usr/bin/python3", ["another", "-Bc", "import signal\nwhile True: signal.pause()"])
signal.signal(signal.SIGUSR1, prints)
signal.signal(signal.SIGUSR2, becomes)
while True:
    signal.pause()
"#;

#[test]
fn a_daemon_that_prints_into_its_file_or_becomes_another_program_is_seen() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::without_bytecode())?;
        let init = sandbox.pid()?;
        sandbox.sh_ok(&format!("cat >/root/daemon.py <<'END'\n{DAEMON}END"))?;
        let start = "setsid python3 -B /root/daemon.py >/root/log 2>&1 </dev/null & \
                     until grep -qs '^34 ' /proc/$!/syscall; do :; done";
        crab.turn_of(&sandbox, Class::Full, start)?;
        let daemon = left(&sandbox, init)?;
        crab.turn_of(&sandbox, Class::None, "true")?;

        ensure!(
            processes::signal(daemon, Signal::USR1)?,
            "the daemon is gone"
        );
        let log = sandbox.root()?.join("root/log");
        let printed = |log: &Path| Ok(fs::read(log)?.ends_with(b"printed\n").then_some(()));
        poll("it has printed", LIMIT, || printed(&log))?;
        waits(daemon)?;
        crab.turn_of(&sandbox, Class::Full, "true")?;
        crab.turn_of(&sandbox, Class::None, "true")?;

        ensure!(
            processes::signal(daemon, Signal::USR2)?,
            "the daemon is gone"
        );
        poll("it is another program", LIMIT, || {
            let line = fs::read(format!("/proc/{daemon}/cmdline"))?;
            Ok(line.starts_with(b"another\0").then_some(()))
        })?;
        waits(daemon)?;
        crab.turn_of(&sandbox, Class::Processes, "true")?;
        crab.turn_of(&sandbox, Class::None, "true")?;
    }
    Ok(())
}
