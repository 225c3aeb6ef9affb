// SPDX-License-Identifier: Apache-2.0
//! Which changes call for a checkpoint, and which a rule of the configuration says do
//! not matter. Pure.
//!
//! A rule only ever decides whether there is a checkpoint, never what is in it: what was
//! passed over is in the next one that something else calls for. So the worst that a
//! pattern can do is that a rollback finds what it covers as it was a few turns earlier.

use std::collections::BTreeMap;

use crab_config::{Ignore, Patterns, PatternsOf};
use crab_runtime::{
    files::{Change, ChangeKind, FileKind},
    procs::Process,
};
use crab_store::{ChangedPath, IgnoredBy, MAX_CHANGED, PathKind, command_line, escape};

/// The settings that the patterns are in.
const PATHS: &str = "ignore.paths";
const PROCESSES: &str = "ignore.processes";

/// The rules of one sandbox.
#[derive(Debug)]
pub(crate) struct Relevance {
    rules: Ignore,
    paths: Option<Patterns>,
    processes: Option<Patterns>,
}

/// The changes of all roots, sorted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// How many matter.
    pub(crate) relevant: usize,
    /// The first of these.
    pub(crate) changed: Vec<ChangedPath>,
    /// How many do not.
    pub(crate) passed_over: usize,
    /// Rule by rule.
    pub(crate) ignored: Vec<IgnoredBy>,
}

impl Relevance {
    /// Those of a configuration.
    pub(crate) fn of(ignore: &Ignore) -> Self {
        let compiled = |setting: &str, of: PatternsOf, patterns: &[String]| {
            let compiled = Patterns::new(of, patterns).inspect_err(|error| {
                tracing::error!(error, "{setting} cannot be used: everything matters");
            });
            compiled.ok().filter(|patterns| !patterns.is_empty())
        };
        Self {
            rules: ignore.clone(),
            paths: compiled(PATHS, PatternsOf::Paths, &ignore.paths),
            processes: compiled(PROCESSES, PatternsOf::Processes, &ignore.processes),
        }
    }

    /// Without a rule: everything matters.
    pub(crate) fn of_everything() -> Self {
        Self::of(&Ignore::default())
    }

    /// Sorts changes, each with its path in the container.
    pub(crate) fn judge<'a>(
        &self,
        changes: impl IntoIterator<Item = (Vec<u8>, &'a Change)>,
    ) -> Verdict {
        let mut verdict = Verdict::default();
        let mut ignored: BTreeMap<usize, IgnoredBy> = BTreeMap::new();
        for (path, change) in changes {
            let Some(rule) = self.rule_for(&path, change) else {
                verdict.relevant += 1;
                if verdict.changed.len() < MAX_CHANGED {
                    verdict.changed.push(told(&path, change));
                }
                continue;
            };
            verdict.passed_over += 1;
            let by = ignored.entry(rule).or_insert_with(|| IgnoredBy {
                setting: PATHS.into(),
                rule: self.rules.paths[rule].clone(),
                count: 0,
                first: escape(&path),
            });
            by.count += 1;
        }
        verdict.ignored = ignored.into_values().collect();
        verdict
    }

    /// The rule by which a process does not matter, if one does. It is known by its name,
    /// or by its arguments with blanks between them; either is what it says of itself.
    pub(crate) fn rule_for_process(&self, process: &Process) -> Option<usize> {
        let processes = self.processes.as_ref()?;
        let by_name = processes.covering(process.comm.as_bytes());
        let by_command = processes.covering(process.args.join(" ").as_bytes());
        by_name.into_iter().chain(by_command).min()
    }

    /// The changes of processes that do not matter, rule by rule.
    pub(crate) fn processes_passed_over<'a>(
        &self,
        processes: impl IntoIterator<Item = &'a Process>,
    ) -> Vec<IgnoredBy> {
        let mut ignored: BTreeMap<usize, IgnoredBy> = BTreeMap::new();
        for process in processes {
            let Some(rule) = process.ignored else {
                continue;
            };
            let by = ignored.entry(rule).or_insert_with(|| IgnoredBy {
                setting: PROCESSES.into(),
                rule: self.rules.processes.get(rule).cloned().unwrap_or_default(),
                count: 0,
                first: command_line(&process.args),
            });
            by.count += 1;
        }
        ignored.into_values().collect()
    }

    fn rule_for(&self, path: &[u8], change: &Change) -> Option<usize> {
        let paths = self.paths.as_ref()?;
        // What hides a directory of the image is not known to have hidden one.
        if change.entry == FileKind::Dir {
            paths.covering_directory(path)
        } else {
            paths.covering(path)
        }
    }
}

