// SPDX-License-Identifier: Apache-2.0

//! What a setting can hold, and reading it from a file or from an annotation.

use std::{fmt, net::SocketAddr, path::PathBuf};

use toml::{Spanned, de::DeValue};

use crate::{patterns::PatternsOf, settings::LogLevel};

/// What a setting holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`.
    Switch,
    /// A whole number.
    Number {
        /// Of what.
        unit: &'static str,
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
    /// One of the log levels.
    Level,
    /// One of these words.
    Word(&'static [&'static str]),
    /// An absolute path without `..`; `max` bytes at most.
    Path {
        /// How long it may be.
        max: usize,
    },
    /// An address and a port of this host, that no other host reaches.
    Loopback,
    /// The name of a command, to be found on PATH, or an absolute path.
    Command,
    /// A list of patterns.
    Patterns(PatternsOf),
}

/// What a file or an annotation says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Switch(bool),
    Number(u64),
    Level(LogLevel),
    Word(&'static str),
    Path(PathBuf),
    Address(SocketAddr),
    Patterns(Vec<String>),
}

/// What [`loopback`] takes.
pub const LOOPBACK: &str =
    "it must be an address of this host alone with a port, as 127.0.0.1:9464 or [::1]:9464";

/// An address and a port of this host that no other host reaches, if the text is one.
pub fn loopback(text: &str) -> Option<SocketAddr> {
    let address: SocketAddr = text.parse().ok()?;
    address.ip().is_loopback().then_some(address)
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Switch => write!(f, "true or false"),
            Self::Number { unit, min, max } => write!(f, "{unit}, {min} to {max}"),
            Self::Level => write!(f, "error, warn, info, debug or trace"),
            Self::Word(words) => write!(f, "{}", listed(words, "or")),
            Self::Path { .. } => write!(f, "absolute path"),
            Self::Loopback => write!(f, "address of this host alone, and port"),
            Self::Command => write!(f, "command or absolute path"),
            Self::Patterns(_) => write!(f, "list of patterns"),
        }
    }
}

impl Kind {
    /// What a value has to be, to go on after "it must be".
    fn wanted(self) -> String {
        match self {
            Self::Switch => "true or false".into(),
            Self::Number { unit, min, max } => {
                format!("a whole number of {unit} between {min} and {max}")
            }
            Self::Level => "one of error, warn, info, debug and trace".into(),
            Self::Word(words) => format!("one of {}", listed(words, "and")),
            Self::Path { .. } => "an absolute path in quotes, without `..` in it".into(),
            Self::Loopback => {
                "an address of this host alone with a port, as \"127.0.0.1:9464\"".into()
            }
            Self::Command => "the name of a command or an absolute path, in quotes".into(),
            Self::Patterns(_) => "a list of patterns in quotes, as [\"a\", \"b\"]".into(),
        }
    }

