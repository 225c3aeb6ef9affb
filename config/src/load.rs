// SPDX-License-Identifier: Apache-2.0

//! From a file to a [`Config`], or to one line that says what to change.

use std::{
    collections::BTreeMap,
    env, fs, io,
    path::{Path, PathBuf},
};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use crate::{
    Config,
    contradictions::contradictions,
    fault::{ConfigError, Fault},
    schema::{SECTIONS, SETTINGS, Setting},
    value::quoted,
};

/// Where the file is if nobody says otherwise. It may be missing.
pub const DEFAULT_PATH: &str = "/etc/crab/config.toml";

/// The environment variable that names another file. That one must exist.
pub const CONFIG_ENV: &str = "CRAB_CONFIG";

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

    /// The same for who must run in any case: the defaults if the file cannot be
    /// used, and why. Shims and crabd do so alike, and so find each other.
    pub fn load_or_default() -> (Self, Option<ConfigError>) {
        match Self::load() {
            Ok(config) => (config, None),
            Err(error) => (Self::default(), Some(error)),
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
        let mut reading = Reading::new(text);
        match DeTable::parse(text) {
            Ok(table) => reading.section("", table.get_ref()),
            // One only: what a parser makes of the rest is guesswork.
            Err(error) => {
                let at = error.span().map_or(0, |span| span.start);
                // Some of its messages have several lines.
                let why = error.message().lines().collect::<Vec<_>>().join(", ");
                reading.fault(at, why);
            }
        }
        if reading.faults.is_empty() {
            reading.contradictions();
        }
        let Reading {
            config, mut faults, ..
        } = reading;
        if faults.is_empty() {
            return Ok(config);
        }
        faults.sort_by_key(|fault| fault.line);
        Err(ConfigError::Content {
            path: PathBuf::from(path),
            faults,
        })
    }
}

/// A file that is being read.
struct Reading<'a> {
    text: &'a str,
    config: Config,
    faults: Vec<Fault>,
    /// Where what was set stands.
    said: BTreeMap<String, usize>,
}

impl<'a> Reading<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            text,
            config: Config::default(),
            faults: Vec::new(),
            said: BTreeMap::new(),
        }
    }

    fn fault(&mut self, at: usize, why: String) {
        let before = &self.text.as_bytes()[..at.min(self.text.len())];
        self.faults.push(Fault {
            line: 1 + before.iter().filter(|byte| **byte == b'\n').count(),
            why,
        });
    }

    /// Takes what stands in a section; "" is the part above all sections.
    fn section(&mut self, section: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let at = key.span().start;
            let key = key.get_ref().as_ref();
            if section.is_empty() && SECTIONS.contains(&key) {
                match value.get_ref() {
                    DeValue::Table(table) => self.section(key, table),
                    _ => self.fault(at, format!("{key} is a section, it is begun with [{key}]")),
                }
            } else if let Some(setting) = Setting::find(section, key) {
                self.setting(setting, value);
            } else {
                self.fault(at, unknown(section, key, value.get_ref()));
            }
        }
    }

    fn setting(&mut self, setting: &Setting, value: &Spanned<DeValue<'_>>) {
        let at = value.span().start;
        match setting.kind.read(value.get_ref()) {
            Ok(value) => {
                self.said.insert(setting.name(), at);
                setting.set(&mut self.config, value);
            }
            Err(why) => self.fault(at, format!("{}: {why}", setting.name())),
        }
    }

    fn contradictions(&mut self) {
        for (settings, why) in contradictions(&self.config) {
            // The defaults do not contradict each other: one of them is in the file.
            let at = settings.iter().find_map(|name| self.said.get(*name));
            self.fault(at.copied().unwrap_or(0), why);
        }
    }
}

