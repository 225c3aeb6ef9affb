// SPDX-License-Identifier: Apache-2.0
//! Whether a sandbox's mounts are others than at the last question, asked of its mount
//! namespace: for programs that do not see mounts.
//!
//! The namespace outlives the process that it was opened through. One that cannot be
//! asked has always changed.

use std::fs::File;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;
use tracing::warn;

#[derive(Debug)]
pub(crate) struct Mounts {
    /// Of the sandbox's init.
    pid: u32,
    /// Its mount table: the kernel notes for each descriptor which state it has told.
    table: Option<File>,
}

impl Mounts {
    /// From now on.
    pub(crate) fn of(pid: u32) -> Self {
        let path = format!("/proc/{pid}/mountinfo");
        let table = match pid {
            // A shim that does not say.
            0 => None,
            _ => File::open(&path)
                .inspect_err(|error| warn!(path, %error, "its mounts are not known"))
                .ok(),
        };
        Self { pid, table }
    }

    pub(crate) fn are_of(&self, pid: u32) -> bool {
        self.pid == pid
    }

    /// Whether anything was mounted or unmounted since this was last asked.
    pub(crate) fn changed(&self) -> bool {
        const NOW: Timespec = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let Some(table) = &self.table else {
            return true;
        };
        let mut asked = [PollFd::new(table, PollFlags::PRI)];
        loop {
            match poll(&mut asked, Some(&NOW)) {
                Ok(_) => {
                    let said = asked[0].revents();
                    return said.intersects(PollFlags::PRI | PollFlags::ERR);
                }
                Err(Errno::INTR) => {}
                Err(_) => return true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_mount_in_the_namespace_is_told_once() {
        let mut inside = Command::new("unshare")
            .args([
                "-m",
                "sh",
                "-c",
                "echo; while read what; do $what; echo; done",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut to = inside.stdin.take().unwrap();
        let mut from = std::io::BufReader::new(inside.stdout.take().unwrap());
        let mut answer = || std::io::BufRead::read_line(&mut from, &mut String::new()).unwrap();
        answer();
        let mounts = Mounts::of(inside.id());
        assert!(!mounts.changed());
        let mut act = |what: &str| {
            std::io::Write::write_all(&mut to, format!("{what}\n").as_bytes()).unwrap();
            answer();
        };
        act("true");
        assert!(!mounts.changed());
        for what in ["mount -t tmpfs none /tmp", "umount /tmp"] {
            act(what);
            assert!(mounts.changed(), "{what}");
            assert!(!mounts.changed(), "{what}");
        }
        drop(to);
        inside.wait().unwrap();
    }

    #[test]
    fn what_cannot_be_asked_has_changed() {
        for pid in [0, u32::MAX] {
            let mounts = Mounts::of(pid);
            assert!(mounts.changed() && mounts.changed());
        }
    }
}
