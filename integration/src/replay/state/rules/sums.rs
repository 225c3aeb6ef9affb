// SPDX-License-Identifier: Apache-2.0

//! Checksums that a run has written down.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use sha2::{Digest as _, Sha256};

use super::{super::Digest, Window};

/// Hexadecimal digits of a SHA-256.
const DIGITS: usize = 64;

/// The SHA-256 of each file that the rules make another of, with that which is compared of it;
/// and those that text told before they were known.
#[derive(Debug, Default)]
pub(in super::super) struct Sums(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    sums: HashMap<Vec<u8>, Digest>,
    missed: HashSet<Vec<u8>>,
    late: bool,
}

impl Sums {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a file's, and what is compared of it.
    pub(in super::super) fn add(&self, bytes: &[u8], normal: Digest) {
        let sum = Sha256::digest(bytes);
        let sum: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut known = self.known();
        known.late |= known.missed.contains(sum.as_bytes());
        known.sums.insert(sum.into_bytes(), normal);
    }

    /// Whether a text that was read since the last call told a sum that became known only
    /// later.
    pub(in super::super) fn came_late(&self) -> bool {
        let mut known = self.known();
        known.missed.clear();
        std::mem::take(&mut known.late)
    }

    fn of(&self, sum: &[u8]) -> Option<Digest> {
        let mut known = self.known();
        let normal = known.sums.get(sum).copied();
        if normal.is_none() {
            known.missed.insert(sum.to_vec());
        }
        normal
    }
}

/// Text in which the sum of a file stands for what is compared of that file; nothing if it has
/// none.
pub(super) fn text(text: &[u8], window: &Window) -> Option<Vec<u8>> {
    let mut ruled: Option<Vec<u8>> = None;
    let (mut at, mut done) = (0, 0);
    while at < text.len() {
        let word = text[at..].iter().take_while(|byte| is_of_word(**byte));
        let end = at + word.count();
        if end - at == DIGITS
            && text[at..end].iter().all(u8::is_ascii_hexdigit)
            && let Some(normal) = window.sums.of(&text[at..end])
        {
            let ruled = ruled.get_or_insert_default();
            ruled.extend_from_slice(&text[done..at]);
            ruled.extend(format!("(of {})", blake3::Hash::from(normal)).bytes());
            done = end;
        }
        at = end + 1;
    }
    if let Some(ruled) = &mut ruled {
        ruled.extend_from_slice(&text[done..]);
    }
    ruled
}

fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

#[cfg(test)]
mod tests {
    use super::{super::tests::hour, *};

    #[test]
    fn a_sum_is_that_of_what_is_compared() {
        let window = hour();
        let sum = |bytes: &[u8]| -> String {
            let sum = Sha256::digest(bytes);
            sum.iter().map(|byte| format!("{byte:02x}")).collect()
        };
        let of = |of: &str| text(format!("{of}  file\n").as_bytes(), &window);
        assert_eq!(of(&sum(b"one")), None);
        assert!(!window.sums.came_late());
        window.sums.add(b"one", [7; 32]);
        window.sums.add(b"another time", [7; 32]);
        window.sums.add(b"another text", [8; 32]);
        assert_eq!(
            of(&sum(b"one")).unwrap(),
            of(&sum(b"another time")).unwrap()
        );
        assert_ne!(
            of(&sum(b"one")).unwrap(),
            of(&sum(b"another text")).unwrap()
        );
        // What is no file of this run counts as it is, as does what is longer.
        assert_eq!(of(&sum(b"none")), None);
        assert_eq!(of(&format!("{}0", sum(b"one"))), None);
    }

    #[test]
    fn a_sum_that_is_told_before_its_file_is_seen_is_told() {
        let window = hour();
        let sum: String = Sha256::digest(b"one")
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        assert_eq!(text(sum.as_bytes(), &window), None);
        window.sums.add(b"two", [7; 32]);
        window.sums.add(b"one", [7; 32]);
        assert!(window.sums.came_late() && !window.sums.came_late());
        assert!(text(sum.as_bytes(), &window).is_some());
    }
}
