// SPDX-License-Identifier: Apache-2.0
//! The verbs, by libcontainer.

use std::{
    fs::{self, File},
    io::{self, Seek, Write},
    os::fd::AsRawFd,
    path::{Path, PathBuf},
};

use libcgroups::common::{CgroupConfig, CgroupManager, ControllerOpt, create_cgroup_manager};
use libcontainer::{
    container::{Container, builder::ContainerBuilder},
    oci_spec::runtime::{LinuxResources, LinuxSeccomp, Process, Spec},
    signal::Signal,
    syscall::syscall::SyscallType,
};
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::json;

use super::{
    Failure, devices, hierarchies, io_failure,
    options::{Options, Verb},
    own_program, refuse,
    workload::Workload,
};
use crate::cgroup::path_of;

/// libcontainer's file for it.
const STATE: &str = "state.json";

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    match options.verb {
        Some(Verb::Create) => create(options),
        Some(Verb::Start) => Ok(load(options)?.start()?),
        Some(Verb::State) => state(options),
        Some(Verb::Kill) => kill(options),
        Some(Verb::Delete) => delete(options),
        Some(Verb::Exec) => exec(options),
        Some(Verb::Update) => update(options),
        Some(Verb::Features) => features(),
        Some(Verb::Version) | None => print(&format!(
            "crab builtin version {}",
            env!("CARGO_PKG_VERSION")
        )),
    }
}

/// As the OCI specification has it (`features.md`).
fn features() -> Result<(), Failure> {
    let features = json!({
        "ociVersionMin": "1.0.0",
        "ociVersionMax": libcontainer::oci_spec::runtime::VERSION,
        "hooks": ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"],
        "linux": {
            "namespaces": ["cgroup", "ipc", "mount", "network", "pid", "time", "uts"],
            "cgroup": {"v1": true, "v2": true, "systemd": true, "systemdUser": false},
            "seccomp": {"enabled": true},
            "apparmor": {"enabled": true},
            "selinux": {"enabled": false},
        },
        "annotations": {"org.opencontainers.runc.checkpoint.enabled": "false"},
    });
    print(&features.to_string())
}

