// SPDX-License-Identifier: Apache-2.0
//! The limit of descriptors. In a process of its own: it is the whole process's.

use std::{env, process::Command, time::Duration};

use crab_runtime::{
    descriptors,
    reaper::{Limit, Reaper},
};
use rustix::process::{Resource, getrlimit};

/// Tells the test that it runs in a process that has the limits.
const LIMITED: &str = "CRAB_TEST_LIMITED_DESCRIPTORS";

#[test]
fn a_shim_takes_all_descriptors_and_its_children_have_what_it_was_given() {
    const NAME: &str = "a_shim_takes_all_descriptors_and_its_children_have_what_it_was_given";
    if env::var_os(LIMITED).is_none() {
        let limited = "ulimit -Sn 100; ulimit -Hn 300; exec \"$0\" --exact \"$1\"";
        let done = Command::new("bash")
            .args(["-euc", limited])
            .arg(env::current_exe().unwrap())
            .arg(NAME)
            .env(LIMITED, "1")
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&done.stdout);
        let passed = done.status.success() && told.contains("1 passed");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(passed, "{told}{said}");
        return;
    }
    assert_eq!(getrlimit(Resource::Nofile).current, Some(100));
    descriptors::take_all().unwrap();
    assert_eq!(getrlimit(Resource::Nofile).current, Some(300));
    let mut child = Command::new("bash");
    child.args(["-c", "ulimit -Sn; ulimit -Hn"]);
    let limit = Limit::after(Duration::from_secs(60));
    let (_, said) = Reaper::start().unwrap().answer(&mut child, limit).unwrap();
    assert_eq!(String::from_utf8_lossy(&said), "100\n300\n");
}
