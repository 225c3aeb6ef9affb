// SPDX-License-Identifier: Apache-2.0

//! What every command needs: the store, the configuration, the way to answer.

use std::path::PathBuf;

use crab_config::Config;
use crab_store::{OpenError, SandboxId, SandboxStore, Store};
use serde::Serialize;

use crate::{
    error::{CliError, Code},
    live, resolve,
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

    /// The store, which is made where there is none.
    pub(crate) fn create_store(&self) -> Result<Store, CliError> {
        Store::create(&self.root)
            .map_err(|error| CliError::store("cannot open the store", error.into()))
    }

    /// The store; none on a host where Crab has not run yet.
    pub(crate) fn store_if_any(&self) -> Result<Option<Store>, CliError> {
        match Store::open(&self.root) {
            Err(OpenError::NoStore(_)) if !self.named => Ok(None),
            _ => self.store().map(Some),
        }
    }

    /// The sandbox that a user means by `text`, with its history.
    pub(crate) fn sandbox(&self, text: &str) -> Result<SandboxStore, CliError> {
        let (store, id) = self.meant(text)?;
        match store.map(|store| store.sandbox(&id)) {
            Some(Ok(sandbox)) => Ok(sandbox),
            None | Some(Err(OpenError::NoSandbox(_))) => Err(CliError::new(
                Code::NotFound,
                format!("no history of {id}"),
                "it runs without checkpoints",
                format!("`crab checkpoint {id}` says why"),
            )),
            Some(Err(error)) => Err(CliError::store(
                format!("cannot open sandbox {id}"),
                error.into(),
            )),
        }
    }

    /// The id of the sandbox that a user means, also of one without a history.
    pub(crate) fn sandbox_id(&self, text: &str) -> Result<SandboxId, CliError> {
        Ok(self.meant(text)?.1)
    }

    fn meant(&self, text: &str) -> Result<(Option<Store>, SandboxId), CliError> {
        let (store, known) = self.known()?;
        // On a host where Crab has not run yet, that is what is to be said.
        let store = match store {
            None if known.is_empty() => Some(self.store()?),
            store => store,
        };
        let id = resolve::resolve(text, &known, crate::docker::names)?;
        Ok((store, id))
    }

    /// The sandboxes in the store and, unless the user named another store, those that
    /// have a shim.
    pub(crate) fn known(&self) -> Result<(Option<Store>, Vec<SandboxId>), CliError> {
        let mut known = match self.named {
            true => Vec::new(),
            false => live::ids(&self.config.run_dir),
        };
        let store = self.store_if_any()?;
        if let Some(store) = &store {
            let stored = store
                .sandboxes()
                .map_err(|error| CliError::store("cannot list the sandboxes", error.into()))?;
            known.extend(stored);
        }
        known.sort();
        known.dedup();
        Ok((store, known))
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
