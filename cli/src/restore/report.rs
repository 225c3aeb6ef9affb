// SPDX-License-Identifier: Apache-2.0

//! What `crab restore --all` tells: a line for each sandbox that was lost, and how many of which kind
//! were left.

use std::collections::BTreeMap;

use crab_store::{Class, SandboxId, TurnId};
use serde::Serialize;

use super::judge::Why;
use crate::{
    output::{NOTHING, cell, count, duration, or_nothing, table},
    ps::short,
    rollback::{Back, with},
};

/// The widest reason in a table; `--json` has all of it.
const MAX_NOTE: usize = 160;
const MAX_NAME: usize = 30;

/// What became of a sandbox, or would.
#[derive(Serialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub(super) enum Outcome {
    /// It runs again.
    Restored(Done),
    /// It ran, anew, and is as it was again.
    RolledBack(Done),
    WouldBeRestored {
        checkpoint: TurnId,
    },
    WouldBeRolledBack {
        checkpoint: TurnId,
    },
    /// It was lost, and is not back.
    Failed {
        why: String,
    },
    Left {
        why: String,
        /// For the summary.
        #[serde(skip)]
        kind: Why,
    },
}

/// A sandbox that is back.
#[derive(Serialize)]
pub(super) struct Done {
    turn: TurnId,
    checkpoint: TurnId,
    /// What that checkpoint renewed.
    class: Option<Class>,
    /// Whether it holds processes, or its init is all.
    processes: bool,
    pid: u32,
    took_us: u64,
}

impl Done {
    pub(super) fn new(back: Back, class: Option<Class>) -> Self {
        Self {
            turn: back.turn,
            checkpoint: back.checkpoint,
            class,
            processes: back.processes,
            pid: back.pid,
            took_us: back.took_us,
        }
    }
}

impl Outcome {
    pub(super) fn failed(why: impl ToString) -> Self {
        Self::Failed {
            why: why.to_string(),
        }
    }

    pub(super) fn left(kind: Why) -> Self {
        Self::Left {
            why: kind.text(),
            kind,
        }
    }
}

#[derive(Serialize)]
pub(super) struct Row {
    pub(super) sandbox: SandboxId,
    /// What its client calls it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    #[serde(flatten)]
    pub(super) outcome: Outcome,
}

impl Row {
    /// It is shown in any case: something was done, or is for a user to do.
    fn tells(&self) -> bool {
        match &self.outcome {
            Outcome::Left { kind, .. } => matches!(kind, Why::RunsAnew(_)),
            _ => true,
        }
    }

    fn cells(&self) -> [String; 6] {
        let [turn, class, took, result] = match &self.outcome {
            Outcome::Restored(done) => done.cells("restored"),
            Outcome::RolledBack(done) => done.cells("rolled back"),
            Outcome::WouldBeRestored { checkpoint } => would(*checkpoint, "would be restored"),
            Outcome::WouldBeRolledBack { checkpoint } => would(*checkpoint, "would be rolled back"),
            Outcome::Failed { why } => nothing(format!("failed: {why}")),
            Outcome::Left { why, .. } => nothing(format!("left: {why}")),
        };
        let name = self.name.as_deref().unwrap_or(NOTHING);
        let sandbox = short(&self.sandbox);
        [
            sandbox,
            cell(name, MAX_NAME),
            turn,
            class,
            took,
            cell(&result, MAX_NOTE),
        ]
    }
}

impl Done {
    fn cells(&self, what: &str) -> [String; 4] {
        [
            self.turn.to_string(),
            or_nothing(self.class),
            duration(self.took_us),
            format!("{what}: {}", with(self.processes)),
        ]
    }
}

fn would(checkpoint: TurnId, what: &str) -> [String; 4] {
    let [_, class, took, result] = nothing(what.to_owned());
    [checkpoint.to_string(), class, took, result]
}

fn nothing(result: String) -> [String; 4] {
    let none = || NOTHING.to_owned();
    [none(), none(), none(), result]
}

/// The answer of the command.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) dry_run: bool,
    /// How many are back, or would be.
    restored: u64,
    failed: u64,
    left: u64,
    took_us: u64,
    sandboxes: Vec<Row>,
}

