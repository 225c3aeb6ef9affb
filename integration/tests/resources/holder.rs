// SPDX-License-Identifier: Apache-2.0

//! The program in these sandboxes, and who asks it.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use crab_integration::{Crab, Sandbox, Turn};

const HOLDER: &str = include_str!("holder.py");

/// Waits for the answer of a holder that is only just coming.
const ASK: &str = "import socket, time\n\
                   for _ in range(1000):\n  \
                     s = socket.socket(socket.AF_UNIX)\n  \
                     try: s.connect('\\0holder')\n  \
                     except ConnectionRefusedError: time.sleep(0.01); continue\n  \
                     break\n\
                   print(s.makefile().readline(), end='')";

/// Starts it, as one turn, with what it shall hold.
pub(crate) fn start(crab: &Crab, sandbox: &Sandbox, names: &[&str]) -> Result<Turn> {
    let script = format!(
        "cat >/root/holder.py <<'END'\n{HOLDER}END\n\
         setsid python3 -B /root/holder.py {} </dev/null >/root/log 2>&1 &\n\
         until grep -qs @holder /proc/net/unix; do sleep 0.01; done",
        names.join(" ")
    );
    let (said, turn) = crab.turn(sandbox, &["bash", "-c", &script])?;
    said.ok().context("start the holder")?;
    Ok(turn)
}

/// Has it check all that it holds, as a turn; gives how often it has done so.
pub(crate) fn ask(crab: &Crab, sandbox: &Sandbox) -> Result<(u32, Turn)> {
    let (said, turn) = crab.turn(sandbox, &["python3", "-B", "-c", ASK])?;
    let said = said.text()?;
    let (count, state) = said.trim().split_once(' ').context("no answer")?;
    ensure!(state == "all is well", "{state}");
    Ok((count.parse()?, turn))
}

/// Whether this host's CRIU can dump internet sockets: 4.1 cannot on Linux 6.16 and newer.
pub(crate) fn dumps_inet_sockets() -> Result<bool> {
    let said = Command::new("criu").arg("--version").output()?;
    Ok(!said.stdout.starts_with(b"Version: 4.1"))
}
