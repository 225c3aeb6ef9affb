// SPDX-License-Identifier: Apache-2.0
//! The driver of OCI command lines. In a process of its own: the reaper waits for every
//! child that there is.

use std::{
    fs::{self, File},
    io,
    os::{fd::OwnedFd, unix::fs::PermissionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock},
};

use crab_runtime::{
    driver::Program,
    hooks,
    oci::{Runtime, Stdio3},
    reaper::Reaper,
    sealed::Sealer,
};

/// One test at a time: while one forks, another's script is open for writing there.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|failed| failed.into_inner())
}

/// It takes every child of this process, until that ends: there can be one.
fn reaper() -> Reaper {
    static REAPER: OnceLock<Reaper> = OnceLock::new();
    REAPER.get_or_init(|| Reaper::start().unwrap()).clone()
}

/// A command line that fails `times` times as runc does, and then leaves a pid.
fn failing(dir: &Path, times: usize, reason: &str, reaper: &Reaper) -> Runtime {
    let program = dir.join("oci");
    let script = format!(
        "#!/bin/sh\n\
         echo try >>{dir}/tries\n\
         [ $(wc -l <{dir}/tries) -gt {times} ] && echo 42 >{dir}/init.pid && exit\n\
         echo '{{\"level\":\"error\",\"msg\":\"{reason}\"}}' >\"$4\"\n\
         echo '{{\"level\":\"error\",\"msg\":\"runc create failed\"}}' >>\"$4\"\n\
         exit 1\n",
        dir = dir.display(),
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    Runtime {
        program: Program::File(program),
        root: dir.to_path_buf(),
        id: "c1".into(),
        bundle: dir.to_path_buf(),
        systemd_cgroup: false,
        no_pivot: false,
        no_new_keyring: false,
        criu: None,
        sealer: None,
        reaper: reaper.clone(),
    }
}

/// As runc 1.1, runc 1.2 and newer, and crun say it.
const BUSY: [&str; 3] = [
    "nsexec[7]: could not ensure we are a cloned binary: Device or resource busy",
    "unable to create safe /proc/self/exe clone for runc init: could not seal fd: \
     fcntl(F_ADD_SEALS): device or resource busy",
    "Failed to re-execute libcrun via memory file descriptor: Device or resource busy",
];

#[test]
fn a_runtime_that_could_not_seal_itself_runs_again() {
    let _alone = alone();
    let reaper = reaper();
    let mut cases = vec![(99, BUSY[0], 5), (99, "no memory", 1)];
    cases.extend(BUSY.map(|busy| (2, busy, 3)));
    for (times, reason, tries) in cases {
        let dir = tempfile::tempdir().unwrap();
        let made = failing(dir.path(), times, reason, &reaper).create(None, Stdio3::default());
        assert_eq!(made.is_ok(), times < tries, "{made:?}");
        let made = fs::read_to_string(dir.path().join("tries")).unwrap();
        assert_eq!(made.lines().count(), tries, "{reason}");
        let left = fs::read_dir(dir.path()).unwrap().flatten();
        let logs = left.filter(|entry| {
            entry
                .file_name()
                .to_string_lossy()
                .starts_with("runtime-log-")
        });
        assert_eq!(logs.count(), 0, "its log is left");
    }
}

/// Has one thing to give, whatever is asked for.
struct Holder {
    copy: Arc<OwnedFd>,
    refused: Mutex<Vec<PathBuf>>,
}

impl Holder {
    fn of(path: &Path) -> Arc<Self> {
        Arc::new(Self {
            copy: Arc::new(File::open(path).unwrap().into()),
            refused: Mutex::default(),
        })
    }
}

impl Sealer for Holder {
    fn sealed(&self, _: &Path) -> Option<Arc<OwnedFd>> {
        Some(self.copy.clone())
    }

    fn refuse(&self, program: &Path, why: &io::Error) {
        assert_eq!(why.kind(), io::ErrorKind::PermissionDenied);
        self.refused.lock().unwrap().push(program.to_path_buf());
    }
}

#[test]
fn where_the_sealed_copy_does_not_run_the_program_itself_does() {
    let _alone = alone();
    let reaper = reaper();
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("no-program");
    fs::write(&text, "").unwrap();
    let holder = Holder::of(&text);
    let mut runtime = failing(dir.path(), 0, "", &reaper);
    runtime.sealer = Some(holder.clone());
    let (read, write) = io::pipe().unwrap();
    let stdio = Stdio3 {
        stdout: Some(write.into()),
        ..Stdio3::default()
    };
    assert_eq!(runtime.create(None, stdio).unwrap(), 42);
    assert_eq!(*holder.refused.lock().unwrap(), [runtime.program.name()]);
    // No end of it is left open here.
    assert_eq!(io::read_to_string(read).unwrap(), "");
}

#[test]
fn the_sealed_copy_runs_instead_of_the_program() {
    let _alone = alone();
    let reaper = reaper();
    let dir = tempfile::tempdir().unwrap();
    let mut runtime = failing(dir.path(), 0, "", &reaper);
    // It takes the options for a script that is not there.
    runtime.sealer = Some(Holder::of(Path::new("/bin/sh")));
    runtime.create(None, Stdio3::default()).unwrap_err();
    assert!(!dir.path().join("tries").exists(), "the program has run");
}

#[test]
fn the_hooks_of_the_end_get_the_state_and_one_that_fails_keeps_no_other_from_running() {
    let _alone = alone();
    let reaper = reaper();
    let dir = tempfile::tempdir().unwrap();
    let got = dir.path().join("got");
    let spec = serde_json::json!({
        "ociVersion": "1.1.0",
        "annotations": {"a": "b"},
        "hooks": {"poststop": [
            {"path": "/bin/sh", "args": ["sh", "-c", "echo no >&2; exit 3"]},
            {"path": "/bin/sh", "args": ["sh", "-c", "exec sleep 1000"], "timeout": 1},
            {"path": "/bin/sh", "args": ["sh", "-c", "cat >$OUT"],
             "env": [format!("OUT={}", got.display())]},
        ]},
    });
    let faults = Mutex::new(Vec::new());
    hooks::run_poststop(&spec, "c1", dir.path(), &reaper, |fault| {
        faults.lock().unwrap().push(fault);
    });
    let faults = faults.into_inner().unwrap();
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(faults[0].ends_with("/bin/sh: exit 3: no"), "{faults:?}");
    let state: serde_json::Value = serde_json::from_slice(&fs::read(&got).unwrap()).unwrap();
    assert_eq!(state["id"], "c1");
    assert_eq!(state["status"], "stopped");
    assert_eq!(state["annotations"]["a"], "b");

    let mut spec = spec;
    hooks::without_poststop(&mut spec);
    fs::remove_file(&got).unwrap();
    hooks::run_poststop(&spec, "c1", dir.path(), &reaper, |fault| panic!("{fault}"));
    assert!(!got.exists());
}
