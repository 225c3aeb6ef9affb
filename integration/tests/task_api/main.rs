// SPDX-License-Identifier: Apache-2.0

//! The Task API, call by call: the tests that the rows of `docs/task-api.md` name. Where it
//! can be, each asks containerd's own shim the same and compares the answers.

mod alone;
mod answers;
mod calls;
mod compare;
mod hard;
mod metrics;
mod oom;
mod options;
mod overlapping;
mod stdio_uris;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context, Result};
use crab_integration::{BUSYBOX, RunOptions, Runtime, Sandbox, Testbed, Tool};

use crate::calls::Calls;

const LIMIT: Duration = Duration::from_secs(30);

const BOTH: [Runtime; 2] = [Runtime::Stock, Runtime::Crab];

/// Plays a scene with an idle container of each shim, containerd's own first.
fn under_both(mut scene: impl FnMut(Runtime, &Sandbox, &Calls) -> Result<()>) -> Result<()> {
    let testbed = Testbed::here()?;
    for runtime in BOTH {
        let options = RunOptions::new().runtime(runtime);
        let sandbox = testbed.ctr().run(BUSYBOX, options)?;
        scene(runtime, &sandbox, &Calls::of(&sandbox)?)
            .with_context(|| format!("{runtime:?}, {}", sandbox.id()))?;
    }
    Ok(())
}

fn shell(script: &str) -> RunOptions {
    RunOptions::new().args(["sh", "-c", script])
}

/// A directory of the host, removed with what is in it when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = env::temp_dir().join(format!("crab-task-api-{}-{n}", process::id()));
        fs::create_dir(&dir)?;
        Ok(Self(dir))
    }

    fn path(&self) -> &Path {
        &self.0
    }

    /// A FIFO in it.
    fn fifo(&self, name: &str) -> Result<PathBuf> {
        let path = self.0.join(name);
        Tool::new("mkfifo")
            .args([path.display().to_string()])
            .run()?
            .ok()?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
