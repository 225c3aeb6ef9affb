// SPDX-License-Identifier: Apache-2.0

//! A server in a sandbox that counts its requests in memory, and only there: what
//! it answers tells which process image it runs from.

use anyhow::{Context, Result};

use crate::{
    crab::{Crab, Turn},
    sandbox::{ExecOptions, Sandbox},
};

/// By a Unix socket without a file: CRIU before 4.2, as in Debian 13, cannot dump any
/// TCP socket on Linux 6.16 or newer, and a socket with a file would change files.
/// The client reads to the end of the answer: then the server waits again.
const PROGRAMS: &str = r#"cat >/root/counter.py <<'END'
import os, socket, sys
ballast = os.urandom(int(sys.argv[1]) << 20)
server = socket.socket(socket.AF_UNIX)
server.bind("\0counter")
server.listen()
count = 0
while True:
    client, _ = server.accept()
    if client.recv(64):
        count += 1
        client.sendall(b"%d\n" % count)
    client.close()
END
cat >/root/ask.py <<'END'
import socket, sys
client = socket.socket(socket.AF_UNIX)
client.connect("\0counter")
if sys.argv[1:] != ["nothing"]:
    client.sendall(b"?")
    while answer := client.recv(64):
        print(answer.decode(), end="")
END
"#;

/// Asks, and keeps the answer in a file as well.
const ASK: &str = "set -e; n=$(python3 -B /root/ask.py); echo $n >/root/count; echo $n";

/// Such a server.
#[derive(Debug)]
pub struct Counter<'a> {
    crab: &'a Crab,
    sandbox: &'a Sandbox,
}

impl<'a> Counter<'a> {
    /// Starts it, as one turn; its image holds at least so many MiB. In a sandbox
    /// of the larger image.
    pub fn start(crab: &'a Crab, sandbox: &'a Sandbox, mib: u32) -> Result<Self> {
        let script = format!(
            "{PROGRAMS}setsid python3 -B /root/counter.py {mib} </dev/null >/dev/null 2>&1 &
             until python3 -B /root/ask.py nothing 2>/dev/null; do sleep 0.02; done"
        );
        let (said, turn) = crab.turn(sandbox, &["bash", "-c", &script])?;
        said.ok().context("start the server")?;
        anyhow::ensure!(turn.published, "no checkpoint with the server: {turn:?}");
        Ok(Self { crab, sandbox })
    }

    /// Asks it once, as a turn.
    pub fn ask(&self) -> Result<(u64, Turn)> {
        let (said, turn) = self.crab.turn(self.sandbox, &["bash", "-c", ASK])?;
        let answer = said.text()?.parse().context("the server's answer")?;
        Ok((answer, turn))
    }

    /// Asks it once, and waits for nothing: its checkpoint may be under way, or
    /// not have begun.
    pub fn ask_only(&self) -> Result<crate::command::Running> {
        let options = ExecOptions::new();
        self.sandbox.exec_start(&["bash", "-c", ASK], &options)
    }

    /// What it answered last, as its file says.
    pub fn in_file(&self) -> Result<u64> {
        let text = self.sandbox.sh_ok("cat /root/count")?;
        text.parse().context("the server's answer in its file")
    }
}
