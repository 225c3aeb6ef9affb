// SPDX-License-Identifier: Apache-2.0
//! The bundle: the directory and `config.json` that containerd hands over.
//!
//! The specification is read with the OCI types and changed as plain JSON, so
//! that fields which this version does not know survive. As containerd wrote it,
//! it stays beside as `config.crab.json`: a rollback starts from it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use crab_runtime::{hooks, reaper::Reaper};
use oci_spec::runtime::{LinuxNamespaceType, Spec};
use serde_json::{Value, json};

use crate::pod::{Annotations, Place};

/// The specification as the client gave it.
pub(crate) const ORIGINAL: &str = "config.crab.json";
/// The specification that the runtime reads.
pub(crate) const CONFIG: &str = "config.json";

/// A container's bundle.
#[derive(Debug, Clone)]
pub(crate) struct Bundle {
    dir: PathBuf,
    rootfs: PathBuf,
    args: Vec<String>,
    /// A network namespace of the container's own is asked for.
    own_netns: bool,
    own_pidns: bool,
    own_ipcns: bool,
    mounts: Vec<PathBuf>,
    by_systemd: bool,
    annotations: Annotations,
    /// Where the cgroup is, if not where the specification says.
    cgroup: Option<String>,
    /// Where the specification says that it is.
    cgroups_path: Option<String>,
    hostname: Option<String>,
    original: Vec<u8>,
}

