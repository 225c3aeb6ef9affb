// SPDX-License-Identifier: Apache-2.0
//! Running the runtime from a sealed copy of its program, which spares it to make one.
//!
//! Before it enters a container, a runtime sees to it that nothing inside can overwrite its
//! program (CVE-2019-5736): runc before 1.2 copies itself into a memfd and seals that, with
//! each call; later ones do so, or mount themselves read-only. One that finds itself in a
//! sealed memfd (`is_self_cloned`, `IsSelfExeCloned`) leaves that out.
//!
//! Whoever holds such a copy for the whole host is a [`Sealer`]. That there is none, or that
//! it cannot be run, is never an error: the plain program does the same.

use std::{
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::Path,
    process::Command,
    sync::Arc,
};

/// Has sealed copies of programs.
pub trait Sealer: Send + Sync {
    /// One of what is at this path now, if it is to be had at once. What is given can
    /// be executed, cannot be written to, and is a copy of that file.
    fn sealed(&self, program: &Path) -> Option<Arc<OwnedFd>>;

    /// The kernel does not run it: it is not to be given again soon.
    fn refuse(&self, program: &Path, why: &io::Error);
}

/// The command that runs the copy. It has to be started by this process, while `copy` is
/// open: the path leads through the new process's own descriptors, of which the kernel
/// closes this one only when it has opened the program.
pub(crate) fn command(program: &Path, copy: &OwnedFd) -> Command {
    let mut command = Command::new(format!("/proc/self/fd/{}", copy.as_raw_fd()));
    command.arg0(program);
    command
}

/// The same command by the plain program. Its stdio is not set yet.
pub(crate) fn plain(program: &Path, sealed: &Command) -> Command {
    let mut command = Command::new(program);
    command.args(sealed.get_args());
    for (name, value) in sealed.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    if let Some(dir) = sealed.get_current_dir() {
        command.current_dir(dir);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs::File, process::Stdio};

    #[test]
    fn a_program_runs_from_its_descriptor_under_its_name() {
        let file = OwnedFd::from(File::open("/bin/sh").unwrap());
        let mut sealed = command(Path::new("sh"), &file);
        sealed.args(["-c", "echo $0 $X; pwd"]);
        sealed.env("X", "y").current_dir("/tmp");
        let said = sealed.output().unwrap();
        let plain = plain(Path::new("sh"), &sealed)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(said.status.success(), "{said:?}");
        assert_eq!(said.stdout, b"sh y\n/tmp\n", "{said:?}");
        assert_eq!(said.stdout, plain.stdout);
    }
}
