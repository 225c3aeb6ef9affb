// SPDX-License-Identifier: Apache-2.0
//! `delete`: what containerd runs when a shim is gone without having cleaned up.
//!
//! Nothing of the container is left afterwards: processes, cgroup, mounts, network
//! namespace. What is in the store stays: `crab restore` starts from it.

use std::{
    fs,
    os::unix::net::UnixStream,
    path::Path,
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result};
use containerd_shim_protos::{
    api::DeleteResponse,
    protobuf::{Message, MessageField},
};
use crab_api::paths;
use crab_config::Config;
use crab_runtime::{
    cgroup::Cgroup,
    hooks,
    mount::unmount_all,
    netns,
    oci::Runtime,
    orphans,
    reaper::{Exit, Reaper},
};
use crab_store::SandboxId;

use crate::{
    args::Args, bundle::ORIGINAL, capture::staging_dirs, exit_note, options::RuntimeOptions,
    sandbox::KILL_LIMIT, start::ADDRESS_FILE,
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
    let (config, fault) = Config::load_or_default();
    if let Some(fault) = fault {
        eprintln!("containerd-shim-crab-v1: the default configuration is in force: {fault}");
    }
    let reaper = Reaper::start().context("become a subreaper")?;
    let note = |name: &str| fs::read_to_string(bundle.join(name)).ok();
    let run_dir = paths::sandbox_dir(&config.run_dir, &args.namespace, &args.id);
    let mut image_dirs = vec![run_dir.clone()];
    if let Ok(id) = SandboxId::new(&args.namespace, &args.id) {
        image_dirs.extend(staging_dirs(&config, &id));
    }
    // First: what they find frozen, they freeze again.
    if !orphans::end(&bundle, &image_dirs, CALLS_LIMIT) {
        eprintln!("containerd-shim-crab-v1: a call of the runtime does not end");
    }
    let init: Option<i32> = note("init.pid").and_then(|text| text.trim().parse().ok());
    if let Some(cgroup) = init.and_then(|pid| Cgroup::of_process(pid).ok()) {
        let ours = cgroup.names(&args.id);
        if ours {
            // A shim that died in the middle of a capture left it frozen.
            let _ = cgroup.thaw();
            let _ = cgroup.kill(KILL_LIMIT);
        }
    }
    if let (Some(program), Some(root)) = (note("runtime"), note("runtime-root")) {
        let runtime = Runtime {
            program: program.into(),
            root: root.into(),
            id: args.id.clone(),
            bundle: bundle.clone(),
            systemd_cgroup: RuntimeOptions::of_bundle(&bundle).systemd_cgroup,
            no_pivot: false,
            no_new_keyring: false,
            criu: None,
            sealer: None,
            reaper: reaper.clone(),
        };
        if let Err(error) = runtime.delete() {
            eprintln!("containerd-shim-crab-v1: {error}");
        }
        let spec = note(ORIGINAL).and_then(|text| serde_json::from_str(&text).ok());
        if let Some(spec) = spec {
            hooks::run_poststop(&spec, &args.id, &bundle, &reaper, |fault| {
                eprintln!("containerd-shim-crab-v1: {fault}");
            });
        }
    }
    unmount_all(&bundle.join("rootfs"))?;
    netns::remove(&run_dir.join("netns"))?;
    for dir in image_dirs {
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
        pid: init.unwrap_or(0) as u32,
        exit_status: exit.status,
        exited_at: MessageField::some(exit.at.into()),
        ..Default::default()
    };
    Ok(response.write_to_bytes()?)
}
