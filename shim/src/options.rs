// SPDX-License-Identifier: Apache-2.0
//! Runtime options: those of runc's shim, however a client sends them.
//!
//! | sent by | as |
//! | --- | --- |
//! | `ctr`, nerdctl, anybody with containerd's client | `containerd.runc.v1.Options` |
//! | CRI and Docker, which know no other type for this runtime | `runtimeoptions.v1.Options`: TOML, or the path of a TOML file |
//!
//! They stay in the bundle as `options.json`, as the Go shim writes them: `delete` after a
//! shim that died is told nothing but the bundle.

use std::{
    fs,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use containerd_shim_protos::{
    protobuf::{
        CodedInputStream, Message, UnknownFields, UnknownValueRef, rt, well_known_types::any::Any,
    },
    shim::oci::Options,
};
use serde::{Deserialize, Serialize};

/// The file in the bundle.
const FILE: &str = "options.json";

/// `criu_path` in `containerd.runc.v1.Options` of containerd 1.x; gone in 2.0.
const CRIU_PATH: u32 = 8;

/// What a client may say of how its container is run. In JSON under the names of the
/// message's fields, in TOML under those of the Go type.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RuntimeOptions {
    #[serde(alias = "NoPivotRoot")]
    pub(crate) no_pivot_root: bool,
    #[serde(alias = "NoNewKeyring")]
    pub(crate) no_new_keyring: bool,
    /// Where the shim itself shall be.
    #[serde(alias = "ShimCgroup")]
    pub(crate) shim_cgroup: String,
    /// To whom the pipes of stdio belong.
    #[serde(alias = "IoUid")]
    pub(crate) io_uid: u32,
    #[serde(alias = "IoGid")]
    pub(crate) io_gid: u32,
    /// The runtime's program.
    #[serde(alias = "BinaryName")]
    pub(crate) binary_name: String,
    /// The runtime's state directory.
    #[serde(alias = "Root")]
    pub(crate) root: String,
    #[serde(alias = "CriuPath")]
    pub(crate) criu_path: String,
    #[serde(alias = "SystemdCgroup")]
    pub(crate) systemd_cgroup: bool,
    /// The checkpoint to begin with: containerd 1.7 makes a path of its own of it only for
    /// the runtimes that it knows.
    #[serde(alias = "CriuImagePath")]
    pub(crate) criu_image_path: String,
    /// Where CRIU works when it restores.
    #[serde(alias = "CriuWorkPath")]
    pub(crate) criu_work_path: String,
}

impl RuntimeOptions {
    /// What a client has sent; the defaults if it has not.
    pub(crate) fn of_request(any: Option<&Any>) -> Result<Self> {
        let Some(any) = any.filter(|any| !any.value.is_empty()) else {
            return Ok(Self::default());
        };
        // With or without a prefix like "types.googleapis.com/".
        let name = any.type_url.rsplit('/').next().unwrap_or_default();
        match name {
            "containerd.runc.v1.Options" => Self::of_runc(&any.value),
            "runtimeoptions.v1.Options" => Self::of_any_runtime(&any.value),
            _ => bail!(
                "runtime options of the type {name:?} are not known; \
                 containerd.runc.v1.Options and runtimeoptions.v1.Options are"
            ),
        }
        .with_context(|| format!("read the runtime options ({name})"))
    }

