// SPDX-License-Identifier: Apache-2.0

//! What containerd and Docker say of the containers of sandboxes that were lost.

use std::collections::BTreeMap;

use crab_store::{Client, SandboxId, SandboxMeta, UPPER, layer_of};
use hyper::StatusCode;
use serde_json::Value;
use tokio::sync::Mutex;

use super::judge::Container;
use crate::{containerd::Containerd, docker::api::Docker};

/// Set by whoever has containerd start a container again whenever it does not run:
/// containerd's restart monitor.
const RESTARTED: (&str, &str) = ("containerd.io/restart.status", "running");

/// A connection for each of containerd's namespaces.
#[derive(Default)]
pub(super) struct Containers {
    namespaces: Mutex<BTreeMap<String, Result<Containerd, String>>>,
}

impl Containers {
    /// What is said of this sandbox's, or why nothing.
    pub(super) async fn of(
        &self,
        id: &SandboxId,
        client: Client,
        meta: Option<&SandboxMeta>,
    ) -> Result<Container, String> {
        match client {
            Client::Docker => in_docker(id).await,
            Client::Containerd | Client::Kubernetes => self.in_containerd(id, meta).await,
        }
    }

    async fn in_containerd(
        &self,
        id: &SandboxId,
        meta: Option<&SandboxMeta>,
    ) -> Result<Container, String> {
        let api = self.namespace(id.namespace()).await?;
        let record = match api.container(id.id()).await {
            Ok(record) => record,
            Err(refusal) if refusal.is_not_found() => return Ok(Container::Removed),
            Err(refusal) => return Err(refusal.into()),
        };
        let restarts = record.labels.get(RESTARTED.0).map(String::as_str) == Some(RESTARTED.1);
        let there = Container::There { restarts };
        let upper = meta.and_then(|meta| meta.snapshot.get(UPPER));
        // One that is of no snapshot has its directory's name, which says no more than its own.
        let (Some(upper), false) = (upper, record.snapshot_key.is_empty()) else {
            return Ok(there);
        };
        let mounts = api.mounts(&record.snapshotter, &record.snapshot_key).await;
        let mounts = match mounts {
            Ok(mounts) => mounts,
            Err(refusal) if refusal.is_not_found() => return Ok(Container::Another),
            Err(refusal) => return Err(refusal.into()),
        };
        let layer = mounts
            .first()
            .map(|mount| layer_of(&mount.kind, &mount.source, &mount.options));
        Ok(match layer {
            Some(layer) if layer != *upper => Container::Another,
            _ => there,
        })
    }

    async fn namespace(&self, namespace: &str) -> Result<Containerd, String> {
        let mut all = self.namespaces.lock().await;
        if !all.contains_key(namespace) {
            let connected = Containerd::connect(namespace).await;
            all.insert(namespace.to_owned(), connected);
        }
        all[namespace].clone()
    }
}

async fn in_docker(id: &SandboxId) -> Result<Container, String> {
    match Docker::here()?.inspect(id.id()).await {
        Ok(container) => Ok(Container::There {
            restarts: restarts(&container),
        }),
        Err(refusal) if refusal.status == Some(StatusCode::NOT_FOUND) => Ok(Container::Removed),
        Err(refusal) => Err(refusal.into()),
    }
}

fn restarts(container: &Value) -> bool {
    let policy = &container["HostConfig"]["RestartPolicy"]["Name"];
    !matches!(policy.as_str(), None | Some("" | "no"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_restart_policy_is_any_but_no() {
        let with = |name: &str| restarts(&json!({"HostConfig": {"RestartPolicy": {"Name": name}}}));
        assert!(with("always") && with("unless-stopped") && with("on-failure"));
        assert!(!with("no") && !with("") && !restarts(&json!({})));
    }
}
