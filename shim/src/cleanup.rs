// SPDX-License-Identifier: Apache-2.0
//! `delete`: what containerd runs when a shim is gone without having cleaned up.
//!
//! Nothing of the container is left afterwards: processes, cgroup, mounts, network
//! namespace. What is in the store stays: `crab restore` starts from it.

use std::{
    fs,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context, Result};
use containerd_shim_protos::{
    api::DeleteResponse,
    protobuf::{Message, MessageField},
};
use crab_runtime::{
    cgroup::Cgroup,
    driver::Program,
    hooks,
    mount::{unmount_all, unmount_below},
    netns,
    oci::Runtime,
    orphans,
    reaper::{Exit, Reaper},
};

use crate::{
    args::Args,
    bundle::ORIGINAL,
    directories::Directories,
    exit_note,
    options::RuntimeOptions,
    sandbox::{RUNTIME_FILE, RUNTIME_ROOT_FILE},
    start::ADDRESS_FILE,
};

/// How long the runtime's calls may take to be gone.
const CALLS_LIMIT: Duration = Duration::from_secs(2);

/// How long they and the container's processes may, together. containerd gives all of this five
/// seconds (`io.containerd.timeout.shim.cleanup`).
const END_LIMIT: Duration = Duration::from_secs(4);

/// What is on the host because of a container, beside what its runtime has made.
struct Leftovers {
    rootfs: PathBuf,
    /// See [`Directories::restoring`].
    restoring: Option<PathBuf>,
    netns: Option<PathBuf>,
    dirs: Vec<PathBuf>,
}

impl Leftovers {
    fn of(bundle: &Path) -> Self {
        let directories = Directories::of_bundle(bundle);
        Self {
            rootfs: bundle.join("rootfs"),
            restoring: directories.as_ref().and_then(|it| it.restoring.clone()),
            netns: directories.as_ref().map(Directories::netns),
            dirs: directories.into_iter().flat_map(Directories::all).collect(),
        }
    }

    /// Lets go of all of it, whatever of it cannot be let go of. May be done twice.
    fn free(&self) -> Result<()> {
        let root = unmount_all(&self.rootfs);
        let restoring = self.restoring.as_deref().map_or(Ok(()), unmount_below);
        let netns = self.netns.as_deref().map_or(Ok(()), netns::remove);
        // What CRIU has mounted are the host's cgroups: nothing is removed there.
        let below = self.dirs.iter().try_for_each(|dir| unmount_below(dir));
        if restoring.is_ok() && below.is_ok() {
            for dir in &self.dirs {
                let _ = fs::remove_dir_all(dir);
            }
        }
        root?;
        restoring?;
        below?;
        Ok(netns?)
    }
}

/// Cleans up, and returns the message that containerd reads.
pub(crate) fn delete(args: &Args) -> Result<Vec<u8>> {
    let bundle = match &args.bundle {
        Some(bundle) => bundle.clone(),
        None => std::env::current_dir().context("find the bundle")?,
    };
    let note = |name: &str| fs::read_to_string(bundle.join(name)).ok();
    let leftovers = Leftovers::of(&bundle);
    // Gone if the shim has done all this before it ended, which is how it mostly ends.
    if let Some(program) = note(RUNTIME_FILE) {
        let program = Program::named(Some(Path::new(&program)));
        end_container(args, &bundle, program, &leftovers)?;
    }
    leftovers.free()?;
    if let Some(address) = note(ADDRESS_FILE) {
        let socket = Path::new(address.trim_start_matches("unix://"));
        // A shim that still listens has the pod's other containers.
        if UnixStream::connect(socket).is_err() {
            let _ = fs::remove_file(socket);
        }
    }
    let exit = exit_note::read(&bundle).unwrap_or_else(|| Exit {
        status: 137,
        at: SystemTime::now(),
    });
    let response = DeleteResponse {
        pid: init_of(&bundle).unwrap_or(0) as u32,
        exit_status: exit.status,
        exited_at: MessageField::some(exit.at.into()),
        ..Default::default()
    };
    Ok(response.write_to_bytes()?)
}

fn init_of(bundle: &Path) -> Option<i32> {
    let pid = fs::read_to_string(bundle.join("init.pid")).ok()?;
    pid.trim().parse().ok()
}

/// Ends what runs in the container or works on it, and has the runtime delete it.
fn end_container(
    args: &Args,
    bundle: &Path,
    program: Program,
    leftovers: &Leftovers,
) -> Result<()> {
    let start = Instant::now();
    let reaper = Reaper::start().context("become a subreaper")?;
    // First: what they find frozen, they freeze again.
    let mut has_ended = orphans::end(bundle, &leftovers.dirs, CALLS_LIMIT);
    if !has_ended {
        eprintln!("containerd-shim-crab-v1: a call of the runtime does not end");
    }
    if let Some(cgroup) = init_of(bundle).and_then(|pid| Cgroup::of_process(pid).ok()) {
        let ours = cgroup.names(&args.id);
        if ours {
            // A shim that died in the middle of a capture left it frozen.
            let _ = cgroup.thaw();
            if let Err(error) = cgroup.kill(END_LIMIT.saturating_sub(start.elapsed())) {
                eprintln!("containerd-shim-crab-v1: {error}");
                has_ended = false;
            }
        }
    }
    // The runtime waits for what does not end for longer than there is time left.
    if !has_ended && let Err(error) = leftovers.free() {
        eprintln!("containerd-shim-crab-v1: {error:#}");
    }
    let Ok(root) = fs::read_to_string(bundle.join(RUNTIME_ROOT_FILE)) else {
        return Ok(());
    };
    let runtime = Runtime {
        program,
        root: root.into(),
        id: args.id.clone(),
        bundle: bundle.to_path_buf(),
        systemd_cgroup: RuntimeOptions::of_bundle(bundle).systemd_cgroup,
        no_pivot: false,
        no_new_keyring: false,
        criu: None,
        sealer: None,
        reaper: reaper.clone(),
    };
    if let Err(error) = runtime.delete() {
        eprintln!("containerd-shim-crab-v1: {error}");
    }
    let spec = fs::read(bundle.join(ORIGINAL)).ok();
    if let Some(spec) = spec.and_then(|text| serde_json::from_slice(&text).ok()) {
        hooks::run_poststop(&spec, &args.id, bundle, &reaper, |fault| {
            eprintln!("containerd-shim-crab-v1: {fault}");
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_let_go_of_keeps_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        // What is below a file cannot be unmounted.
        fs::write(at("file"), "").unwrap();
        fs::create_dir(at("run")).unwrap();
        fs::write(at("run/netns"), "").unwrap();
        let leftovers = Leftovers {
            rootfs: at("file/rootfs"),
            restoring: Some(at("restoring")),
            netns: Some(at("run/netns")),
            dirs: vec![at("run"), at("none")],
        };
        let error = leftovers.free().unwrap_err();
        assert!(error.to_string().contains("file/rootfs"), "{error:#}");
        assert!(!at("run").exists());
        let again = Leftovers {
            rootfs: at("none"),
            ..leftovers
        };
        again.free().unwrap();
    }
}
