// SPDX-License-Identifier: Apache-2.0

//! Checkpoints by the clients themselves, as images of containerd.

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{
    client::{Client, Runtime, unique},
    command::Output,
    processes::SHIM,
    sandbox::Sandbox,
    swap::Swapped,
};

/// What `ctr container checkpoint` has made. Removed when dropped.
#[derive(Debug)]
pub struct CheckpointImage {
    client: Client,
    name: String,
    runtime: Runtime,
}

impl Client {
    /// `ctr container checkpoint`, with everything that it can hold.
    pub fn checkpoint(self, sandbox: &Sandbox) -> Result<CheckpointImage> {
        let image = CheckpointImage {
            client: self,
            name: unique("checkpoint"),
            runtime: sandbox.runtime(),
        };
        self.tool(["container", "checkpoint", "--rw", "--task", "--image"])
            .args([sandbox.id(), &image.name])
            .run()?
            .ok()?;
        Ok(image)
    }
}

impl CheckpointImage {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `ctr container restore` under a new name: what `ctr` said, and the guard of
    /// whatever there is then.
    pub fn restore(&self) -> Result<(Output, Sandbox)> {
        let name = unique("back");
        let sandbox = Sandbox::new(self.client, self.runtime, &name);
        let said = self
            .client
            .tool(["container", "restore", "--rw", "--live", &name, &self.name])
            .run()?;
        Ok((said, sandbox))
    }

    /// What it takes beside the image from which its container was made, in bytes.
    pub fn own_bytes(&self) -> Result<u64> {
        let list = self.client.tool(["images", "ls"]).run()?.ok()?.stdout;
        let digest = |name: &str| {
            let rows = list.lines().map(|line| line.split_whitespace());
            let row = rows
                .map(Iterator::collect::<Vec<_>>)
                .find(|row| row[0] == name);
            row.and_then(|row| row.get(2).map(|digest| (*digest).to_owned()))
        };
        let own = digest(&self.name).with_context(|| format!("there is no {}", self.name))?;
        let index = self
            .client
            .tool(["content", "get", &own])
            .run()?
            .ok()?
            .stdout;
        let index: Value = serde_json::from_str(&index).context("read the checkpoint's index")?;
        let parts = index["manifests"].as_array().into_iter().flatten();
        // Everything but the image, which was there before.
        let parts = parts.filter(|part| {
            let kind = part["mediaType"].as_str().unwrap_or_default();
            !kind.contains("manifest") && !kind.contains("image.index")
        });
        Ok(parts.filter_map(|part| part["size"].as_u64()).sum())
    }

    /// The same, which has to succeed.
    pub fn restored(&self) -> Result<Sandbox> {
        let (said, sandbox) = self.restore()?;
        said.ok()?;
        Ok(sandbox)
    }
}

impl Drop for CheckpointImage {
    fn drop(&mut self) {
        // With what only it holds: containerd refuses to write the same again.
        let tool = self.client.tool(["images", "rm", "--sync", &self.name]);
        if let Err(error) = tool.run().and_then(Output::ok) {
            eprintln!("could not remove {}: {error:#}", self.name);
        }
    }
}

/// Crab's shim where containerd looks for that of runc: whatever is started by that name
/// is Crab's, for as long as this is there.
#[derive(Debug)]
pub struct Imposter(#[expect(dead_code, reason = "puts the stock shim back")] Swapped);

impl Imposter {
    /// From now on.
    pub fn begin() -> Result<Self> {
        let script = format!("#!/bin/sh\nexec /usr/local/bin/{SHIM} \"$@\"\n");
        Ok(Self(Swapped::with(
            "/usr/bin/containerd-shim-runc-v2",
            &script,
        )?))
    }
}
