// SPDX-License-Identifier: Apache-2.0

//! Where the roots of these tests are.

use std::path::{Path, PathBuf};

use anyhow::Result;
use crab_integration::{BUSYBOX, RunOptions, Sandbox, Testbed, Tool};

/// What a container's root is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place<'a> {
    /// A snapshot of this snapshotter.
    Snapshotter(&'a str),
    /// A directory.
    Directory(&'a Path),
}

impl Place<'_> {
    pub(crate) fn run(self, testbed: &Testbed, options: RunOptions) -> Result<Sandbox> {
        let options = match self {
            Self::Snapshotter(name) => options.flags(["--snapshotter", name]),
            // It has no image to say so.
            Self::Directory(dir) => options.rootfs(dir).env("PATH", "/bin"),
        };
        testbed.ctr().run(BUSYBOX, options)
    }
}

/// A directory with busybox in it, on a disk; gone when it is dropped.
pub(crate) fn directory() -> Result<tempfile::TempDir> {
    let dir = tempfile::Builder::new()
        .prefix("rootfs-")
        .tempdir_in(Path::new("/var/lib/containerd"))?;
    let script = r#"cd "$1" && chmod 755 . && mkdir bin dev proc sys etc root tmp run &&
        cp "$(command -v busybox)" bin/busybox &&
        for applet in $(bin/busybox --list); do [ -e bin/$applet ] || ln -s busybox bin/$applet; done"#;
    let path = dir.path().display().to_string();
    Tool::new("sh")
        .args(["-c", script, "sh", &path])
        .run()?
        .ok()?;
    Ok(dir)
}

/// The root of a sandbox as the host has it, whatever is mounted in the sandbox.
pub(crate) fn on_host(place: Place<'_>, sandbox: &Sandbox) -> PathBuf {
    match place {
        Place::Snapshotter(_) => sandbox.bundle().join("rootfs"),
        Place::Directory(dir) => dir.to_path_buf(),
    }
}
