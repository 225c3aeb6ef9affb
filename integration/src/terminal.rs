// SPDX-License-Identifier: Apache-2.0

//! A client at a terminal: what `-t` needs, and what a user types and sees.

use std::{
    fs::File,
    io::{Read, Write},
    os::fd::OwnedFd,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use rustix::{
    pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

use crate::{Tool, command::code, testbed::poll};

const LIMIT: Duration = Duration::from_secs(20);

/// A command whose stdio is a terminal of its own. Killed when dropped.
#[derive(Debug)]
pub struct Terminal {
    master: File,
    child: Child,
    command: String,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    /// Starts a command at a new terminal of this size.
    pub fn start(tool: &Tool, rows: u16, columns: u16) -> Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).context("open a terminal")?;
        unlockpt(&master).context("unlock the terminal")?;
        let slave: OwnedFd = ioctl_tiocgptpeer(&master, flags).context("open its other side")?;
        let master = File::from(master);
        set_size(&master, rows, columns)?;
        let words = tool.words();
        // Controlling it, so that the client is told of a new size.
        let child = Command::new("setsid")
            .arg("--ctty")
            .args(&words)
            .stdin(Stdio::from(slave.try_clone()?))
            .stdout(Stdio::from(slave.try_clone()?))
            .stderr(Stdio::from(slave))
            .spawn()
            .with_context(|| format!("run {}", words.join(" ")))?;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (mut screen, all) = (master.try_clone()?, seen.clone());
        thread::spawn(move || {
            let mut block = [0; 4096];
            // It reads as EIO once nobody has the other side open.
            while let Ok(read @ 1..) = screen.read(&mut block) {
                let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                all.extend_from_slice(&block[..read]);
            }
        });
        Ok(Self {
            master,
            child,
            command: words.join(" "),
            seen,
        })
    }

    /// Types.
    pub fn send(&mut self, text: &str) -> Result<()> {
        self.master
            .write_all(text.as_bytes())
            .context("type into the terminal")
    }

    /// Gives the terminal another size.
    pub fn resize(&self, rows: u16, columns: u16) -> Result<()> {
        set_size(&self.master, rows, columns)
    }

    /// Everything that was printed so far.
    pub fn seen(&self) -> String {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&seen).into_owned()
    }

    /// Waits until this was printed.
    pub fn wait_for(&self, text: &str) -> Result<()> {
        let what = format!("{} prints {text:?}", self.command);
        poll(&what, LIMIT, || {
            Ok(self.seen().contains(text).then_some(()))
        })
        .with_context(|| format!("it printed {:?}", self.seen()))
    }

    /// Waits for the command's end, and gives its exit status.
    pub fn wait(mut self) -> Result<i32> {
        let what = format!("{} ends", self.command);
        poll(&what, LIMIT, || Ok(self.child.try_wait()?.map(code)))
            .with_context(|| format!("it printed {:?}", self.seen()))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn set_size(master: &File, rows: u16, columns: u16) -> Result<()> {
    let size = Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(master, size).context("set the terminal's size")
}
