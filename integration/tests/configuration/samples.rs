// SPDX-License-Identifier: Apache-2.0

//! The samples, as the daemons of this host run with them.

use anyhow::Result;
use crab_integration::{BUSYBOX, RunOptions, Swapped, Testbed};
use crab_store::Class;

#[test]
fn docker_runs_containers_under_crab_by_the_name_in_its_configuration() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    // The last one counts.
    let options = RunOptions::new().flags(["--runtime", "crab"]);
    let sandbox = testbed.docker().run(BUSYBOX, options)?;
    let format = "{{.HostConfig.Runtime}}";
    let inspect = ["inspect", "-f", format, sandbox.name()];
    assert_eq!(testbed.docker().tool(inspect).run()?.text()?, "crab");
    crab.turn_of(&sandbox, Class::Files, "echo x >/root/x")?;
    crab.rollback(&sandbox, 0)?;
    assert_eq!(sandbox.sh("cat /root/x")?.status, 1);
    Ok(())
}

#[test]
fn the_sample_of_crabs_own_configuration_is_the_defaults() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let sample = include_str!("../../../config/samples/config.toml");
    let _config = Swapped::with("/etc/crab/config.toml", sample)?;
    for client in testbed.clients() {
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        crab.turn_of(&sandbox, Class::Files, "echo x >/root/x")?;
        assert!(crab.ps_of(&sandbox)?.config_faults.is_empty());
    }
    Ok(())
}
