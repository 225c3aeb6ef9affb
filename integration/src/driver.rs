// SPDX-License-Identifier: Apache-2.0

//! The OCI runtime that Crab drives in a run of the tests.
//!
//! `CRAB_TEST_DRIVER` names it, and the host's configuration file says so to the shims;
//! a test that needs what a runtime lacks asks here, and looks for the clear word about it.
//! The file also says that each exec is a turn of its own, however fast tests are.

use std::{env, fs, path::Path, sync::Mutex, sync::PoisonError};

use anyhow::{Context, Result, bail};

/// Names a [`Driver`].
const VARIABLE: &str = "CRAB_TEST_DRIVER";

/// Where the shims look for what is configured.
const CONFIG: &str = "/etc/crab/config.toml";

/// So that an exec is a turn, also where the next one follows faster than any model answers,
/// and waits for as long as a capture takes on a machine however slow: for the configuration
/// of a test that counts turns.
pub const EACH_EXEC_A_TURN: &str =
    "[turns]\nmerge_gap_ms = 0\n[checkpoints]\nmax_gate_ms = 60000\n";

/// An OCI runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// runc, the default.
    Runc,
    /// crun.
    Crun,
    /// The one in the shim.
    BuiltIn,
}

impl Driver {
    /// What `runtime.binary` of the configuration calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Runc => "runc",
            Self::Crun => "crun",
            Self::BuiltIn => "builtin",
        }
    }

    /// Whether it can write an image of processes.
    pub fn dumps_processes(self) -> bool {
        self != Self::BuiltIn
    }

    /// Whether it can bring them back. If not, turns are labelled.
    pub fn keeps_processes(self) -> bool {
        match self {
            Self::Runc => true,
            // Not beside a cpuset of cgroup v1.
            Self::Crun => !fs::read_to_string("/proc/self/cgroup")
                .is_ok_and(|table| table.contains(":cpuset:")),
            Self::BuiltIn => false,
        }
    }

    /// That of this run, in force from the first call on.
    pub(crate) fn of_this_run() -> Result<Self> {
        static IN_FORCE: Mutex<Option<Driver>> = Mutex::new(None);
        let mut in_force = IN_FORCE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(driver) = *in_force {
            return Ok(driver);
        }
        let driver = match env::var(VARIABLE).as_deref() {
            Err(_) | Ok("" | "runc") => Self::Runc,
            Ok("crun") => Self::Crun,
            Ok("builtin") => Self::BuiltIn,
            Ok(other) => bail!("{VARIABLE} is {other:?}: no driver is called so"),
        };
        driver.configure(Path::new(CONFIG))?;
        *in_force = Some(driver);
        Ok(driver)
    }

    fn text(self) -> String {
        match self {
            Self::Runc => EACH_EXEC_A_TURN.to_owned(),
            _ => format!(
                "[runtime]\nbinary = \"{}\"\n{EACH_EXEC_A_TURN}",
                self.name()
            ),
        }
    }

    fn configure(self, file: &Path) -> Result<()> {
        let text = self.text();
        let of_tests = [Self::Runc, Self::Crun, Self::BuiltIn].map(Self::text);
        match fs::read_to_string(file) {
            Ok(there) if there == text => return Ok(()),
            // An earlier run's, over another driver.
            Ok(there) if of_tests.contains(&there) => {}
            // An installation's: it says what the tests without another driver need.
            Ok(_) if self == Self::Runc => return Ok(()),
            Ok(_) => bail!("{} is somebody else's", file.display()),
            Err(_) => {}
        }
        let dir = file.parent().context("a file in a directory")?;
        fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        fs::write(file, text).with_context(|| format!("write {}", file.display()))
    }
}
