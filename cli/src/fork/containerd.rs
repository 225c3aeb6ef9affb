// SPDX-License-Identifier: Apache-2.0

//! Copies of a container that a client of containerd's own API has made.
//!
//! ```text
//! the record under a new name -> a new snapshot on the same image -> (the store) -> task: Create, Start
//! ```
//! The record comes first: a name that is taken ends it before anything else is there, and a
//! snapshot that a record names is never collected.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use crab_store::{SandboxId, layer_of};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::{maker::Draft, spec};
use crate::containerd::{Container, Containerd, Mount, Refusal, Stdio};

/// Where clients of containerd put the FIFOs of a task.
const FIFOS: &str = "/run/containerd/fifo";
/// By which nerdctl says where it keeps what belongs to one container alone.
const NERDCTL: &str = "nerdctl/state-dir";

/// An original, and what its copies are made of.
pub(super) struct Original {
    api: Containerd,
    id: SandboxId,
    record: Container,
    /// The snapshot of the image.
    base: String,
    has_stdin: bool,
    terminal: bool,
}

/// What only containerd knows of a draft.
pub(super) struct Parts {
    snapshotter: String,
    rootfs: Vec<Mount>,
    fifos: PathBuf,
}

impl Original {
    pub(super) async fn find(id: &SandboxId) -> Result<Self, String> {
        let api = Containerd::connect(id.namespace()).await?;
        let record =
            api.container(id.id())
                .await
                .map_err(|refusal| match refusal.is_not_found() {
                    true => {
                        "containerd has no such container any more, and a copy needs its record"
                            .to_owned()
                    }
                    false => refusal.to_string(),
                })?;
        if record.labels.contains_key(NERDCTL) {
            return Err("nerdctl keeps files and a network of its own for each container".into());
        }
        if record.snapshot_key.is_empty() {
            return Err("its root is no snapshot of containerd's".into());
        }
        let (snapshotter, key) = (&record.snapshotter, &record.snapshot_key);
        let base = api.parent_of_snapshot(snapshotter, key).await?;
        let process = api.process(id.id()).await?.unwrap_or_default();
        Ok(Self {
            api,
            id: id.clone(),
            record,
            base,
            has_stdin: !process.stdin.is_empty(),
            terminal: process.terminal,
        })
    }

    pub(super) fn name(&self) -> &str {
        self.id.id()
    }

    pub(super) async fn taken(&self) -> Result<BTreeSet<String>, String> {
        Ok(self.api.container_ids().await?.into_iter().collect())
    }

    pub(super) async fn create(&self, name: &str) -> Result<Draft, String> {
        let id = SandboxId::new(self.id.namespace(), name).map_err(|error| error.to_string())?;
        let mut record = Container {
            id: name.into(),
            snapshot_key: name.into(),
            created_at: None,
            updated_at: None,
            ..self.record.clone()
        };
        if let Some(spec) = &mut record.spec {
            spec.value = spec::of_copy(&spec.value, self.id.id(), name)?;
        }
        let snapshotter = record.snapshotter.clone();
        self.api.create_container(record).await?;
        let prepared = self
            .api
            .prepare_snapshot(&snapshotter, name, &self.base)
            .await;
        let rootfs = match prepared {
            Ok(rootfs) => rootfs,
            Err(refusal) => {
                // A snapshot of that name is somebody else's.
                let _ = self.api.delete_container(name).await;
                return Err(refusal.into());
            }
        };
        let layer = |mount: &Mount| layer_of(&mount.kind, &mount.source, &mount.options);
        let upper = rootfs.first().map(layer);
        Ok(Draft {
            id,
            name: name.to_owned(),
            upper,
            parts: Some(Parts {
                snapshotter,
                fifos: fifos_of(name),
                rootfs,
            }),
        })
    }

    /// Creates and starts its task; gives the process.
    pub(super) async fn start(&self, draft: &Draft) -> Result<u32, String> {
        let parts = draft.parts.as_ref().ok_or("it has no snapshot")?;
        let stdio = self.stdio(&parts.fifos, &draft.name).map_err(|error| {
            let dir = parts.fifos.display();
            format!("cannot make its FIFOs in {dir}: {error}")
        })?;
        let rootfs = parts.rootfs.clone();
        self.api.create_task(&draft.name, rootfs, stdio).await?;
        Ok(self.api.start_task(&draft.name).await?)
    }

    /// Takes everything of a draft away again, whatever of it is there.
    pub(super) async fn undo(&self, draft: &Draft) -> Result<(), String> {
        let name = &draft.name;
        let mut done = self.api.end_task(name).await;
        if let Some(parts) = &draft.parts {
            let removed = self.api.remove_snapshot(&parts.snapshotter, name).await;
            done = done.and(unless_gone(removed));
            let _ = fs::remove_dir_all(&parts.fifos);
        }
        let deleted = self.api.delete_container(name).await;
        done.and(unless_gone(deleted)).map_err(String::from)
    }

    pub(super) async fn pause(&self, name: &str) -> Result<(), String> {
        Ok(self.api.pause_task(name).await?)
    }

    pub(super) async fn resume(&self, name: &str) -> Result<(), String> {
        Ok(self.api.resume_task(name).await?)
    }

    /// What belongs to a copy that another process has made.
    pub(super) fn parts_of(&self, name: &str) -> Parts {
        let dirs = fs::read_dir(FIFOS).into_iter().flatten().flatten();
        let mut dirs = dirs.filter(|dir| {
            let dir = dir.file_name();
            let maker = dir.to_str().and_then(|dir| dir.strip_prefix("crab-"));
            let of = maker.and_then(|maker| maker.split_once('-'));
            of.is_some_and(|(_, of)| of == name)
        });
        let fifos = dirs.next().map(|dir| dir.path());
        Parts {
            snapshotter: self.record.snapshotter.clone(),
            fifos: fifos.unwrap_or_else(|| fifos_of(name)),
            rootfs: Vec::new(),
        }
    }

    /// FIFOs as `ctr` makes them, so that `ctr task attach` finds them.
    fn stdio(&self, dir: &Path, name: &str) -> rustix::io::Result<Stdio> {
        fs::create_dir_all(dir).map_err(|error| {
            rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO)
        })?;
        let fifo = |stream: &str| -> rustix::io::Result<String> {
            let path = dir.join(format!("{name}-{stream}"));
            mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o700), 0)?;
            Ok(path.display().to_string())
        };
        let mut stdio = Stdio {
            stdout: fifo("stdout")?,
            terminal: self.terminal,
            ..Stdio::default()
        };
        if self.has_stdin || self.terminal {
            stdio.stdin = fifo("stdin")?;
        }
        if !self.terminal {
            stdio.stderr = fifo("stderr")?;
        }
        Ok(stdio)
    }
}

/// What is not there need not be taken away.
fn unless_gone(done: Result<(), Refusal>) -> Result<(), Refusal> {
    match done {
        Err(refusal) if refusal.is_not_found() => Ok(()),
        done => done,
    }
}

/// Where this process puts the FIFOs of a copy.
fn fifos_of(name: &str) -> PathBuf {
    Path::new(FIFOS).join(format!("crab-{}-{name}", std::process::id()))
}
