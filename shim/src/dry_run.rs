// SPDX-License-Identifier: Apache-2.0
//! What a checkpoint of a sandbox could hold now. Nothing is changed or frozen for that.

use anyhow::{Context, Result};
use crab_runtime::procs::{KeepAlive, Set};
use crab_store::Class;

use crate::{
    capture::{Purpose, can_dump, left_out},
    sandbox::Container,
};

/// What could be held.
pub(crate) struct DryRun {
    pub(crate) class: Class,
    pub(crate) reason: String,
    pub(crate) obstacles: Vec<String>,
    pub(crate) left_out: Option<String>,
}

impl DryRun {
    /// Finds out. It takes some milliseconds, and CRIU may have to be asked whether it works.
    pub(crate) fn of(container: &Container) -> Result<Self> {
        let cgroup = container.cgroup().context("the container has no cgroup")?;
        let init = container.processes.init()?.pid();
        let keep_alive = KeepAlive::for_command(init, container.bundle.args());
        let living = Set::of(&cgroup, keep_alive.as_ref())?;
        if living.is_empty() {
            return Ok(Self {
                class: Class::Full,
                reason: "its init only holds it open: starting that again restores it".into(),
                obstacles: Vec::new(),
                left_out: None,
            });
        }
        Ok(match can_dump(container, &cgroup, init, Purpose::History) {
            Ok(criu) => Self {
                class: Class::Full,
                reason: format!("CRIU {} is thought to hold its processes", criu.version),
                obstacles: Vec::new(),
                left_out: left_out(&Set::of(&cgroup, None)?, init),
            },
            Err(obstacles) => Self {
                class: Class::Files,
                reason: "its processes cannot be kept".into(),
                obstacles,
                left_out: None,
            },
        })
    }
}
