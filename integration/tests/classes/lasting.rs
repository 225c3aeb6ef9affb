// SPDX-License-Identifier: Apache-2.0

//! What lives on with neither a file nor a process: beside an init that only holds the
//! container open it is all that there is.

use std::{thread, time::Duration};

use anyhow::{Result, ensure};
use crab_integration::{DEBIAN, RunOptions, Testbed};
use crab_store::Class;

/// The kernel tells the times of what is done to IPC objects in seconds.
const SECOND: Duration = Duration::from_millis(1100);

#[test]
fn a_segment_of_shared_memory_that_a_turn_leaves_is_kept_and_comes_back() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::new())?;
        crab.turn_of(&sandbox, Class::None, "true")?;
        let segments = "ipcs -m | grep -c 0x";
        let made = crab.turn_of(&sandbox, Class::Processes, "ipcmk -M 4096")?;
        ensure!(made.is_whole(), "{:?}", made.record.degraded);
        assert_eq!(sandbox.sh_ok(segments)?, "1");
        thread::sleep(SECOND);
        crab.turn(&sandbox, &["true"])?;
        crab.turn_of(&sandbox, Class::None, "true")?;
        crab.turn_of(&sandbox, Class::Processes, "ipcrm -a")?;
        crab.rollback(&sandbox, made.number())?;
        assert_eq!(sandbox.sh_ok(segments)?, "1");
    }
    Ok(())
}

#[test]
fn a_mount_that_a_turn_leaves_is_no_none_and_its_end_neither() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::new().flags(["--privileged"]))?;
        crab.turn_of(&sandbox, Class::None, "true")?;
        for call in [
            "mount(b'none', b'/mnt', b'tmpfs', 0, None)",
            "umount2(b'/mnt', 2)",
        ] {
            let script = format!("import ctypes; exit(-ctypes.CDLL(None).{call})");
            let (said, turn) = crab.turn(&sandbox, &["python3", "-B", "-c", &script])?;
            said.ok()?;
            ensure!(
                matches!(turn.class(), Class::Processes | Class::Full),
                "{call}: {:?}",
                turn.record
            );
        }
        crab.turn_of(&sandbox, Class::None, "true")?;
    }
    Ok(())
}
