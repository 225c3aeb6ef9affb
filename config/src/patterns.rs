// SPDX-License-Identifier: Apache-2.0

//! Patterns of what does not matter for recovery: of paths, and of processes.
//!
//! They come from the host's admin or a sandbox's author; what they are matched with
//! comes from inside the container, and is bytes of any kind. A pattern is checked when it
//! is read, so that one in a [`crate::Config`] can be used. Matching takes time linear in
//! the path, whatever the pattern.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

use globset::{Candidate, GlobBuilder, GlobSet, GlobSetBuilder};

use crate::value::quoted;

/// So many of a kind one sandbox may have.
const MOST: usize = 64;

/// How long one may be, in bytes.
const LONGEST: usize = 256;

/// What patterns are matched with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatternsOf {
    /// Absolute paths in the container. `*` and `?` stay within a name, `**` does not.
    Paths,
    /// Names of processes, and command lines. `*` and `?` match anything.
    Processes,
}

impl PatternsOf {
    /// Checks a list.
    pub(crate) fn check(self, patterns: &[String]) -> Result<(), String> {
        if patterns.len() > MOST {
            let number = patterns.len();
            return Err(format!(
                "there may be {MOST} patterns at most, and there are {number}"
            ));
        }
        patterns
            .iter()
            .try_for_each(|pattern| self.check_one(pattern))
    }

    fn check_one(self, pattern: &str) -> Result<(), String> {
        let wrong = |why: &str| Err(format!("the pattern {} {why}", quoted(pattern)));
        if pattern.len() > LONGEST {
            return wrong(&format!("is longer than {LONGEST} bytes"));
        }
        if pattern.chars().any(char::is_control) {
            return wrong("has a control character");
        }
        if pattern.chars().all(|c| "*?/ ".contains(c)) {
            return wrong("names nothing");
        }
        if self == Self::Paths {
            if !pattern.starts_with('/') && !pattern.starts_with("**/") {
                return wrong("must begin with / or **/");
            }
            if pattern.ends_with('/') {
                return wrong("must not end with /; with /** it covers a directory");
            }
            let mut names = pattern.split('/').skip(1);
            if names.any(|name| matches!(name, "" | "." | "..")) {
                return wrong("must not have // or . or .. in it");
            }
        }
        match self.compile([pattern]) {
            Ok(_) => Ok(()),
            Err(error) => wrong(&format!("cannot be used: {}", error.kind())),
        }
    }

    fn compile<'a>(
        self,
        patterns: impl IntoIterator<Item = &'a str>,
    ) -> Result<GlobSet, globset::Error> {
        let mut set = GlobSetBuilder::new();
        for pattern in patterns {
            let glob = GlobBuilder::new(pattern)
                .literal_separator(self == Self::Paths)
                .build()?;
            set.add(glob);
        }
        set.build()
    }
}

/// A list of patterns, ready to be matched with.
#[derive(Clone, Debug)]
pub struct Patterns {
    all: GlobSet,
    /// The directories that patterns ending in `/**` cover, and which pattern each is of.
    directories: GlobSet,
    of_directory: Vec<usize>,
}

