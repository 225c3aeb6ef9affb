// SPDX-License-Identifier: Apache-2.0
//! The last steps before a process of the container is its program.
//!
//! libcontainer builds an exec's specification anew and leaves the seccomp profile out
//! of it: an exec would run without. So an exec's profile is put in force here, as runc
//! does it: after the privileges are dropped where no new ones may be gained, else, as
//! the kernel asks for a privilege then, before (libcontainer is told of no
//! capabilities, and they are dropped here).

use std::{
    collections::HashMap,
    env,
    ffi::CString,
    fs, io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use libcontainer::{
    capabilities,
    oci_spec::runtime::{LinuxCapabilities, LinuxSeccomp, Spec},
    seccomp,
    syscall::syscall::create_syscall,
    workload::{Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError},
};
use rustix::fs::{Access, AtFlags, CWD, accessat};

use super::hierarchies::Doors;

/// Where a program is looked for if the process has no PATH; runc's.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Runs a process's program.
#[derive(Clone, Default)]
pub(super) struct Workload {
    /// An exec's seccomp profile; libcontainer sees to the init's.
    pub(super) seccomp: Option<LinuxSeccomp>,
    /// An exec's capabilities, if they are dropped only after that.
    pub(super) capabilities: Option<LinuxCapabilities>,
    /// An exec's way into the cgroups that libcontainer does not know.
    pub(super) doors: Doors,
}

impl Workload {
    fn confine(&self) -> Result<(), String> {
        self.doors
            .enter()
            .map_err(|error| format!("enter the container's cgroup: {error}"))?;
        if let Some(profile) = &self.seccomp {
            let notify = seccomp::initialize_seccomp(profile)
                .map_err(|error| format!("seccomp: {}", super::chain(&error)))?;
            if notify.is_some() {
                return Err("seccomp: a notification that nobody hears".into());
            }
        }
        if let Some(capabilities) = &self.capabilities {
            capabilities::drop_privileges(capabilities, create_syscall().as_ref())
                .map_err(|error| format!("drop capabilities: {}", super::chain(&error)))?;
        }
        Ok(())
    }
}

impl Executor for Workload {
    fn exec(&self, spec: &Spec) -> Result<(), ExecutorError> {
        let (program, args) = program_of(spec).map_err(ExecutorError::Other)?;
        self.confine().map_err(ExecutorError::Other)?;
        let failed =
            |error: io::Error| ExecutorError::Other(format!("exec {}: {error}", program.display()));
        let nul = |_| failed(io::Error::other("a NUL in it"));
        let path = CString::new(program.as_os_str().as_bytes()).map_err(nul)?;
        let words = args.iter().map(|arg| CString::new(arg.as_bytes()));
        let words: Vec<CString> = words.collect::<Result<_, _>>().map_err(nul)?;
        let mut pointers: Vec<*const libc::c_char> =
            words.iter().map(|word| word.as_ptr()).collect();
        pointers.push(std::ptr::null());
        // SAFETY: both point to strings with a NUL at their end that live until the call,
        // and the list ends with a null pointer.
        unsafe { libc::execv(path.as_ptr(), pointers.as_ptr()) };
        Err(failed(io::Error::last_os_error()))
    }

    fn validate(&self, spec: &Spec) -> Result<(), ExecutorValidationError> {
        let found = program_of(spec).map(drop);
        found.map_err(ExecutorValidationError::ArgValidationError)
    }

    fn setup_envs(&self, envs: HashMap<String, String>) -> Result<(), ExecutorSetEnvsError> {
        for (name, _) in env::vars_os() {
            // SAFETY: this process has one thread.
            unsafe { env::remove_var(name) };
        }
        for (name, value) in envs {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                return Err(ExecutorSetEnvsError::Other(format!(
                    "{name:?} is no name of a variable, or its value has a NUL in it"
                )));
            }
            // SAFETY: as above; both were looked at.
            unsafe { env::set_var(name, value) };
        }
        Ok(())
    }
}

/// The process's program and its arguments, or why there is none, in runc's words:
/// clients tell the reasons apart by them.
fn program_of(spec: &Spec) -> Result<(PathBuf, Vec<String>), String> {
    let process = spec.process().as_ref();
    let args = process
        .and_then(|process| process.args().clone())
        .filter(|args| !args.is_empty())
        .ok_or("the process has no args")?;
    let env = process.and_then(|process| process.env().as_ref());
    let path = env
        .into_iter()
        .flatten()
        .find_map(|variable| variable.strip_prefix("PATH="))
        .unwrap_or(DEFAULT_PATH);
    let program = find(&args[0], path).map_err(|why| format!("exec: {:?}: {why}", args[0]))?;
    Ok((program, args))
}

fn find(name: &str, path: &str) -> Result<PathBuf, String> {
    if name.contains('/') {
        let program = PathBuf::from(name);
        return match runnable(&program) {
            Ok(()) => Ok(program),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(format!("stat {name}: no such file or directory"))
            }
            Err(error) => Err(words_of(&error)),
        };
    }
    let dirs = path.split(':').filter(|_| !name.is_empty());
    let mut refused = None;
    for dir in dirs {
        let program = Path::new(if dir.is_empty() { "." } else { dir }).join(name);
        match runnable(&program) {
            Ok(()) => return Ok(program),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                refused = Some(words_of(&error));
            }
            Err(_) => {}
        }
    }
    Err(refused.unwrap_or_else(|| "executable file not found in $PATH".into()))
}

fn words_of(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "permission denied".into(),
        io::ErrorKind::IsADirectory => "is a directory".into(),
        _ => error.to_string(),
    }
}

/// With the rights that this process has by now: the container's user's.
fn runnable(program: &Path) -> io::Result<()> {
    let file = fs::metadata(program)?;
    if file.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if file.mode() & 0o111 == 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(accessat(CWD, program, Access::EXEC_OK, AtFlags::EACCESS)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_told_in_the_words_that_clients_know() {
        let dir = tempfile::tempdir().unwrap();
        let plain = dir.path().join("plain");
        fs::write(&plain, "").unwrap();
        let path = dir.path().to_str().unwrap();
        for (name, why) in [
            ("no-such-program", "executable file not found in $PATH"),
            (
                "/no/such/program",
                "stat /no/such/program: no such file or directory",
            ),
            (plain.to_str().unwrap(), "permission denied"),
            ("plain", "permission denied"),
            (path, "is a directory"),
            ("", "executable file not found in $PATH"),
        ] {
            assert_eq!(find(name, path).unwrap_err(), why, "{name}");
        }
        assert!(find("sh", &format!("{path}:/bin")).is_ok());
        assert!(find("sh", DEFAULT_PATH).is_ok());
    }
}
