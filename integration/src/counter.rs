// SPDX-License-Identifier: Apache-2.0

//! A server in a sandbox that counts its requests in memory, and only there: what
//! it answers tells which process image it runs from.

use anyhow::{Context, Result, ensure};

use crate::{
    command::Running,
    crab::{Crab, Turn},
    sandbox::{ExecOptions, Sandbox},
};

/// The server: `python3 -c SERVER NAME [MIB]`.
pub const SERVER: &str = include_str!("counter/server.py");
/// Who asks it: `python3 -c ASK NAME WORD...`. `count` counts, and every word is
/// answered with the count.
pub const ASK: &str = include_str!("counter/ask.py");

/// Asks, and keeps the answer in a file as well.
const ASK_AND_KEEP: &str =
    "set -e; n=$(python3 -B /root/ask.py counter count); echo $n >/root/count; echo $n";

/// Such a server, whose answers are also in a file.
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
            "cat >/root/counter.py <<'END'\n{SERVER}END\n\
             cat >/root/ask.py <<'END'\n{ASK}END\n\
             setsid python3 -B /root/counter.py counter {mib} </dev/null >/dev/null 2>&1 &\n\
             python3 -B /root/ask.py counter hello"
        );
        let (said, turn) = crab.turn(sandbox, &["bash", "-c", &script])?;
        said.ok().context("start the server")?;
        ensure!(turn.published, "no checkpoint with the server: {turn:?}");
        Ok(Self { crab, sandbox })
    }

    /// Asks it once, as a turn.
    pub fn ask(&self) -> Result<(u64, Turn)> {
        let (said, turn) = self
            .crab
            .turn(self.sandbox, &["bash", "-c", ASK_AND_KEEP])?;
        let answer = said.text()?.parse().context("the server's answer")?;
        Ok((answer, turn))
    }

    /// Asks it once, and waits for nothing: its checkpoint may be under way, or
    /// not have begun.
    pub fn ask_only(&self) -> Result<Running> {
        let options = ExecOptions::new();
        self.sandbox
            .exec_start(&["bash", "-c", ASK_AND_KEEP], &options)
    }

    /// What it answered last, as its file says.
    pub fn in_file(&self) -> Result<u64> {
        let text = self.sandbox.sh_ok("cat /root/count")?;
        text.parse().context("the server's answer in its file")
    }
}
