// SPDX-License-Identifier: Apache-2.0

//! What every command needs: the store, the configuration, the way to answer.

use std::path::PathBuf;

use crab_config::Config;
use crab_store::{OpenError, SandboxId, SandboxStore, Store};
use serde::Serialize;

use crate::{
    error::{CliError, Code},
    resolve,
};

pub(crate) struct Context {
    pub(crate) config: Config,
    pub(crate) json: bool,
    root: PathBuf,
    /// Whether the user named the store: then it has to be there.
    named: bool,
}

impl Context {
    pub(crate) fn new(json: bool, store: Option<PathBuf>) -> Result<Self, CliError> {
        let config = Config::load().map_err(|error| {
            // It says itself where and what.
            CliError::failed("bad configuration", error, "see CRAB_CONFIG in crab --help")
        })?;
        let named = store.is_some();
        let root = store.unwrap_or_else(|| config.store.clone());
        Ok(Self {
            config,
            json,
            root,
            named,
        })
    }

    pub(crate) fn store(&self) -> Result<Store, CliError> {
        Store::open(&self.root)
            .map_err(|error| CliError::store("cannot open the store", error.into()))
    }

    /// The store; none on a host where Crab has not run yet.
    pub(crate) fn store_if_any(&self) -> Result<Option<Store>, CliError> {
        match Store::open(&self.root) {
            Err(OpenError::NoStore(_)) if !self.named => Ok(None),
            _ => self.store().map(Some),
        }
    }

    /// The sandbox that a user means by `text`.
    pub(crate) fn sandbox(&self, text: &str) -> Result<SandboxStore, CliError> {
        let store = self.store()?;
        let found = store
            .sandboxes()
            .map_err(|error| CliError::store("cannot list the sandboxes", error.into()))?;
        let id = resolve::resolve(text, &found, crate::docker::names)?;
        store
            .sandbox(&id)
            .map_err(|error| CliError::store(format!("cannot open sandbox {id}"), error.into()))
    }

    /// Only root may talk to shims and start containers.
    pub(crate) fn require_root(&self, what: &str, id: &SandboxId) -> Result<(), CliError> {
        if rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let what = format!("cannot {what} {id}");
        Err(CliError::new(
            Code::Refused,
            what,
            "only root may",
            "run crab as root",
        ))
    }

    /// The answer in the form that was asked for.
    pub(crate) fn answer<T: Serialize>(
        &self,
        value: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<String, CliError> {
        if !self.json {
            return Ok(text(value));
        }
        let mut json = serde_json::to_string(value)
            .map_err(|cause| CliError::failed("cannot write JSON", cause, "report this"))?;
        json.push('\n');
        Ok(json)
    }
}
