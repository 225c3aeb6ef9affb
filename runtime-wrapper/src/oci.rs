// SPDX-License-Identifier: Apache-2.0
//! The OCI runtime's command line: runc, or a program that understands runc's
//! options (crun does, but for the log's format).
//!
//! Every call blocks until the program has ended; callers run it off the async
//! runtime. The reason of a failure is what the runtime itself logged as errors
//! (`--log-format json`).

use std::{
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd, RawFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use thiserror::Error;

use crate::{
    deadline::{Deadline, end_group},
    program::path_with,
    reaper::{Limit, Reaper},
};

/// Why a call of the runtime failed.
#[derive(Debug, Error)]
pub enum OciError {
    /// The program could not be started.
    #[error("run {program}: {source}")]
    Spawn {
        /// The runtime's program.
        program: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The program said no.
    #[error("{verb} failed (exit {status}): {reason}")]
    Failed {
        /// The runtime's verb.
        verb: &'static str,
        /// Its exit code.
        status: u32,
        /// Its own errors.
        reason: String,
    },
    /// The program succeeded, but left no pid.
    #[error("{verb} left no process id in {path}: {source}")]
    PidFile {
        /// The runtime's verb.
        verb: &'static str,
        /// The pid file.
        path: PathBuf,
        /// Why it could not be read.
        source: io::Error,
    },
}

/// For how long CRIU may work on a container: far more than gigabytes of memory
/// take, but not for ever, because the container stands still meanwhile.
const CRIU_LIMIT: Duration = Duration::from_secs(120);

/// What a started process has as its stdin, stdout and stderr; none is the
/// host's `/dev/null`, which CRIU could not dump, but a pipe or a terminal.
#[derive(Debug, Default)]
pub struct Stdio3 {
    /// The container's end of stdin.
    pub stdin: Option<OwnedFd>,
    /// The container's end of stdout.
    pub stdout: Option<OwnedFd>,
    /// The container's end of stderr.
    pub stderr: Option<OwnedFd>,
}

/// The descriptor at which CRIU finds the `index`th of the pipe ends that
/// [`Runtime::restore`] is given. Far above what runc itself opens and passes on.
pub fn inherited_fd(index: usize) -> RawFd {
    400 + index as RawFd
}

/// Hands the descriptors to the command at the numbers of [`inherited_fd`]. Neither
/// runc nor crun closes what it was started with before it runs CRIU.
fn inherit(command: &mut Command, fds: Vec<OwnedFd>) {
    // SAFETY: between fork and exec only dup2 is called, which is async-signal-safe;
    // the descriptors are owned by the closure, so open until then.
    unsafe {
        command.pre_exec(move || {
            for (index, fd) in fds.iter().enumerate() {
                if libc::dup2(fd.as_raw_fd(), inherited_fd(index)) < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
}

/// Where a process image is read from, and what CRIU may need beside it.
#[derive(Debug, Clone)]
pub struct ImagePaths {
    /// The directory with CRIU's images.
    pub images: PathBuf,
    /// Where CRIU puts its log and its scratch files.
    pub work: PathBuf,
}

/// What of a container's surroundings a checkpoint may hold or leave out
/// (`runc checkpoint`'s options).
#[derive(Debug, Clone, Default)]
pub struct CheckpointOptions {
    /// Leave the container running.
    pub leave_running: bool,
    /// Keep established TCP connections.
    pub tcp_established: bool,
    /// Allow unix sockets whose other end is outside.
    pub ext_unix_sk: bool,
    /// Keep file locks.
    pub file_locks: bool,
    /// Allow a terminal whose master is outside.
    pub shell_job: bool,
}

impl CheckpointOptions {
    fn arguments(&self) -> Vec<&'static str> {
        [
            (self.tcp_established, "--tcp-established"),
            (self.ext_unix_sk, "--ext-unix-sk"),
            (self.file_locks, "--file-locks"),
            (self.shell_job, "--shell-job"),
        ]
        .into_iter()
        .filter_map(|(wanted, option)| wanted.then_some(option))
        .collect()
    }
}

/// What the log of a call is named, with what tells it from the others.
pub(crate) const LOG_PREFIX: &str = "runtime-log-";

/// One call's log: several may run at once. Removed with it.
struct Log(PathBuf);

impl Log {
    fn new(bundle: &Path) -> Self {
        static CALLS: AtomicU64 = AtomicU64::new(0);
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        let name = format!("{LOG_PREFIX}{}-{call}", std::process::id());
        let log = Self(bundle.join(name));
        // Of an earlier shim with the same id, perhaps.
        log.empty();
        log
    }

    fn empty(&self) {
        // Mostly it is not there.
        let _ = fs::remove_file(&self.0);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.empty();
    }
}

/// A call of the runtime that is about to be made.
struct Call {
    verb: &'static str,
    command: Command,
    log: Log,
}

impl Call {
    fn failed(&self, status: u32, stderr: &[u8]) -> OciError {
        let reason = logged_errors(&self.log.0)
            .or_else(|| {
                let text = String::from_utf8_lossy(stderr);
                text.lines()
                    .rev()
                    .find(|l| !l.trim().is_empty())
                    .map(str::to_string)
            })
            .unwrap_or_else(|| "it gave no reason".into());
        OciError::Failed {
            verb: self.verb,
            status,
            reason: without_verb(&reason, self.verb).to_string(),
        }
    }
}

/// One container as the runtime knows it.
#[derive(Clone)]
pub struct Runtime {
    /// The program, e.g. `runc`.
    pub program: PathBuf,
    /// The runtime's state directory (`--root`).
    pub root: PathBuf,
    /// The container's id.
    pub id: String,
    /// The bundle, where also the runtime's logs are.
    pub bundle: PathBuf,
    /// Let systemd make the cgroup (`--systemd-cgroup`).
    pub systemd_cgroup: bool,
    /// Do not use pivot_root (`--no-pivot`).
    pub no_pivot: bool,
    /// The CRIU that the runtime shall use; its own choice if none is said.
    pub criu: Option<PathBuf>,
    /// Collects the runtime's exits.
    pub reaper: Reaper,
}

impl Runtime {
    fn call(&self, verb: &'static str) -> Call {
        let log = Log::new(&self.bundle);
        let mut command = Command::new(&self.program);
        command
            .arg("--root")
            .arg(&self.root)
            .arg("--log")
            .arg(&log.0)
            .args(["--log-format", "json"]);
        if self.systemd_cgroup {
            command.arg("--systemd-cgroup");
        }
        if let Some(dir) = self.criu.as_deref().and_then(Path::parent) {
            // The runtimes look CRIU up by its name.
            command.env("PATH", path_with(dir));
        }
        command.arg(verb).current_dir(&self.bundle);
        Call { verb, command, log }
    }

    fn spawn_error(&self, source: io::Error) -> OciError {
        OciError::Spawn {
            program: self.program.clone(),
            source,
        }
    }

    /// Runs a verb whose output does not matter.
    fn run(&self, call: Call) -> Result<(), OciError> {
        self.run_within(call, None)
    }

    fn run_within(&self, mut call: Call, limit: Option<Limit>) -> Result<(), OciError> {
        call.command.stdout(Stdio::null());
        let (status, stderr) = self
            .reaper
            .output(&mut call.command, limit)
            .map_err(|source| self.spawn_error(source))?;
        if status == 0 {
            Ok(())
        } else {
            Err(call.failed(status, &stderr))
        }
    }

    /// Runs a verb that leaves a process behind, with that process's stdio.
    ///
    /// A runtime that the kernel kept from sealing its own program runs again: see
    /// [`was_not_sealed`].
    fn launch(
        &self,
        mut call: Call,
        pid_file: &Path,
        stdio: Stdio3,
        limit: Option<Limit>,
    ) -> Result<i32, OciError> {
        let of = |fd: Option<OwnedFd>| fd.map_or_else(Stdio::null, Stdio::from);
        call.command
            .stdin(of(stdio.stdin))
            .stdout(of(stdio.stdout))
            .stderr(of(stdio.stderr));
        if limit.is_some() {
            call.command.process_group(0);
        }
        let verb = call.verb;
        let mut tries = 1;
        while let Err(error) = self.launch_once(&mut call, limit) {
            if tries == SEAL_TRIES || !was_not_sealed(&error) {
                return Err(error);
            }
            tracing::warn!(verb, tries, %error, "the runtime runs again");
            tries += 1;
        }
        // Ours of the container's ends are in it; the pipes must not stay open
        // here, or their end would never be seen.
        drop(call);
        let pid = fs::read_to_string(pid_file).and_then(|text| {
            text.trim()
                .parse()
                .map_err(|_| io::Error::other(format!("not a number: {text:?}")))
        });
        pid.map_err(|source| OciError::PidFile {
            verb,
            path: pid_file.to_path_buf(),
            source,
        })
    }

    fn launch_once(&self, call: &mut Call, limit: Option<Limit>) -> Result<(), OciError> {
        call.log.empty();
        let (child, exit) = self
            .reaper
            .spawn(&mut call.command)
            .map_err(|source| self.spawn_error(source))?;
        let deadline = limit.map(|limit| Deadline::of(child.id(), limit));
        let exit = exit
            .blocking_recv()
            .map_err(|_| self.spawn_error(io::Error::other("the reaper is gone")))?;
        drop(deadline);
        if exit.status != 0 {
            if limit.is_some() {
                end_group(child.id());
            }
            return Err(call.failed(exit.status, b""));
        }
        Ok(())
    }

    fn pid_file(&self, name: &str) -> PathBuf {
        self.bundle.join(format!("{name}.pid"))
    }

    /// `create`: everything of the container but its program runs.
    ///
    /// # Errors
    /// When the runtime cannot be run, or refuses.
    pub fn create(&self, console: Option<&Path>, stdio: Stdio3) -> Result<i32, OciError> {
        let pid_file = self.pid_file("init");
        let mut call = self.call("create");
        let command = &mut call.command;
        command.arg("--bundle").arg(&self.bundle);
        command.arg("--pid-file").arg(&pid_file);
        if let Some(socket) = console {
            command.arg("--console-socket").arg(socket);
        }
        if self.no_pivot {
            command.arg("--no-pivot");
        }
        command.arg(&self.id);
        self.launch(call, &pid_file, stdio, None)
    }

    /// `start`: the container's program begins.
    ///
    /// # Errors
    /// When the runtime refuses.
    pub fn start(&self) -> Result<(), OciError> {
        let mut call = self.call("start");
        let command = &mut call.command;
        command.arg(&self.id);
        self.run(call)
    }

    /// `exec`: a further process, described by an OCI process specification.
    ///
    /// # Errors
    /// When the runtime refuses, e.g. because there is no such program.
    pub fn exec(
        &self,
        exec_id: &str,
        process: &Path,
        console: Option<&Path>,
        stdio: Stdio3,
    ) -> Result<i32, OciError> {
        let pid_file = self.pid_file(&format!("exec-{exec_id}"));
        let mut call = self.call("exec");
        let command = &mut call.command;
        command.arg("--process").arg(process);
        command.arg("--pid-file").arg(&pid_file);
        if let Some(socket) = console {
            command.arg("--console-socket").arg(socket);
        }
        command.arg("--detach").arg(&self.id);
        let pid = self.launch(call, &pid_file, stdio, None);
        let _ = fs::remove_file(&pid_file);
        pid
    }

    /// `delete --force`: kills what is left and removes the container's cgroup
    /// and state. A container that the runtime does not know is no error.
    ///
    /// # Errors
    /// When the runtime refuses.
    pub fn delete(&self) -> Result<(), OciError> {
        let mut call = self.call("delete");
        let command = &mut call.command;
        command.arg("--force").arg(&self.id);
        self.run(call)
    }

    /// `update`: new resource limits, as an OCI `linux.resources` object.
    ///
    /// # Errors
    /// When the runtime refuses.
    pub fn update(&self, resources: &Path) -> Result<(), OciError> {
        let mut call = self.call("update");
        let command = &mut call.command;
        command.arg("--resources").arg(resources).arg(&self.id);
        self.run(call)
    }

    /// `checkpoint`: a process image by CRIU.
    ///
    /// # Errors
    /// When CRIU cannot dump the container; its own reason is in the log in
    /// `paths.work` (see [`crate::criu::dump_error`]).
    pub fn checkpoint(
        &self,
        paths: &ImagePaths,
        options: &CheckpointOptions,
    ) -> Result<(), OciError> {
        let mut call = self.call("checkpoint");
        let command = &mut call.command;
        command.arg("--image-path").arg(&paths.images);
        command.arg("--work-path").arg(&paths.work);
        if options.leave_running {
            command.arg("--leave-running");
        }
        command.args(options.arguments()).arg(&self.id);
        let mut limit = Limit::after(CRIU_LIMIT);
        let init = fs::read_to_string(self.pid_file("init"));
        if let Some(init) = init.ok().and_then(|pid| pid.trim().parse().ok()) {
            limit = limit.or_end_of(init);
        }
        self.run_within(call, Some(limit))
    }

    /// `restore`: a container's processes from an image, running. `inherited` are
    /// open at [`inherited_fd`] in CRIU.
    ///
    /// # Errors
    /// When CRIU cannot restore them.
    pub fn restore(
        &self,
        paths: &ImagePaths,
        options: &CheckpointOptions,
        console: Option<&Path>,
        stdio: Stdio3,
        inherited: Vec<OwnedFd>,
    ) -> Result<i32, OciError> {
        let pid_file = self.pid_file("init");
        let mut call = self.call("restore");
        let command = &mut call.command;
        inherit(command, inherited);
        command.arg("--bundle").arg(&self.bundle);
        command.arg("--pid-file").arg(&pid_file);
        command.arg("--image-path").arg(&paths.images);
        command.arg("--work-path").arg(&paths.work);
        command.args(["--detach", "--no-subreaper"]);
        if let Some(socket) = console {
            command.arg("--console-socket").arg(socket);
        }
        if self.no_pivot {
            command.arg("--no-pivot");
        }
        command.args(options.arguments()).arg(&self.id);
        self.launch(call, &pid_file, stdio, Some(Limit::after(CRIU_LIMIT)))
    }
}

/// How often a runtime runs that cannot seal its program. Each try waits 150 ms in the
/// kernel.
const SEAL_TRIES: u32 = 5;

/// Before it enters any namespace of the container, a runtime copies its own program into
/// a memfd and seals that against writing (CVE-2019-5736). The kernel refuses the seal with
/// EBUSY while anything else has a reference on one of the copy's pages
/// (`memfd_wait_for_pins`), be it its own reclaim: seen with Linux 6.18 and DAMON in one of
/// some thousand calls. Nothing of the container has run then, and the runtime has undone
/// its preparations: to begin again is as safe as to begin. What it printed about that on
/// its stderr has reached the client's by then: it is the container's, too.
fn was_not_sealed(error: &OciError) -> bool {
    let OciError::Failed { reason, .. } = error else {
        return false;
    };
    let reason = reason.to_ascii_lowercase();
    let seals = ["cloned binary", "seal fd", "memory file descriptor"];
    reason.contains("resource busy") && seals.iter().any(|text| reason.contains(text))
}

/// What the runtime logged as errors: the last is its own word for the failure; those
/// before it tell what the container's first process died of, which the last often
/// only calls a broken connection.
fn logged_errors(log: &Path) -> Option<String> {
    let text = fs::read_to_string(log).ok()?;
    let mut errors: Vec<String> = text.lines().filter_map(error_of).collect();
    let last = errors.pop()?;
    errors.retain(|earlier| !last.contains(earlier.as_str()));
    errors.dedup();
    if errors.is_empty() {
        return Some(last);
    }
    Some(format!("{last} (before: {})", errors.join("; ")))
}

/// runc names the verb itself: "runc create failed: ", "exec failed: ".
fn without_verb<'a>(reason: &'a str, verb: &str) -> &'a str {
    let rest = reason.strip_prefix("runc ").unwrap_or(reason);
    rest.strip_prefix(verb)
        .and_then(|rest| rest.strip_prefix(" failed: "))
        .unwrap_or(reason)
}

/// The message of a line of the log, if it is an error's.
fn error_of(line: &str) -> Option<String> {
    let entry: serde_json::Value = serde_json::from_str(line).ok()?;
    let level = entry.get("level")?.as_str()?;
    let message = entry.get("msg")?.as_str()?;
    matches!(level, "error" | "fatal" | "panic").then(|| message.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_errors_of_the_log_are_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log.json");
        fs::write(
            &log,
            concat!(
                r#"{"level":"error","msg":"first","time":"t"}"#,
                "\n",
                r#"{"level":"error","msg":"exec failed: no such file","time":"t"}"#,
                "\n",
                r#"{"level":"info","msg":"bye","time":"t"}"#,
                "\nnot json\n"
            ),
        )
        .unwrap();
        assert_eq!(
            logged_errors(&log).as_deref(),
            Some("exec failed: no such file (before: first)")
        );
        assert_eq!(logged_errors(&dir.path().join("none")), None);
    }

    #[test]
    fn the_verb_is_named_once() {
        for (reason, verb, left) in [
            ("runc create failed: no such file", "create", "no such file"),
            ("exec failed: no such file", "exec", "no such file"),
            ("exec failed", "exec", "exec failed"),
            ("runc is too old", "create", "runc is too old"),
        ] {
            assert_eq!(without_verb(reason, verb), left);
        }
    }
}
