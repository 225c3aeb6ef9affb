// SPDX-License-Identifier: Apache-2.0

//! A terminal, and its window.

use std::{thread, time::Duration};

use anyhow::{Context, Result};
use crab_integration::{Client, DEBIAN, ExecOptions, RunOptions, Terminal, Testbed, poll};

use crate::LIMIT;

fn shows_size(terminal: &mut Terminal, rows: u16, columns: u16) -> Result<Option<()>> {
    thread::sleep(Duration::from_millis(50));
    terminal.send("stty size\n")?;
    thread::sleep(Duration::from_millis(50));
    let shown = format!("{rows} {columns}\r");
    Ok(terminal.seen().contains(&shown).then_some(()))
}

fn uses_the_terminal(mut terminal: Terminal) -> Result<()> {
    // Not as it is echoed, but as it is printed.
    terminal.send("echo at $((6*7)); tty\n")?;
    terminal.wait_for("at 42")?;
    terminal.wait_for("/dev/pts/")?;
    // The client tells the size after the start.
    poll("the terminal has its first size", LIMIT, || {
        shows_size(&mut terminal, 31, 97)
    })?;
    // It listens for changes only after that: one that comes between is lost, with any
    // runtime. So the window is moved until it was seen.
    poll("the terminal has its second size", LIMIT, || {
        terminal.resize(44, 121)?;
        terminal.resize(43, 121)?;
        shows_size(&mut terminal, 43, 121)
    })?;
    // One line: what is typed while a program starts may be lost to its ^C.
    terminal.send(
        "bash -c 'trap \"echo told; exit 8\" INT; echo waits $((6*8)); sleep 1000'; exit $(($?+1))\n",
    )?;
    terminal.wait_for("waits 48")?;
    terminal.send("\x03")?;
    terminal.wait_for("told\r")?;
    assert_eq!(terminal.wait()?, 9);
    Ok(())
}

#[test]
fn a_terminal_works_and_follows_its_window() -> Result<()> {
    let testbed = Testbed::here()?;
    for client in testbed.clients() {
        let flags = match client {
            Client::Docker => "-it",
            Client::Ctr { .. } => "-t",
        };
        let options = RunOptions::new().flags([flags]).args(["bash", "--norc"]);
        let (tool, _guard) = client.run_rm_tool(DEBIAN, options)?;
        uses_the_terminal(Terminal::start(&tool, 31, 97)?).context("run")?;

        let sandbox = client.run(DEBIAN, RunOptions::new())?;
        let options = ExecOptions::new().flags([flags]);
        let tool = sandbox.exec_tool(&["bash", "--norc"], &options);
        uses_the_terminal(Terminal::start(&tool, 31, 97)?).context("exec")?;
    }
    Ok(())
}
