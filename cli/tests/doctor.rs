// SPDX-License-Identifier: Apache-2.0

//! `doctor` on a host that has nothing: what is missing is said, and nothing is made.

mod support;

use std::fs;

use support::*;

fn check<'a>(report: &'a serde_json::Value, name: &str) -> &'a serde_json::Value {
    let checks = report["checks"].as_array().unwrap();
    let found = checks.iter().find(|check| check["check"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {report}"))
}

fn report(host: &Host) -> (i32, serde_json::Value) {
    let ran = host.crab(&["doctor", "--json"]);
    assert_eq!(ran.err, "");
    assert_eq!(ran.out.lines().count(), 1, "{}", ran.out);
    (ran.code, serde_json::from_str(&ran.out).unwrap())
}

#[test]
fn a_host_without_criu_and_runc_is_told_what_to_install() {
    let host = Host::new();
    let (code, report) = report(&host);
    assert_eq!((code, &report["well"]), (1, &serde_json::json!(false)));
    let criu = check(&report, "criu");
    assert_eq!(criu["verdict"], "fail");
    assert!(criu["mend"].as_str().unwrap().contains("install CRIU"));
    let runtime = check(&report, "runtime");
    assert_eq!(runtime["verdict"], "warn");
    assert!(
        runtime["found"]
            .as_str()
            .unwrap()
            .contains("the built-in runtime")
    );
    assert_eq!(check(&report, "configuration")["verdict"], "ok");
    let store = check(&report, "store");
    assert!(
        store["found"]
            .as_str()
            .unwrap()
            .contains("made with the first sandbox")
    );
    // Looking has made nothing.
    assert!(!host.path("store").exists() && !host.path("run").exists());

    let text = host.crab(&["doctor"]);
    assert_eq!((text.code, text.err.as_str()), (1, ""));
    assert!(text.out.contains("\nfail  criu "), "{}", text.out);
    assert!(
        text.out.lines().last().unwrap().contains("fault"),
        "{}",
        text.out
    );
}

#[test]
fn a_configuration_that_cannot_be_used_hides_nothing_else() {
    let host = Host::new();
    fs::write(
        host.path("config.toml"),
        "store = \"/x\"\n\nlog_level = \"loud\"\n",
    )
    .unwrap();
    let (code, report) = report(&host);
    assert_eq!(code, 1);
    let configuration = check(&report, "configuration");
    assert_eq!(configuration["verdict"], "fail");
    assert!(
        configuration["found"]
            .as_str()
            .unwrap()
            .contains("config.toml:3: ")
    );
    check(&report, "kernel");
    check(&report, "staging");
}

#[test]
fn a_store_of_a_newer_version_is_no_good() {
    let host = Host::new();
    fs::create_dir(host.path("store")).unwrap();
    fs::write(host.path("store").join("FORMAT"), "crab-store 64\n").unwrap();
    let (_, report) = report(&host);
    let store = check(&report, "store");
    assert_eq!(store["verdict"], "fail");
    assert!(store["found"].as_str().unwrap().contains("format 64"));
}
