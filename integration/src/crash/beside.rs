// SPDX-License-Identifier: Apache-2.0

//! The other sandboxes of a machine that loses its power: one of containerd's with files, one of
//! Docker's with a server, and one of Docker's that has ended.

use anyhow::{Context, Result, ensure};
use crab_store::Class;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    client::{Client, RunOptions, Runtime},
    counter::Counter,
    sandbox::{Sandbox, State},
    testbed::{BUSYBOX, DEBIAN, Testbed},
};

/// What of a sandbox outlasts this process.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct One {
    name: String,
    id: String,
}

impl One {
    fn of(sandbox: Sandbox) -> Self {
        let one = Self {
            name: sandbox.name().to_owned(),
            id: sandbox.id().to_owned(),
        };
        sandbox.keep();
        one
    }

    fn sandbox(&self, client: Client) -> Sandbox {
        let mut sandbox = Sandbox::new(client, Runtime::Crab, &self.name);
        sandbox.set_id(&self.id);
        sandbox
    }
}

/// All of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Beside {
    files: One,
    server: One,
    ended: One,
}

impl Beside {
    pub(super) fn start(testbed: &Testbed) -> Result<Self> {
        let crab = testbed.crab();
        let files = testbed.ctr().run(BUSYBOX, RunOptions::new())?;
        crab.turn_of(&files, Class::Files, "echo kept >/root/kept")?;
        let server = testbed
            .docker()
            .run(DEBIAN, RunOptions::without_bytecode())?;
        Counter::start(&crab, &server, 1)?.ask()?;
        let ended = testbed.docker().run(BUSYBOX, RunOptions::new())?;
        crab.turn_of(&ended, Class::Files, "echo gone >/root/gone")?;
        ended.stop()?;
        Ok(Self {
            files: One::of(files),
            server: One::of(server),
            ended: One::of(ended),
        })
    }

    /// Those that ran are as they were, by what `crab restore --all` said, and by what they hold; the
    /// other is left alone.
    pub(super) fn came_back(&self, testbed: &Testbed, said: &Value) -> Result<()> {
        let crab = testbed.crab();
        let [files, server, ended] = self.sandboxes(testbed);
        let outcome = |sandbox: &Sandbox| -> Result<String> {
            let rows = said["sandboxes"].as_array().context("no sandboxes")?;
            let id = sandbox.sandbox_id();
            let row = rows.iter().find(|row| row["sandbox"] == id.as_str());
            let row = row.with_context(|| format!("no {id} in {said}"))?;
            Ok(row["outcome"].as_str().unwrap_or_default().to_owned())
        };
        ensure!(outcome(&files)? == "restored", "{said}");
        ensure!(files.sh_ok("cat /root/kept")? == "kept");
        ensure!(outcome(&server)? == "restored", "{said}");
        let counter = Counter::of(&crab, &server);
        let (was, (now, _)) = (counter.in_file()?, counter.ask()?);
        ensure!(now == was + 1, "its server says {now} after {was}");
        ensure!(outcome(&ended)? == "left", "{said}");
        ensure!(ended.state()? == State::Stopped);
        for sandbox in [files, server, ended] {
            sandbox.keep();
        }
        Ok(())
    }

    fn sandboxes(&self, testbed: &Testbed) -> [Sandbox; 3] {
        let (ctr, docker) = (testbed.ctr(), testbed.docker());
        [
            self.files.sandbox(ctr),
            self.server.sandbox(docker),
            self.ended.sandbox(docker),
        ]
    }

    pub(super) fn remove(self, testbed: &Testbed) -> Result<()> {
        self.sandboxes(testbed)
            .into_iter()
            .try_for_each(Sandbox::remove)
    }
}
