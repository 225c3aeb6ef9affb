// SPDX-License-Identifier: Apache-2.0

//! Directories that are not where the default has them.

use std::{fs, path::Path};

use anyhow::{Result, ensure};
use crab_integration::{
    BUSYBOX, Census, RunOptions, Swapped, Testbed, forget_fifos, poll, processes,
};
use crab_store::Class;

use crate::LIMIT;

const CONFIG: &str = "/etc/crab/config.toml";
const TEXT: &str = "store = '/var/lib/crab/elsewhere'\nrun_dir = '/run/elsewhere'\n\
                    [checkpoints]\nstaging_dir = '/dev/shm/crab'\n";

/// Those that the text names.
struct Places;

impl Drop for Places {
    fn drop(&mut self) {
        // Its crabd serves nobody any more.
        for pid in processes::named(processes::CRABD) {
            let _ = processes::kill(pid);
            let _ = processes::wait_gone(pid, LIMIT);
        }
        for dir in ["/var/lib/crab/elsewhere", "/run/elsewhere", "/dev/shm/crab"] {
            let _ = fs::remove_dir_all(dir);
        }
    }
}

#[test]
fn a_sandbox_lives_and_goes_where_the_configuration_of_its_start_has_it() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    for client in testbed.clients() {
        let before = Census::take()?;
        let places = Places;
        let config = Swapped::with(CONFIG, TEXT)?;
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        let id = sandbox.sandbox_id();
        crab.turn_of(&sandbox, Class::Files, "echo x >/root/x")?;
        crab.rollback(&sandbox, 0)?;
        let of_it = |dir: &str| Path::new(dir).join("sandboxes").join(&id);
        ensure!(of_it("/var/lib/crab/elsewhere").join("journal").exists());
        ensure!(of_it("/run/elsewhere").join("netns").exists());
        ensure!(!of_it("/run/crab").exists() && !of_it("/var/lib/crab").exists());

        // Whoever cleans up after its shim finds it, although the file says nothing now.
        drop(config);
        let broken = Swapped::with(CONFIG, "run_dir = \n")?;
        let shim = sandbox.shim()?;
        processes::kill(shim)?;
        poll("its directory is gone", LIMIT, || {
            Ok((!of_it("/run/elsewhere").exists()).then_some(()))
        })?;
        sandbox.remove()?;
        drop(broken);
        drop(places);
        forget_fifos()?;
        before.wait_for_nothing_left()?;
    }
    Ok(())
}
