// SPDX-License-Identifier: Apache-2.0

//! Memory comes back exactly as it was, however it came to hold what it holds: also in the ways that a kernel which
//! tracks written pages does not see (`docs/decisions/0024-no-images-by-soft-dirty-bits.md`).

mod tracked;

use anyhow::{Result, ensure};
use crab_integration::{DEBIAN, RunOptions, Sandbox, Testbed, counter::ASK};
use crab_store::Class;

/// A process whose regions of memory change in one way each.
const REGIONS: &str = include_str!("regions.py");

const FIRST: &str = "written=A dropped=A moved=B toggled=X shared=A cleared=A";
const SECOND: &str = "written=B dropped=- moved=A toggled=N shared=B cleared=B";

/// How much else is in it, in MiB.
const BALLAST: u64 = 8;

/// A shell script that starts it, and ends when it answers.
fn start(mib: u64) -> String {
    format!(
        "cat >/root/regions.py <<'END'\n{REGIONS}END\n\
         cat >/bin/ask <<'END'\n{ASK}END\n\
         chmod +x /bin/ask\n\
         setsid python3 -B /root/regions.py regions {mib} </dev/null >/dev/null 2>&1 &\n\
         ask regions look"
    )
}

fn ask(sandbox: &Sandbox, word: &str) -> Result<String> {
    sandbox.exec(&["ask", "regions", word])?.text()
}

#[test]
fn a_second_image_holds_every_change_and_takes_little() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let sandbox = testbed.ctr().run(DEBIAN, RunOptions::without_bytecode())?;
    let (said, first) = crab.turn(&sandbox, &["bash", "-c", &start(BALLAST)])?;
    assert_eq!(said.text()?, FIRST);
    ensure!(first.is_whole(), "{first:?}");
    let stored = crab.ps_of(&sandbox)?.bytes_stored;
    ensure!(stored > BALLAST << 20, "{stored}");

    let (said, second) = crab.turn(&sandbox, &["ask", "regions", "change"])?;
    assert_eq!(said.text()?, SECOND);
    ensure!(
        second.class() == Class::Processes && second.is_whole(),
        "{second:?}"
    );
    let more = crab.ps_of(&sandbox)?.bytes_stored - stored;
    ensure!(more * 4 < stored, "{more} bytes more than {stored}");
    // Where processes are slow to come to rest, there may be no record to compare with.
    let found = crab.verify(&sandbox, None)?;
    ensure!(
        found["same"] == true && found["memory"] != "differs",
        "{found}"
    );

    crab.rollback_cold(&sandbox, second.number())?;
    assert_eq!(ask(&sandbox, "look")?, SECOND);
    Ok(())
}
