// SPDX-License-Identifier: Apache-2.0

//! Checkpoints that one shim makes and another restores: containerd notes the runtime's
//! name in them, so what goes by that name is exchanged.

use anyhow::Result;
use crab_integration::{DEBIAN, Imposter, Runtime, Testbed, poll};

use crate::{LIMIT, keeper, remembers, token};

#[test]
fn a_checkpoint_of_the_stock_shim_comes_back_under_crab_and_goes_back_again() -> Result<()> {
    let testbed = Testbed::here()?;
    let (ctr, crab) = (testbed.ctr(), testbed.crab());
    let sandbox = ctr.run(DEBIAN, keeper().runtime(Runtime::Stock))?;
    let known = token(&sandbox)?;
    let image = ctr.checkpoint(&sandbox)?;
    sandbox.remove()?;

    let imposter = Imposter::begin()?;
    let sandbox = image.restored()?;
    remembers(&sandbox, &known)?;
    // A sandbox like any other: it has turns, and can be rolled back.
    let (said, turn) = crab.turn(&sandbox, &["sh", "-c", "echo 1 >/root/f"])?;
    said.ok()?;
    assert!(turn.is_whole(), "{turn:?}");
    let (said, _) = crab.turn(&sandbox, &["sh", "-c", "echo 2 >/root/f"])?;
    said.ok()?;
    crab.rollback(&sandbox, turn.number())?;
    assert_eq!(sandbox.sh_ok("cat /root/f")?, "1");
    remembers(&sandbox, &known)?;
    drop(image);
    let image = ctr.checkpoint(&sandbox)?;
    sandbox.remove()?;
    drop(imposter);

    let sandbox = image.restored()?;
    remembers(&sandbox, &known)?;
    assert_eq!(sandbox.sh_ok("cat /root/f")?, "1");
    // Really the stock one.
    assert!(crab.turns(&sandbox).is_err());
    Ok(())
}

#[test]
fn a_network_of_crabs_making_does_not_keep_an_image_from_the_stock_shim() -> Result<()> {
    let testbed = Testbed::here()?;
    let ctr = testbed.ctr();
    let imposter = Imposter::begin()?;
    let sandbox = ctr.run(DEBIAN, keeper().runtime(Runtime::Stock))?;
    let known = token(&sandbox)?;
    let image = ctr.checkpoint(&sandbox)?;
    sandbox.remove()?;
    drop(imposter);
    let sandbox = image.restored()?;
    remembers(&sandbox, &known)?;
    poll("only loopback is there", LIMIT, || {
        let lines = sandbox.sh_ok("cat /proc/net/dev")?;
        Ok((lines.lines().filter(|line| line.contains(':')).count() == 1).then_some(()))
    })
}
