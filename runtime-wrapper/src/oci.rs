// SPDX-License-Identifier: Apache-2.0
//! The OCI runtime's command line, as runc, crun and other programs of the kind
//! understand it. Where they differ, [`crate::driver`] tells which one it is.
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
    sync::Arc,
    time::Duration,
};

use thiserror::Error;

pub use crate::checkpoint_options::{CgroupsMode, CheckpointOptions, OptionError};
use crate::{
    call::{Call, Log, SEAL_TRIES, was_not_sealed},
    cgroup::Cgroup,
    criu::{self, Begun, Extent, Request, SessionError},
    deadline::Deadline,
    driver::{Dialect, Driver, Program, Support},
    mount::unmount_below,
    program::path_with,
    reaper::{Limit, Reaper},
    sealed::{self, Sealer},
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
    /// The program said no. In the words of the Go shim, which clients look for and
    /// people search for.
    #[error("OCI runtime {verb} failed: {reason}")]
    Failed {
        /// The runtime's verb.
        verb: &'static str,
        /// Its exit code.
        status: u32,
        /// Its own errors.
        reason: String,
    },
    /// The program cannot do this.
    #[error("the OCI runtime cannot {verb} processes: {reason}")]
    Unsupported {
        /// The runtime's verb.
        verb: &'static str,
        /// What it lacks.
        reason: String,
    },
    /// It has no such option.
    #[error("{program} does not know {option}; a newer one may")]
    Unknown {
        /// The runtime's program.
        program: PathBuf,
        /// What was asked for.
        option: String,
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

/// For how long the runtime may take to print its help.
const HELP_LIMIT: Duration = Duration::from_secs(10);

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

impl Stdio3 {
    /// Gives the command copies of them.
    fn attach(&self, command: &mut Command) -> io::Result<()> {
        let of = |fd: &Option<OwnedFd>| {
            let copy = fd.as_ref().map(OwnedFd::try_clone).transpose()?;
            io::Result::Ok(copy.map_or_else(Stdio::null, Stdio::from))
        };
        command
            .stdin(of(&self.stdin)?)
            .stdout(of(&self.stdout)?)
            .stderr(of(&self.stderr)?);
        Ok(())
    }
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

/// One container as the runtime knows it.
#[derive(Clone)]
pub struct Runtime {
    /// The program.
    pub program: Program,
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
    /// Leave the session keyring as it is (`--no-new-keyring`).
    pub no_new_keyring: bool,
    /// The CRIU that the runtime shall use; its own choice if none is said.
    pub criu: Option<PathBuf>,
    /// Has sealed copies of the program; none: it makes them itself.
    pub sealer: Option<Arc<dyn Sealer>>,
    /// Collects the runtime's exits.
    pub reaper: Reaper,
}

fn unsupported(verb: &'static str, support: &Support) -> Result<(), OciError> {
    support
        .clone()
        .map_err(|reason| OciError::Unsupported { verb, reason })
}

impl Runtime {
    /// What the program is and can do. It may have to be asked: not while a container
    /// stands still.
    pub fn driver(&self) -> Arc<Driver> {
        Driver::of(&self.program, &self.reaper)
    }

    /// Whether [`Self::checkpoint`] can be asked for.
    ///
    /// # Errors
    /// What the program lacks.
    pub fn can_checkpoint(&self) -> Result<(), OciError> {
        unsupported("checkpoint", &self.driver().checkpoint)
    }

    /// Whether [`Self::restore`] can be asked for.
    ///
    /// # Errors
    /// What the program lacks.
    pub fn can_restore(&self) -> Result<(), OciError> {
        unsupported("restore", &self.driver().restore)
    }

    fn call(&self, verb: &'static str) -> Call {
        let log = Log::new(&self.bundle);
        // Only these enter the container.
        let sealer = self
            .sealer
            .as_deref()
            .filter(|_| matches!(verb, "create" | "exec"));
        let sealed = sealer.and_then(|sealer| self.program.sealed(sealer));
        let mut command = match &sealed {
            Some(copy) => sealed::command(self.program.name(), copy),
            None => self.program.command(),
        };
        command
            .arg("--root")
            .arg(&self.root)
            .arg("--log")
            .arg(log.path())
            .args(["--log-format", "json"]);
        if self.systemd_cgroup {
            command.arg("--systemd-cgroup");
        }
        if let Some(dir) = self.criu.as_deref().and_then(Path::parent) {
            // The runtimes look CRIU up by its name.
            command.env("PATH", path_with(dir));
        }
        command.arg(verb).current_dir(&self.bundle);
        Call {
            verb,
            command,
            sealed,
            log,
        }
    }

    fn spawn_error(&self, source: io::Error) -> OciError {
        OciError::Spawn {
            program: self.program.name().to_path_buf(),
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
        stdio
            .attach(&mut call.command)
            .map_err(|source| self.spawn_error(source))?;
        if limit.is_some() {
            call.command.process_group(0);
        }
        let verb = call.verb;
        let mut tries = 1;
        while let Err(error) = self.launch_once(&mut call, limit) {
            if let (OciError::Spawn { source, .. }, Some(_)) = (&error, call.sealed.take()) {
                if let (Some(sealer), Some(path)) = (&self.sealer, self.program.path()) {
                    sealer.refuse(&path, source);
                }
                call.command = sealed::plain(self.program.name(), &call.command);
                stdio
                    .attach(&mut call.command)
                    .map_err(|source| self.spawn_error(source))?;
                continue;
            }
            if tries == SEAL_TRIES || !was_not_sealed(&error) {
                return Err(error);
            }
            tracing::warn!(verb, tries, %error, "the runtime runs again");
            tries += 1;
        }
        // Ours of the container's ends: the pipes must not stay open here, or their end
        // would never be seen.
        drop((call, stdio));
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
        if exit.status == 0 {
            return Ok(());
        }
        if let Some(deadline) = deadline {
            deadline.end();
        }
        Err(call.failed(exit.status, b""))
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
        if self.no_new_keyring {
            command.arg("--no-new-keyring");
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
        // A runc that was killed while CRIU restored has left the root mounted for that
        // (`criu-root`). It would keep its directory, and say that all went well.
        let state = self.root.join(&self.id);
        if let Err(error) = unmount_below(&state) {
            tracing::warn!(%error, "what the runtime has mounted stays mounted");
        }
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

    /// Whether the runtime knows a mode of CRIU for cgroups, by its own help: runc before
    /// 1.2 does not know `ignore`, and says so only once it is asked to dump.
    ///
    /// # Errors
    /// When it does not.
    pub fn check_cgroups_mode(&self, mode: CgroupsMode) -> Result<(), OciError> {
        let mut command = self.program.command();
        command.args(["checkpoint", "--help"]);
        let (_, help) = self
            .reaper
            .answer(&mut command, Limit::after(HELP_LIMIT))
            .map_err(|e| self.spawn_error(e))?;
        let help = String::from_utf8_lossy(&help);
        let known = help
            .split("manage-cgroups-mode")
            .nth(1)
            .is_some_and(|rest| {
                rest.lines()
                    .next()
                    .unwrap_or_default()
                    .contains(mode.word())
            });
        if known {
            return Ok(());
        }
        Err(OciError::Unknown {
            program: self.program.name().to_path_buf(),
            option: format!("cgroups mode {}", mode.word()),
        })
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
        self.can_checkpoint()?;
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
        if options.leave_running
            && let Some(init) = init.ok().and_then(|pid| pid.trim().parse().ok())
        {
            limit = limit.or_end_of(init);
        }
        self.run_within(call, Some(limit))
    }

    /// Has CRIU begin with a dump that it is asked for directly, and not by the runtime:
    /// the container runs until [`Begun::dump`].
    ///
    /// # Errors
    /// When the runtime has to be asked instead ([`Self::checkpoint`]).
    pub fn begin_dump(
        &self,
        paths: &ImagePaths,
        options: &CheckpointOptions,
        extent: Extent,
        init: i32,
        cgroup: &Cgroup,
    ) -> Result<Begun, SessionError> {
        if !self.driver().is_runc() {
            let why = format!("what {} asks of CRIU is not known", self.driver().name);
            return Err(SessionError::Unfit(why));
        }
        let request = Request {
            bundle: &self.bundle,
            state: self.root.join(&self.id),
            init,
            freezer: cgroup.freezer(),
        };
        let asked = request
            .build(options, extent)
            .map_err(SessionError::Unfit)?;
        let list = paths.images.join(criu::DESCRIPTORS);
        fs::write(&list, &asked.descriptors).map_err(|source| SessionError::Io {
            verb: "write",
            path: list,
            source,
        })?;
        let criu = self.criu.as_deref().unwrap_or(Path::new("criu"));
        let limit = Limit::after(CRIU_LIMIT).or_end_of(init);
        Begun::begin(criu, &self.reaper, paths, asked, limit)
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
        self.can_restore()?;
        let pid_file = self.pid_file("init");
        let mut call = self.call("restore");
        let command = &mut call.command;
        inherit(command, inherited);
        command.arg("--bundle").arg(&self.bundle);
        command.arg("--pid-file").arg(&pid_file);
        command.arg("--image-path").arg(&paths.images);
        command.arg("--work-path").arg(&paths.work);
        command.arg("--detach");
        if self.driver().dialect == Dialect::Runc {
            // crun never is one.
            command.arg("--no-subreaper");
        }
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