impl Bundle {
    /// Reads the bundle in `dir`.
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        let config = dir.join(CONFIG);
        let original = fs::read(&config).with_context(|| format!("read {}", config.display()))?;
        let spec: Spec = serde_json::from_slice(&original)
            .with_context(|| format!("parse {}", config.display()))?;
        let rootfs = spec
            .root()
            .as_ref()
            .map_or_else(|| PathBuf::from("rootfs"), |root| root.path().clone());
        let namespaces = spec
            .linux()
            .as_ref()
            .and_then(|linux| linux.namespaces().clone())
            .unwrap_or_default();
        let has_user_ns = namespaces
            .iter()
            .any(|ns| ns.typ() == LinuxNamespaceType::User);
        let has_own = |kind| {
            let mut all = namespaces.iter();
            all.any(|ns| ns.typ() == kind && ns.path().is_none())
        };
        // In a user namespace the network namespace must belong to it; the
        // runtime then makes it as ever.
        let own_netns = !has_user_ns && has_own(LinuxNamespaceType::Network);
        let cgroups_path = spec
            .linux()
            .as_ref()
            .and_then(|linux| linux.cgroups_path().as_deref()?.to_str())
            .map(str::to_owned);
        let by_systemd = cgroups_path.as_deref().is_some_and(is_unit);
        let mounts = spec.mounts().iter().flatten();
        let mounts = mounts.map(|mount| mount.destination().clone()).collect();
        let args = spec
            .process()
            .as_ref()
            .and_then(|process| process.args().clone())
            .unwrap_or_default();
        Ok(Self {
            dir: dir.to_path_buf(),
            rootfs: if rootfs.is_absolute() {
                rootfs
            } else {
                dir.join(rootfs)
            },
            args,
            own_netns,
            own_pidns: has_own(LinuxNamespaceType::Pid),
            own_ipcns: has_own(LinuxNamespaceType::Ipc),
            mounts,
            by_systemd,
            annotations: Annotations::of(&original),
            cgroup: None,
            cgroups_path,
            hostname: spec.hostname().clone().filter(|name| !name.is_empty()),
            original,
        })
    }

    /// The bundle's directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The container's root.
    pub(crate) fn rootfs(&self) -> &Path {
        &self.rootfs
    }

    /// The init's command.
    pub(crate) fn args(&self) -> &[String] {
        &self.args
    }

    /// The specification as the client gave it, byte for byte.
    pub(crate) fn original(&self) -> &[u8] {
        &self.original
    }

    /// What its client says of it beside the specification proper.
    pub(crate) fn annotations(&self) -> &Annotations {
        &self.annotations
    }

    /// Whether its cgroup is to be made by systemd. dockerd, for one, says so only to
    /// the shim that it knows, by an option; every shim sees it in the path. Where no
    /// systemd runs, such a path is an odd name for a directory, to runc as well: the CRI
    /// makes it of a pod's slice, whoever manages cgroups.
    pub(crate) fn wants_systemd_cgroup(&self) -> bool {
        self.by_systemd && Path::new(SYSTEMD_RUNS).is_dir()
    }

    /// Whether the container asks for a network namespace of its own.
    pub(crate) fn wants_own_netns(&self) -> bool {
        self.own_netns
    }

    /// Whether the container has a process namespace that nobody shares: not the
    /// host's, and not its pod's.
    pub(crate) fn has_own_processes(&self) -> bool {
        self.own_pidns
    }

    /// The same for System V IPC.
    pub(crate) fn has_own_ipc(&self) -> bool {
        self.own_ipcns
    }

    /// Where the specification asks for mounts.
    pub(crate) fn mounts(&self) -> &[PathBuf] {
        &self.mounts
    }

    /// Whether the container only holds its pod open.
    pub(crate) fn is_pause(&self) -> bool {
        self.annotations.place() == Some(Place::Pause)
    }

    /// Whether it is a container of a pod.
    pub(crate) fn is_of_pod(&self) -> bool {
        self.annotations.place().is_some()
    }

    /// Undoes [`Self::write_config`]: the bundle is as the client made it.
    pub(crate) fn put_back(&self) -> Result<()> {
        let original = self.dir.join(ORIGINAL);
        if original.exists() {
            fs::rename(&original, self.dir.join(CONFIG))
                .with_context(|| format!("put {} back", original.display()))?;
        }
        Ok(())
    }

    /// The container begins with a checkpoint of another, whose specification it has. What
    /// would be in that one's cgroup, while it is there, gets one of its own: runc from 1.2 on
    /// refuses the other's, and earlier ones have both be limited, counted and frozen as one.
    pub(crate) fn leave_cgroup_of_another(
        &mut self,
        namespace: &str,
        id: &str,
        is_in_use: impl FnOnce(&str) -> bool,
    ) -> Result<()> {
        let spec: Value = serde_json::from_slice(&self.original)?;
        // As containerd's client names it.
        let of_another = spec
            .pointer("/linux/cgroupsPath")
            .and_then(Value::as_str)
            .filter(|path| {
                path.strip_prefix('/')
                    .and_then(|path| path.strip_prefix(namespace)?.strip_prefix('/'))
                    .is_some_and(|name| name != id && !name.contains('/'))
            })
            .is_some_and(is_in_use);
        if of_another {
            self.cgroup = Some(format!("/{namespace}/{id}"));
        }
        Ok(())
    }

    /// The host name that the container is to have, if its client says one.
    pub(crate) fn hostname(&self) -> Option<&str> {
        self.hostname.as_deref()
    }

    /// Where the container's cgroup is in every hierarchy, as the runtime makes it; nothing
    /// where that depends on where the runtime itself is.
    pub(crate) fn cgroup_path(&self, by_systemd: bool) -> Option<String> {
        match self.cgroup.as_ref().or(self.cgroups_path.as_ref())? {
            unit if by_systemd => unit_path(unit),
            path => path.starts_with('/').then(|| path.clone()),
        }
    }

    /// The cgroup that the container has instead of the one in its specification.
    pub(crate) fn other_cgroup(&self) -> Option<&str> {
        self.cgroup.as_deref()
    }

    /// Writes the specification for the runtime: with the network namespace
    /// named, without the hooks of the end ([`Self::run_poststop`]), and, where
    /// containers of this bundle ran before, without those that set that namespace up.
    pub(crate) fn write_config(&self, netns: Option<&Path>, again: bool) -> Result<()> {
        let mut spec: Value = serde_json::from_slice(&self.original)?;
        if let Some(path) = netns {
            name_netns(&mut spec, path);
        }
        hooks::without_poststop(&mut spec);
        if let (Some(cgroup), Some(path)) = (&self.cgroup, spec.pointer_mut("/linux/cgroupsPath")) {
            *path = json!(cgroup);
        }
        if again {
            drop_network_hooks(&mut spec);
        }
        drop_empty_limits(&mut spec);
        let original = self.dir.join(ORIGINAL);
        if !original.exists() {
            write(&original, &self.original)?;
        }
        write(&self.dir.join(CONFIG), &serde_json::to_vec(&spec)?)
    }

    /// Has the runtime tell CRIU of a configuration file, from the next call on until
    /// [`Self::write_config`].
    pub(crate) fn name_criu_config(&self, file: &Path) -> Result<()> {
        let config = self.dir.join(CONFIG);
        let mut spec: Value = serde_json::from_slice(&fs::read(&config)?)?;
        spec["annotations"][CRIU_CONFIG] = json!(file);
        write(&config, &serde_json::to_vec(&spec)?)
    }

    /// The configuration file of CRIU's that the client names, or else that of the host.
    pub(crate) fn criu_config(&self) -> Option<PathBuf> {
        match self.annotations.all().get(CRIU_CONFIG) {
            Some(path) => (!path.is_empty()).then(|| path.into()),
            None => Some(HOST_CRIU_CONFIG.into()),
        }
    }

    /// Runs the hooks of the container's end, which the runtime does not know of.
    pub(crate) fn run_poststop(&self, id: &str, reaper: &Reaper) {
        if let Ok(spec) = serde_json::from_slice(&self.original) {
            hooks::run_poststop(&spec, id, &self.dir, reaper, |fault| {
                tracing::warn!(id, "{fault}");
            });
        }
    }
}

