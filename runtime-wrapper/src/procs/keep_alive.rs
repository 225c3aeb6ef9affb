// SPDX-License-Identifier: Apache-2.0
//! The rule for inits that only hold their container open.
//!
//! Which one does is told by its command, and from then on by evidence: once it has come to rest
//! after its start, nothing in it may change. It is looked at again only when it has run. That a
//! look comes to nothing, as on a host where it gets no processor, says nothing about it.
//!
//! ```text
//! tini -- tail -f /dev/null
//! \__/    \_______________/
//!   |            holds what it held: memory, registers, descriptors
//!   wakes up each second, and is the same program with the same shape
//! ```

use std::{
    fs, io, mem,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use crab_store::Digest;
use thiserror::Error;

use super::{Content, ContentError, Process, Set, content::shape, read::read_process};
use crate::cgroup::{Cgroup, CgroupError};

/// An init that only holds its container open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeepAlive {
    /// The init's pid.
    pub init: i32,
    args: Vec<String>,
    /// Nothing if it was not seen at rest.
    evidence: Option<Evidence>,
    /// The newest look came to nothing.
    unseen: bool,
}

/// How what holds a container open was found when it had come to rest.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Evidence {
    /// The same processes at the newest look.
    seen: Set,
    content: Content,
    /// Of a minimal init that has the command as its child.
    shape: Option<Digest>,
}

/// Why an init may do more than hold its container open.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Doubt {
    /// It has done something, or is not what its command says: it will never be known again to
    /// only wait.
    #[error("{0}")]
    Changed(String),
    /// It could not be looked at this time. What was known of it stays.
    #[error("{0}")]
    Unknown(String),
}

impl From<CgroupError> for Doubt {
    fn from(error: CgroupError) -> Self {
        Self::Unknown(error.to_string())
    }
}

impl From<ContentError> for Doubt {
    fn from(error: ContentError) -> Self {
        let why = error.to_string();
        match error {
            ContentError::TooLarge { .. } | ContentError::Opaque { .. } => Self::Changed(why),
            // Not by the kernel: nothing that another look could find otherwise.
            ContentError::Stop { source, .. } if source.raw_os_error().is_none() => {
                Self::Changed(why)
            }
            _ => Self::Unknown(why),
        }
    }
}

/// How much may have to be read, in bytes: far more than there is in anything that only waits.
const MAX_HELD: u64 = 16 << 20;
/// For how long a look may take: what was woken has to be at rest again, and to stop when it is
/// told to, which takes a processor that it may be denied for a second (`cpu.max`).
const LOOK: Duration = Duration::from_secs(3);
/// And one after a look that came to nothing: an init that somebody has stopped stays so.
const ANOTHER: Duration = Duration::from_millis(100);
/// The longest pause between two looks at whether it rests.
const PAUSE: Duration = Duration::from_millis(10);

impl KeepAlive {
    /// The rule for an init started with these arguments (of the container's
    /// specification); none if it does more than hold the container open.
    pub fn for_command(init: i32, args: &[String]) -> Option<Self> {
        only_holds_open(args).then(|| Self {
            init,
            args: args.to_vec(),
            evidence: None,
            unseen: false,
        })
    }

    /// Whether they were seen at rest.
    pub fn is_settled(&self) -> bool {
        self.evidence.is_some()
    }

    /// Takes them as they are once they are at rest, within `limit`: after their start, or after
    /// something has been done to them that changes what they hold, such as a dump by CRIU.
    ///
    /// # Errors
    /// Why they do not, or cannot be looked at. What was known of them is forgotten only if they
    /// are others.
    pub fn settle(&mut self, cgroup: &Cgroup, limit: Duration) -> Result<(), Doubt> {
        let earlier = self.evidence.as_ref().map(|evidence| &evidence.content);
        match self.found(cgroup, earlier, Instant::now() + limit) {
            Ok(found) => self.evidence = Some(found),
            Err(changed @ Doubt::Changed(_)) => {
                self.evidence = None;
                return Err(changed);
            }
            Err(unknown) => return Err(unknown),
        }
        Ok(())
    }

