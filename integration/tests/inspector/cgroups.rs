// SPDX-License-Identifier: Apache-2.0

//! Processes in cgroups below the sandbox's own, as a sandbox with systemd or a container
//! engine in it has them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use crab_integration::{RunOptions, Sandbox, Testbed, proof::Life};
use crab_store::Class;

use crate::turn_of;

/// The sandbox's cgroup in the hierarchy of v2.
fn cgroup(sandbox: &Sandbox) -> Result<PathBuf> {
    let table = fs::read_to_string(format!("/proc/{}/cgroup", sandbox.pid()?))?;
    let path = table.lines().find_map(|line| line.strip_prefix("0::/"));
    let path = path.context("it is in no cgroup of v2")?;
    let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
    let mut all = roots.iter().map(|root| Path::new(root).join(path));
    all.find(|dir| dir.is_dir())
        .context("its cgroup is not there")
}

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
        let child = cgroup(life.sandbox())?.join("child/of-it");
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