/// By which runc and crun are told of a configuration file for CRIU, and the one that they
/// take otherwise.
const CRIU_CONFIG: &str = "org.criu.config";
const HOST_CRIU_CONFIG: &str = "/etc/criu/runc.conf";

/// Where systemd makes the cgroup of a `slice:prefix:name`, as runc asks it
/// (`systemd.ExpandSlice`): `a-b.slice` is in `a.slice`.
fn unit_path(unit: &str) -> Option<String> {
    let parts: Vec<&str> = unit.split(':').collect();
    let [slice, prefix, name] = parts[..] else {
        return None;
    };
    let slice = match slice {
        "" => "system.slice",
        slice => slice,
    };
    let mut path = String::new();
    let mut whole = String::new();
    for part in slice.strip_suffix(".slice")?.split('-') {
        if !whole.is_empty() {
            whole.push('-');
        }
        whole.push_str(part);
        path.push_str(&format!("/{whole}.slice"));
    }
    let scope = match prefix {
        "" => name.to_owned(),
        prefix => format!("{prefix}-{name}"),
    };
    Some(format!("{path}/{scope}.scope"))
}

/// Through a temporary file: the runtime never reads half of it.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let next = path.with_extension("next");
    fs::write(&next, bytes)
        .and_then(|()| fs::rename(&next, path))
        .with_context(|| format!("write {}", path.display()))
}

fn name_netns(spec: &mut Value, path: &Path) {
    let namespaces = spec.pointer_mut("/linux/namespaces");
    for namespace in namespaces
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        if namespace["type"] == "network" {
            namespace["path"] = json!(path);
        }
    }
}

/// Docker sends `"blockIO": {}` with every container. crun takes it for a wish, and
/// refuses it where containers get no `io` controller.
fn drop_empty_limits(spec: &mut Value) {
    let resources = spec.pointer_mut("/linux/resources");
    if let Some(resources) = resources.and_then(Value::as_object_mut) {
        resources.retain(|_, limits| limits.as_object().is_none_or(|limits| !limits.is_empty()));
    }
}

/// What makes a container's network: an argument of Docker's hook, and of nerdctl's.
const NETWORK_HOOKS: [&str; 2] = ["libnetwork-setkey", "oci-hook"];

/// On a rollback the network namespace, with its interfaces and addresses, is still there.
/// Other hooks (a GPU's, say) prepare what a rollback makes anew, and run again.
fn drop_network_hooks(spec: &mut Value) {
    let Some(hooks) = spec.get_mut("hooks").and_then(Value::as_object_mut) else {
        return;
    };
    for list in hooks.values_mut().filter_map(Value::as_array_mut) {
        list.retain(|hook| {
            let mut args = hook["args"].as_array().into_iter().flatten();
            !args.any(|arg| NETWORK_HOOKS.contains(&arg.as_str().unwrap_or_default()))
        });
    }
}

/// Is there if systemd is the host's init, `sd_booted(3)`.
const SYSTEMD_RUNS: &str = "/run/systemd/system";

