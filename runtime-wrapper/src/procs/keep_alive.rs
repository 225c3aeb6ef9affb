// SPDX-License-Identifier: Apache-2.0
//! The rule for inits that only hold their container open.

use std::path::Path;

use super::{Process, read::read_process};
use crate::cgroup::{Cgroup, CgroupError};

/// An init that only holds its container open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeepAlive {
    /// The init's pid.
    pub init: i32,
    args: Vec<String>,
}

impl KeepAlive {
    /// The rule for an init started with these arguments (of the container's
    /// specification); none if it does more than hold the container open.
    pub fn for_command(init: i32, args: &[String]) -> Option<Self> {
        only_holds_open(args).then(|| Self {
            init,
            args: args.to_vec(),
        })
    }

    /// The processes of a cgroup that only hold the container open, by their ids in the
    /// innermost pid namespace that they are in.
    ///
    /// # Errors
    /// When the cgroup is gone.
    pub fn inner_pids(&self, cgroup: &Cgroup) -> Result<Vec<u32>, CgroupError> {
        // Of a cgroup that may hold thousands, and is frozen meanwhile.
        let may_be = match wrapped(&self.args) {
            None => vec![self.init],
            Some(_) => cgroup.processes()?,
        };
        let processes = may_be.into_iter().filter_map(read_process);
        Ok(processes
            .filter(|process| self.covers(process))
            .filter_map(|process| process.inner_pid())
            .collect())
    }

    /// Whether this process is the init, still running what it was started
    /// with, or the command that a `tini` runs for it.
    pub(super) fn covers(&self, process: &Process) -> bool {
        let same = |args: &[String]| process.args == args;
        if process.pid == self.init {
            return same(&self.args);
        }
        process.parent == self.init && wrapped(&self.args).is_some_and(same)
    }
}

/// The command that a minimal init runs: `tini -- sleep infinity`.
fn wrapped(args: &[String]) -> Option<&[String]> {
    let name = Path::new(args.first()?).file_name()?.to_str()?;
    if !matches!(name, "tini" | "docker-init" | "dumb-init" | "catatonit") {
        return None;
    }
    let rest = &args[1..];
    let at = rest.iter().position(|arg| arg == "--").map_or_else(
        || rest.iter().position(|a| !a.starts_with('-')),
        |i| Some(i + 1),
    )?;
    rest.get(at..).filter(|command| !command.is_empty())
}

/// Whether a command does nothing but wait.
fn only_holds_open(args: &[String]) -> bool {
    if let Some(inner) = wrapped(args) {
        return only_holds_open(inner);
    }
    let Some((program, rest)) = args.split_first() else {
        return false;
    };
    let Some(name) = Path::new(program).file_name().and_then(|n| n.to_str()) else {
        return false;
    };
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    match name {
        // A sleep that ends would end the container; started again it only
        // ends later.
        "sleep" => !rest.is_empty(),
        "tail" => {
            rest.contains(&"/dev/null") && rest.iter().any(|a| a.starts_with("-f") || *a == "-F")
        }
        "cat" | "pause" => rest.is_empty(),
        "busybox" => {
            let inner: Vec<String> = args[1..].to_vec();
            only_holds_open(&inner)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_string).collect()
    }

    #[test]
    fn an_init_that_only_waits_is_keep_alive_and_a_shell_is_not() {
        for line in [
            "sleep infinity",
            "/bin/sleep 3600",
            "tail -f /dev/null",
            "cat",
            "/pause",
            "busybox sleep 100",
            "tini -- sleep infinity",
            "/sbin/docker-init -- tail -f /dev/null",
            "tini -g -- cat",
        ] {
            assert!(only_holds_open(&args(line)), "{line}");
        }
        for line in [
            "sh",
            "sleep",
            "bash -c sleep infinity",
            "tail -f /var/log/x",
            "cat /etc/passwd",
            "tini -- python3 server.py",
            "tini",
        ] {
            assert!(!only_holds_open(&args(line)), "{line}");
        }
    }
}
