// SPDX-License-Identifier: Apache-2.0

//! `crab doctor`: whether this host has what Crab needs, and what to do where not.
//!
//! Looks, asks and tries out, and leaves nothing behind: no daemon is started, no file
//! written. What there is, is gathered by each part; what to make of it is a pure
//! function there. One thing that is wrong hides no other: with a configuration that
//! cannot be used, the rest is looked at with the defaults, as the shims do.

mod check;
mod containerd;
mod crabd;
mod criu;
mod docker;
mod kernel;
mod program;
mod runtime;
mod store;
mod version;

use std::{env, path::PathBuf};

use crab_config::{CONFIG_ENV, Config, ConfigError, DEFAULT_PATH};
use serde::Serialize;

use self::{
    check::{Check, Verdict},
    containerd::Containerd,
    program::SearchPath,
};
use crate::output;

#[derive(Serialize)]
struct Report {
    /// Nothing that Crab needs is missing.
    well: bool,
    checks: Vec<Check>,
}

/// What is to be printed, and whether all is well.
pub(crate) async fn run(json: bool, store: Option<PathBuf>) -> (String, bool) {
    let report = Report::new(checks(store).await);
    let text = match json {
        true => report.json(),
        false => report.text(),
    };
    (text, report.well)
}

async fn checks(store: Option<PathBuf>) -> Vec<Check> {
    let (config, wrong) = Config::load_or_default();
    let uid = rustix::process::geteuid();
    if !uid.is_root() {
        // To others much looks as if it were not there.
        let mut checks = vec![user(uid.as_raw())];
        checks.extend(kernel::checks());
        checks.push(configuration(wrong));
        return checks;
    }
    let containerd = Containerd::find().await;
    let path = match &containerd {
        Some(containerd) => containerd.path.clone(),
        None => SearchPath::own(),
    };
    let mut checks = vec![user(uid.as_raw())];
    checks.extend(kernel::checks());
    checks.push(runtime::check(config.runtime.binary.as_deref(), &path).await);
    let release = kernel::release();
    checks.push(criu::check(config.runtime.criu.as_deref(), &path, &release).await);
    checks.extend(containerd::checks(containerd.as_ref()).await);
    checks.extend(docker::checks());
    checks.push(configuration(wrong));
    checks.extend(crabd::checks(&config).await);
    checks.push(store::store(store.as_deref().unwrap_or(&config.store)));
    checks.push(store::staging(&config));
    checks
}

fn user(uid: u32) -> Check {
    const NAME: &str = "user";
    match uid {
        0 => Check::ok(NAME, "root"),
        uid => Check::fail(
            NAME,
            format!(
                "user {uid}: all but the kernel and the configuration is only to be seen by root"
            ),
            "run crab doctor as root",
        ),
    }
}

fn configuration(wrong: Option<ConfigError>) -> Check {
    const NAME: &str = "configuration";
    let named = env::var_os(CONFIG_ENV).filter(|path| !path.is_empty());
    let path = PathBuf::from(named.unwrap_or_else(|| DEFAULT_PATH.into()));
    match wrong {
        None if path.exists() => Check::ok(NAME, format!("{} is understood", path.display())),
        None => Check::ok(NAME, format!("no {}: the defaults", path.display())),
        // Its own last part says what to do.
        Some(error) => Check::fail(
            NAME,
            format!("{error}"),
            "until then shims and crabd go by the defaults",
        ),
    }
}

impl Report {
    fn new(checks: Vec<Check>) -> Self {
        let well = checks.iter().all(|check| check.verdict != Verdict::Fail);
        Self { well, checks }
    }

    fn json(&self) -> String {
        // Strings and words: nothing that cannot be written.
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for check in &self.checks {
            let found = output::visible(&check.found);
            text += &format!("{:<5} {:<18} {found}", check.verdict, check.check);
            if let Some(mend) = &check.mend {
                text += &format!("; {}", output::visible(mend));
            }
            text.push('\n');
        }
        let count = |verdict| {
            let all = self.checks.iter();
            all.filter(|check| check.verdict == verdict).count() as u64
        };
        let warnings = output::count(count(Verdict::Warn), "warning", "warnings");
        text += &match (count(Verdict::Fail), count(Verdict::Warn)) {
            (0, 0) => "all is well\n".to_owned(),
            (0, _) => format!("all is well, with {warnings}\n"),
            (faults, 0) => format!("{}\n", output::count(faults, "fault", "faults")),
            (faults, _) => format!("{}, {warnings}\n", output::count(faults, "fault", "faults")),
        };
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_a_line_for_each_check_and_one_for_all() {
        let report = Report::new(vec![
            Check::ok("kernel", "Linux"),
            Check::warn("criu", "old", "a newer one"),
            Check::absent("docker", "not installed"),
        ]);
        assert!(report.well);
        assert_eq!(
            report.text(),
            "ok    kernel             Linux\n\
             warn  criu               old; a newer one\n\
             -     docker             not installed\n\
             all is well, with 1 warning\n"
        );
        let report = Report::new(vec![Check::fail("criu", "no\u{1b}[2J", "one")]);
        assert!(!report.well);
        assert!(report.text().ends_with("no\\u{1b}[2J; one\n1 fault\n"));
        assert_eq!(
            report.json(),
            "{\"well\":false,\"checks\":[{\"check\":\"criu\",\"verdict\":\"fail\",\
             \"found\":\"no\\u001b[2J\",\"mend\":\"one\"}]}\n"
        );
    }

    #[test]
    fn only_root_sees_everything() {
        assert_eq!(user(0).verdict, Verdict::Ok);
        assert_eq!(user(1000).verdict, Verdict::Fail);
    }
}
