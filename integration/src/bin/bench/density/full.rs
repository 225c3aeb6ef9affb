// SPDX-License-Identifier: Apache-2.0

//! What there is without Crab: everything is saved at the end of each turn.
//!
//! It is what `ctr container checkpoint --rw --task` does under the stock shim, without what
//! that costs beside: no client's program, no compression, no copy into containerd's store, no
//! sync. The task is paused, runc has CRIU write an image of its processes, `tar` copies
//! the writable layer, the task goes on. As Crab does it, this is done while the model is waited
//! for, by as many at a time as there are processors, and only what is not over by then is
//! felt. Crab made to take a full checkpoint each time would not do: it would store what it has
//! stored already only once.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Condvar, Mutex, PoisonError, atomic::AtomicBool},
    thread,
    time::Instant,
};

use anyhow::{Context, Result, anyhow};
use containerd_shim_protos::{
    api::{CheckpointTaskRequest, Empty, PauseRequest, ResumeRequest},
    protobuf::{Message, MessageField, well_known_types::any::Any},
    shim::oci::CheckpointOptions,
};
use crab_integration::{Denied, Sandbox, ShimClient, Testbed, Tool, traces::Trace};

use super::{
    Plan,
    account::Account,
    fleet::{Fleet, Strategy, Times},
};
use crate::{
    figures::Measured,
    series::{Series, median},
};

/// On a disk, as checkpoints have to outlive the host.
const IMAGES: &str = "/var/lib/crab-bench-full";

/// What all members share.
pub(super) struct Budget {
    dumps: Mutex<usize>,
    freed: Condvar,
    saved: Mutex<Saved>,
}

#[derive(Default)]
struct Saved {
    processes: u64,
    files: u64,
    took: Series,
    failed: usize,
}

/// One sandbox.
pub(super) struct Member<'a> {
    budget: &'a Budget,
    shim: ShimClient,
    id: String,
    upper: PathBuf,
    dir: PathBuf,
}

/// What was written.
pub(super) struct Written {
    /// Of images of processes, in bytes.
    pub(super) processes: u64,
    /// Of archives of files.
    pub(super) files: u64,
    /// What compression would leave of it, as a part of it.
    pub(super) compressed: f64,
}

/// Plays all traces so.
pub(super) fn play(
    testbed: &Testbed,
    plan: &Plan,
    account: &Account,
    traces: &[Trace],
    measured: &mut Measured,
) -> Result<(Times, Written)> {
    let fleet = Fleet::start(testbed, Strategy::Full, traces)?;
    let budget = Budget {
        dumps: Mutex::new(thread::available_parallelism()?.get()),
        freed: Condvar::new(),
        saved: Mutex::default(),
    };
    let open = account.begin()?;
    let times = fleet.play_until(plan, &AtomicBool::new(false), Some(&budget))?;
    open.close()?.entered("full", measured);
    let saved = budget
        .saved
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    let written = Written {
        processes: saved.processes,
        files: saved.files,
        compressed: compressed()?,
    };
    let mut late = Series::default();
    times.0.iter().for_each(|replay| late.extend(&replay.late));
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    for (what, value) in [
        ("exposed, ms p50", late.quantile(0.5)),
        ("exposed, ms p99", late.quantile(0.99)),
        ("a checkpoint, ms p50", saved.took.quantile(0.5)),
        ("a checkpoint, ms p99", saved.took.quantile(0.99)),
        ("images of processes, MiB", mib(saved.processes)),
        ("copies of files, MiB", mib(saved.files)),
        ("checkpoints that failed", saved.failed as f64),
        (
            "what gzip -1 makes of the last ones, % of it",
            100.0 * written.compressed,
        ),
    ] {
        measured.detail(format!("full: {what}"), value);
    }
    fs::remove_dir_all(IMAGES).with_context(|| format!("remove {IMAGES}"))?;
    fleet.remove()?;
    Ok((times.entered("full", measured), written))
}

