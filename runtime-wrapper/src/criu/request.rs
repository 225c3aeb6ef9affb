// SPDX-License-Identifier: Apache-2.0
//! What a container's dump is asked for, as runc would ask.
//!
//! runc tells CRIU what of a container is not its own and is there again before a
//! restore: bind mounts, masked files, the network namespace that its configuration names
//! (`criu_linux.go`). Images that CRIU writes on this request are restored by
//! `runc restore`, so it is the same request, but for what [`Extent`] says. A container of
//! which that is not certain is refused, and is runc's to dump.

use std::{
    fs::{self, File},
    io,
    os::{fd::AsRawFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
};

use oci_spec::runtime::{LinuxNamespaceType, Mount, Spec};
use protobuf::EnumOrUnknown;
use rust_criu::rust_criu_protobuf::rpc::{Criu_cg_mode, Criu_opts, Ext_mount_map};
use rustix::fs::{CWD, Mode, OFlags};

use super::{
    covered::archives_covered,
    left_out::{LEFT_OUT, LeftOut},
    remainder::Remainder,
};
use crate::{
    foreign,
    in_root::{Links, open_in_root},
    mount::{self, MountPoint},
    oci::{CgroupsMode, CheckpointOptions},
};

/// The list of what the init has had for its stdio from the start, in an image.
pub const DESCRIPTORS: &str = "descriptors.json";
/// Where CRIU is configured for runc, unless an annotation says otherwise.
const CONFIG_FILE: &str = "/etc/criu/runc.conf";
const CONFIG_ANNOTATION: &str = "org.criu.config";
/// The largest file of runc's or of a bundle's that is read.
const MAX_FILE: usize = 16 << 20;

/// How much of a container CRIU itself shall see to.
#[derive(Debug, Clone, Default)]
pub struct Extent {
    /// The memory-backed mounts whose content it shall not archive.
    pub left_out: Vec<LeftOut>,
    /// No TCP connection has to be kept from moving on, and all processes are in the init's
    /// network namespace: that is left alone.
    pub no_connections: bool,
    /// How large an open file may be that has no name any more: it goes into the image.
    pub nameless_file_limit: u32,
}

/// One container, as its runtime keeps it.
pub(crate) struct Request<'a> {
    pub(crate) bundle: &'a Path,
    /// Where the runtime keeps its state.
    pub(crate) state: PathBuf,
    pub(crate) init: i32,
    /// The directory of the freezer.
    pub(crate) freezer: &'a Path,
}

/// What CRIU is asked.
pub(crate) struct Asked {
    pub(super) options: Criu_opts,
    /// The network namespace that CRIU shall be in.
    pub(super) network: Option<File>,
    /// The content of [`DESCRIPTORS`].
    pub(crate) descriptors: Vec<u8>,
    /// What is left to do afterwards.
    pub(super) remainder: Remainder,
    /// See [`Begun::leaves_files_alone`](super::Begun::leaves_files_alone).
    pub(super) leaves_files_alone: bool,
}

