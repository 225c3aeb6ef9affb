// SPDX-License-Identifier: Apache-2.0

//! The death of everything, by SIGKILL.

use std::{fs, time::Duration};

use anyhow::{Context, Result};

use crate::{
    processes::{self, CRABD},
    sandbox::Sandbox,
    testbed::Testbed,
};

/// How long what was killed may take to end.
const LIMIT: Duration = Duration::from_secs(30);
const DAEMONS: [&str; 2] = ["dockerd", "containerd"];

/// A sandbox that can be killed at once: who has to be asked for nothing first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doomed {
    shim: u32,
    init: u32,
}

impl Doomed {
    /// While it lives.
    pub(super) fn of(sandbox: &Sandbox) -> Result<Self> {
        Ok(Self {
            shim: sandbox.shim()?,
            init: sandbox.pid()?,
        })
    }

    /// The shim first, so that nobody can tell anybody of what follows; then what it has at work
    /// (runc, CRIU), and all that is inside.
    pub(super) fn kill(self) -> Result<()> {
        let inside = processes::in_pid_namespace_of(self.init);
        let at_work = below(self.shim);
        let mut killed = Vec::new();
        for pid in [self.shim].into_iter().chain(at_work).chain(inside) {
            if processes::kill(pid)? {
                killed.push(pid);
            }
        }
        for pid in killed {
            processes::wait_gone(pid, LIMIT)?;
        }
        Ok(())
    }
}

/// What a process has started, and these in turn.
fn below(pid: u32) -> Vec<u32> {
    let parent = |pid: u32| -> Option<u32> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        line.trim().parse().ok()
    };
    let pairs: Vec<(u32, u32)> = processes::all()
        .into_iter()
        .filter_map(|(pid, _)| Some((parent(pid)?, pid)))
        .collect();
    let mut found = vec![pid];
    let mut next = 0;
    while next < found.len() {
        let of = found[next];
        let children = pairs.iter().filter(|(parent, _)| *parent == of);
        found.extend(children.map(|(_, child)| *child));
        next += 1;
    }
    found.split_off(1)
}

/// crabd and the clients' daemons die, too, and are started again, as a host does that comes up;
/// crabd comes with the first shim that wants one.
pub fn kill_daemons(testbed: &Testbed) -> Result<()> {
    if processes::crabd().is_some() {
        processes::kill_crabd().with_context(|| format!("kill {CRABD}"))?;
    }
    for daemon in DAEMONS {
        testbed.service("kill", daemon)?;
    }
    for daemon in DAEMONS.into_iter().rev() {
        testbed.service("start", daemon)?;
    }
    Ok(())
}
