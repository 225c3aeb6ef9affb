// SPDX-License-Identifier: Apache-2.0
//! The configuration of one container: the host's, with what the container's own
//! annotations and labels may change of it.
//!
//! Annotations are in the specification. A label is not: `ctr` makes annotations of
//! its own, nerdctl and Kubernetes keep theirs, and dockerd writes them into its record of
//! the container, in the data root in which the container's root is too.
//!
//! Nothing of this refuses a container: what cannot be read says nothing.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Read,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};

use crab_config::{ANNOTATIONS, Config};
use serde::Deserialize;

use crate::{bundle::Bundle, sandbox::Host};

/// What a record of dockerd's holds at most; a usual one has some kilobytes.
const RECORD_MAX: u64 = 4 << 20;

/// The configuration of a container, and one line for each thing that was to be
/// another and is not.
pub(crate) fn of_container(host: &Host, bundle: &Bundle, id: &str) -> (Config, Vec<String>) {
    if bundle.is_pause() {
        // It has no turns, and its pod's containers have the same annotations.
        return (host.config.clone(), Vec::new());
    }
    let mut said = docker_labels(bundle, id);
    // Who writes an annotation means this container; a label may be the image's.
    said.extend(bundle.annotations().all().clone());
    let said = said
        .iter()
        .map(|(name, text)| (name.as_str(), text.as_str()));
    let (config, ignored) = host.config.for_sandbox(said);
    let mut faults: Vec<String> = ignored.iter().map(ToString::to_string).collect();
    for fault in &faults {
        tracing::warn!(container = id, "{fault}");
    }
    // Logged when the shim began.
    faults.extend(host.config_fault.clone());
    (config, faults)
}

/// dockerd's record of a container.
#[derive(Deserialize)]
struct Record {
    #[serde(rename = "ID")]
    id: String,
    #[serde(rename = "Config")]
    config: RecordConfig,
}

#[derive(Deserialize)]
struct RecordConfig {
    #[serde(rename = "Labels")]
    labels: Option<BTreeMap<String, String>>,
}

/// The labels that dockerd has of a container, if it is dockerd's.
fn docker_labels(bundle: &Bundle, id: &str) -> BTreeMap<String, String> {
    // dockerd makes the root itself, in its data root; other clients leave that to the
    // shim, in the bundle.
    if bundle.rootfs().starts_with(bundle.dir()) {
        return BTreeMap::new();
    }
    let mut dirs = bundle.rootfs().ancestors().skip(1);
    let record = dirs.find_map(|dir| record(&dir.join("containers").join(id), id));
    let mut labels = record
        .and_then(|record| record.config.labels)
        .unwrap_or_default();
    labels.retain(|name, _| name.starts_with(ANNOTATIONS));
    labels
}

fn record(dir: &Path, id: &str) -> Option<Record> {
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(dir.join("config.v2.json"))
        .ok()?;
    let about = file.metadata().ok()?;
    // Above a data root anybody may have made a directory of that name.
    let is_ours = about.uid() == rustix::process::geteuid().as_raw();
    if !is_ours || !about.is_file() || about.len() > RECORD_MAX {
        return None;
    }
    let mut text = Vec::new();
    file.take(RECORD_MAX).read_to_end(&mut text).ok()?;
    let record: Record = serde_json::from_slice(&text).ok()?;
    (record.id == id).then_some(record)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use serde_json::json;

    use super::*;

    const ID: &str = "0123";

    /// A container of a dockerd whose data root is `<dir>/docker`.
    fn docker(dir: &Path, record: &serde_json::Value) -> Bundle {
        let data = dir.join("docker");
        let of_container = data.join("containers").join(ID);
        let bundle = dir.join("bundle");
        for dir in [&of_container, &bundle, &data.join("overlay2/l/merged")] {
            fs::create_dir_all(dir).unwrap();
        }
        fs::write(of_container.join("config.v2.json"), record.to_string()).unwrap();
        let spec = json!({
            "ociVersion": "1.1.0",
            "root": {"path": data.join("overlay2/l/merged")},
            "annotations": {"a": "b"},
        });
        fs::write(bundle.join("config.json"), spec.to_string()).unwrap();
        Bundle::open(&bundle).unwrap()
    }

    #[test]
    fn a_label_of_docker_is_found_beside_the_containers_root() {
        let dir = tempfile::tempdir().unwrap();
        let record = json!({
            "ID": ID,
            "Config": {"Labels": {"dev.crab.checkpoints.enabled": "false", "other": "x"}},
        });
        let bundle = docker(dir.path(), &record);
        let labels = docker_labels(&bundle, ID);
        let found: Vec<_> = labels.iter().collect();
        let name = "dev.crab.checkpoints.enabled".to_owned();
        assert_eq!(found, [(&name, &"false".to_owned())]);
        assert_eq!(docker_labels(&bundle, "4567").len(), 0);
        assert_eq!(bundle.annotations().all()["a"], "b");
    }

    #[test]
    fn what_is_no_record_of_this_container_says_nothing() {
        let labels = json!({"Labels": {"dev.crab.checkpoints.enabled": "false"}});
        for record in [
            json!({"ID": "4567", "Config": labels}),
            json!({"ID": ID, "Config": {"Labels": null}}),
            json!({"ID": ID, "Config": 7}),
            json!([]),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let bundle = docker(dir.path(), &record);
            assert_eq!(docker_labels(&bundle, ID).len(), 0, "{record}");
        }
        let dir = tempfile::tempdir().unwrap();
        let bundle = docker(dir.path(), &json!({"ID": ID, "Config": labels}));
        let file = dir
            .path()
            .join(format!("docker/containers/{ID}/config.v2.json"));
        fs::rename(&file, dir.path().join("elsewhere")).unwrap();
        symlink(dir.path().join("elsewhere"), &file).unwrap();
        assert_eq!(docker_labels(&bundle, ID).len(), 0, "through a symlink");
    }
}
