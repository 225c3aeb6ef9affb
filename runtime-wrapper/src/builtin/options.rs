// SPDX-License-Identifier: Apache-2.0
//! The command line: runc's, as far as [`crate::oci`] uses it.

use std::{ffi::OsString, path::PathBuf};

use super::Failure;

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Create,
    Start,
    State,
    Kill,
    Delete,
    Exec,
    Update,
    Features,
    Version,
}

impl Verb {
    /// It is about no container.
    fn is_general(self) -> bool {
        matches!(self, Self::Features | Self::Version)
    }
}

/// A command line, read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) verb: Option<Verb>,
    pub(super) id: String,
    /// What comes after the id: `kill`'s signal.
    pub(super) rest: Vec<String>,
    pub(super) root: PathBuf,
    pub(super) log: Option<PathBuf>,
    pub(super) bundle: PathBuf,
    pub(super) pid_file: Option<PathBuf>,
    pub(super) console_socket: Option<PathBuf>,
    pub(super) process: Option<PathBuf>,
    pub(super) resources: Option<PathBuf>,
    pub(super) systemd_cgroup: bool,
    pub(super) no_pivot: bool,
    pub(super) force: bool,
}

fn usage(what: impl std::fmt::Display) -> Failure {
    Failure::Usage(format!("{what}; it is run by Crab's shim"))
}

impl Options {
    /// Reads a command line, without the program's name and the word that leads here.
    pub(super) fn parse(args: Vec<OsString>) -> Result<Self, Failure> {
        let mut options = Self {
            root: "/run/crab/oci".into(),
            bundle: ".".into(),
            ..Self::default()
        };
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let word = arg.to_string_lossy().into_owned();
            if !word.starts_with('-') {
                options.positional(word)?;
                continue;
            }
            let mut value = || {
                args.next()
                    .ok_or_else(|| usage(format!("{word} needs a value")))
            };
            match word.as_str() {
                "--root" => options.root = value()?.into(),
                "--log" => options.log = Some(value()?.into()),
                "--bundle" => options.bundle = value()?.into(),
                "--pid-file" => options.pid_file = Some(value()?.into()),
                "--console-socket" => options.console_socket = Some(value()?.into()),
                "--process" => options.process = Some(value()?.into()),
                "--resources" => options.resources = Some(value()?.into()),
                // There is one, as there is no other way but to detach, and no session
                // keyring is made.
                "--log-format" => drop(value()?),
                "--detach" | "--no-new-keyring" => {}
                "--systemd-cgroup" => options.systemd_cgroup = true,
                "--no-pivot" => options.no_pivot = true,
                "--force" => options.force = true,
                "--version" => options.verb = Some(Verb::Version),
                _ => return Err(usage(format!("unknown option {word}"))),
            }
        }
        match options.verb {
            None => Err(usage("a verb is missing")),
            Some(verb) if !verb.is_general() && options.id.is_empty() => {
                Err(usage("the container's id is missing"))
            }
            Some(_) => Ok(options),
        }
    }

    fn positional(&mut self, word: String) -> Result<(), Failure> {
        if self.verb.is_none() {
            self.verb = Some(match word.as_str() {
                "create" => Verb::Create,
                "start" => Verb::Start,
                "state" => Verb::State,
                "kill" => Verb::Kill,
                "delete" => Verb::Delete,
                "exec" => Verb::Exec,
                "update" => Verb::Update,
                "features" => Verb::Features,
                _ => return Err(usage(format!("unknown verb {word}"))),
            });
        } else if self.id.is_empty() {
            // It becomes a part of paths.
            let fine = |b: u8| b.is_ascii_alphanumeric() || b"._+-".contains(&b);
            if !word.bytes().all(fine) || word.starts_with('.') {
                return Err(usage(format!("{word:?} is no id")));
            }
            self.id = word;
        } else {
            self.rest.push(word);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<Options, String> {
        Options::parse(line.split_whitespace().map(OsString::from).collect())
            .map_err(|failure| failure.to_string())
    }

    #[test]
    fn what_the_driver_says_is_understood() {
        let exec = of(
            "--root /r --log /l --log-format json --systemd-cgroup exec \
                       --process /p.json --pid-file /x.pid --detach c1",
        )
        .unwrap();
        assert_eq!(exec.verb, Some(Verb::Exec));
        assert_eq!((exec.id.as_str(), exec.systemd_cgroup), ("c1", true));
        assert_eq!(exec.process, Some("/p.json".into()));
        assert_eq!((exec.root, exec.log), ("/r".into(), Some("/l".into())));
        let kill = of("kill c1 9").unwrap();
        assert_eq!((kill.verb, kill.rest), (Some(Verb::Kill), vec!["9".into()]));
        assert!(of("delete --force c1").unwrap().force);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for (line, why) in [
            ("", "a verb is missing"),
            ("create", "id is missing"),
            ("checkpoint c1", "unknown verb checkpoint"),
            (
                "create --preserve-fds 3 c1",
                "unknown option --preserve-fds",
            ),
            ("create ../c1", "is no id"),
            ("--root", "--root needs a value"),
        ] {
            let said = of(line).unwrap_err();
            assert!(said.contains(why), "{line:?}: {said}");
        }
    }
}
