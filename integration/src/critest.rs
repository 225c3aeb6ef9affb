// SPDX-License-Identifier: Apache-2.0

//! critest, the conformance tests of Kubernetes' CRI, under one runtime handler.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::{
    client::{Runtime, unique},
    command::Tool,
    testbed::{Testbed, has_client},
};

/// How long all specs may take.
const LIMIT: Duration = Duration::from_secs(900);
/// How many specs run at once: most of their time they wait.
const NODES: &str = "4";
/// The specs come in the order of this number, so that runs can be compared.
const SEED: &str = "1";

/// How the specs went, by their full names.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Those that passed.
    pub passed: BTreeSet<String>,
    /// Those that failed, each with the reason.
    pub failed: BTreeMap<String, String>,
    /// Those that found that they cannot be run here, or were not to be.
    pub skipped: BTreeSet<String>,
    /// How long they took together.
    pub took: Duration,
}

/// What ginkgo writes of a suite (`--json-report`).
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Suite {
    spec_reports: Vec<Spec>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Spec {
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: String,
    leaf_node_text: String,
    state: String,
    failure: Option<Failure>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    message: String,
}

impl Testbed {
    /// Runs critest with this runtime's handler, all of it or only the specs whose names
    /// match `focus`. None where it could not be built, and then the test is skipped.
    pub fn critest(&self, runtime: Runtime, focus: Option<&str>) -> Result<Option<Report>> {
        // The CRI has to be ready before a spec may fail for it.
        if !has_client("critest")? || self.cri()?.is_none() {
            return Ok(None);
        }
        self.service("start", "registry")?;
        let report = run(runtime, focus);
        self.service("stop", "registry")?;
        report.map(Some)
    }
}

fn run(runtime: Runtime, focus: Option<&str>) -> Result<Report> {
    let path = env::temp_dir().join(unique("critest"));
    let mut tool = Tool::new("critest")
        .args(["--runtime-handler", runtime.handler()])
        .args(["--parallel", NODES, "--ginkgo.seed", SEED])
        .args(["--ginkgo.json-report", &path.to_string_lossy()])
        .limit(LIMIT);
    if let Some(focus) = focus {
        tool = tool.args(["--ginkgo.focus", focus]);
    }
    let said = tool.run()?;
    let json = fs::read_to_string(&path).with_context(|| {
        let end: Vec<&str> = said.stdout.lines().rev().take(10).collect();
        format!("critest wrote no report: {end:?} {}", said.stderr.trim())
    })?;
    fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
    let mut report = Report::parse(&json)?;
    report.took = said.took;
    // A suite that fails outside of its specs has shown nothing.
    ensure!(
        said.status == 0 || !report.failed.is_empty(),
        "critest ended with {}, and no spec has failed: {}",
        said.status,
        said.stderr.trim()
    );
    Ok(report)
}

impl Report {
    fn parse(json: &str) -> Result<Self> {
        let suites: Vec<Suite> = serde_json::from_str(json).context("read critest's report")?;
        let mut report = Self::default();
        for spec in suites.into_iter().flat_map(|suite| suite.spec_reports) {
            let mut words = spec.container_hierarchy_texts.unwrap_or_default();
            words.push(spec.leaf_node_text);
            let name = words.join(" ");
            let reason = spec.failure.map(|failure| failure.message);
            match (spec.leaf_node_type.as_str(), spec.state.as_str()) {
                ("It", "passed") => drop(report.passed.insert(name)),
                ("It", "skipped" | "pending") => drop(report.skipped.insert(name)),
                // Setting up the suite.
                (_, "passed") => {}
                (_, state) => {
                    let reason = reason.unwrap_or_else(|| state.to_owned());
                    report.failed.insert(name, reason);
                }
            }
        }
        Ok(report)
    }

    /// The specs that failed here and passed there.
    pub fn only_here<'a>(&'a self, there: &'a Self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.failed
            .iter()
            .filter(|(name, _)| there.passed.contains(*name))
            .map(|(name, reason)| (name.as_str(), reason.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_ginkgo_is_understood() {
        let spec = |text: &str, state: &str, more: &str| {
            format!(
                r#"{{"ContainerHierarchyTexts":["[k8s.io] Pod"],"LeafNodeType":"It",
                "LeafNodeText":"{text}","State":"{state}"{more}}}"#
            )
        };
        let report = |second: &str, more: &str| {
            let specs = [
                r#"{"ContainerHierarchyTexts":null,"LeafNodeType":"BeforeSuite",
                "LeafNodeText":"","State":"passed"}"#
                    .to_owned(),
                spec("one", "passed", ""),
                spec("two", second, more),
                spec("three", "skipped", ""),
            ];
            let json = format!(r#"[{{"SpecReports":[{}]}}]"#, specs.join(","));
            Report::parse(&json).unwrap()
        };
        let there = report("passed", "");
        assert_eq!((there.passed.len(), there.skipped.len()), (2, 1));
        let here = report("failed", r#","Failure":{"Message":"no"}"#);
        let only_here: Vec<_> = here.only_here(&there).collect();
        assert_eq!(only_here, [("[k8s.io] Pod two", "no")]);
        assert_eq!(there.only_here(&here).count(), 0);
        // One that did not even end has not passed.
        let stuck = report("timedout", "");
        assert_eq!(stuck.failed["[k8s.io] Pod two"], "timedout");
    }
}
