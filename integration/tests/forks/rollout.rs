// SPDX-License-Identifier: Apache-2.0

//! The example: a tree of copies of copies, whose every leaf knows its own path alone.

use std::{env, time::Duration};

use anyhow::Result;
use crab_integration::{CgroupMode, Testbed, Tool};

#[test]
fn every_leaf_of_a_rollout_knows_the_path_that_led_to_it() -> Result<()> {
    let testbed = Testbed::here()?;
    let root = env::var("TESTBED_SRC").unwrap_or_else(|_| "/src".into());
    // In v2 mode the cpu controller may be bound to v1, and runc refuses.
    let flags = match testbed.cgroup() {
        CgroupMode::V1 => "",
        CgroupMode::V2 => "--cpu-shares 0",
    };
    let said = Tool::new("env")
        .args([&format!("RUN_FLAGS={flags}"), "bash"])
        .args([&format!("{root}/examples/tree-rollout"), "2", "2"])
        .limit(Duration::from_secs(120))
        .run()?
        .ok()?;
    assert!(
        said.stdout.contains("4 leaves verified, 6 copies made"),
        "{}",
        said.stdout
    );
    Ok(())
}
