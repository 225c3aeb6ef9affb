// SPDX-License-Identifier: Apache-2.0

//! The names of things in the store.
//!
//! A [`SandboxId`] becomes two path components, so it is checked once, when it
//! is made; whoever holds one may join it to a path.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use thiserror::Error;

/// The namespace of an identifier that names none.
pub const DEFAULT_NAMESPACE: &str = "default";

/// Longest namespace or id in bytes. containerd allows 76, Docker uses 64; the
/// file system's own limit is 255.
pub const MAX_NAME: usize = 200;

/// A sandbox: one container run under Crab, `<namespace>/<id>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SandboxId {
    namespace: String,
    id: String,
}

/// Why a text is no [`SandboxId`].
#[derive(Debug, Error, PartialEq, Eq)]
pub enum IdError {
    /// A part of it is empty.
    #[error("the {part} of a sandbox must not be empty")]
    Empty {
        /// Which part.
        part: &'static str,
    },
    /// A part of it is longer than [`MAX_NAME`].
    #[error("the {part} of a sandbox must not be longer than {MAX_NAME} bytes")]
    TooLong {
        /// Which part.
        part: &'static str,
    },
    /// A part of it has a character that is not allowed, or a leading dot.
    #[error(
        "{value:?} is no {part} of a sandbox: letters, digits, '.', '_' and '-' are allowed, and no '.' in front"
    )]
    BadCharacter {
        /// Which part.
        part: &'static str,
        /// The text.
        value: String,
    },
}

fn check(part: &'static str, value: &str) -> Result<(), IdError> {
    if value.is_empty() {
        return Err(IdError::Empty { part });
    }
    if value.len() > MAX_NAME {
        return Err(IdError::TooLong { part });
    }
    let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
    if value.starts_with('.') || !value.bytes().all(allowed) {
        let value = value.to_owned();
        return Err(IdError::BadCharacter { part, value });
    }
    Ok(())
}

impl SandboxId {
    /// Makes an identifier of its two parts.
    pub fn new(namespace: &str, id: &str) -> Result<Self, IdError> {
        check("namespace", namespace)?;
        check("id", id)?;
        Ok(Self {
            namespace: namespace.to_owned(),
            id: id.to_owned(),
        })
    }

    /// The containerd namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The container's id within its namespace.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The name under which this sandbox's history is kept after another sandbox
    /// has taken its name.
    pub(crate) fn retired(&self, created_ms: u64) -> Result<Self, IdError> {
        Self::new(&self.namespace, &format!("{}.{created_ms}", self.id))
    }

    /// Whether this is `earlier`, or the name that its history was given later.
    pub fn is_or_was(&self, earlier: &Self) -> bool {
        let suffix = self.id.strip_prefix(earlier.id.as_str());
        self.namespace == earlier.namespace
            && suffix.is_some_and(|suffix| {
                suffix.is_empty()
                    || suffix
                        .strip_prefix('.')
                        .is_some_and(|when| when.bytes().all(|b| b.is_ascii_digit()))
            })
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.id)
    }
}

impl FromStr for SandboxId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        match text.split_once('/') {
            Some((namespace, id)) => Self::new(namespace, id),
            None => Self::new(DEFAULT_NAMESPACE, text),
        }
    }
}

impl Serialize for SandboxId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SandboxId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(de::Error::custom)
    }
}

/// The number of a turn. Turn 0 is the start; numbers only go up, also across
/// a rollback, and are never used twice.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct TurnId(pub u64);

impl TurnId {
    /// The turn after this one.
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for TurnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<u64> for TurnId {
    fn from(turn: u64) -> Self {
        Self(turn)
    }
}

impl FromStr for TurnId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

/// The name of a pack: 16 random bytes, written as hex.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PackId(pub(crate) [u8; 16]);

impl fmt::Display for PackId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PackId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PackId({self})")
    }
}

impl FromStr for PackId {
    type Err = crate::digest::HexError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        crate::digest::parse_hex(text).map(Self)
    }
}

impl Serialize for PackId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PackId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_without_a_namespace_is_in_the_default_one() {
        let id: SandboxId = "demo".parse().unwrap();
        assert_eq!(id.to_string(), "default/demo");
        assert_eq!(id, "default/demo".parse().unwrap());
    }

    #[test]
    fn an_id_never_leaves_its_directory() {
        for bad in [
            "", "/", "a/", "/a", "..", "a/..", "../a", ".a", "a/b/c", "a b", "a/\0", "ä",
        ] {
            assert!(bad.parse::<SandboxId>().is_err(), "{bad:?}");
        }
        assert!("x".repeat(MAX_NAME + 1).parse::<SandboxId>().is_err());
        assert!("x".repeat(MAX_NAME).parse::<SandboxId>().is_ok());
    }
}