    /// Looks whether those among the processes of `all` have only waited since they came to
    /// rest. What they do in the milliseconds after a look, and never again, is not seen.
    ///
    /// # Errors
    /// Why they may not have.
    pub fn look(&mut self, cgroup: &Cgroup, all: &Set) -> Result<(), Doubt> {
        let Some(evidence) = &self.evidence else {
            return Err(Doubt::Changed("it was not seen at rest".into()));
        };
        if self.own(all).since(&evidence.seen).is_none() {
            return Ok(());
        }
        let until = Instant::now() + if self.unseen { ANOTHER } else { LOOK };
        let mut unknown = None;
        let now = loop {
            let why = match self.found(cgroup, Some(&evidence.content), until) {
                Ok(found) => break found,
                Err(Doubt::Unknown(why)) => why,
                Err(changed) => return Err(changed),
            };
            // The last one would only say that the time is over.
            let first = unknown.get_or_insert(why);
            if Instant::now() > until {
                let why = mem::take(first);
                self.unseen = true;
                return Err(Doubt::Unknown(why));
            }
            thread::sleep(PAUSE);
        };
        self.unseen = false;
        // One that catches signals can be told something by whoever sends one.
        let changed = match now.seen.iter().any(Process::catches_signals) {
            true => now.content.since(&evidence.content),
            false => now.content.since_deaf(&evidence.content),
        };
        if let Some(changed) = changed {
            return Err(Doubt::Changed(changed.to_string()));
        }
        if now.shape != evidence.shape {
            let why = format!("{} has another shape", self.args[0]);
            return Err(Doubt::Changed(why));
        }
        if let Some(evidence) = &mut self.evidence {
            evidence.seen = now.seen;
        }
        Ok(())
    }

    /// All that it takes, none of which does anything: twice the same, off the CPU.
    fn at_rest(&self, cgroup: &Cgroup, until: Instant) -> Result<Set, Doubt> {
        let mut pause = Duration::from_micros(300);
        let mut last: Option<Set> = None;
        loop {
            let all = Set::of(cgroup, None)?;
            if !all.iter().any(|process| process.pid == self.init) {
                return Err(self.not_there());
            }
            let now = self.own(&all);
            let all = 1 + usize::from(wrapped(&self.args).is_some());
            let are_all = now.iter().count() == all;
            let rest = are_all && now.at_rest();
            if rest && last.is_some_and(|last| now.since(&last).is_none()) {
                return Ok(now);
            }
            if Instant::now() > until {
                // Before they were seen at rest they may not have begun.
                return Err(match are_all || !self.is_settled() {
                    true => Doubt::Unknown(format!("{} does not come to rest", self.args[0])),
                    false => Doubt::Changed(format!("{} is not all that it was", self.args[0])),
                });
            }
            last = rest.then_some(now);
            thread::sleep(pause);
            pause = PAUSE.min(pause * 2);
        }
    }

    /// What it means that the init is not among the processes.
    fn not_there(&self) -> Doubt {
        match fs::metadata(format!("/proc/{}", self.init)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Doubt::Changed("it has ended".into())
            }
            _ => Doubt::Unknown("it cannot be read".into()),
        }
    }

    /// Those of the processes that hold the container open.
    fn own(&self, all: &Set) -> Set {
        let mut own = all.clone();
        own.processes.retain(|_, process| self.covers(process));
        own
    }

    /// What there is to find of them at rest, and how they are when they are again.
    fn found(
        &self,
        cgroup: &Cgroup,
        earlier: Option<&Content>,
        until: Instant,
    ) -> Result<Evidence, Doubt> {
        let mut waits = self.at_rest(cgroup, until)?;
        let mut its_shape = None;
        if wrapped(&self.args).is_some() {
            let init = waits.iter().find(|process| process.pid == self.init);
            let init = init.ok_or_else(|| self.not_there())?;
            let unread = |error| Doubt::Unknown(format!("{}: {error}", init.comm));
            its_shape = Some(shape(init).map_err(unread)?);
            waits.processes.retain(|(pid, _), _| *pid != self.init);
        }
        let content = Content::of_waiting(&waits, earlier, MAX_HELD, until)?;
        Ok(Evidence {
            content,
            seen: self.at_rest(cgroup, until)?,
            shape: its_shape,
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
    /// with, or the command that a `tini` runs for it: the one that it was seen with, not
    /// another of the same command that it has adopted.
    pub(super) fn covers(&self, process: &Process) -> bool {
        let same = |args: &[String]| process.args == args;
        if process.pid == self.init {
            return same(&self.args);
        }
        let key = (process.pid, process.start);
        let seen = self.evidence.as_ref().map(|evidence| &evidence.seen);
        process.parent == self.init
            && wrapped(&self.args).is_some_and(same)
            && seen.is_none_or(|seen| seen.processes.contains_key(&key))
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