/// What to write instead of something that does not exist.
fn unknown(section: &str, key: &str, value: &DeValue<'_>) -> String {
    let shown = quoted(key);
    if section.is_empty() && matches!(value, DeValue::Table(_)) {
        return format!(
            "there is no section {shown}; there are {}",
            SECTIONS.join(", ")
        );
    }
    let elsewhere = SETTINGS.iter().find(|setting| setting.key == key);
    let place = match section {
        "" => "above the sections".into(),
        section => format!("in [{section}]"),
    };
    match elsewhere.map(|setting| setting.section) {
        Some("") => format!("{key} belongs above the first section"),
        Some(section) => format!("{key} belongs in [{section}]"),
        None => {
            let here = SETTINGS.iter().filter(|setting| setting.section == section);
            let keys: Vec<&str> = here.map(|setting| setting.key).collect();
            format!(
                "there is no setting {shown} {place}; there are {}",
                keys.join(", ")
            )
        }
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
    fn a_file_that_says_everything_is_read_whole() {
        let config = parse(
            "store = '/s'\nrun_dir = '/r'\ncrabd = '/c'\nlog_level = 'debug'\n\
             checkpoints.enabled = false\n\
             [runtime]\nbinary = 'crun'\ncriu = '/x/criu'\nfreeze_timeout_ms = 1_000\n",
        )
        .unwrap();
        assert_eq!(config.store, Path::new("/s"));
        assert_eq!(config.crabd, Some("/c".into()));
        assert_eq!(config.log_level, crate::LogLevel::Debug);
        assert_eq!(config.runtime.freeze_timeout_ms, 1000);
        assert!(!config.checkpoints.enabled);
        let ignored = parse("[ignore]\npaths = [\n  '/a/**', # a comment\n]\n").unwrap();
        assert_eq!(ignored.ignore.paths, ["/a/**"]);
        let hex = parse("[checkpoints]\nmax_gate_ms = 0x10").unwrap();
        assert_eq!(hex.checkpoints.max_gate_ms, 16);
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
        assert_eq!(config.staging_dir(), Config::default().staging_dir());
        let mut section = "";
        let mut shown = Vec::new();
        for line in all.lines() {
            if let Some(name) = line.strip_prefix('[') {
                section = name.trim_end_matches(']');
            } else if let Some((key, value)) = line.split_once(" = ") {
                let setting = Setting::find(section, key).expect(line);
                if let Some(default) = setting.default() {
                    assert_eq!(value, default, "{line}");
                }
                shown.push(setting.name());
            }
        }
        let every: Vec<String> = SETTINGS.iter().map(Setting::name).collect();
        assert_eq!(shown, every, "the sample has them in this order");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line_and_what_to_do() {
        for (text, line, why) in [
            (
                "\nstorr = '/a'",
                2,
                "there is no setting \"storr\" above the sections; there are store, run_dir,",
            ),
            ("store = 'a'", 1, "store: it must be an absolute path"),
            (
                "store = '/a/../b'",
                1,
                "without `..` in it, and is \"/a/../b\"",
            ),
            ("store = \"/a\\nb\"", 1, "it must be an absolute path"),
            (
                "run_dir = '/a234567890123456789012345678901234567890123456789012345678901234567890123456789012'",
                1,
                "at most 80 bytes, and has 83: the sockets in it",
            ),
            (
                "[runtime]\n\nbinary = 'a/b'",
                3,
                "name of a command or an absolute path",
            ),
            ("[runtime]\nbinary = ''", 2, "name of a command"),
            (
                "[runtime]\nfreeze_timeout_ms = 5",
                2,
                "runtime.freeze_timeout_ms: it must be a whole number of milliseconds \
                 between 10 and 60000, and is 5",
            ),
            ("[checkpoints]\n\nmax_gate_ms = -1", 3, "and is -1"),
            (
                "[checkpoints]\nstaging_bytes = 1",
                2,
                "between 16777216 and",
            ),
            (
                "[checkpoints]\nmax_gate_ms = 99999999999999999999",
                2,
                "and is 99999999999999999999",
            ),
            (
                "[checkpoints]\nenabled = 'yes'",
                2,
                "true or false, and is the string \"yes\"",
            ),
            (
                "[checkpoints]\nenabled = 1",
                2,
                "true or false, and is a number",
            ),
            (
                "[checkpoints]\nmax_gate_ms = '1s'",
                2,
                "and is the string \"1s\"",
            ),
            ("[checkpoints]\nmax_gate_ms = 1.5", 2, "and is a number"),
            ("store = ['/a']", 1, "in it, and is a list"),
            ("[store]\na = 1", 1, "in it, and is a section"),
            (
                "log_level = 'loud'",
                1,
                "one of error, warn, info, debug and trace, and is \"loud\"",
            ),
            ("store = '/a'\nstore = '/b'", 2, "duplicate key"),
            ("[runtime]\n[checkpoints]\n[runtime]\n", 3, "duplicate key"),
            (
                "runtime = 'runc'",
                1,
                "runtime is a section, it is begun with [runtime]",
            ),
            ("[store.x]\n", 1, "in it, and is a section"),
            (
                "\n[checkpoint]\nenabled = false",
                2,
                "there is no section \"checkpoint\"; there are runtime",
            ),
            (
                "[runtime]\nmax_gate_ms = 1",
                2,
                "max_gate_ms belongs in [checkpoints]",
            ),
            (
                "[runtime]\nstore = '/x'",
                2,
                "store belongs above the first section",
            ),
            ("a = [\n", 1, "unclosed array"),
            (
                "[runtime]\ncriu = 3",
                2,
                "runtime.criu: it must be an absolute path",
            ),
            (
                "store = '/run'",
                1,
                "store (/run) and run_dir (/run/crab) must not be in one another",
            ),
            (
                "store = '/x'\n[checkpoints]\nstaging_dir = '/x/sandboxes'",
                3,
                "must not hold store (/x) or lie in its sandboxes",
            ),
            (
                "[metrics]\nlisten = '0.0.0.0:9464'",
                2,
                "metrics.listen: it must be an address of this host alone with a port, as \"127.0.0.1:9464\", and is \"0.0.0.0:9464\"",
            ),
            (
                "[metrics]\nlisten = 9464",
                2,
                "this host alone with a port, as \"127.0.0.1:9464\", and is a number",
            ),
            (
                "[log]\nformat = 'xml'",
                2,
                "log.format: it must be one of text and json",
            ),
            (
                "[ignore]\npaths = '/x'",
                2,
                "ignore.paths: it must be a list of patterns in quotes, as [\"a\", \"b\"], and is the string \"/x\"",
            ),
            (
                "[ignore]\npaths = ['/x', 3]",
                2,
                "and is a list with something else in it",
            ),
            (
                "[ignore]\n\npaths = ['/x', 'y']",
                3,
                "ignore.paths: the pattern \"y\" must begin with / or **/",
            ),
        ] {
            let error = parse(text).unwrap_err();
            let begin = format!("cannot use the configuration c.toml:{line}: ");
            assert!(error.starts_with(&begin), "{text:?}: {error}");
            assert!(error.contains(why), "{text:?}: {error}");
            assert!(
                error.ends_with("; correct that line or remove it"),
                "{error}"
            );
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }

    #[test]
    fn everything_that_is_wrong_is_said_at_once_in_the_order_of_the_lines() {
        let error = parse(
            "storr = '/a'\nlog_level = 'loud'\n\n[runtime]\nbinary = 3\n[checkpoints]\nmax_gate_ms = -1\n",
        )
        .unwrap_err();
        let mut rest = error.as_str();
        for part in [
            "cannot use the configuration c.toml:1: there is no setting",
            "; line 2: log_level: ",
            "; line 5: runtime.binary: ",
            "; line 7: checkpoints.max_gate_ms: ",
            "; correct these lines or remove them",
        ] {
            let (_, after) = rest
                .split_once(part)
                .unwrap_or_else(|| panic!("{part}: {error}"));
            rest = after;
        }
        assert_eq!(error.lines().count(), 1, "{error}");
    }

    #[test]
    fn a_file_that_was_named_must_exist() {
        let error = Config::from_file(Path::new("/nowhere/c.toml")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot read the configuration /nowhere/c.toml: No such file or directory (os error 2)"
        );
    }
}
