// SPDX-License-Identifier: Apache-2.0
//! Where the parts of Crab find each other below the run directory.
//!
//! Everything here is gone after a reboot; what must outlive one is in the
//! store.

use std::path::{Path, PathBuf};

/// The default run directory.
pub const RUN_DIR: &str = "/run/crab";

/// The socket on which crabd listens.
pub fn crabd_socket(run_dir: &Path) -> PathBuf {
    run_dir.join("crabd.sock")
}

/// The lock that a running crabd holds.
pub fn crabd_lock(run_dir: &Path) -> PathBuf {
    run_dir.join("crabd.lock")
}

/// The socket on which crabd lends programs.
pub fn programs_socket(run_dir: &Path) -> PathBuf {
    run_dir.join("programs.sock")
}

/// The log of a crabd that a shim started.
pub fn crabd_log(run_dir: &Path) -> PathBuf {
    run_dir.join("crabd.log")
}

/// Where each sandbox has its directory, as `<namespace>/<id>`.
pub fn sandboxes_dir(run_dir: &Path) -> PathBuf {
    run_dir.join("sandboxes")
}

/// What a shim keeps of one sandbox while it lives: its address, its network
/// namespace, its checkpoint images in the making.
pub fn sandbox_dir(run_dir: &Path, namespace: &str, id: &str) -> PathBuf {
    sandboxes_dir(run_dir).join(namespace).join(id)
}

/// The file with the ttrpc address (`unix://...`) of a sandbox's shim.
pub fn sandbox_address(run_dir: &Path, namespace: &str, id: &str) -> PathBuf {
    sandbox_dir(run_dir, namespace, id).join("address")
}
