// SPDX-License-Identifier: Apache-2.0

//! Copies of a container that Docker has made.

use std::collections::BTreeSet;

use crab_store::SandboxId;
use hyper::StatusCode;
use serde_json::Value;

use super::{docker_config, maker::Draft};
use crate::docker::{NAMESPACE, api::Docker};

/// An original, and what its copies are made of.
pub(super) struct Original {
    api: Docker,
    name: String,
    config: Value,
}

impl Original {
    pub(super) async fn find(id: &SandboxId) -> Result<Self, String> {
        let api = Docker::here()?;
        let found = api.inspect(id.id()).await;
        let original = found.map_err(|refusal| match refusal.status {
            Some(StatusCode::NOT_FOUND) => {
                "Docker has no such container any more, and a copy needs its configuration"
                    .to_owned()
            }
            _ => refusal.into(),
        })?;
        let name = original["Name"].as_str().unwrap_or_default();
        let name = name.trim_start_matches('/').to_owned();
        let image = image(&api, &original).await;
        let config = docker_config::of_copy(&original, &image);
        Ok(Self { api, name, config })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) async fn taken(&self) -> Result<BTreeSet<String>, String> {
        let all = self.api.containers().await?;
        let all = all.as_array().into_iter().flatten();
        let names = all.flat_map(|it| it["Names"].as_array().into_iter().flatten());
        let names = names.filter_map(Value::as_str);
        Ok(names
            .map(|it| it.trim_start_matches('/').to_owned())
            .collect())
    }

    pub(super) async fn create(&self, name: &str) -> Result<Draft, String> {
        let id = self.api.create(name, &self.config).await?;
        let upper = self.api.inspect(&id).await.ok();
        let upper = upper.as_ref().and_then(docker_config::upper);
        Ok(Draft {
            id: SandboxId::new(NAMESPACE, &id).map_err(|error| error.to_string())?,
            name: name.to_owned(),
            upper: upper.map(str::to_owned),
            parts: None,
        })
    }

    pub(super) async fn start(&self, draft: &Draft) -> Result<u32, String> {
        self.api.start(draft.id.id()).await?;
        let now = self.api.inspect(draft.id.id()).await?;
        let pid = now["State"]["Pid"].as_u64();
        pid.and_then(|pid| u32::try_from(pid).ok())
            .filter(|pid| *pid != 0)
            .ok_or_else(|| "it was started, and stopped at once".to_owned())
    }

    pub(super) async fn pause(&self, id: &str) -> Result<(), String> {
        Ok(self.api.pause(id).await?)
    }

    pub(super) async fn resume(&self, id: &str) -> Result<(), String> {
        Ok(self.api.unpause(id).await?)
    }

    pub(super) async fn rename(&self, id: &str, name: &str) -> Result<(), String> {
        Ok(self.api.rename(id, name).await?)
    }

    pub(super) async fn name_of(&self, id: &str) -> Result<String, String> {
        let now = self.api.inspect(id).await?;
        let name = now["Name"].as_str().unwrap_or_default();
        Ok(name.trim_start_matches('/').to_owned())
    }

    pub(super) async fn undo(&self, draft: &Draft) -> Result<(), String> {
        match self.api.remove(draft.id.id()).await {
            // What is not there need not be taken away.
            Err(refusal) if refusal.status == Some(StatusCode::NOT_FOUND) => Ok(()),
            done => Ok(done?),
        }
    }
}

/// The image's name, as long as it means the image that the original has: it may have been
/// given to another one since.
async fn image(api: &Docker, original: &Value) -> String {
    let id = original["Image"].as_str().unwrap_or_default();
    let name = original["Config"]["Image"].as_str().unwrap_or_default();
    match api.inspect_image(name).await {
        Ok(image) if image["Id"] == id => name.to_owned(),
        _ => id.to_owned(),
    }
}