impl Report {
    pub(super) fn of(sandboxes: Vec<Row>, dry_run: bool, took_us: u64) -> Self {
        let count = |is: fn(&Outcome) -> bool| {
            let those = sandboxes.iter().filter(|row| is(&row.outcome));
            those.count() as u64
        };
        let failed = count(|it| matches!(it, Outcome::Failed { .. }));
        let left = count(|it| matches!(it, Outcome::Left { .. }));
        Self {
            dry_run,
            restored: sandboxes.len() as u64 - failed - left,
            failed,
            left,
            took_us,
            sandboxes,
        }
    }

    /// All that was lost is back.
    pub(super) fn is_whole(&self) -> bool {
        self.failed == 0
    }

    pub(super) fn text(&self) -> String {
        let shown = |row: &&Row| self.dry_run || row.tells();
        let rows: Vec<_> = self
            .sandboxes
            .iter()
            .filter(shown)
            .map(Row::cells)
            .collect();
        let mut text = String::new();
        if !rows.is_empty() {
            let header = ["SANDBOX", "NAME", "TURN", "CLASS", "TIME", "RESULT"];
            text = table(header, &[2, 4], rows);
        }
        let lost = self.restored + self.failed;
        text.push_str(&match (lost, self.dry_run) {
            (0, _) => "no sandbox was lost".to_owned(),
            (lost, true) => {
                let them = count(lost, "sandbox was", "sandboxes were");
                format!("{them} lost, {} would come back", self.restored)
            }
            (lost, false) => {
                let them = count(lost, "sandbox that was", "sandboxes that were");
                let took = duration(self.took_us);
                format!("{} of {them} lost back after {took}", self.restored)
            }
        });
        let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
        for row in &self.sandboxes {
            if let Outcome::Left { kind, .. } = &row.outcome {
                *kinds.entry(kind.of_many()).or_default() += 1;
            }
        }
        let kinds: Vec<String> = kinds
            .iter()
            .map(|(kind, n)| format!("{n} {kind}"))
            .collect();
        if !kinds.is_empty() {
            text.push_str(&format!("; left as they are: {}", kinds.join(", ")));
        }
        text.push('\n');
        text
    }
}

#[cfg(test)]
mod tests {
    use crab_store::Client;

    use super::*;

    fn row(id: &str, outcome: Outcome) -> Row {
        Row {
            sandbox: id.parse().unwrap(),
            name: None,
            outcome,
        }
    }

    fn rows() -> Vec<Row> {
        let back = Back {
            sandbox: "a/one".parse().unwrap(),
            turn: TurnId(7),
            checkpoint: TurnId(7),
            processes: true,
            pid: 12,
            took_us: 130_000,
        };
        let ended = Why::Ended { exit: 0, at_ms: 0 };
        vec![
            row(
                "a/one",
                Outcome::Restored(Done::new(back, Some(Class::Full))),
            ),
            row("a/two", Outcome::failed("its pack is damaged")),
            row("a/three", Outcome::left(ended)),
            row("moby/four", Outcome::left(Why::Removed(Client::Docker))),
            row("moby/five", Outcome::left(Why::RunsAnew(Some(TurnId(3))))),
        ]
    }

    #[test]
    fn what_was_lost_has_a_line_and_what_was_left_is_counted() {
        let report = Report::of(rows(), false, 1_500_000);
        assert!(!report.is_whole());
        let text = report.text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert!(lines[1].contains("130 ms") && lines[1].contains("restored: files and processes"));
        assert!(lines[2].ends_with("failed: its pack is damaged"));
        assert!(lines[3].contains("crab rollback --turn 3"));
        assert_eq!(
            lines[4],
            "1 of 2 sandboxes that were lost back after 1.5 s; left as they are: 1 ended, \
             1 removed, 1 started anew"
        );
        let dry = Report::of(rows(), true, 0).text();
        assert_eq!(dry.lines().count(), 7, "{dry}");
        let nothing = Report::of(Vec::new(), false, 0);
        assert!(nothing.is_whole());
        assert_eq!(nothing.text(), "no sandbox was lost\n");
    }

    #[test]
    fn each_outcome_has_a_name_of_its_own_in_json() {
        let json = serde_json::to_value(Report::of(rows(), false, 0)).unwrap();
        assert_eq!((&json["restored"], &json["left"]), (&1.into(), &3.into()));
        let outcome = |at: usize| json["sandboxes"][at]["outcome"].as_str().unwrap();
        assert_eq!([0, 1, 2].map(outcome), ["restored", "failed", "left"]);
        assert_eq!(json["sandboxes"][0]["class"], "full");
    }
}
