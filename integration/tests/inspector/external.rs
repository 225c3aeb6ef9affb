// SPDX-License-Identifier: Apache-2.0

//! What a rollback could not bring back: it is no effect on the sandbox.

use std::fs;

use anyhow::Result;
use crab_integration::{Client, RunOptions, Testbed, proof::Life};
use crab_store::Class;

use crate::{outside::Directory, turn_of};

#[test]
fn a_write_to_a_directory_of_the_host_is_no_change_of_the_sandbox() -> Result<()> {
    let testbed = Testbed::here()?;
    for client in testbed.clients() {
        let host = Directory::new("external")?;
        let source = host.text();
        let flags = match client {
            Client::Ctr { .. } => [
                "--mount".to_owned(),
                format!("type=bind,src={source},dst=/data,options=rbind:rw"),
            ],
            Client::Docker => ["-v".to_owned(), format!("{source}:/data")],
        };
        let mut life = Life::begin(client, RunOptions::new().flags(flags))?;
        turn_of(&mut life, Class::None, "write /data/file 1 100")?;
        assert_eq!(fs::metadata(host.0.join("file"))?.len(), 100);
        turn_of(&mut life, Class::None, "map /data/file 2 50")?;
        turn_of(&mut life, Class::None, "rename /data/file /data/other 0")?;
        turn_of(&mut life, Class::Files, "sendfile /data/other /root/a 100")?;
        turn_of(&mut life, Class::None, "sendfile /root/a /data/other 50")?;
        turn_of(&mut life, Class::None, "unlink /data/other")?;
        fs::write(host.0.join("of-the-host"), "x")?;
        turn_of(&mut life, Class::None, "look /data/of-the-host")?;
    }
    Ok(())
}
