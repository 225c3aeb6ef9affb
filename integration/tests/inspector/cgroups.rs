// SPDX-License-Identifier: Apache-2.0

//! Processes in cgroups below the sandbox's own, as a sandbox with systemd or a container
//! engine in it has them.

use std::fs;

use anyhow::{Context, Result};
use crab_integration::{RunOptions, Testbed, proof::Life};
use crab_store::Class;

use crate::turn_of;

#[test]
fn a_process_in_a_child_cgroup_counts() -> Result<()> {
    let testbed = Testbed::here()?;
    for client in testbed.clients() {
        let mut life = Life::begin(client, RunOptions::new())?;
        turn_of(&mut life, Class::Processes, "spawn one sits /root/a")?;
        let init = life.sandbox().pid()?;
        let all = life.sandbox().processes()?;
        let server = all.into_iter().find(|pid| *pid != init);
        let server = server.context("the server is not there")?;
        let child = life.sandbox().cgroup()?.join("child/of-it");
        fs::create_dir_all(&child)?;
        fs::write(child.join("cgroup.procs"), server.to_string())?;
        // That it was moved may be a change or none.
        life.turn("nothing".into())?;
        turn_of(&mut life, Class::None, "nothing")?;
        turn_of(&mut life, Class::Processes, "tell one count")?;
        turn_of(&mut life, Class::None, "nothing")?;
        turn_of(&mut life, Class::Files, "write /root/b 1 10")?;
        turn_of(&mut life, Class::Full, "tell one write")?;
        turn_of(&mut life, Class::Processes, "tell one fork")?;
        turn_of(&mut life, Class::Processes, "kill one")?;
    }
    Ok(())
}
