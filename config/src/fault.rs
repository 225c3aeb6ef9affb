// SPDX-License-Identifier: Apache-2.0

//! What is wrong with a file, as one line that says what to change.

use std::{fmt, io, path::PathBuf};

use thiserror::Error;

/// So many faults are told of one file; the rest is counted.
const TOLD: usize = 8;

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
    /// The file says something that cannot be used.
    #[error("cannot use the configuration {}", Content { path, faults })]
    Content {
        /// The file.
        path: PathBuf,
        /// All that is wrong, in the order of the lines; never empty.
        faults: Vec<Fault>,
    },
}

/// One thing that is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub why: String,
}

struct Content<'a> {
    path: &'a PathBuf,
    faults: &'a [Fault],
}

impl fmt::Display for Content<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        for (number, fault) in self.faults.iter().take(TOLD).enumerate() {
            let line = fault.line;
            match number {
                0 => write!(f, "{path}:{line}: {}", fault.why)?,
                _ => write!(f, "; line {line}: {}", fault.why)?,
            }
        }
        if self.faults.len() > TOLD {
            write!(f, "; and {} more", self.faults.len() - TOLD)?;
        }
        match self.faults.len() {
            1 => write!(f, "; correct that line or remove it"),
            _ => write!(f, "; correct these lines or remove them"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_faults_are_counted_and_still_one_line() {
        let faults = (1..=20).map(|line| Fault {
            line,
            why: "no".into(),
        });
        let error = ConfigError::Content {
            path: "c.toml".into(),
            faults: faults.collect(),
        };
        let line = error.to_string();
        assert!(
            line.starts_with("cannot use the configuration c.toml:1: no; line 2: no; "),
            "{line}"
        );
        assert!(line.ends_with("line 8: no; and 12 more; correct these lines or remove them"));
        assert_eq!(line.lines().count(), 1);
    }
}