/// A change as the journal tells it.
fn told(path: &[u8], change: &Change) -> ChangedPath {
    let is_file = change.entry == FileKind::File && change.kind != ChangeKind::Removed;
    ChangedPath {
        change: match change.kind {
            ChangeKind::Added => crab_store::Change::Added,
            ChangeKind::Changed => crab_store::Change::Changed,
            ChangeKind::Removed => crab_store::Change::Removed,
        },
        path: escape(path),
        kind: match change.entry {
            FileKind::File => Some(PathKind::File),
            FileKind::Dir => Some(PathKind::Dir),
            FileKind::Symlink => Some(PathKind::Symlink),
            FileKind::Special => Some(PathKind::Special),
            // Of what it hides, a regular file is told by its length.
            FileKind::Whiteout => change.before.map(|_| PathKind::File),
        },
        size: is_file.then_some(change.size),
        before: change.before,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(path: &str, kind: ChangeKind, entry: FileKind) -> (Vec<u8>, Change) {
        let change = Change {
            path: path.trim_start_matches('/').into(),
            kind,
            entry,
            size: 7,
            before: None,
        };
        (path.into(), change)
    }

    fn judge(patterns: &[&str], changes: &[(Vec<u8>, Change)]) -> Verdict {
        let paths = patterns.iter().map(ToString::to_string).collect();
        let pairs = changes.iter().map(|(path, change)| (path.clone(), change));
        let ignore = Ignore {
            paths,
            ..Ignore::default()
        };
        Relevance::of(&ignore).judge(pairs)
    }

    fn relevant(patterns: &[&str], changes: &[(Vec<u8>, Change)]) -> Vec<String> {
        let verdict = judge(patterns, changes);
        assert_eq!(verdict.relevant + verdict.passed_over, changes.len());
        verdict.changed.into_iter().map(|told| told.path).collect()
    }

    #[test]
    fn without_a_rule_everything_matters() {
        let changes = [
            change("/a", ChangeKind::Added, FileKind::File),
            change("/tmp/b", ChangeKind::Removed, FileKind::Dir),
        ];
        assert_eq!(relevant(&[], &changes), ["/a", "/tmp/b"]);
        let verdict = judge(&[], &changes);
        assert_eq!(verdict.ignored, []);
        assert_eq!(verdict.changed[0].size, Some(7));
        assert_eq!(verdict.changed[1].size, None);
    }

    #[test]
    fn what_is_ignored_is_counted_by_its_rule() {
        let verdict = judge(
            &["/unused/**", "**/__pycache__/**"],
            &[
                change("/app/__pycache__", ChangeKind::Added, FileKind::Dir),
                change("/app/__pycache__/m.pyc", ChangeKind::Added, FileKind::File),
                change("/app/m.py", ChangeKind::Changed, FileKind::File),
            ],
        );
        assert_eq!((verdict.relevant, verdict.passed_over), (1, 2));
        assert_eq!(verdict.changed[0].path, "/app/m.py");
        let [by] = &verdict.ignored[..] else {
            panic!("{:?}", verdict.ignored);
        };
        assert_eq!(by.rule, "**/__pycache__/**");
        assert_eq!((by.count, by.first.as_str()), (2, "/app/__pycache__"));
    }

    #[test]
    fn coming_from_a_place_that_matters_matters() {
        let cache = &["/root/.cache/**"];
        let moved_in = [
            change("/root/notes", ChangeKind::Removed, FileKind::File),
            change("/root/.cache/notes", ChangeKind::Added, FileKind::File),
        ];
        assert_eq!(relevant(cache, &moved_in), ["/root/notes"]);
        let moved_out = [
            change("/root/.cache/notes", ChangeKind::Removed, FileKind::File),
            change("/root/notes", ChangeKind::Added, FileKind::File),
        ];
        assert_eq!(relevant(cache, &moved_out), ["/root/notes"]);
        let gone = [change(
            "/root/.cache/notes",
            ChangeKind::Removed,
            FileKind::File,
        )];
        assert_eq!(relevant(cache, &gone), [""; 0]);
    }

    #[test]
    fn a_directory_is_covered_only_as_a_directory() {
        let cache = &["/root/.cache/**"];
        for (kind, entry, matters) in [
            (ChangeKind::Added, FileKind::Dir, false),
            (ChangeKind::Removed, FileKind::Dir, false),
            (ChangeKind::Changed, FileKind::Dir, false),
            (ChangeKind::Changed, FileKind::Symlink, true),
            (ChangeKind::Changed, FileKind::File, true),
            (ChangeKind::Removed, FileKind::Whiteout, true),
        ] {
            let changes = [change("/root/.cache", kind, entry)];
            let found = relevant(cache, &changes).len() == 1;
            assert_eq!(found, matters, "{kind:?} {entry:?}");
        }
    }

    #[test]
    fn what_is_told_is_bounded_and_what_is_counted_is_not() {
        let changes: Vec<_> = (0..1000)
            .map(|n| change(&format!("/{n}"), ChangeKind::Added, FileKind::File))
            .collect();
        let verdict = judge(&["/1*"], &changes);
        assert_eq!(verdict.relevant, 1000 - 111);
        assert_eq!(verdict.changed.len(), MAX_CHANGED);
        assert_eq!(verdict.ignored[0].count, 111);
    }
}
