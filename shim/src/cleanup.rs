// SPDX-License-Identifier: Apache-2.0
//! `delete`: what containerd runs when a shim is gone without having cleaned up.
//!
//! Nothing of the container is left afterwards: processes, cgroup, mounts, network
//! namespace. What is in the store stays: `crab restore` starts from it.

use std::{
    fs,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
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
    sandbox::{KILL_LIMIT, RUNTIME_FILE, RUNTIME_ROOT_FILE},
    start::ADDRESS_FILE,
};

/// How long the runtime's calls may take to be gone. containerd gives all of this
/// five seconds.
const CALLS_LIMIT: Duration = Duration::from_secs(2);

/// Cleans up, and returns the message that containerd reads.
pub(crate) fn delete(args: &Args) -> Result<Vec<u8>> {
    let bundle = match &args.bundle {
        Some(bundle) => bundle.clone(),
        None => std::env::current_dir().context("find the bundle")?,
    };
    let note = |name: &str| fs::read_to_string(bundle.join(name)).ok();
    let directories = Directories::of_bundle(&bundle);
    let netns = directories.as_ref().map(Directories::netns);
    let restoring = directories.as_ref().and_then(|it| it.restoring.clone());
    let dirs: Vec<PathBuf> = directories.into_iter().flat_map(Directories::all).collect();
    // Gone if the shim has done all this before it ended, which is how it mostly ends.
    if let Some(program) = note(RUNTIME_FILE) {
        let program = Program::named(Some(Path::new(&program)));
        end_container(args, &bundle, program, &dirs)?;
    }
    unmount_all(&bundle.join("rootfs"))?;
    if let Some(dir) = restoring {
        unmount_below(&dir)?;
    }
    if let Some(netns) = netns {
        netns::remove(&netns)?;
    }
    for dir in dirs {
        let _ = fs::remove_dir_all(dir);
    }
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
    image_dirs: &[PathBuf],
) -> Result<()> {
    let reaper = Reaper::start().context("become a subreaper")?;
    // First: what they find frozen, they freeze again.
    if !orphans::end(bundle, image_dirs, CALLS_LIMIT) {
        eprintln!("containerd-shim-crab-v1: a call of the runtime does not end");
    }
    if let Some(cgroup) = init_of(bundle).and_then(|pid| Cgroup::of_process(pid).ok()) {
        let ours = cgroup.names(&args.id);
        if ours {
            // A shim that died in the middle of a capture left it frozen.
            let _ = cgroup.thaw();
            let _ = cgroup.kill(KILL_LIMIT);
        }
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