/// Whether a cgroup's path is `slice:prefix:name`, what runc takes with `--systemd-cgroup`
/// alone.
fn is_unit(path: &str) -> bool {
    let parts: Vec<&str> = path.split(':').collect();
    matches!(parts[..], [slice, _, name]
        if (slice.is_empty() || slice.ends_with(".slice")) && !name.is_empty() && !name.contains('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_that_systemd_makes_is_told_by_its_path() {
        for path in [
            "system.slice:docker:0a1b",
            ":cri-containerd:0a1b",
            "a-b.slice:x:y",
        ] {
            assert!(is_unit(path), "{path}");
        }
        for path in [
            "/default/a",
            "default/a",
            "/docker/a:b:c",
            "a:b:c",
            "x.slice:y",
            "x.slice:y:",
        ] {
            assert!(!is_unit(path), "{path}");
        }
    }

    #[test]
    fn a_cgroup_is_where_the_runtime_makes_it() {
        for (path, by_systemd, expected) in [
            ("/default/a", false, Some("/default/a")),
            ("default/a", false, None),
            (
                "system.slice:docker:0a",
                true,
                Some("/system.slice/docker-0a.scope"),
            ),
            (":crab:x", true, Some("/system.slice/crab-x.scope")),
            ("a-b.slice:c:d", true, Some("/a.slice/a-b.slice/c-d.scope")),
        ] {
            let mut config = config();
            config["linux"]["cgroupsPath"] = json!(path);
            let (_dir, bundle) = bundle(&config);
            assert_eq!(
                bundle.cgroup_path(by_systemd).as_deref(),
                expected,
                "{path}"
            );
        }
    }

    #[test]
    fn criu_is_told_of_a_file_until_the_configuration_is_written_again() {
        let (dir, bundle) = bundle(&config());
        let named = || -> Value {
            let text = fs::read(dir.path().join(CONFIG)).unwrap();
            let spec: Value = serde_json::from_slice(&text).unwrap();
            spec["annotations"][CRIU_CONFIG].clone()
        };
        bundle.write_config(None, false).unwrap();
        bundle
            .name_criu_config(Path::new("/run/x/criu.conf"))
            .unwrap();
        assert_eq!(named(), "/run/x/criu.conf");
        bundle.write_config(None, false).unwrap();
        assert_eq!(named(), Value::Null);
        assert_eq!(bundle.criu_config().unwrap(), Path::new(HOST_CRIU_CONFIG));
    }

    fn bundle(config: &Value) -> (tempfile::TempDir, Bundle) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(CONFIG), config.to_string()).unwrap();
        let bundle = Bundle::open(dir.path()).unwrap();
        (dir, bundle)
    }

    fn config() -> Value {
        json!({
            "ociVersion": "1.1.0",
            "x-unknown": {"kept": true},
            "process": {"cwd": "/", "args": ["sleep", "infinity"], "user": {"uid": 0, "gid": 0}},
            "root": {"path": "rootfs"},
            "hooks": {"prestart": [
                {"path": "/proc/1/exe", "args": ["libnetwork-setkey", "-exec-root=/x", "id"]},
                {"path": "/usr/bin/gpu-hook", "args": ["gpu-hook", "prestart"]},
            ]},
            "linux": {"namespaces": [{"type": "pid"}, {"type": "network"}]},
        })
    }

    #[test]
    fn the_namespace_is_named_and_unknown_fields_survive() {
        let (dir, bundle) = bundle(&config());
        assert!(bundle.wants_own_netns());
        assert_eq!(bundle.rootfs(), dir.path().join("rootfs"));
        assert_eq!(bundle.args(), ["sleep", "infinity"]);
        bundle
            .write_config(Some(Path::new("/run/x/net")), false)
            .unwrap();
        let written: Value =
            serde_json::from_slice(&fs::read(dir.path().join(CONFIG)).unwrap()).unwrap();
        assert_eq!(written["linux"]["namespaces"][1]["path"], "/run/x/net");
        assert_eq!(written["x-unknown"]["kept"], true);
        assert_eq!(written["hooks"]["prestart"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn limits_that_say_nothing_are_left_out() {
        let mut spec = json!({"linux": {"resources": {
            "blockIO": {}, "cpu": {"shares": 2}, "devices": [],
        }}});
        drop_empty_limits(&mut spec);
        let left = json!({"cpu": {"shares": 2}, "devices": []});
        assert_eq!(spec["linux"]["resources"], left);
    }

    #[test]
    fn a_second_time_only_the_network_hook_is_left_out() {
        let (dir, bundle) = bundle(&config());
        bundle.write_config(None, false).unwrap();
        bundle.write_config(None, true).unwrap();
        let written: Value =
            serde_json::from_slice(&fs::read(dir.path().join(CONFIG)).unwrap()).unwrap();
        let hooks = written["hooks"]["prestart"].as_array().unwrap();
        assert_eq!(hooks.len(), 1);
        assert_eq!(hooks[0]["path"], "/usr/bin/gpu-hook");
        let kept = fs::read(dir.path().join(ORIGINAL)).unwrap();
        assert_eq!(kept, config().to_string().as_bytes());
    }

    #[test]
    fn only_the_cgroup_of_another_container_is_left() {
        for (path, expected) in [
            ("/default/other", "/default/mine"),
            ("/default/mine", "/default/mine"),
            ("/custom/place", "/custom/place"),
            ("/default/deep/place", "/default/deep/place"),
            ("system.slice:crab:other", "system.slice:crab:other"),
        ] {
            let mut config = config();
            config["linux"]["cgroupsPath"] = json!(path);
            let (dir, mut bundle) = bundle(&config);
            bundle
                .leave_cgroup_of_another("default", "mine", |_| true)
                .unwrap();
            bundle.write_config(None, false).unwrap();
            let written: Value =
                serde_json::from_slice(&fs::read(dir.path().join(CONFIG)).unwrap()).unwrap();
            assert_eq!(written["linux"]["cgroupsPath"], expected);
        }
    }

    #[test]
    fn a_given_namespace_or_a_user_namespace_is_left_alone() {
        let mut given = config();
        given["linux"]["namespaces"][1]["path"] = json!("/run/netns/pod");
        assert!(!bundle(&given).1.wants_own_netns());
        let mut user = config();
        user["linux"]["namespaces"][0]["type"] = json!("user");
        assert!(!bundle(&user).1.wants_own_netns());
    }
}