/// How much would be left if it were compressed, to be fair in the other direction.
fn compressed() -> Result<f64> {
    let mut parts = Vec::new();
    for dir in fs::read_dir(IMAGES).with_context(|| format!("read {IMAGES}"))? {
        let dir = dir?.path();
        let whole = length(&dir)?;
        let script = format!("tar -C '{}' -cf - . | gzip -1 | wc -c", dir.display());
        let small: f64 = Tool::new("sh")
            .args(["-c", &script])
            .run()?
            .text()?
            .parse()?;
        parts.push(small / whole.max(1) as f64);
    }
    Ok(median(&parts))
}

impl Budget {
    /// Gets ready to save a sandbox.
    pub(super) fn member(&self, sandbox: &Sandbox) -> Result<Member<'_>> {
        let dir = Path::new(IMAGES).join(sandbox.id());
        fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        Ok(Member {
            budget: self,
            shim: ShimClient::of(sandbox)?,
            id: sandbox.id().to_owned(),
            upper: sandbox.upper_dir()?,
            dir,
        })
    }

    fn acquire(&self) {
        let free = self.dumps.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.freed.wait_while(free, |free| *free == 0);
        *waited.unwrap_or_else(PoisonError::into_inner) -= 1;
    }

    fn release(&self) {
        *self.dumps.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.freed.notify_one();
    }
}

impl Member<'_> {
    /// Saves it as it is now. One that cannot be dumped costs what it costs, and is counted.
    pub(super) fn save(&mut self) -> Result<()> {
        self.budget.acquire();
        let began = Instant::now();
        let saved = self.checkpoint();
        let took = began.elapsed();
        self.budget.release();
        let mut all = self
            .budget
            .saved
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.took.push(took);
        match saved {
            Ok((processes, files)) => {
                all.processes += processes;
                all.files += files;
            }
            Err(error) => {
                all.failed += 1;
                if all.failed <= 3 {
                    eprintln!("full: {}: no checkpoint: {error:#}", self.id);
                }
            }
        }
        Ok(())
    }

    fn checkpoint(&self) -> Result<(u64, u64)> {
        let (new, work, tar) = (
            self.dir.join("new"),
            self.dir.join("work"),
            self.dir.join("files.tar"),
        );
        let options = CheckpointOptions {
            open_tcp: true,
            external_unix_sockets: true,
            terminal: true,
            file_locks: true,
            image_path: new.display().to_string(),
            work_path: work.display().to_string(),
            ..Default::default()
        };
        let request = CheckpointTaskRequest {
            id: self.id.clone(),
            path: new.display().to_string(),
            options: MessageField::some(Any {
                type_url: "containerd.runc.v1.CheckpointOptions".into(),
                value: options.write_to_bytes()?,
                ..Default::default()
            }),
            ..Default::default()
        };
        let pause = PauseRequest {
            id: self.id.clone(),
            ..Default::default()
        };
        let resume = ResumeRequest {
            id: self.id.clone(),
            ..Default::default()
        };
        // Of one that failed.
        let _ = fs::remove_dir_all(&new);
        fs::create_dir_all(&work)?;
        self.call("Pause", &pause)?;
        let dumped = self.call("Checkpoint", &request);
        let copied = Tool::new("tar")
            .args(["-C", &self.upper.display().to_string()])
            .args(["-cf", &tar.display().to_string(), "."])
            .run()
            .and_then(|said| said.ok());
        self.call("Resume", &resume)?;
        copied?;
        dumped?;
        let written = (length(&new)?, fs::metadata(&tar)?.len());
        // The newest is kept.
        let last = self.dir.join("last");
        let _ = fs::remove_dir_all(&last);
        fs::rename(&new, &last)?;
        Ok(written)
    }

    fn call(&self, method: &str, request: &impl Message) -> Result<()> {
        let denied = |denied: Denied| anyhow!("{method}: {}: {}", denied.code, denied.message);
        let answer = self.shim.call::<Empty>(method, request)?;
        answer.map(drop).map_err(denied)
    }
}

/// Of all files below a directory, together.
pub(crate) fn length(dir: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))? {
        let entry = entry?;
        // One may go meanwhile.
        let Ok(about) = entry.metadata() else {
            continue;
        };
        sum += match about.is_dir() {
            true => length(&entry.path())?,
            false => about.len(),
        };
    }
    Ok(sum)
}