fn print(line: &str) -> Result<(), Failure> {
    writeln!(io::stdout(), "{line}").map_err(io_failure("write", Path::new("stdout")))
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, Failure> {
    let text = fs::read(path).map_err(io_failure("read", path))?;
    serde_json::from_slice(&text).map_err(|source| Failure::Parse {
        path: path.to_path_buf(),
        source,
    })
}

fn builder(options: &Options, workload: Workload) -> Result<ContainerBuilder, Failure> {
    let builder = ContainerBuilder::new(options.id.clone(), SyscallType::default())
        .with_root_path(options.root.clone())?
        .with_console_socket(options.console_socket.clone())
        .with_executor(workload)
        .validate_id()?;
    Ok(builder)
}

fn load(options: &Options) -> Result<Container, Failure> {
    let dir = options.root.join(&options.id);
    if !dir.exists() {
        return Err(Failure::NotFound);
    }
    Ok(Container::load(dir)?)
}

/// Where the container is in the cgroup hierarchies.
fn cgroup_path(container: &Container) -> Result<PathBuf, Failure> {
    Ok(container.spec()?.cgroup_path)
}

fn write_pid(options: &Options, pid: i32) -> Result<(), Failure> {
    match &options.pid_file {
        Some(file) => fs::write(file, pid.to_string()).map_err(io_failure("write", file)),
        None => Ok(()),
    }
}

fn create(options: &Options) -> Result<(), Failure> {
    let spec: Spec = read_json(&options.bundle.join("config.json"))?;
    refuse::container(&spec, options)?;
    own_program::protect()?;
    let mut container = builder(options, Workload::default())?
        .as_init(&options.bundle)
        .with_systemd(options.systemd_cgroup)
        .with_no_pivot(options.no_pivot)
        .with_detach(true)
        .build()?;
    let made = complete(&container, &spec, options);
    if made.is_err() {
        // Nothing of it has run.
        let _ = container.delete(true);
    }
    made
}

/// What libcontainer leaves out, while the init waits to be started.
fn complete(container: &Container, spec: &Spec, options: &Options) -> Result<(), Failure> {
    let pid = container.pid().ok_or(Failure::NotFound)?.as_raw();
    if hierarchies::is_unified() {
        let table = PathBuf::from(format!("/proc/{pid}/cgroup"));
        let text = fs::read_to_string(&table).map_err(io_failure("read", &table))?;
        let path = path_of(&text, "").unwrap_or_default();
        devices::restrict(spec, &hierarchies::unified_dir(Path::new(&path)))?;
    } else {
        hierarchies::join(&cgroup_path(container)?, pid)?;
    }
    write_pid(options, pid)
}

fn exec(options: &Options) -> Result<(), Failure> {
    let container = load(options)?;
    let spec: Spec = read_json(&container.bundle().join("config.json"))?;
    let Some(file) = &options.process else {
        return Err(Failure::Usage("exec needs --process".into()));
    };
    let mut process: Process = read_json(file)?;
    refuse::process(&process)?;
    own_program::protect()?;
    let linux = spec.linux().as_ref();
    let profile = linux.and_then(|linux| linux.seccomp().clone());
    let workload = confined(&mut process, profile, &cgroup_path(&container)?)?;
    let process = in_memory(&process).map_err(io_failure("copy", file))?;
    let private = PrivateRoot::of(&container)?;
    let pid = builder(options, workload)?
        .with_root_path(&private.0)?
        .as_tenant()
        .with_detach(true)
        .with_process(Some(format!("/proc/self/fd/{}", process.as_raw_fd())))
        .build()?;
    write_pid(options, pid.as_raw())
}

/// A root with nothing but the container's state in it. libcontainer leaves its sockets
/// where that is, one with each exec.
struct PrivateRoot(PathBuf);

impl PrivateRoot {
    fn of(container: &Container) -> Result<Self, Failure> {
        let root = container.root.join(format!("exec-{}", std::process::id()));
        let private = Self(root);
        let dir = private.0.join(container.id());
        fs::create_dir_all(&dir).map_err(io_failure("make", &dir))?;
        let state = container.root.join(STATE);
        fs::copy(&state, dir.join(STATE)).map_err(io_failure("copy", &state))?;
        Ok(private)
    }
}

impl Drop for PrivateRoot {
    fn drop(&mut self) {
        // What is left of it goes with the container.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// How an exec is confined, and what of that libcontainer must not do before.
fn confined(
    process: &mut Process,
    seccomp: Option<LinuxSeccomp>,
    cgroup: &Path,
) -> Result<Workload, Failure> {
    let mut workload = Workload {
        seccomp,
        capabilities: None,
        doors: hierarchies::Doors::open(cgroup)?,
    };
    if workload.seccomp.is_some() && process.no_new_privileges() != Some(true) {
        workload.capabilities = process.capabilities().clone();
        process.set_capabilities(None);
    }
    Ok(workload)
}

/// libcontainer takes a path.
fn in_memory(process: &Process) -> io::Result<File> {
    let mut file = File::from(memfd_create("process", MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(process)?)?;
    file.rewind()?;
    Ok(file)
}

fn state(options: &Options) -> Result<(), Failure> {
    let container = load(options)?;
    let state = json!({
        "ociVersion": "1.0.2",
        "id": options.id,
        "status": container.status().to_string(),
        "pid": container.pid().map_or(0, |pid| pid.as_raw()),
        "bundle": container.bundle(),
    });
    print(&state.to_string())
}

fn kill(options: &Options) -> Result<(), Failure> {
    let wanted = options.rest.first().map_or("TERM", String::as_str);
    let number = wanted.parse::<i32>().ok();
    let signal = number.map_or_else(
        || Signal::try_from(wanted).ok(),
        |number| Signal::try_from(number).ok(),
    );
    let signal = signal.ok_or_else(|| Failure::Usage(format!("{wanted:?} is no signal")))?;
    Ok(load(options)?.kill(signal, false)?)
}

fn delete(options: &Options) -> Result<(), Failure> {
    let mut container = match load(options) {
        Ok(container) => container,
        Err(Failure::NotFound) if options.force => return Ok(()),
        Err(failure) => {
            let dir = options.root.join(&options.id);
            if !options.force {
                return Err(failure);
            }
            // Of a create that was killed before it wrote a state.
            return fs::remove_dir_all(&dir).map_err(io_failure("remove", &dir));
        }
    };
    if options.force && !container.systemd() {
        // By its cgroup: another process may have the init's number by now.
        if let Ok(path) = cgroup_path(&container) {
            hierarchies::remove(&path)?;
        }
        container.state.pid = None;
    }
    Ok(container.delete(options.force)?)
}

fn update(options: &Options) -> Result<(), Failure> {
    let Some(file) = &options.resources else {
        return Err(Failure::Usage("update needs --resources".into()));
    };
    let resources: LinuxResources = read_json(file)?;
    let container = load(options)?;
    let cgroup = |error: &dyn std::error::Error| Failure::Cgroup(super::chain(error));
    let manager = create_cgroup_manager(CgroupConfig {
        cgroup_path: cgroup_path(&container)?,
        systemd_cgroup: container.systemd(),
        container_name: options.id.clone(),
    })
    .map_err(|error| cgroup(&error))?;
    manager
        .apply(&ControllerOpt {
            resources: &resources,
            disable_oom_killer: false,
            oom_score_adj: None,
            freezer_state: None,
        })
        .map_err(|error| cgroup(&error))
}
