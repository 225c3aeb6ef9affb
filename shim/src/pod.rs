// SPDX-License-Identifier: Apache-2.0
//! Pods: which containers share a shim, and which of them only holds the pod open.
//!
//! Kubernetes' CRI tells by annotations of the OCI specification. Of a pod, the first
//! container is the *sandbox*: `pause`, which holds the namespaces that the others
//! join. It is never checkpointed; each of the others is a sandbox in Crab's sense,
//! with turns and checkpoints of its own.

use std::collections::HashMap;

use serde::Deserialize;

/// Annotations whose value names a group of containers with one shim, the first that
/// is there; the Go shim's.
const GROUPS: [&str; 2] = [
    "io.containerd.runc.v2.group",
    "io.kubernetes.cri.sandbox-id",
];

/// What kind of a pod's container this is: `sandbox` or `container`.
const KIND: &str = "io.kubernetes.cri.container-type";

/// The part of an OCI specification that this needs.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Annotations {
    #[serde(default)]
    annotations: HashMap<String, String>,
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

    /// The group that the container belongs to, if it is not alone.
    pub(crate) fn group(&self) -> Option<&str> {
        GROUPS
            .iter()
            .find_map(|key| self.annotations.get(*key))
            .map(String::as_str)
    }

    /// What the container is in its pod; nothing if it is in none.
    pub(crate) fn place(&self) -> Option<Place> {
        self.annotations.get(KIND).map(|kind| match kind.as_str() {
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
        let alone = Annotations::of(br#"{"annotations": null, "process": {}}"#);
        assert_eq!((alone.group(), alone.place()), (None, None));
    }
}
