// SPDX-License-Identifier: Apache-2.0

//! The samples fit each other. That containerd, Docker and the CRI take them as they
//! are is tested end to end.

use std::{fs, path::Path};

use crab_config::{ANNOTATIONS, Config};
use serde_json::Value;

const RUNTIME: &str = "io.containerd.crab.v1";

fn text(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("samples")
        .join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn yaml(name: &str) -> Value {
    serde_saphyr::from_str(&text(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The CRI plugin's `containerd` table, by the version of the file.
fn containerd(name: &str, version: i64, plugin: &str) -> toml::Table {
    let file: toml::Table = text(name).parse().unwrap();
    assert_eq!(file["version"].as_integer(), Some(version));
    file["plugins"][plugin]["containerd"]
        .as_table()
        .unwrap()
        .clone()
}

fn both_containerds() -> [toml::Table; 2] {
    [
        containerd("containerd-1.7.toml", 2, "io.containerd.grpc.v1.cri"),
        containerd("containerd-2.toml", 3, "io.containerd.cri.v1.runtime"),
    ]
}

#[test]
fn containerd_has_a_handler_for_crab_beside_its_own_default() {
    for containerd in both_containerds() {
        // containerd's own default, which is runc, stays.
        assert!(!containerd.contains_key("default_runtime_name"));
        let type_of = |handler: &str| containerd["runtimes"][handler]["runtime_type"].as_str();
        assert_eq!(type_of("runc"), Some("io.containerd.runc.v2"));
        assert_eq!(type_of("crab"), Some(RUNTIME));
        for list in ["pod_annotations", "container_annotations"] {
            let patterns = containerd["runtimes"]["crab"][list].as_array().unwrap();
            let ours = format!("{ANNOTATIONS}*");
            assert_eq!(patterns[..], [toml::Value::String(ours)], "{list}");
        }
    }
}

#[test]
fn docker_knows_the_runtime_by_its_name() {
    let docker: Value = serde_json::from_str(&text("docker-daemon.json")).unwrap();
    assert_eq!(docker["runtimes"]["crab"]["runtimeType"], RUNTIME);
    // Whoever runs containers otherwise is not concerned.
    assert_eq!(docker.as_object().unwrap().len(), 1);
}

#[test]
fn the_pod_names_the_class_and_the_class_the_handler() {
    let class = yaml("kubernetes/runtimeclass.yaml");
    assert_eq!(class["apiVersion"], "node.k8s.io/v1");
    assert_eq!(class["kind"], "RuntimeClass");
    let handler = class["handler"].as_str().unwrap();
    for containerd in both_containerds() {
        assert!(
            containerd["runtimes"]
                .as_table()
                .unwrap()
                .contains_key(handler)
        );
    }
    let labels = class["scheduling"]["nodeSelector"].as_object().unwrap();
    assert!(labels.values().all(Value::is_string), "{labels:?}");

    let pod = yaml("kubernetes/pod.yaml");
    assert_eq!(
        (&pod["apiVersion"], &pod["kind"]),
        (&"v1".into(), &"Pod".into())
    );
    assert_eq!(pod["spec"]["runtimeClassName"], class["metadata"]["name"]);
    for container in pod["spec"]["containers"].as_array().unwrap() {
        assert!(container["name"].is_string() && container["image"].is_string());
    }
}

#[test]
fn the_annotations_of_the_pod_are_followed() {
    let pod = yaml("kubernetes/pod.yaml");
    let annotations = pod["metadata"]["annotations"].as_object().unwrap();
    // Kubernetes takes nothing but text.
    let pairs = annotations
        .iter()
        .map(|(name, text)| (name.as_str(), text.as_str().expect(name)));
    let (config, ignored) = Config::default().for_sandbox(pairs);
    assert_eq!(ignored, []);
    assert_ne!(config, Config::default(), "it shows one");
}
