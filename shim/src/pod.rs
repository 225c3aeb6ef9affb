// SPDX-License-Identifier: Apache-2.0
//! What the annotations of an OCI specification tell of a container: which pod it is in,
//! with whom it shares a shim, what it is called.
//!
//! Kubernetes' CRI tells by annotations of the OCI specification. Of a pod, the first
//! container is the *sandbox*: `pause`, which holds the namespaces that the others
//! join. It is never checkpointed; each of the others is a sandbox in Crab's sense,
//! with turns and checkpoints of its own.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Annotations whose value names a group of containers with one shim, the first that
/// is there; the Go shim's.
const GROUPS: [&str; 2] = [
    "io.containerd.runc.v2.group",
    "io.kubernetes.cri.sandbox-id",
];

/// What kind of a pod's container this is: `sandbox` or `container`.
const KIND: &str = "io.kubernetes.cri.container-type";

/// By which the CRI names a pod's container for people: its namespace, pod and own name.
const NAMES: [&str; 3] = [
    "io.kubernetes.cri.sandbox-namespace",
    "io.kubernetes.cri.sandbox-name",
    "io.kubernetes.cri.container-name",
];
/// The same of nerdctl.
const NERDCTL_NAME: &str = "nerdctl/name";

/// The image, as the CRI names it.
const IMAGE: &str = "io.kubernetes.cri.image-name";

/// The part of an OCI specification that this needs.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Annotations {
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// What a container is in its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// It only holds the pod open.
    Pause,
    /// One for which the pod is there.
    Container,
}

impl Annotations {
    /// Those of a specification's text. One that cannot be read has none: whoever reads
    /// all of it says what is wrong.
    pub(crate) fn of(config: &[u8]) -> Self {
        serde_json::from_slice(config).unwrap_or_default()
    }

    /// All of them.
    pub(crate) fn all(&self) -> &BTreeMap<String, String> {
        &self.annotations
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.annotations.get(key).map(String::as_str)
    }

    /// What the container's client calls it.
    pub(crate) fn name(&self) -> Option<String> {
        if let Some(name) = self.get(NERDCTL_NAME) {
            return Some(name.to_owned());
        }
        let parts: Option<Vec<&str>> = NAMES.iter().map(|key| self.get(key)).collect();
        parts.map(|parts| parts.join("/"))
    }

    /// What the client calls its image.
    pub(crate) fn image(&self) -> Option<String> {
        self.get(IMAGE).map(str::to_owned)
    }

    /// The group that the container belongs to, if it is not alone.
    pub(crate) fn group(&self) -> Option<&str> {
        GROUPS.iter().find_map(|key| self.get(key))
    }

    /// What the container is in its pod; nothing if it is in none.
    pub(crate) fn place(&self) -> Option<Place> {
        self.get(KIND).map(|kind| match kind {
            "sandbox" => Place::Pause,
            _ => Place::Container,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pods_containers_are_one_group_and_its_pause_is_known() {
        let pause = Annotations::of(
            br#"{"annotations": {"io.kubernetes.cri.sandbox-id": "p1",
                 "io.kubernetes.cri.container-type": "sandbox"}}"#,
        );
        assert_eq!(
            (pause.group(), pause.place()),
            (Some("p1"), Some(Place::Pause))
        );
        let container = Annotations::of(
            br#"{"annotations": {"io.kubernetes.cri.sandbox-id": "p1",
                 "io.containerd.runc.v2.group": "g",
                 "io.kubernetes.cri.container-type": "container"}}"#,
        );
        assert_eq!(
            (container.group(), container.place()),
            (Some("g"), Some(Place::Container))
        );
        assert_eq!(container.name(), None);
        let alone = Annotations::of(br#"{"annotations": null, "process": {}}"#);
        assert_eq!((alone.group(), alone.place()), (None, None));
    }

    #[test]
    fn people_know_a_container_by_what_its_client_calls_it() {
        let pod = Annotations::of(
            br#"{"annotations": {"io.kubernetes.cri.sandbox-namespace": "team",
                 "io.kubernetes.cri.sandbox-name": "agent",
                 "io.kubernetes.cri.container-name": "main",
                 "io.kubernetes.cri.image-name": "example.test/a:1"}}"#,
        );
        assert_eq!(pod.name().as_deref(), Some("team/agent/main"));
        assert_eq!(pod.image().as_deref(), Some("example.test/a:1"));
        let nerdctl = Annotations::of(br#"{"annotations": {"nerdctl/name": "box"}}"#);
        assert_eq!(nerdctl.name().as_deref(), Some("box"));
    }
}
