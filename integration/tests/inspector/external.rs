// SPDX-License-Identifier: Apache-2.0

//! What a rollback could not bring back: it is no effect on the sandbox.

use std::fs;

use anyhow::Result;
use crab_integration::{RunOptions, Testbed, proof::Life};
use crab_store::Class;

use crate::turn_of;

#[test]
fn a_write_to_a_directory_of_the_host_is_no_change_of_the_sandbox() -> Result<()> {
    let testbed = Testbed::here()?;
    for client in testbed.clients() {
        let host = tempfile::tempdir()?;
        let options = RunOptions::new().bind(client, host.path(), "/data");
        let mut life = Life::begin(client, options)?;
        turn_of(&mut life, Class::None, "write /data/file 1 100")?;
        assert_eq!(fs::metadata(host.path().join("file"))?.len(), 100);
        turn_of(&mut life, Class::None, "map /data/file 2 50")?;
        turn_of(&mut life, Class::None, "rename /data/file /data/other 0")?;
        turn_of(&mut life, Class::Files, "sendfile /data/other /root/a 100")?;
        turn_of(&mut life, Class::None, "sendfile /root/a /data/other 50")?;
        turn_of(&mut life, Class::None, "unlink /data/other")?;
        fs::write(host.path().join("of-the-host"), "x")?;
        turn_of(&mut life, Class::None, "look /data/of-the-host")?;
    }
    Ok(())
}
