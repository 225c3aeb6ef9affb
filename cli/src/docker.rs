// SPDX-License-Identifier: Apache-2.0

//! The names that Docker gave to containers; its API is in [`api`].
//!
//! Docker's own record of a container is read, not its API: names are wanted
//! most when dockerd is down. A name is only ever a convenience, so whatever
//! cannot be read has none.

pub(crate) mod api;

use std::{collections::BTreeMap, fs, path::Path};

use crab_store::SandboxId;
use serde::Deserialize;

/// The containerd namespace that dockerd uses.
pub(crate) const NAMESPACE: &str = "moby";

const CONTAINERS: &str = "/var/lib/docker/containers";

#[derive(Deserialize)]
struct Container {
    #[serde(rename = "Name")]
    name: String,
}

/// The names of those sandboxes that Docker made.
pub(crate) fn names(sandboxes: &[SandboxId]) -> BTreeMap<SandboxId, String> {
    let docker = sandboxes.iter().filter(|id| id.namespace() == NAMESPACE);
    let name = |id: &SandboxId| {
        let path = Path::new(CONTAINERS).join(id.id()).join("config.v2.json");
        let container: Container = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        Some((
            id.clone(),
            container.name.trim_start_matches('/').to_owned(),
        ))
    };
    docker.filter_map(name).collect()
}
