// SPDX-License-Identifier: Apache-2.0

//! Copies of sandboxes.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{
    client::{Client, Runtime},
    crab::Crab,
    sandbox::Sandbox,
};

/// What `crab fork` made. Dropping it removes the copies.
#[derive(Debug)]
pub struct Forks {
    /// What it said, with `--json`.
    pub said: Value,
    /// The copies that were made.
    pub made: Vec<Sandbox>,
}

impl Crab {
    /// `crab fork`, of which all copies have to be made: of `at`, `<S>` or `<S>@<N>`.
    pub fn fork(&self, client: Client, at: &str, args: &[&str]) -> Result<Forks> {
        let (status, forks) = self.fork_some(client, at, args)?;
        ensure!(status == 0, "{status}: {}", forks.said);
        Ok(forks)
    }

    /// The same, of which some may not be made, with how it ended.
    pub fn fork_some(&self, client: Client, at: &str, args: &[&str]) -> Result<(i32, Forks)> {
        let whole = [&["fork", at], args, &["--json"]].concat();
        let said = self.run(&whole)?;
        let status = said.status;
        let value: Value = serde_json::from_str(&said.stdout)
            .with_context(|| format!("{} said {} {}", said.command, said.stdout, said.stderr))?;
        let all = value["forks"].as_array().context("there are no forks")?;
        let mut made = Vec::new();
        for fork in all {
            let Some(id) = fork["sandbox"].as_str() else {
                continue;
            };
            let name = fork["name"].as_str().context("a copy has no name")?;
            let mut sandbox = Sandbox::new(client, Runtime::Crab, name);
            let id = id.split_once('/').context("an id has no namespace")?.1;
            sandbox.set_id(id);
            made.push(sandbox);
        }
        Ok((status, Forks { said: value, made }))
    }
}
