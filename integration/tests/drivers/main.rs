// SPDX-License-Identifier: Apache-2.0

//! The OCI runtimes: which one is driven, and that what one cannot do is said.

mod builtin;
mod chosen;
mod lacking;

use std::fs;

use anyhow::{Context, Result};
use crab_integration::{Client, EACH_EXEC_A_TURN, Sandbox, Swapped};

/// Where shims look for what is configured.
const CONFIG: &str = "/etc/crab/config.toml";

/// An OCI runtime that Crab knows nothing of: it does what runc does, and speaks of no
/// process images.
const STRANGE: &str = "/usr/local/bin/strange-oci";

fn strange() -> Result<Swapped> {
    Swapped::with(
        STRANGE,
        "#!/bin/sh\n\
         case $1 in\n\
         --version) echo 'strange version 7'; exit ;;\n\
         --help) echo 'create start exec delete'; exit ;;\n\
         features) echo 'no such verb' >&2; exit 1 ;;\n\
         esac\n\
         exec runc \"$@\"\n",
    )
}

/// Has the shims started from now on drive this runtime.
fn configured(binary: &str) -> Result<Swapped> {
    let text = format!("[runtime]\nbinary = \"{binary}\"\n{EACH_EXEC_A_TURN}");
    Swapped::with(CONFIG, &text)
}

/// The runtime that drives a container.
fn runtime_of(sandbox: &Sandbox) -> Result<String> {
    assert!(matches!(sandbox.client(), Client::Ctr { .. }));
    let file = sandbox.bundle().join("runtime");
    fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))
}