    /// From a file.
    pub(crate) fn read(self, value: &DeValue<'_>) -> Result<Value, String> {
        let wrong = |is: &str| format!("it must be {}, and is {is}", self.wanted());
        match (self, value) {
            (Self::Switch, DeValue::Boolean(value)) => Ok(Value::Switch(*value)),
            (Self::Number { .. }, DeValue::Integer(number)) => {
                u64::from_str_radix(number.as_str(), number.radix())
                    .ok()
                    .and_then(|value| self.number(value))
                    .ok_or_else(|| wrong(&number.to_string()))
            }
            (
                Self::Level | Self::Word(_) | Self::Path { .. } | Self::Loopback | Self::Command,
                DeValue::String(text),
            ) => self.text(text),
            (Self::Patterns(of), DeValue::Array(list)) => {
                let text = |item: &Spanned<DeValue<'_>>| match item.get_ref() {
                    DeValue::String(text) => Ok(text.to_string()),
                    _ => Err(wrong("a list with something else in it")),
                };
                patterns(of, list.iter().map(text).collect::<Result<_, _>>()?)
            }
            (_, DeValue::String(text)) => Err(wrong(&format!("the string {}", quoted(text)))),
            (_, DeValue::Boolean(value)) => Err(wrong(&value.to_string())),
            (_, DeValue::Integer(_) | DeValue::Float(_)) => Err(wrong("a number")),
            (_, DeValue::Datetime(_)) => Err(wrong("a date")),
            (_, DeValue::Array(_)) => Err(wrong("a list")),
            (_, DeValue::Table(_)) => Err(wrong("a section")),
        }
    }

    /// From an annotation, which is always text.
    pub(crate) fn parse(self, text: &str) -> Result<Value, String> {
        let parsed = match self {
            Self::Switch => text.parse().ok().map(Value::Switch),
            // Unlike `parse`, which takes a sign.
            Self::Number { .. } if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                text.parse().ok().and_then(|value| self.number(value))
            }
            Self::Number { .. } => None,
            // Blanks, because `ctr` takes commas for itself. One within a pattern is
            // written `?`.
            Self::Patterns(of) => {
                return patterns(of, text.split_whitespace().map(Into::into).collect());
            }
            Self::Level | Self::Word(_) | Self::Path { .. } | Self::Loopback | Self::Command => {
                return self.text(text);
            }
        };
        parsed.ok_or_else(|| format!("it must be {}, and is {}", self.wanted(), quoted(text)))
    }

    fn number(self, value: u64) -> Option<Value> {
        match self {
            Self::Number { min, max, .. } if (min..=max).contains(&value) => {
                Some(Value::Number(value))
            }
            _ => None,
        }
    }

    fn text(self, text: &str) -> Result<Value, String> {
        let path = PathBuf::from(text);
        let climbs = path.components().any(|part| part.as_os_str() == "..");
        // What ends a line would break the one-line messages that show it, and a
        // zero no path can hold.
        let plain = !text.chars().any(char::is_control);
        let fits = plain
            && match self {
                Self::Path { .. } => path.is_absolute() && !climbs,
                Self::Command => {
                    let is_name = path.components().count() == 1 && path.file_name().is_some();
                    is_name || path.is_absolute()
                }
                _ => true,
            };
        if let Self::Path { max } = self
            && fits
            && text.len() > max
        {
            return Err(format!(
                "it must have at most {max} bytes, and has {}: the sockets in it could not be reached",
                text.len()
            ));
        }
        let value = match self {
            Self::Level => LogLevel::parse(text).map(Value::Level),
            Self::Loopback => loopback(text).map(Value::Address),
            Self::Word(words) => {
                let word = words.iter().find(|word| **word == text);
                word.map(|word| Value::Word(word))
            }
            _ => fits.then_some(Value::Path(path)),
        };
        value.ok_or_else(|| format!("it must be {}, and is {}", self.wanted(), quoted(text)))
    }
}

/// `a, b or c`
fn listed(words: &[&str], last: &str) -> String {
    match words {
        [first @ .., end] if !first.is_empty() => format!("{} {last} {end}", first.join(", ")),
        _ => words.concat(),
    }
}

fn patterns(of: PatternsOf, list: Vec<String>) -> Result<Value, String> {
    of.check(&list)?;
    Ok(Value::Patterns(list))
}

/// A text of any size and content, as a part of one line.
pub(crate) fn quoted(text: &str) -> String {
    const MOST: usize = 60;
    let mut shown: String = text.chars().take(MOST).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    format!("{shown:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_annotation_says_is_read_strictly() {
        let number = Kind::Number {
            unit: "milliseconds",
            min: 10,
            max: 50,
        };
        assert_eq!(number.parse("10"), Ok(Value::Number(10)));
        for wrong in [
            "",
            "9",
            "51",
            "+20",
            "-1",
            "20 ",
            "0x10",
            "2e1",
            "99999999999999999999",
        ] {
            let why = number.parse(wrong).unwrap_err();
            let begins = "it must be a whole number of milliseconds between 10 and 50, and is ";
            assert!(why.starts_with(begins), "{why}");
        }
        assert_eq!(Kind::Switch.parse("true"), Ok(Value::Switch(true)));
        for wrong in ["True", "1", "yes", "", " true"] {
            assert!(Kind::Switch.parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_hostile_text_is_shown_short_and_on_one_line() {
        let why = Kind::Switch
            .parse(&"a\n\u{1b}[2J".repeat(100_000))
            .unwrap_err();
        assert!(why.len() < 600 && why.lines().count() == 1, "{why}");
        assert!(!why.contains('\u{1b}'));
    }
}