impl Request<'_> {
    /// The request, or why runc has to be asked.
    pub(crate) fn build(
        &self,
        options: &CheckpointOptions,
        extent: Extent,
    ) -> Result<Asked, String> {
        let spec = Spec::load(self.bundle.join("config.json"))
            .map_err(|error| format!("its configuration cannot be read: {error}"))?;
        let table = fs::read(format!("/proc/{}/mountinfo", self.init))
            .map_err(|error| format!("its mounts cannot be read: {error}"))?;
        let rootfs = self.rootfs(&spec)?;
        let mut wanted = Criu_opts {
            pid: Some(self.init),
            root: Some(text(&rootfs)?),
            leave_running: Some(options.leave_running),
            tcp_established: Some(options.tcp_established),
            ext_unix_sk: Some(options.ext_unix_sk),
            file_locks: Some(options.file_locks),
            shell_job: Some(options.shell_job),
            orphan_pts_master: Some(true),
            manage_cgroups: Some(true),
            manage_cgroups_mode: Some(EnumOrUnknown::new(cgroups_mode(options.cgroups))),
            freeze_cgroup: Some(text(self.freezer)?),
            ghost_limit: Some(extent.nameless_file_limit),
            config_file: config_file(&spec),
            ..Criu_opts::default()
        };
        if options.empty_network {
            wanted.empty_ns = Some(libc::CLONE_NEWNET as u32);
        }
        let mut network = None;
        if let Some(netns) = named_network(&spec)? {
            let fail = |error| format!("open {}: {error}", netns.display());
            let file = File::open(&netns).map_err(fail)?;
            if extent.no_connections {
                network = Some(file);
            } else {
                let inode = file.metadata().map_err(fail)?.ino();
                wanted.external.push(format!("net[{inode}]:extRootNetNS"));
            }
        }
        let mut external = |at: &Path, value: Option<&str>| -> Result<(), String> {
            let key = key(at)?;
            wanted.ext_mnt.push(Ext_mount_map {
                val: Some(value.unwrap_or(&key).into()),
                key: Some(key),
                ..Ext_mount_map::default()
            });
            Ok(())
        };
        let points = mount::mount_points(&table);
        for mount in spec.mounts().iter().flatten() {
            if is_bind(mount) {
                external(&in_root(&rootfs, mount.destination())?, None)?;
            } else if mount.typ().as_deref() == Some("cgroup") {
                for at in v1_controllers(&points, mount.destination()) {
                    external(at, None)?;
                }
            }
        }
        for path in masked_files(&spec, self.init)? {
            external(Path::new(&path), Some("/dev/null"))?;
        }
        for left_out in &extent.left_out {
            external(left_out.at(), Some(LEFT_OUT))?;
        }
        let external: Vec<&Path> = wanted
            .ext_mnt
            .iter()
            .map(|it| Path::new(it.key()))
            .collect();
        Ok(Asked {
            leaves_files_alone: !archives_covered(&points, &external),
            descriptors: self.descriptors()?,
            remainder: Remainder {
                left_out: extent.left_out,
                network: network.is_some(),
            },
            network,
            options: wanted,
        })
    }

    fn rootfs(&self, spec: &Spec) -> Result<PathBuf, String> {
        let root = spec
            .root()
            .as_ref()
            .ok_or("its configuration has no root")?;
        let path = self.bundle.join(root.path());
        fs::canonicalize(&path).map_err(|error| format!("read {}: {error}", path.display()))
    }

    /// What runc noted of the init's descriptors when it made the container.
    fn descriptors(&self) -> Result<Vec<u8>, String> {
        let path = self.state.join("state.json");
        let read = || -> io::Result<Vec<u8>> {
            let state: serde_json::Value =
                serde_json::from_slice(&foreign::read(&path, MAX_FILE)?)?;
            let noted: Vec<String> = serde_json::from_value(state["external_descriptors"].clone())?;
            Ok(serde_json::to_vec(&noted)?)
        };
        read().map_err(|error| format!("read {}: {error}", path.display()))
    }
}

/// CRIU's options are text.
fn text(path: &Path) -> Result<String, String> {
    let text = path.to_str().map(str::to_string);
    text.ok_or_else(|| format!("CRIU cannot be told of {}", path.display()))
}

/// The key of an external mount, which CRIU puts before a colon and in brackets.
pub(super) fn key(at: &Path) -> Result<String, String> {
    let key = text(at)?;
    if key.contains([']', ':']) {
        return Err(format!("CRIU cannot be told of {key}"));
    }
    Ok(key)
}

/// The runtimes' own choice is `soft`.
fn cgroups_mode(mode: Option<CgroupsMode>) -> Criu_cg_mode {
    match mode {
        None | Some(CgroupsMode::Soft) => Criu_cg_mode::SOFT,
        Some(CgroupsMode::Full) => Criu_cg_mode::FULL,
        Some(CgroupsMode::Strict) => Criu_cg_mode::STRICT,
        Some(CgroupsMode::Ignore) => Criu_cg_mode::IGNORE,
    }
}

fn config_file(spec: &Spec) -> Option<String> {
    let annotated = spec
        .annotations()
        .as_ref()
        .and_then(|all| all.get(CONFIG_ANNOTATION));
    match annotated {
        Some(none) if none.is_empty() => None,
        Some(path) => Some(path.clone()),
        None => Some(CONFIG_FILE.into()),
    }
}

/// The network namespace that the configuration names, if it names one.
fn named_network(spec: &Spec) -> Result<Option<PathBuf>, String> {
    let linux = spec.linux().as_ref().ok_or("it is not of Linux")?;
    let mut named = None;
    for namespace in linux.namespaces().iter().flatten() {
        match (namespace.typ(), namespace.path()) {
            (LinuxNamespaceType::User, _) => return Err("it has a user namespace".into()),
            (LinuxNamespaceType::Pid, Some(_)) => {
                return Err("it shares a process namespace".into());
            }
            (LinuxNamespaceType::Network, path) => named.clone_from(path),
            _ => {}
        }
    }
    Ok(named)
}

/// Whatever type it claims: runc looks at the options as well.
fn is_bind(mount: &Mount) -> bool {
    mount.typ().as_deref() == Some("bind")
        || mount
            .options()
            .iter()
            .flatten()
            .any(|option| matches!(option.as_str(), "bind" | "rbind"))
}

/// runc mounts the controllers of cgroup v1 from outside, each by itself.
fn v1_controllers<'a>(points: &'a [MountPoint], at: &'a Path) -> impl Iterator<Item = &'a Path> {
    points
        .iter()
        .filter(move |point| point.kind == "cgroup" && point.at.parent() == Some(at))
        .map(|point| point.at.as_path())
}

