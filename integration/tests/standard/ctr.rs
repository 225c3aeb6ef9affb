// SPDX-License-Identifier: Apache-2.0

//! `ctr`: images of containerd, there and back.

use anyhow::Result;
use crab_integration::{DEBIAN, Imposter, RunOptions, Runtime, State, Testbed};

use crate::{Scratch, is_untouched, keeper, remembers, token};

#[test]
fn files_and_processes_come_back_again_and_again() -> Result<()> {
    let testbed = Testbed::here()?;
    let ctr = testbed.ctr();
    let sandbox = ctr.run(DEBIAN, keeper())?;
    let (pid, known) = (sandbox.pid()?, token(&sandbox)?);
    sandbox.sh_ok("echo kept >/root/kept")?;
    let image = ctr.checkpoint(&sandbox)?;
    is_untouched(&sandbox, pid)?;
    remembers(&sandbox, &known)?;
    sandbox.sh_ok("echo later >/root/kept")?;
    // Beside the one that goes on.
    let first = image.restored()?;
    remembers(&first, &known)?;
    assert_eq!(first.sh_ok("cat /root/kept")?, "kept");
    sandbox.remove()?;
    let second = image.restored()?;
    remembers(&second, &known)?;
    first.remove()?;
    drop(image);
    // Of one that was restored, and of that again.
    let mut sandbox = second;
    for _ in 0..3 {
        let image = ctr.checkpoint(&sandbox)?;
        sandbox.remove()?;
        sandbox = image.restored()?;
        remembers(&sandbox, &known)?;
        assert_eq!(sandbox.sh_ok("cat /root/kept")?, "kept");
    }
    Ok(())
}

#[test]
fn what_an_exec_left_running_comes_back_with_its_output_drained() -> Result<()> {
    let testbed = Testbed::here()?;
    let ctr = testbed.ctr();
    let sandbox = ctr.run(DEBIAN, RunOptions::new())?;
    // It writes to the exec's own stdout, whose other end the shim has.
    sandbox.sh_ok(
        "setsid sh -c 'trap \"\" PIPE; n=0; while :; do n=$((n+1)); \
         echo $n || exit; echo $n >/root/n; sleep 0.05; done' </dev/null & \
         until [ -s /root/n ]; do sleep 0.01; done",
    )?;
    let image = ctr.checkpoint(&sandbox)?;
    // It is empty for a moment, each time that it is written.
    let number = "until n=$(cat /root/n) && [ -n \"$n\" ]; do :; done; echo $n";
    let before: u32 = sandbox.sh_ok(number)?.parse()?;
    sandbox.remove()?;
    let back = image.restored()?;
    back.sh_ok("rm -f /root/n; until [ -s /root/n ]; do sleep 0.01; done")?;
    let after: u32 = back.sh_ok(number)?.parse()?;
    // Not from 1 again, and not ended by its output.
    assert!(after + 40 > before && after > 1, "{before} {after}");
    Ok(())
}

#[test]
fn every_option_of_ctr_is_obeyed_where_ctr_sends_it() -> Result<()> {
    let testbed = Testbed::here()?;
    let ctr = testbed.ctr();
    let events = testbed.events()?;
    // ctr of containerd 1.7 sends them to the runtime that it calls its own.
    let imposter = Imposter::begin()?;
    let sandbox = ctr.run(DEBIAN, keeper().runtime(Runtime::Stock))?;
    let (pid, known) = (sandbox.pid()?, token(&sandbox)?);
    let dir = Scratch::new()?;
    let (images, work) = (dir.text("images"), dir.text("work"));
    let options = ["--image-path", &images, "--work-path", &work];
    ctr.tool(["task", "checkpoint"])
        .args(options)
        .args([sandbox.id()])
        .run()?
        .ok()?;
    is_untouched(&sandbox, pid)?;
    remembers(&sandbox, &known)?;
    assert!(dir.join("images/inventory.img").exists());
    assert!(dir.join("images/descriptors.json").exists());
    assert!(dir.join("work/dump.log").exists());
    assert!(dir.join("work/stats-dump").exists());
    assert!(!dir.join("images/dump.log").exists());
    let images = dir.text("last");
    ctr.tool(["task", "checkpoint", "--exit", "--image-path", &images])
        .args([sandbox.id()])
        .run()?
        .ok()?;
    assert_eq!(sandbox.state()?, State::Stopped);
    assert_eq!(events.exits_of_init(&sandbox)?, 1);
    assert!(dir.join("last/inventory.img").exists());
    drop(sandbox);
    drop(imposter);
    Ok(())
}
