// SPDX-License-Identifier: Apache-2.0

//! From a file to a [`Config`], or to one line that says what to change.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use thiserror::Error;

use crate::Config;

/// Where the file is if nobody says otherwise. It may be missing.
pub const DEFAULT_PATH: &str = "/etc/crab/config.toml";

/// The environment variable that names another file. That one must exist.
pub const CONFIG_ENV: &str = "CRAB_CONFIG";

/// Why there is no configuration.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read the configuration {}: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        cause: io::Error,
    },
    /// The file says something that is not understood.
    #[error(
        "cannot use the configuration {}:{line}: {why}; correct that line or remove it",
        path.display()
    )]
    Content {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
}

impl Config {
    /// The configuration of this host: the file that the environment names, or
    /// the one at [`DEFAULT_PATH`], or the defaults if that is missing.
    pub fn load() -> Result<Self, ConfigError> {
        if let Some(path) = env::var_os(CONFIG_ENV).filter(|path| !path.is_empty()) {
            return Self::from_file(Path::new(&path));
        }
        match Self::from_file(Path::new(DEFAULT_PATH)) {
            Err(ConfigError::Read { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => {
                Ok(Self::default())
            }
            loaded => loaded,
        }
    }

    /// The configuration in a file, which must exist.
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let text = fs::read_to_string(path).map_err(|cause| ConfigError::Read {
            path: path.to_owned(),
            cause,
        })?;
        Self::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        toml::from_str(text).map_err(|error: toml::de::Error| {
            let at = error.span().map_or(0, |span| span.start.min(text.len()));
            let before = &text.as_bytes()[..at];
            ConfigError::Content {
                path: path.to_owned(),
                line: 1 + before.iter().filter(|byte| **byte == b'\n').count(),
                // Some of the parser's own messages have several lines.
                why: error.message().lines().collect::<Vec<_>>().join(", "),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(Path::new("c.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn an_empty_file_is_the_defaults() {
        assert_eq!(parse(""), Ok(Config::default()));
        assert_eq!(parse("[runtime]\n[checkpoints]\n"), Ok(Config::default()));
    }

    #[test]
    fn the_sample_shows_the_defaults_and_every_setting() {
        let sample = include_str!("../samples/config.toml");
        assert_eq!(parse(sample), Ok(Config::default()));
        // What has no default stands there commented out, and is right, too.
        let all: String = sample
            .lines()
            .map(|line| match line.strip_prefix("#") {
                Some(setting) if setting.starts_with(char::is_alphabetic) => setting,
                _ => line,
            })
            .flat_map(|line| [line, "\n"])
            .collect();
        let config = parse(&all).unwrap();
        assert!(config.crabd.is_some() && config.runtime.criu.is_some());
        assert_eq!(config.staging_dir(), Config::default().staging_dir());
        for key in [
            "store",
            "run_dir",
            "crabd",
            "log_level",
            "binary",
            "criu",
            "freeze_timeout_ms",
            "enabled",
            "max_gate_ms",
            "staging_dir",
            "staging_bytes",
        ] {
            let begins = |line: &str| line.starts_with(&format!("{key} = "));
            assert!(all.lines().any(begins), "{key} is not in the sample");
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line_and_what_to_do() {
        for (text, line, why) in [
            (
                "\nstorr = '/a'",
                2,
                "unknown field `storr`, expected one of",
            ),
            ("store = 'a'", 1, "it must be an absolute path"),
            (
                "[runtime]\n\nbinary = 'a/b'",
                3,
                "name of a command or an absolute path",
            ),
            ("[runtime]\nbinary = ''", 2, "name of a command"),
            (
                "[runtime]\nfreeze_timeout_ms = 5",
                2,
                "between 10 and 60000",
            ),
            ("[checkpoints]\n\nmax_gate_ms = -1", 3, "-1"),
            (
                "[checkpoints]\nstaging_bytes = 1",
                2,
                "between 16777216 and",
            ),
            ("log_level = 'loud'", 1, "unknown variant `loud`"),
            ("store = '/a'\nstore = '/b'", 2, "duplicate key"),
            ("a = [\n", 1, "unclosed array"),
            ("[runtime]\ncriu = 3", 2, "invalid type"),
        ] {
            let error = parse(text).unwrap_err();
            let begin = format!("cannot use the configuration c.toml:{line}: ");
            assert!(error.starts_with(&begin), "{text:?}: {error}");
            assert!(error.contains(why), "{text:?}: {error}");
            assert!(error.ends_with("; correct that line or remove it"));
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }

    #[test]
    fn a_file_that_was_named_must_exist() {
        let error = Config::from_file(Path::new("/nowhere/c.toml")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot read the configuration /nowhere/c.toml: No such file or directory (os error 2)"
        );
    }

    #[test]
    fn the_samples_for_containerd_and_docker_name_the_runtime() {
        for sample in [
            include_str!("../samples/containerd-1.7.toml"),
            include_str!("../samples/containerd-2.toml"),
        ] {
            toml::from_str::<toml::Table>(sample).unwrap();
            assert!(sample.contains("runtime_type = \"io.containerd.crab.v1\""));
        }
        let docker = include_str!("../samples/docker-daemon.json");
        let docker: serde_json::Value = serde_json::from_str(docker).unwrap();
        assert_eq!(
            docker["runtimes"]["crab"]["runtimeType"],
            "io.containerd.crab.v1"
        );
    }
}