/// What the container's configuration hides behind `/dev/null`; a directory is hidden
/// behind an empty tmpfs.
fn masked_files(spec: &Spec, init: i32) -> Result<Vec<String>, String> {
    let masked = spec
        .linux()
        .as_ref()
        .and_then(|linux| linux.masked_paths().as_ref());
    let root = open_root(Path::new(&format!("/proc/{init}/root")))?;
    let mut files = Vec::new();
    for path in masked.into_iter().flatten() {
        let found = open_in_root(&root, path.as_str(), OFlags::PATH, Links::Followed);
        match found.and_then(rustix::fs::fstat) {
            Ok(stat) if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() => {}
            Ok(_) => files.push(path.clone()),
            Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(format!("read {path}: {error}")),
        }
    }
    Ok(files)
}

fn open_root(path: &Path) -> Result<rustix::fd::OwnedFd, String> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
        .map_err(|error| format!("open {}: {error}", path.display()))
}

/// Where a path of the configuration leads within the root, as runc resolves it: by links
/// as far as there is something, and on by names.
fn in_root(rootfs: &Path, path: &Path) -> Result<PathBuf, String> {
    let root = open_root(rootfs)?;
    let mut beyond = Vec::new();
    let mut known = path;
    loop {
        let found = open_in_root(&root, known, OFlags::PATH, Links::Followed);
        match (found, known.parent(), known.file_name()) {
            (Ok(found), _, _) => {
                let link = format!("/proc/self/fd/{}", found.as_raw_fd());
                let real = fs::read_link(&link).map_err(|error| format!("read {link}: {error}"))?;
                let inside = real
                    .strip_prefix(rootfs)
                    .map_err(|_| format!("{} is not below its root", real.display()))?;
                let mut at = Path::new("/").join(inside);
                at.extend(beyond.iter().rev());
                return Ok(at);
            }
            (Err(rustix::io::Errno::NOENT), Some(parent), Some(name)) => {
                beyond.push(name.to_os_string());
                known = parent;
            }
            (Err(error), ..) => return Err(format!("open {}: {error}", path.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(value: &serde_json::Value) -> Spec {
        serde_json::from_value(value.clone()).unwrap()
    }

    #[test]
    fn links_are_followed_as_runc_follows_them() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("run/lock")).unwrap();
        fs::create_dir(root.join("var")).unwrap();
        std::os::unix::fs::symlink("/run", root.join("var/run")).unwrap();
        let at = |path: &str| in_root(&root, Path::new(path)).unwrap();
        assert_eq!(at("/etc/hosts"), Path::new("/etc/hosts"));
        assert_eq!(at("/var/run/lock"), Path::new("/run/lock"));
        assert_eq!(at("/var/run/none/x"), Path::new("/run/none/x"));
        assert_eq!(at("/"), Path::new("/"));
    }

    #[test]
    fn what_is_not_certain_is_runcs() {
        let of = |namespaces: serde_json::Value| {
            let whole = json!({"ociVersion": "1.1.0", "linux": {"namespaces": namespaces}});
            named_network(&spec(&whole))
        };
        assert_eq!(of(json!([{"type": "pid"}, {"type": "network"}])), Ok(None));
        let named = of(json!([{"type": "network", "path": "/run/x"}]));
        assert_eq!(named, Ok(Some("/run/x".into())));
        assert!(of(json!([{"type": "user"}])).is_err());
        assert!(of(json!([{"type": "pid", "path": "/proc/1/ns/pid"}])).is_err());
    }

    #[test]
    fn a_bind_mount_is_known_by_its_options_too() {
        let mount = |value: serde_json::Value| -> Mount { serde_json::from_value(value).unwrap() };
        for (value, bind) in [
            (json!({"destination": "/a", "type": "bind"}), true),
            (
                json!({"destination": "/a", "type": "none", "options": ["rbind", "ro"]}),
                true,
            ),
            (
                json!({"destination": "/a", "type": "tmpfs", "options": ["ro"]}),
                false,
            ),
        ] {
            assert_eq!(is_bind(&mount(value.clone())), bind, "{value}");
        }
    }

    #[test]
    fn criu_is_configured_as_for_runc() {
        let of = |annotations: serde_json::Value| {
            config_file(&spec(
                &json!({"ociVersion": "1.1.0", "annotations": annotations}),
            ))
        };
        assert_eq!(of(json!({})).as_deref(), Some(CONFIG_FILE));
        assert_eq!(of(json!({CONFIG_ANNOTATION: ""})), None);
        assert_eq!(of(json!({CONFIG_ANNOTATION: "/x"})).as_deref(), Some("/x"));
    }

    #[test]
    fn what_criu_would_misread_is_not_told() {
        assert!(key(Path::new("/a b")).is_ok());
        assert!(key(Path::new("/a]b")).is_err());
        assert!(text(Path::new("/a]b")).is_ok());
    }
}
