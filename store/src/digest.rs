// SPDX-License-Identifier: Apache-2.0

//! Names of contents: blake3, written as hex where people read it.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use thiserror::Error;

/// The blake3 hash of an object's bytes, and so its name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
}

/// A text that is not hex of the right length.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("expected {expected} hex digits")]
pub struct HexError {
    expected: usize,
}

pub(crate) fn parse_hex<const N: usize>(text: &str) -> Result<[u8; N], HexError> {
    let error = || HexError { expected: 2 * N };
    if text.len() != 2 * N {
        return Err(error());
    }
    let mut out = [0; N];
    for (byte, pair) in out.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let digit = |c: u8| (c as char).to_digit(16).ok_or_else(error);
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Ok(out)
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

impl FromStr for Digest {
    type Err = HexError;

    fn from_str(text: &str) -> Result<Self, HexError> {
        parse_hex(text).map(Self)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            self.0.serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            String::deserialize(deserializer)?
                .parse()
                .map_err(de::Error::custom)
        } else {
            <[u8; 32]>::deserialize(deserializer).map(Self)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_reads_back_and_rubbish_does_not() {
        let digest = Digest::of(b"crab");
        assert_eq!(digest.to_string().parse::<Digest>(), Ok(digest));
        assert!("".parse::<Digest>().is_err());
        assert!("g".repeat(64).parse::<Digest>().is_err());
        // 64 bytes, but not 64 characters.
        assert!("ä".repeat(32).parse::<Digest>().is_err());
    }
}
