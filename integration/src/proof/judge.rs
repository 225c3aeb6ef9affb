// SPDX-License-Identifier: Apache-2.0

//! Whether a class tells the truth.

use crab_store::TurnRecord;

use super::truth::Change;

/// How a turn's class compares with what changed in it.
#[derive(Clone, Debug, Default)]
pub struct Judgement {
    /// What changed and the class does not say: work that a rollback would lose.
    pub missed: Vec<String>,
    /// What the class says and did not change: a checkpoint for nothing.
    pub needless: Vec<&'static str>,
    /// What changed.
    pub change: Change,
}

/// Compares.
pub fn judge(record: &TurnRecord, change: &Change) -> Judgement {
    let class = record.class;
    let mut judgement = Judgement {
        change: change.clone(),
        ..Judgement::default()
    };
    if !class.has_files() {
        judgement.missed.extend(change.files.iter().cloned());
    } else if change.files.is_empty() {
        judgement.needless.push("files");
    }
    if !class.has_processes() {
        judgement.missed.extend(change.processes.iter().cloned());
    } else if change.processes.is_empty() && !change.held {
        judgement.needless.push("processes");
    }
    judgement
}

#[cfg(test)]
mod tests {
    use crab_store::Class;

    use super::*;

    fn judged(class: Class, files: &[&str], processes: &[&str], held: bool) -> (usize, usize) {
        let record = serde_json::from_value(serde_json::json!({
            "turn": 1, "trigger": "exec", "command": "", "began_ms": 0, "ended_ms": 0,
            "exit": 0, "class": class, "reason": "", "checkpoint": null,
        }));
        let record: TurnRecord = record.unwrap();
        let lines = |lines: &[&str]| lines.iter().map(|line| line.to_string()).collect();
        let change = Change {
            files: lines(files),
            processes: lines(processes),
            held,
        };
        let judgement = judge(&record, &change);
        (judgement.missed.len(), judgement.needless.len())
    }

    #[test]
    fn what_is_not_said_is_missed_and_what_did_not_change_is_needless() {
        assert_eq!(judged(Class::None, &[], &[], false), (0, 0));
        assert_eq!(judged(Class::None, &["a"], &["p"], false), (2, 0));
        assert_eq!(judged(Class::Files, &["a"], &["p"], false), (1, 0));
        assert_eq!(judged(Class::Processes, &["a"], &["p"], false), (1, 0));
        assert_eq!(judged(Class::Full, &[], &[], false), (0, 2));
        assert_eq!(judged(Class::Full, &["a"], &[], false), (0, 1));
        assert_eq!(judged(Class::Full, &["a"], &[], true), (0, 0));
    }
}
