// SPDX-License-Identifier: Apache-2.0
//! Which changes call for a checkpoint, and which a rule of the configuration says do
//! not matter. Pure.
//!
//! A rule only ever decides whether there is a checkpoint, never what is in it: what was
//! passed over is in the next one that something else calls for. So the worst that a
//! pattern can do is that a rollback finds what it covers as it was a few turns earlier.

use std::collections::BTreeMap;

use crab_config::{Ignore, Patterns, PatternsOf};
use crab_runtime::files::{Change, ChangeKind, FileKind};
use crab_store::{ChangedPath, IgnoredBy, MAX_CHANGED, PathKind, escape};

/// The setting that path patterns are in.
const PATHS: &str = "ignore.paths";

/// The rules of one sandbox.
#[derive(Debug)]
pub(crate) struct Relevance {
    rules: Vec<String>,
    paths: Option<Patterns>,
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
        let paths = Patterns::new(PatternsOf::Paths, &ignore.paths);
        let paths = paths.inspect_err(|error| {
            tracing::error!(error, "{PATHS} cannot be used: everything matters");
        });
        Self {
            rules: ignore.paths.clone(),
            paths: paths.ok().filter(|patterns| !patterns.is_empty()),
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
                rule: self.rules[rule].clone(),
                count: 0,
                first: escape(&path),
            });
            by.count += 1;
        }
        verdict.ignored = ignored.into_values().collect();
        verdict
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
        Relevance::of(&Ignore { paths }).judge(pairs)
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
