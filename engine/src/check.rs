// SPDX-License-Identifier: Apache-2.0
//! `crabd --check`: whether the programs load and attach on this host, by
//! doing it, beside a crabd that may be running, and undoing it again.

use std::env;
use std::fs;

use anyhow::Context;
use crab_bpf::Tracer;
use rustix::mount::{UnmountFlags, unmount};

/// Tells which programs count here, or why none do.
pub(crate) fn check() -> anyhow::Result<&'static str> {
    // On no bpffs: one is mounted at it, and goes with it.
    let dir = env::temp_dir().join(format!("crabd-check-{}", std::process::id()));
    fs::create_dir(&dir).with_context(|| format!("create {}", dir.display()))?;
    let done = match Tracer::open(&dir) {
        Ok(tracer) => {
            let programs = tracer.programs().name();
            let undone = tracer.close_and_unpin().context("undo the check");
            undone.map(|()| programs)
        }
        Err(reason) => {
            // As far as it came: mounted or not.
            let _ = unmount(&dir, UnmountFlags::DETACH);
            Err(reason.into())
        }
    };
    match fs::remove_dir(&dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return done.and(Err(error).with_context(|| format!("remove {}", dir.display())));
        }
        _ => {}
    }
    done
}
