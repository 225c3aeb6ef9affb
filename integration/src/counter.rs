// SPDX-License-Identifier: Apache-2.0

//! A server in a sandbox that counts its requests in memory, and only there: what
//! it answers tells which process image it runs from.

use std::{
    fs::File,
    io::{Read, Write},
    os::{
        fd::AsFd,
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixStream},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

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

/// How long it may take to answer, frozen for an image meanwhile.
const LIMIT: Duration = Duration::from_secs(20);

/// Asks, and keeps the answer in a file as well.
const ASK_AND_KEEP: &str = "set -e; n=$(ask counter count); echo $n >/root/count; echo $n";

/// A shell script that puts the server at `/root/server.py` and who asks it at
/// `/bin/ask`, into a sandbox of the larger image.
pub fn install() -> String {
    format!(
        "cat >/root/server.py <<'END'\n{SERVER}END\n\
         cat >/bin/ask <<'END'\n{ASK}END\n\
         chmod +x /bin/ask"
    )
}

/// The same for a shell script that starts it with an image of at least so many MiB, and ends
/// when it answers.
pub fn start(mib: u32) -> String {
    format!(
        "{}\n\
         setsid python3 -B /root/server.py counter {mib} </dev/null >/dev/null 2>&1 &\n\
         ask counter hello",
        install()
    )
}

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
        let (said, turn) = crab.turn(sandbox, &["bash", "-c", &start(mib)])?;
        said.ok().context("start the server")?;
        ensure!(turn.published, "no checkpoint with the server: {turn:?}");
        Ok(Self { crab, sandbox })
    }

    /// The one that came with a copy of a sandbox.
    pub fn of(crab: &'a Crab, sandbox: &'a Sandbox) -> Self {
        Self { crab, sandbox }
    }

    /// Asks it once, as a turn.
    pub fn ask(&self) -> Result<(u64, Turn)> {
        let (said, turn) = self
            .crab
            .turn(self.sandbox, &["bash", "-c", ASK_AND_KEEP])?;
        Ok((answer(&said.text()?)?, turn))
    }

    /// Tells it a word, as a turn, and has it count nothing.
    pub fn tell(&self, word: &str) -> Result<(u64, Turn)> {
        let (said, turn) = self.crab.turn(self.sandbox, &["ask", "counter", word])?;
        Ok((answer(&said.text()?)?, turn))
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

    /// A way to ask it that is no turn.
    pub fn from_outside(&self) -> Result<Outside> {
        Outside::of(self.sandbox)
    }
}

/// Who asks a [`Counter`] from the host, through the network namespace of the sandbox.
#[derive(Debug)]
pub struct Outside {
    network: File,
}

/// A request that is on its way.
#[derive(Debug)]
pub struct Asked(UnixStream);

impl Outside {
    /// The way to the server of a sandbox.
    pub fn of(sandbox: &Sandbox) -> Result<Self> {
        let path = format!("/proc/{}/ns/net", sandbox.pid()?);
        let network = File::open(&path).with_context(|| format!("open {path}"))?;
        Ok(Self { network })
    }

    /// Asks it once; done when the request is with the sandbox, be that frozen or not.
    pub fn ask(&self) -> Result<Asked> {
        self.tell("count")
    }

    /// Tells it a word likewise; it has it counted if the word says so.
    pub fn tell(&self, word: &str) -> Result<Asked> {
        // By a thread of its own, as it stays in that namespace.
        let connect = || -> Result<Asked> {
            move_into_link_name_space(self.network.as_fd(), Some(LinkNameSpaceType::Network))
                .context("enter the network namespace")?;
            let server = SocketAddr::from_abstract_name("counter")?;
            let mut stream = UnixStream::connect_addr(&server).context("reach the server")?;
            stream.write_all(word.as_bytes())?;
            Ok(Asked(stream))
        };
        thread::scope(|scope| scope.spawn(connect).join())
            .map_err(|_| anyhow!("who asks from outside has panicked"))?
    }
}

impl Asked {
    /// Waits for the answer.
    pub fn answer(mut self) -> Result<u64> {
        self.0.set_read_timeout(Some(LIMIT))?;
        let mut text = String::new();
        self.0
            .read_to_string(&mut text)
            .context("hear the server")?;
        answer(&text)
    }
}

fn answer(text: &str) -> Result<u64> {
    text.trim().parse().context("the server's answer")
}
