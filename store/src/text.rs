// SPDX-License-Identifier: Apache-2.0

//! Byte strings from inside a container as text.
//!
//! Names in a container need not be UTF-8, and may hold control characters
//! that would drive the terminal of whoever looks at them. [`escape`] loses
//! nothing and leaves nothing that a terminal obeys; [`unescape`] is its
//! inverse.

use serde::{Deserialize, Deserializer, Serializer, de};

/// These bytes as printable text: what is not becomes `\xNN`, a backslash `\\`.
pub fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    let push_raw = |out: &mut String, raw: &[u8]| {
        for byte in raw {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    };
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                c if c.is_control() => {
                    push_raw(&mut out, c.encode_utf8(&mut [0; 4]).as_bytes());
                }
                c => out.push(c),
            }
        }
        push_raw(&mut out, chunk.invalid());
    }
    out
}

/// The bytes that [`escape`] was given, or nothing if it never wrote this.
pub fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        match rest {
            [b'\\', tail @ ..] => {
                out.push(b'\\');
                rest = tail;
            }
            [b'x', high, low, tail @ ..] => {
                let digit = |c: u8| (c as char).to_digit(16);
                out.push((digit(*high)? << 4 | digit(*low)?) as u8);
                rest = tail;
            }
            _ => return None,
        }
    }
    Some(out)
}

/// At most `max` bytes of a text, cut between characters; `…` tells of a cut.
pub fn clip(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let mut end = max.saturating_sub('…'.len_utf8());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &text[..end])
}

pub(crate) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    if serializer.is_human_readable() {
        serializer.serialize_str(&escape(bytes))
    } else {
        serializer.serialize_bytes(bytes)
    }
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    if deserializer.is_human_readable() {
        let text = String::deserialize(deserializer)?;
        unescape(&text).ok_or_else(|| de::Error::custom("bad escape in a byte string"))
    } else {
        Vec::<u8>::deserialize(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_string_survives_the_round_trip() {
        let all: Vec<u8> = (0..=255).collect();
        for bytes in [&all[..], b"", b"\\x41", "ä\u{9b}31m\u{1b}[0m".as_bytes()] {
            let text = escape(bytes);
            assert!(!text.chars().any(char::is_control), "{text}");
            assert_eq!(unescape(&text).as_deref(), Some(bytes));
        }
        assert_eq!(unescape("\\q"), None);
        assert_eq!(unescape("\\x4"), None);
    }

    #[test]
    fn a_cut_never_splits_a_character() {
        assert_eq!(clip("short", 5), "short");
        assert_eq!(clip("ääää", 6), "ä…");
        assert_eq!(clip("abcdef", 5), "ab…");
    }
}
