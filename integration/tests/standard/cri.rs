// SPDX-License-Identifier: Apache-2.0

//! The CRI's `CheckpointContainer`, by `crictl checkpoint`, and what its archive holds.
//! Restoring one is containerd's: it pulls the base image from a registry, whatever is
//! there already, and then creates a task as any other client does.

use anyhow::{Result, ensure};
use crab_integration::{ContainerOptions, DEBIAN, PodOptions, Runtime, Testbed, Tool, skip};

use crate::{KEEPER, Scratch, is_untouched, remembers, token};

#[test]
fn a_container_of_a_pod_is_archived_and_goes_on() -> Result<()> {
    let testbed = Testbed::here()?;
    let Some(cri) = testbed.cri()? else {
        return Ok(());
    };
    let pod = cri.pod(Runtime::Crab, PodOptions::new())?;
    let options = ContainerOptions::new().command(["sh", "-c", KEEPER]);
    let container = pod.run(DEBIAN, options)?;
    let sandbox = container.sandbox();
    let (pid, known) = (sandbox.pid()?, token(sandbox)?);
    sandbox.sh_ok("echo kept >/root/kept")?;
    let dir = Scratch::new()?;
    // Again and again: nothing of the one before is in the way.
    for n in 1..=2 {
        let archive = dir.join(&format!("{n}.tar"));
        let said = container.checkpoint(&archive)?;
        is_untouched(sandbox, pid)?;
        remembers(sandbox, &known)?;
        if said.status != 0 {
            // Not silently, and not by the shim.
            ensure!(said.stderr.contains("not implemented"), "{said:?}");
            return skip("containerd before 2.1 has no CheckpointContainer");
        }
        let list = ["tf", &archive.display().to_string()];
        let list = Tool::new("tar").args(list).run()?.ok()?.stdout;
        for name in [
            "checkpoint/inventory.img",
            "checkpoint/pages-1.img",
            "checkpoint/descriptors.json",
            "config.dump",
            "spec.dump",
            "rootfs-diff.tar",
        ] {
            ensure!(list.lines().any(|line| line == name), "no {name} in {list}");
        }
    }
    Ok(())
}
