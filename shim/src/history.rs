// SPDX-License-Identifier: Apache-2.0
//! How a sandbox's history in the store goes on when its container is created.
//!
//! A container that is started again on the same writable layer continues its
//! history. One with another layer under the same name is another sandbox: the
//! older history is kept under a name of its own. A wish to be restored
//! (`crab restore`) is granted here, and files that an interrupted rollback left are put
//! back, before anything of the container runs. One that cannot be opened then may be so while
//! the container runs: [`late`].

mod late;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result, bail};
use crab_fault::Point;
use crab_runtime::{criu, files::Index, mount::MountRequest, oci::Runtime, rootfs::RootFs};
use crab_store::{
    Client, Digest, ImageLayers, JournalRecord, Limits, Manifest, ObjectReader, ProcessRef,
    RestoreRequest, RollbackBegun, SandboxMeta, SandboxStore, SandboxWriter, Store, TurnId, UPPER,
    layer_of,
};

pub(crate) use self::late::{Without, reopen};
use crate::{
    drift,
    pipes::{self, SharedPipe, announce},
    sandbox::{self, Container, make_private_dir, unix_ms},
    whole_root::{Before, Files, NewRoot},
};

/// For how long a start waits for whoever else writes to the sandbox's history.
const LOCKED: Duration = Duration::from_secs(10);
/// Docker's namespace in containerd.
const DOCKER: &str = "moby";

/// CRIU images, ready to be restored from.
pub(crate) struct Images {
    pub(crate) dir: PathBuf,
    pub(crate) pipes: Vec<SharedPipe>,
    /// They hold connections of another container, which are closed.
    pub(crate) ends_connections: bool,
    /// What is another here than where they were taken; to be said if they cannot be restored.
    pub(crate) drift: Option<String>,
}

