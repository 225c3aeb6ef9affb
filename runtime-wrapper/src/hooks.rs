// SPDX-License-Identifier: Apache-2.0
//! The `poststop` hooks of an OCI specification, run when a container really ends.
//!
//! A runtime runs them with its `delete`, which a rollback needs as well: to the client
//! that one is no end, and hooks like nerdctl's would take the network away under a
//! container that goes on. So they are left out of what the runtime reads, and run here.

use std::{io, path::PathBuf, process::Command, time::Duration};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::{deadline::Limit, reaper::Reaper};

/// For how long a hook that names no limit may run: its container is gone, and somebody
/// waits for the delete.
const LIMIT: Duration = Duration::from_secs(10);

/// A hook, as the OCI runtime specification has it (`config.md`, POSIX-platform Hooks).
#[derive(Debug, Clone, Deserialize)]
struct Hook {
    path: PathBuf,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: Vec<String>,
    /// In seconds.
    timeout: Option<u64>,
}

/// Takes the `poststop` hooks out of a specification.
pub fn without_poststop(spec: &mut Value) {
    if let Some(hooks) = spec.get_mut("hooks").and_then(Value::as_object_mut) {
        hooks.remove("poststop");
    }
}

/// Runs the `poststop` hooks of a specification, one after the other; what is wrong with
/// one is told by `warn`, and keeps no other from running.
pub fn run_poststop(
    spec: &Value,
    id: &str,
    bundle: &std::path::Path,
    reaper: &Reaper,
    warn: impl Fn(String),
) {
    let listed = spec.pointer("/hooks/poststop").cloned();
    let hooks: Vec<Hook> = match listed.map(serde_json::from_value).transpose() {
        Ok(hooks) => hooks.unwrap_or_default(),
        Err(error) => return warn(format!("the poststop hooks cannot be read: {error}")),
    };
    if hooks.is_empty() {
        return;
    }
    let state = json!({
        "ociVersion": spec["ociVersion"],
        "id": id,
        "status": "stopped",
        "bundle": bundle,
        "annotations": spec["annotations"],
    });
    for hook in hooks {
        if let Err(error) = hook.run(&state, reaper) {
            warn(format!(
                "the poststop hook {}: {error}",
                hook.path.display()
            ));
        }
    }
}

impl Hook {
    fn run(&self, state: &Value, reaper: &Reaper) -> io::Result<()> {
        let mut command = Command::new(&self.path);
        if let Some((name, args)) = self.args.split_first() {
            std::os::unix::process::CommandExt::arg0(&mut command, name);
            command.args(args);
        }
        command.env_clear().envs(
            self.env
                .iter()
                .filter_map(|variable| variable.split_once('=')),
        );
        let limit = self.timeout.map_or(LIMIT, Duration::from_secs);
        command.stdout(std::process::Stdio::null());
        let input = state.to_string();
        let limit = Limit::after(limit);
        let (status, said) = reaper.output_of(&mut command, input.as_bytes(), Some(limit))?;
        if status == 0 {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&said);
        Err(io::Error::other(format!("exit {status}: {}", said.trim())))
    }
}
