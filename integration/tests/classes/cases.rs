// SPDX-License-Identifier: Apache-2.0

//! A table per kind of sandbox. A case is one exec, and so one turn; what it needs is
//! made by another before it. All cases run, and those that came out otherwise are
//! named together.

use anyhow::{Context, Result, ensure};
use crab_integration::{Crab, Sandbox, Turn};
use crab_store::Class;

/// One turn and what it has to be taken for.
pub(crate) struct Case {
    name: &'static str,
    /// A turn before it, of whatever class; none if empty.
    before: &'static str,
    script: &'static str,
    class: Class,
    /// With what status the script has to end.
    status: i32,
    /// It touches nothing at all, so the counters must have been enough to tell.
    by_counters: bool,
}

pub(crate) const fn case(
    class: Class,
    name: &'static str,
    before: &'static str,
    script: &'static str,
) -> Case {
    Case {
        name,
        before,
        script,
        class,
        status: 0,
        by_counters: false,
    }
}

impl Case {
    pub(crate) const fn ending_with(mut self, status: i32) -> Self {
        self.status = status;
        self
    }

    pub(crate) const fn by_counters(mut self) -> Self {
        self.by_counters = true;
        self
    }

    /// What is wrong with how it came out.
    fn run(&self, crab: &Crab, sandbox: &Sandbox) -> Result<Option<String>> {
        if !self.before.is_empty() {
            let (said, _) = crab.turn(sandbox, &["bash", "-c", self.before])?;
            said.ok().context("what comes before it")?;
        }
        let (said, turn) = crab.turn(sandbox, &["bash", "-c", self.script])?;
        ensure!(
            said.status == self.status,
            "it ended with {}: {} {}",
            said.status,
            said.stdout.trim(),
            said.stderr.trim()
        );
        Ok(self.judge(&turn))
    }

    fn judge(&self, turn: &Turn) -> Option<String> {
        let record = &turn.record;
        if turn.class() != self.class {
            return Some(format!(
                "{} is {} and not {}: {} {:?}",
                self.name, record.class, self.class, record.reason, record.changed
            ));
        }
        if self.by_counters && !record.reason.contains("no file was touched") {
            return Some(format!("{}: looked at: {}", self.name, record.reason));
        }
        if let Some(why) = &record.degraded {
            return Some(format!("{}: files only: {why}", self.name));
        }
        if let Some(why) = &record.unobserved {
            return Some(format!("{}: unobserved: {why}", self.name));
        }
        None
    }
}

pub(crate) fn run_all(crab: &Crab, sandbox: &Sandbox, cases: &[Case]) -> Result<()> {
    let mut wrong = Vec::new();
    for case in cases {
        match case.run(crab, sandbox) {
            Ok(None) => {}
            Ok(Some(why)) => wrong.push(why),
            Err(error) => wrong.push(format!("{}: {error:#}", case.name)),
        }
    }
    ensure!(
        wrong.is_empty(),
        "{} of {} with {}:\n{}",
        wrong.len(),
        cases.len(),
        sandbox.client().name(),
        wrong.join("\n")
    );
    Ok(())
}
