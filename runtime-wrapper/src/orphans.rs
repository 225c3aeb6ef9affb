// SPDX-License-Identifier: Apache-2.0
//! Calls of the runtime that outlive whoever made them.
//!
//! A shim that is killed in the middle of a checkpoint leaves its runtime, and below it
//! CRIU, at work. CRIU goes on, and at its end freezes the container again, as it found
//! it: whoever cleans up has to end it first, or what it thaws and kills is frozen
//! once more and does not die.
//!
//! A call is known by the log that it writes (see [`crate::call`]), CRIU by the
//! runtime's process group or, if that is gone, by the directory it names in its title.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs, io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    call::LOG_PREFIX,
    stat::{Stat, unless_gone},
};

/// A process of the host.
struct Found {
    pid: i32,
    group: i32,
    comm: String,
    /// Its words, each with a NUL after it.
    command_line: Vec<u8>,
}

impl Found {
    /// Nothing if it is gone.
    fn of(pid: i32) -> io::Result<Option<Self>> {
        let stat = Stat::of(pid)?.filter(|stat| !stat.has_ended());
        let command_line = match fs::read(format!("/proc/{pid}/cmdline")) {
            // Hidden even from root, by a security module: nothing that a shim started.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
            read => unless_gone(read)?,
        };
        Ok(stat.zip(command_line).map(|(stat, command_line)| Self {
            pid,
            group: stat.group,
            comm: stat.comm,
            command_line,
        }))
    }

    /// It writes a log of the runtime's in this bundle.
    fn works_on(&self, bundle: &Path) -> bool {
        let is_log = |word: &[u8]| {
            let path = Path::new(OsStr::from_bytes(word));
            let name = path.file_name().map(OsStrExt::as_bytes);
            path.parent() == Some(bundle)
                && name.is_some_and(|name| name.starts_with(LOG_PREFIX.as_bytes()))
        };
        self.command_line.split(|b| *b == 0).any(is_log)
    }

    /// `criu: dump --rpc -t 185 -D /run/crab/staging/default/c1`
    fn works_in(&self, dirs: &[PathBuf]) -> bool {
        let title = String::from_utf8_lossy(&self.command_line);
        title
            .trim_end_matches(['\0', ' '])
            .rsplit_once(" -D ")
            .is_some_and(|(_, at)| dirs.iter().any(|dir| Path::new(at).starts_with(dir)))
    }
}

/// The runtime's calls that work on this bundle, and each CRIU that they run or that works
/// below one of these directories. The calls' process groups are added to `groups`: one that
/// was ended just now may have started a CRIU that has no title yet.
///
/// # Errors
/// When a process cannot be read.
fn find(bundle: &Path, images: &[PathBuf], groups: &mut BTreeSet<i32>) -> io::Result<Vec<i32>> {
    let own = std::process::id() as i32;
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let pid = name.to_str().and_then(|name| name.parse().ok());
        if let Some(pid) = pid.filter(|pid| *pid != own) {
            all.extend(Found::of(pid)?);
        }
    }
    let calls = || all.iter().filter(|found| found.works_on(bundle));
    groups.extend(calls().map(|found| found.group));
    let criu = all.iter().filter(|found| {
        found.comm == "criu" && (groups.contains(&found.group) || found.works_in(images))
    });
    Ok(calls().chain(criu).map(|found| found.pid).collect())
}

/// Ends them and returns when they are gone; false if they are not after `limit`.
pub fn end(bundle: &Path, images: &[PathBuf], limit: Duration) -> bool {
    let start = Instant::now();
    let mut groups = BTreeSet::new();
    loop {
        // Who could not be looked for may be there.
        let found = find(bundle, images, &mut groups).ok();
        if found.as_ref().is_some_and(Vec::is_empty) {
            return true;
        }
        if start.elapsed() > limit {
            return false;
        }
        for pid in found.into_iter().flatten().filter_map(Pid::from_raw) {
            // One that has just ended is what is wanted.
            let _ = kill_process(pid, Signal::KILL);
        }
        thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn the_calls_of_one_container_are_ended_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let log = |name: &str| dir.path().join(name).join(format!("{LOG_PREFIX}1-2"));
        let sleeper = |log: &Path| {
            // Without children, which would have its command line until they run a program.
            let mut command = Command::new("sh");
            command.args(["-c", "read nothing", "runc", "--log"]);
            command.arg(log).stdin(Stdio::piped()).spawn().unwrap()
        };
        let mut ours = sleeper(&log("c1"));
        let mut other = sleeper(&log("c10"));
        let bundle = dir.path().join("c1");
        let find = || find(&bundle, &[], &mut BTreeSet::new()).unwrap();
        while find().is_empty() {
            thread::sleep(Duration::from_millis(1));
        }
        // And, between its fork and its exec, what the shell is about to run.
        let found = find();
        assert!(found.contains(&(ours.id() as i32)), "{found:?}");
        assert!(!found.contains(&(other.id() as i32)), "{found:?}");
        assert!(end(&bundle, &[], Duration::from_secs(20)));
        assert!(!ours.wait().unwrap().success());
        assert!(other.try_wait().unwrap().is_none(), "it lives");
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn criu_is_known_by_its_title() {
        let titled = |title: &str| Found {
            pid: 1,
            group: 1,
            comm: "criu".into(),
            command_line: format!("{title}\0\0\0").into_bytes(),
        };
        let dirs = [PathBuf::from("/run/crab/staging/default/c1")];
        for (title, is_ours) in [
            (
                "criu: dump --rpc -t 185 -D /run/crab/staging/default/c1",
                true,
            ),
            (
                "criu: restore --rpc -D /run/crab/staging/default/c1/x",
                true,
            ),
            (
                "criu: dump --rpc -t 185 -D /run/crab/staging/default/c10",
                false,
            ),
            ("criu swrk 3", false),
        ] {
            assert_eq!(titled(title).works_in(&dirs), is_ours, "{title}");
        }
    }
}
