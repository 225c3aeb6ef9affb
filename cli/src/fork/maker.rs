// SPDX-License-Identifier: Apache-2.0

//! Who makes the containers of copies: the client that made the original.

use std::collections::BTreeSet;

use crab_store::{Client, SandboxId};

use super::{containerd, docker};

/// A container that was made, and does not run yet.
pub(super) struct Draft {
    pub(super) id: SandboxId,
    /// What its client calls it.
    pub(super) name: String,
    /// Where what it writes goes to, if that is known beforehand.
    pub(super) upper: Option<String>,
    /// What containerd has of it; Docker keeps all that to itself.
    pub(super) parts: Option<containerd::Parts>,
}

/// The client, and what it says of the original.
pub(super) enum Maker {
    Containerd(Box<containerd::Original>),
    Docker(Box<docker::Original>),
}

impl Maker {
    pub(super) async fn of(client: Client, id: &SandboxId) -> Result<Self, String> {
        Ok(match client {
            Client::Containerd => Self::Containerd(Box::new(containerd::Original::find(id).await?)),
            Client::Docker => Self::Docker(Box::new(docker::Original::find(id).await?)),
            Client::Kubernetes => {
                return Err("it is a container of a pod, and those are Kubernetes' to make".into());
            }
        })
    }

    /// What the original is called.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Containerd(original) => original.name(),
            Self::Docker(original) => original.name(),
        }
    }

    /// The names that no copy can have.
    pub(super) async fn taken(&self) -> Result<BTreeSet<String>, String> {
        match self {
            Self::Containerd(original) => original.taken().await,
            Self::Docker(original) => original.taken().await,
        }
    }

    /// Makes a container like the original; if that fails, nothing is left of it.
    pub(super) async fn create(&self, name: &str) -> Result<Draft, String> {
        match self {
            Self::Containerd(original) => original.create(name).await,
            Self::Docker(original) => original.create(name).await,
        }
    }

    /// Starts it; gives its process.
    pub(super) async fn start(&self, draft: &Draft) -> Result<u32, String> {
        match self {
            Self::Containerd(original) => original.start(draft).await,
            Self::Docker(original) => original.start(draft).await,
        }
    }

    /// Takes it away again, whatever its state.
    pub(super) async fn undo(&self, draft: &Draft) -> Result<(), String> {
        match self {
            Self::Containerd(original) => original.undo(draft).await,
            Self::Docker(original) => original.undo(draft).await,
        }
    }

    /// Stops the processes of a container where they are.
    pub(super) async fn pause(&self, id: &SandboxId) -> Result<(), String> {
        match self {
            Self::Containerd(original) => original.pause(id.id()).await,
            Self::Docker(original) => original.pause(id.id()).await,
        }
    }

    /// Lets them go on.
    pub(super) async fn resume(&self, id: &SandboxId) -> Result<(), String> {
        match self {
            Self::Containerd(original) => original.resume(id.id()).await,
            Self::Docker(original) => original.resume(id.id()).await,
        }
    }

    /// Whether a container can get another name.
    pub(super) fn can_rename(&self) -> bool {
        matches!(self, Self::Docker(_))
    }

    /// Gives it another name.
    pub(super) async fn rename(&self, id: &SandboxId, name: &str) -> Result<(), String> {
        match self {
            Self::Containerd(_) => Err("containerd's containers keep their names".to_owned()),
            Self::Docker(original) => original.rename(id.id(), name).await,
        }
    }

    /// What its client calls it.
    pub(super) async fn name_of(&self, id: &SandboxId) -> Result<String, String> {
        match self {
            Self::Containerd(_) => Ok(id.id().to_owned()),
            Self::Docker(original) => original.name_of(id.id()).await,
        }
    }

    /// A copy that another `crab fork` has made, as far as it can be taken away again.
    pub(super) fn draft_of(&self, id: &SandboxId) -> Draft {
        Draft {
            id: id.clone(),
            name: id.id().to_owned(),
            upper: None,
            parts: match self {
                Self::Containerd(original) => Some(original.parts_of(id.id())),
                Self::Docker(_) => None,
            },
        }
    }
}
