// SPDX-License-Identifier: Apache-2.0

//! What any shim has to do for `ctr` and `docker`: start, stdio, signals, exit
//! statuses, events, and nothing left behind.

mod events;
mod exits;
mod leftovers;
mod pausing;
mod resources;
mod sealed;
mod stdio;
mod terminal;

use std::time::Duration;

use anyhow::{Context, Result};
use crab_integration::{Client, Events, RunOptions, Sandbox};

const LIMIT: Duration = Duration::from_secs(20);

fn shell(script: &str) -> RunOptions {
    RunOptions::new().args(["sh", "-c", script])
}

/// How the init of a stopped container ended, as its client says.
fn status_of_init(sandbox: &Sandbox, events: &Events) -> Result<i32> {
    match sandbox.client() {
        Client::Docker => {
            let inspect = ["inspect", "-f", "{{.State.ExitCode}}", sandbox.name()];
            Ok(sandbox.client().tool(inspect).run()?.text()?.parse()?)
        }
        // `ctr` only warns of it.
        Client::Ctr { .. } => {
            let all = events.so_far()?;
            let exit = all.iter().find(|event| event.is_exit_of_init(sandbox));
            let payload = &exit.context("its end was not published")?.payload;
            // A zero is left out.
            let status = payload
                .get("exit_status")
                .and_then(|status| status.as_i64());
            Ok(i32::try_from(status.unwrap_or(0))?)
        }
    }
}