impl Patterns {
    /// Those of a configuration, which were checked when it was read.
    ///
    /// # Errors
    /// With others, if one is no pattern, or all together are too large.
    pub fn new(of: PatternsOf, patterns: &[String]) -> Result<Self, String> {
        let compile = |patterns: &[&str]| {
            of.compile(patterns.iter().copied())
                .map_err(|error| error.to_string())
        };
        let all: Vec<&str> = patterns.iter().map(String::as_str).collect();
        let (of_directory, directories): (Vec<usize>, Vec<&str>) = all
            .iter()
            .enumerate()
            .filter_map(|(at, pattern)| Some((at, pattern.strip_suffix("/**")?)))
            .unzip();
        Ok(Self {
            all: compile(&all)?,
            directories: compile(&directories)?,
            of_directory,
        })
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The first pattern, by its place in the list, that covers this text.
    pub fn covering(&self, text: &[u8]) -> Option<usize> {
        first(&self.all, text)
    }

    /// The same for the path of a directory: `/a/**` covers `/a` too, as long as that is a
    /// directory and not something else in its place.
    pub fn covering_directory(&self, path: &[u8]) -> Option<usize> {
        let whole = first(&self.directories, path).map(|at| self.of_directory[at]);
        whole.into_iter().chain(self.covering(path)).min()
    }
}

fn first(set: &GlobSet, text: &[u8]) -> Option<usize> {
    if set.is_empty() {
        return None;
    }
    let candidate = Candidate::new(OsStr::from_bytes(text));
    set.matches_candidate(&candidate).into_iter().min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(of: PatternsOf, list: &[&str]) -> Patterns {
        let list: Vec<String> = list.iter().map(ToString::to_string).collect();
        of.check(&list).unwrap();
        Patterns::new(of, &list).unwrap()
    }

    #[test]
    fn a_path_is_covered_by_the_first_pattern_that_fits() {
        let patterns = patterns(
            PatternsOf::Paths,
            &[
                "**/__pycache__/**",
                "/root/.cache/**",
                "/var/log/*.log",
                "/t/[!a]?",
            ],
        );
        for (path, first) in [
            (&b"/app/__pycache__/m.pyc"[..], Some(0)),
            (b"/__pycache__/m.pyc", Some(0)),
            (b"/root/.cache/a/__pycache__/m.pyc", Some(0)),
            (b"/root/.cache/a/b", Some(1)),
            (b"/root/.cache/\xff\xfe\n", Some(1)),
            (b"/var/log/a.log", Some(2)),
            (b"/var/log/\xff.log", Some(2)),
            (b"/t/b\xff", Some(3)),
            (b"/var/log/deep/a.log", None),
            (b"/root/.cache", None),
            (b"/root/.cached/x", None),
            (b"/x/root/.cache/a", None),
            (b"/app/__pycache__", None),
            (b"/app/my__pycache__/x", None),
            (b"/t//b", None),
            (b"/", None),
            (b"", None),
        ] {
            let shown = String::from_utf8_lossy(path);
            assert_eq!(patterns.covering(path), first, "{shown}");
        }
    }

    #[test]
    fn a_pattern_for_what_is_in_a_directory_covers_the_directory() {
        let patterns = patterns(
            PatternsOf::Paths,
            &["/a", "**/__pycache__/**", "/c/**/d/**"],
        );
        for (path, first) in [
            (&b"/a"[..], Some(0)),
            (b"/app/__pycache__", Some(1)),
            (b"/__pycache__", Some(1)),
            (b"/app/__pycache__/sub", Some(1)),
            (b"/c/d", Some(2)),
            (b"/c/x/d", Some(2)),
            (b"/app", None),
            (b"/c", None),
        ] {
            let shown = String::from_utf8_lossy(path);
            assert_eq!(patterns.covering_directory(path), first, "{shown}");
        }
    }

    #[test]
    fn a_process_is_covered_by_its_name_or_its_whole_command_line() {
        let patterns = patterns(PatternsOf::Processes, &["crond", "*/node /opt/telemetry*"]);
        assert_eq!(patterns.covering(b"crond"), Some(0));
        assert_eq!(
            patterns.covering(b"/usr/bin/node /opt/telemetry/a.js x"),
            Some(1)
        );
        assert_eq!(patterns.covering(b"crond -f"), None);
        assert_eq!(patterns.covering(b"/usr/bin/node /srv/app.js"), None);
    }

    #[test]
    fn what_is_no_pattern_is_refused_with_the_reason() {
        for (pattern, why) in [
            ("", "names nothing"),
            ("/**", "names nothing"),
            ("**/*", "names nothing"),
            ("__pycache__", "must begin with / or **/"),
            ("*.log", "must begin with / or **/"),
            (
                "/tmp/",
                "must not end with /; with /** it covers a directory",
            ),
            ("/a/../b", "must not have // or . or .. in it"),
            ("/a//b", "must not have // or . or .. in it"),
            ("/a\n", "has a control character"),
            ("/[a", "cannot be used: unclosed character class"),
            ("/{a", "cannot be used: unclosed alternate group"),
        ] {
            let error = PatternsOf::Paths.check(&[pattern.into()]).unwrap_err();
            assert!(error.contains(why), "{pattern:?}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
        assert!(PatternsOf::Paths.check(&vec!["/a".into(); 65]).is_err());
        let long = format!("/{}", "a".repeat(256));
        let error = PatternsOf::Paths.check(&[long]).unwrap_err();
        assert!(error.contains("is longer than 256 bytes"), "{error}");
        assert!(PatternsOf::Processes.check(&["*".into()]).is_err());
        // A text is matched in time linear in it, so that none of these can hurt.
        let hostile = format!("/{}", "*a".repeat(120));
        let patterns = patterns(PatternsOf::Paths, &[&hostile]);
        assert_eq!(patterns.covering("/aaaa".repeat(2000).as_bytes()), None);
    }
}
