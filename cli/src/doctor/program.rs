// SPDX-License-Identifier: Apache-2.0

//! Other programs: where they are for whoever will run them, and what they say.
//!
//! A shim finds runc and CRIU on the PATH that containerd gave it, which is not that
//! of a user's shell.

use std::{
    env,
    ffi::{OsStr, OsString},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{process::Command, time::timeout};

/// How long a program may take to say something of itself.
const LIMIT: Duration = Duration::from_secs(30);

/// Where programs are looked for.
#[derive(Clone, Debug)]
pub(crate) struct SearchPath(OsString);

impl SearchPath {
    pub(crate) fn new(path: impl Into<OsString>) -> Self {
        Self(path.into())
    }

    /// That of this process.
    pub(crate) fn own() -> Self {
        Self(env::var_os("PATH").unwrap_or_default())
    }

    /// Where a program is: itself if it names a path.
    pub(crate) fn find(&self, name: &Path) -> Option<PathBuf> {
        if name.components().count() > 1 {
            return is_program(name).then(|| name.to_path_buf());
        }
        env::split_paths(&self.0)
            .filter(|dir| dir.is_absolute())
            .map(|dir| dir.join(name))
            .find(|candidate| is_program(candidate))
    }
}

impl std::fmt::Display for SearchPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.to_string_lossy().fmt(f)
    }
}

fn is_program(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// What a program printed, on both ways.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) well: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Said {
    /// Its last word on what went wrong, in one line.
    pub(crate) fn why(&self) -> String {
        let lines = || self.stderr.lines().chain(self.stdout.lines());
        let error = lines().find(|line| line.contains("Error"));
        let line = error.or_else(|| lines().find(|line| !line.trim().is_empty()));
        line.unwrap_or("it does not say why").trim().to_owned()
    }
}

/// Runs a program that only says something of itself.
///
/// # Errors
/// In one line, when it cannot be run or does not end.
pub(crate) async fn ask(program: impl AsRef<OsStr>, args: &[&str]) -> Result<Said, String> {
    let program = program.as_ref();
    let shown = Path::new(program).display();
    let child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = match timeout(LIMIT, child).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(format!("{shown} cannot be run: {error}")),
        Err(_) => return Err(format!("{shown} does not end within {} s", LIMIT.as_secs())),
    };
    Ok(Said {
        well: output.status.success(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_run_is_found_and_not_by_a_relative_path() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        std::fs::write(&program, "").unwrap();
        let path = SearchPath::new(format!(":.:{}", dir.path().display()));
        assert_eq!(path.find(Path::new("program")), None);
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(path.find(Path::new("program")), Some(program.clone()));
        assert_eq!(path.find(&program), Some(program));
        assert_eq!(path.find(Path::new("/no/such/program")), None);
    }

    #[tokio::test]
    async fn what_a_program_says_is_told_with_its_reason() {
        let said = ask(
            "sh",
            &["-c", "echo first >&2; echo '(00.1) Error: no' >&2; exit 1"],
        );
        let said = said.await.unwrap();
        assert!(!said.well);
        assert_eq!(said.why(), "(00.1) Error: no");
        assert!(
            ask("/no/such/program", &[])
                .await
                .unwrap_err()
                .contains("cannot be run")
        );
    }
}