impl Drop for Images {
    fn drop(&mut self) {
        // A copy, of no use once restored from.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Images {
    /// Those that a client has, laid out anew: what is the client's stays as it is.
    fn of_client(container: &Container, images: &Path) -> Result<Self> {
        let dir = container.run_dir.join("client-images");
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        make_private_dir(&dir)?;
        criu::lay_out(images, &dir, container.netns.is_some())?;
        let pipes = pipes::noted(images);
        announce(&pipes, &dir)?;
        Ok(Self {
            dir,
            pipes,
            ends_connections: false,
            drift: None,
        })
    }
}

/// How a container begins.
pub(crate) struct Beginning {
    /// CRIU images to restore from, instead of starting the program.
    pub(crate) images: Option<Images>,
    /// Where history is written; nothing if no checkpoint can be taken.
    pub(crate) ledger: Result<Ledger, Without>,
    /// What the container's root was mounted from.
    pub(crate) mounts: Vec<MountRequest>,
}

/// What is needed to write a sandbox's history.
pub(crate) struct Ledger {
    pub(crate) writer: SandboxWriter,
    pub(crate) root: RootFs,
    /// The checkpoint that the files were just restored from.
    pub(crate) restored: Option<Restored>,
}

/// A checkpoint that a container begins with.
pub(crate) struct Restored {
    pub(crate) request: RestoreRequest,
    pub(crate) manifest: Manifest,
    /// The index of the root, or of the upper directory, made before anything ran in it.
    pub(crate) upper: Index,
}

/// Opens the history of a container whose root is mounted. Whatever is missing
/// for checkpoints is a reason, not an error: the container runs without. A restore
/// that was asked for and cannot be done is an error, be it by `crab` or with images that
/// the client has.
pub(crate) fn open(
    container: &Container,
    mounts: &[MountRequest],
    client: Option<&Path>,
) -> Result<Beginning> {
    let mut request = None;
    let (ledger, mut images) = match begin(container, mounts, client, &mut request) {
        Ok((ledger, images)) => (ledger, images),
        Err(error) if request.is_none() => (Err(Without::because(&error)), None),
        Err(error) => return Err(error),
    };
    if let Some(client) = client {
        images = Some(Images::of_client(container, client)?);
    }
    Ok(Beginning {
        images,
        ledger,
        mounts: mounts.to_vec(),
    })
}

/// Keeps the history of another container that had the name.
fn retire(container: &Container, store: &Store, patience: Duration) -> Result<()> {
    let kept = store.retire_within(&container.id, patience)?;
    tracing::info!(sandbox = %container.id, %kept, "another container had this name; its history is kept");
    Ok(())
}

/// Says in the history whose it is, and finds out how that began.
fn claim(
    container: &Container,
    writer: &SandboxWriter,
    root: &RootFs,
    upper: String,
    mounts: &[MountRequest],
) -> Result<()> {
    writer.set_meta(&meta(container, root, upper, mounts))?;
    let began = writer.store().journal()?.records.into_iter().next();
    // Without the checkpoint, it is what an import that was killed has left.
    let begins_with_one = writer.store().manifest(TurnId(0))?.is_some();
    let is_copy = matches!(began, Some(JournalRecord::Fork(_))) && begins_with_one;
    let _ = container.is_copy.set(is_copy);
    Ok(())
}

fn begin(
    container: &Container,
    mounts: &[MountRequest],
    client: Option<&Path>,
    request: &mut Option<RestoreRequest>,
) -> Result<(Result<Ledger, Without>, Option<Images>)> {
    let config = &container.config;
    if !config.checkpoints.enabled {
        let by = if container.host.config.checkpoints.enabled {
            "by an annotation"
        } else {
            "in the configuration"
        };
        return Ok(without(format!("checkpoints are switched off {by}")));
    }
    if container.bundle.is_pause() {
        return Ok(without(
            "it only holds its pod open, and is never checkpointed",
        ));
    }
    let root = RootFs::find(container.bundle.rootfs())?;
    let store = Store::create(&config.store)?;
    apart(&root, &config.store)?;
    let upper = layer(&root, mounts);
    if let Ok(sandbox) = store.sandbox(&container.id) {
        *request = sandbox
            .restore_request()?
            // A copy that was begun and never came to be, and another container of its name.
            .filter(|request| !(request.fork && belongs_to_another(&sandbox, &upper)));
        if let (Some(request), Some(images)) = (&request, client) {
            bail!(
                "it cannot begin both as at turn {} (crab restore) and with {}",
                request.turn,
                images.display()
            );
        }
        if request.is_none() && belongs_to_another(&sandbox, &upper) {
            retire(container, &store, LOCKED)?;
        }
    }
    // A removal in the history of a sandbox that was gone (`crab gc`), or a repair, ends early.
    let writer = store.writer_within(&container.id, LOCKED)?;
    claim(container, &writer, &root, upper, mounts)?;
    let mut images = None;
    let restored = match *request {
        Some(request) => {
            let restored = grant(container, &writer, &root, request)
                .with_context(|| format!("restore turn {}", request.turn))?;
            images = restored.1;
            Some(restored.0)
        }
        None => {
            if let Some(rollback) = writer.store().rollback_begun()? {
                undo(container, &writer, &root, rollback).with_context(|| {
                    format!(
                        "the files are neither those of checkpoint {} nor those of checkpoint {}, \
                         as a rollback was interrupted, and could not be put back",
                        rollback.before, rollback.target
                    )
                })?;
            }
            None
        }
    };
    // One that is over, by the journal, may have left its note.
    writer.store().end_rollback()?;
    // The superblock is another if the root was mounted again.
    let root = RootFs::find(container.bundle.rootfs())?;
    let ledger = Ledger {
        writer,
        root,
        restored,
    };
    Ok((Ok(ledger), images))
}

fn without(reason: impl Into<String>) -> (Result<Ledger, Without>, Option<Images>) {
    (Err(Without::for_good(reason)), None)
}

fn belongs_to_another(sandbox: &SandboxStore, upper: &str) -> bool {
    match sandbox.meta() {
        Ok(Some(meta)) => meta.snapshot.get(UPPER).is_some_and(|u| u != upper),
        _ => false,
    }
}

/// Refuses a root in which the store lies: each checkpoint would hold those before it.
fn apart(root: &RootFs, store: &Path) -> Result<()> {
    let RootFs::Directory(root) = root else {
        return Ok(());
    };
    let (root, store) = (root.path().canonicalize()?, store.canonicalize()?);
    if store.starts_with(&root) {
        bail!(
            "rootfs {} holds the store, {}; set `store` to a directory outside of it",
            root.display(),
            store.display()
        );
    }
    Ok(())
}

/// What tells the writable layer of this container from any other.
fn layer(root: &RootFs, mounts: &[MountRequest]) -> String {
    match root {
        RootFs::Overlay(overlay) => overlay.upper.display().to_string(),
        RootFs::Directory(root) => mounts
            .first()
            .map(|mount| layer_of(&mount.kind, &mount.source, &mount.options))
            .unwrap_or_else(|| root.path().display().to_string()),
    }
}

fn meta(
    container: &Container,
    root: &RootFs,
    upper: String,
    mounts: &[MountRequest],
) -> SandboxMeta {
    let mut snapshot = BTreeMap::new();
    snapshot.insert(UPPER.into(), upper);
    if let Some(mount) = mounts.first() {
        snapshot.insert("mount".into(), mount.kind.clone());
    }
    SandboxMeta {
        client: if container.host.namespace == DOCKER {
            Client::Docker
        } else if container.bundle.is_of_pod() {
            Client::Kubernetes
        } else {
            Client::Containerd
        },
        name: container.bundle.annotations().name(),
        image: container.bundle.annotations().image(),
        bundle: container.bundle.dir().display().to_string(),
        created_ms: unix_ms(SystemTime::now()),
        snapshot,
        layers: layers(root),
        config_faults: container.config_faults.clone(),
        limits: own_limits(container),
    }
}

/// What the container itself says of how much is kept: who removes when it is gone does not
/// see its annotations.
fn own_limits(container: &Container) -> Limits {
    let (own, host) = (
        container.retention(),
        sandbox::limits(&container.host.config),
    );
    let said = |own: Option<u64>, host| own.filter(|_| own != host);
    Limits {
        count: said(own.count, host.count),
        age_ms: said(own.age_ms, host.age_ms),
        bytes: said(own.bytes, host.bytes),
    }
}

/// Where the image lies, for whoever wants to compare with it.
fn layers(root: &RootFs) -> Option<ImageLayers> {
    let overlay = match root {
        RootFs::Overlay(overlay) => overlay,
        // All that there is is in its checkpoints.
        RootFs::Directory(_) => return Some(ImageLayers::default()),
    };
    // Where some hold only data, the others do not say what is at a path.
    let whole = overlay.data_lowers.is_empty();
    let dirs = overlay.lowers.iter().map(PathBuf::as_path);
    whole.then(|| ImageLayers::new(dirs, overlay.user_xattr))
}

/// Whether the runtime can bring back what a checkpoint holds.
pub(crate) fn can_restore(runtime: &Runtime, manifest: &Manifest) -> Result<()> {
    if manifest.processes.is_some() {
        runtime
            .can_restore()
            .with_context(|| format!("the checkpoint of turn {} holds processes", manifest.turn))?;
    }
    Ok(())
}

/// Puts back the files of before a rollback that was interrupted.
fn undo(
    container: &Container,
    writer: &SandboxWriter,
    root: &RootFs,
    rollback: RollbackBegun,
) -> Result<()> {
    let sandbox = writer.store();
    let Some(manifest) = sandbox.manifest(rollback.before)? else {
        bail!("checkpoint {} is gone", rollback.before);
    };
    let reader = sandbox.reader(&manifest)?;
    let files = Files::of(&manifest, reader)?;
    let (old, _) = NewRoot::prepare(root, files, Before::default())?
        .put(container.bundle.rootfs())
        .map_err(|fell| fell.error)?;
    old.keep();
    tracing::warn!(
        before = rollback.before.0,
        target = rollback.target.0,
        "a rollback was interrupted; the files are those of before"
    );
    Ok(())
}

/// Puts the files of a checkpoint in place and its process image ready.
fn grant(
    container: &Container,
    writer: &SandboxWriter,
    root: &RootFs,
    request: RestoreRequest,
) -> Result<(Restored, Option<Images>)> {
    let sandbox = writer.store();
    let Some(manifest) = sandbox.manifest(request.checkpoint)? else {
        bail!("its checkpoint {} is gone", request.checkpoint);
    };
    can_restore(&container.runtime, &manifest)?;
    let reader = sandbox.reader(&manifest)?;
    let images = stage_processes(
        container,
        &manifest,
        &reader,
        &container.run_dir.join("restore-images"),
    )?;
    let files = Files::of(&manifest, reader)?;
    crab_fault::at(Point::RestoreStaged);
    let (old, upper) = NewRoot::prepare(root, files, Before::default())?
        .put(container.bundle.rootfs())
        .map_err(|fell| fell.error)?;
    old.keep();
    crab_fault::at(Point::RestoreExchanged);
    // Granted: the next start is an ordinary one.
    sandbox.take_restore_request()?;
    crab_fault::at(Point::RestoreGranted);
    let restored = Restored {
        request,
        manifest,
        upper,
    };
    Ok((restored, images))
}

/// Writes a checkpoint's process image, if it has one, into an empty directory
/// from which CRIU can restore it together with the checkpoint's files.
pub(crate) fn stage_processes(
    container: &Container,
    manifest: &Manifest,
    reader: &ObjectReader,
    dir: &Path,
) -> Result<Option<Images>> {
    let Some(processes) = manifest.processes else {
        return Ok(None);
    };
    let mut image = reader.process_image(processes.digest)?;
    if let Some(lacks) = image.lacking() {
        bail!("{lacks}");
    }
    let drift = drift::of(
        &image,
        &drift::Here {
            criu: container
                .criu()
                .map(|criu| criu.version)
                .unwrap_or_default(),
            runtime: container.runtime.driver().name.clone(),
        },
    );
    // What CRIU keeps of a tmpfs has no more than whole seconds of its times, and may be older
    // than the file image.
    let ours: Vec<(PathBuf, Digest)> = image
        .tmpfs_images
        .iter()
        .filter_map(|tmpfs| {
            let tree = manifest.files.tmpfs_at(&tmpfs.mount)?;
            Some((dir.join(&tmpfs.image), tree))
        })
        .collect();
    image
        .files
        .retain(|file| !ours.iter().any(|(path, _)| *path == dir.join(&file.name)));
    if dir.exists() {
        fs::remove_dir_all(dir)?;
    }
    make_private_dir(dir)?;
    criu::materialise(&image, reader, dir)?;
    if let Ok(criu) = container.criu() {
        criu::lock_nothing(&criu, dir)?;
    }
    let ends_connections = make_own(container, processes, dir)?;
    for (path, tree) in ours {
        let file =
            fs::File::create_new(&path).with_context(|| format!("write {}", path.display()))?;
        crab_runtime::files::write_tmpfs_archive(&reader.tree(tree)?, reader, file)?;
    }
    let pipes: Vec<SharedPipe> = match image.extra.get(PIPES) {
        Some(text) => serde_json::from_str(text)?,
        None => Vec::new(),
    };
    announce(&pipes, dir)?;
    Ok(Some(Images {
        dir: dir.to_path_buf(),
        pipes,
        ends_connections,
        drift,
    }))
}

/// Makes a laid out image one of this container, if it is another's whose copy this one began
/// as. Tells whether connections of that one are in it.
fn make_own(container: &Container, processes: ProcessRef, images: &Path) -> Result<bool> {
    // Those that were taken of the copy itself are of later turns.
    let is_anothers = container.is_copy.get() == Some(&true) && processes.turn == TurnId(0);
    if !is_anothers {
        return Ok(false);
    }
    let bundle = &container.bundle;
    let Some(cgroup) = bundle.cgroup_path(container.runtime.systemd_cgroup) else {
        bail!(
            "its processes cannot be kept from the cgroup of the original, because its own is not known"
        );
    };
    criu::move_cgroups(images, &cgroup)?;
    if let Some(name) = bundle.hostname() {
        criu::rename_host(images, name)?;
    }
    Ok(criu::holds_connections(images)?)
}

/// Where a process image notes the pipes that it shares with the shim.
pub(crate) const PIPES: &str = "pipes";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_in_which_the_store_lies_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (root, store) = (dir.path().join("root"), dir.path().join("root/var/crab"));
        fs::create_dir_all(&store).unwrap();
        let found = RootFs::find(&root).unwrap();
        let refused = apart(&found, &store).unwrap_err().to_string();
        assert!(refused.contains("holds the store"), "{refused}");
        assert!(apart(&found, dir.path()).is_ok());
    }
}