    /// What the bundle's client has sent.
    pub(crate) fn of_bundle(bundle: &Path) -> Self {
        let text = fs::read(bundle.join(FILE)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Keeps them in the bundle.
    pub(crate) fn keep(&self, bundle: &Path) -> Result<()> {
        let path = bundle.join(FILE);
        let mut file = fs::File::options();
        file.write(true).create(true).truncate(true).mode(0o600);
        file.open(&path)
            .and_then(|mut file| file.write_all(&serde_json::to_vec(self)?))
            .with_context(|| format!("write {}", path.display()))
    }

    fn of_runc(bytes: &[u8]) -> Result<Self> {
        let sent = Options::parse_from_bytes(bytes)?;
        let criu_path = match sent.special_fields.unknown_fields().get(CRIU_PATH) {
            Some(UnknownValueRef::LengthDelimited(path)) => String::from_utf8(path.to_vec())?,
            _ => String::new(),
        };
        Ok(Self {
            no_pivot_root: sent.no_pivot_root,
            no_new_keyring: sent.no_new_keyring,
            shim_cgroup: sent.shim_cgroup,
            io_uid: sent.io_uid,
            io_gid: sent.io_gid,
            binary_name: sent.binary_name,
            root: sent.root,
            criu_path,
            systemd_cgroup: sent.systemd_cgroup,
            criu_image_path: sent.criu_image_path,
            criu_work_path: sent.criu_work_path,
        })
    }

    fn of_any_runtime(bytes: &[u8]) -> Result<Self> {
        let (path, body) = path_and_body(bytes)?;
        if path.is_empty() {
            return Ok(toml::from_str(&body)?);
        }
        let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        toml::from_str(&text).with_context(|| format!("parse {path}"))
    }

    /// The runtime's program, where one is named.
    pub(crate) fn program(&self) -> Option<PathBuf> {
        (!self.binary_name.is_empty()).then(|| self.binary_name.clone().into())
    }
}

/// The fields of `runtimeoptions.v1.Options`, of which the shim crates have no type:
/// `type_url = 1`, `config_path = 2`, `config_body = 3`.
fn path_and_body(bytes: &[u8]) -> Result<(String, String)> {
    let (mut path, mut body) = (String::new(), String::new());
    let mut input = CodedInputStream::from_bytes(bytes);
    let mut others = UnknownFields::new();
    while let Some(tag) = input.read_raw_tag_or_eof()? {
        match tag {
            18 => path = input.read_string()?,
            26 => body = String::from_utf8(input.read_bytes()?)?,
            _ => rt::read_unknown_or_skip_group(tag, &mut input, &mut others)?,
        }
    }
    Ok((path, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any(type_url: &str, value: Vec<u8>) -> Any {
        Any {
            type_url: type_url.into(),
            value,
            ..Default::default()
        }
    }

    /// One field of bytes.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2, bytes.len() as u8];
        out.extend(bytes);
        out
    }

    #[test]
    fn runcs_own_message_and_the_field_that_is_gone() {
        let mut value = Options {
            binary_name: "crun".into(),
            io_uid: 7,
            systemd_cgroup: true,
            ..Default::default()
        }
        .write_to_bytes()
        .unwrap();
        value.extend(field(8, b"/opt/criu"));
        for prefix in ["", "types.googleapis.com/"] {
            let any = any(
                &format!("{prefix}containerd.runc.v1.Options"),
                value.clone(),
            );
            let options = RuntimeOptions::of_request(Some(&any)).unwrap();
            assert_eq!(options.program(), Some("crun".into()));
            assert_eq!(options.criu_path, "/opt/criu");
            assert_eq!((options.io_uid, options.systemd_cgroup), (7, true));
        }
        assert_eq!(
            RuntimeOptions::of_request(None).unwrap(),
            RuntimeOptions::default()
        );
    }

    #[test]
    fn toml_as_cri_and_docker_send_it() {
        let body = "BinaryName = \"/usr/bin/crun\"\nSystemdCgroup = true\nIoGid = 5\nOther = [1]\n";
        let mut value = field(1, b"io.containerd.crab.v1.options");
        value.extend(field(3, body.as_bytes()));
        let options = any("runtimeoptions.v1.Options", value);
        let options = RuntimeOptions::of_request(Some(&options)).unwrap();
        assert_eq!(options.binary_name, "/usr/bin/crun");
        assert_eq!((options.io_gid, options.systemd_cgroup), (5, true));

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("options.toml");
        fs::write(&path, "Root = \"/run/other\"\n").unwrap();
        let value = field(2, path.to_str().unwrap().as_bytes());
        let options = any("runtimeoptions.v1.Options", value.clone());
        let options = RuntimeOptions::of_request(Some(&options)).unwrap();
        assert_eq!(options.root, "/run/other");
        fs::remove_file(&path).unwrap();
        let gone = any("runtimeoptions.v1.Options", value);
        let error = format!("{:#}", RuntimeOptions::of_request(Some(&gone)).unwrap_err());
        assert!(error.contains("options.toml"), "{error}");
    }

    #[test]
    fn what_is_not_understood_is_said() {
        let wrong = any("runtimeoptions.v1.Options", field(3, b"IoUid = \"x\""));
        let error = format!(
            "{:#}",
            RuntimeOptions::of_request(Some(&wrong)).unwrap_err()
        );
        assert!(error.contains("IoUid"), "{error}");
        let other = any("runsc.v1.Options", vec![1]);
        assert!(RuntimeOptions::of_request(Some(&other)).is_err());
    }

    #[test]
    fn the_bundle_keeps_them() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(
            RuntimeOptions::of_bundle(dir.path()),
            RuntimeOptions::default()
        );
        let options = RuntimeOptions {
            systemd_cgroup: true,
            root: "/run/x".into(),
            ..Default::default()
        };
        options.keep(dir.path()).unwrap();
        assert_eq!(RuntimeOptions::of_bundle(dir.path()), options);
    }
}
