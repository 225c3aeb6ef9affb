// SPDX-License-Identifier: Apache-2.0
//! Digests of what is read piece by piece.

use crab_store::Digest;

use super::clock::Clock;

/// A digest in the making.
#[derive(Clone)]
pub(super) struct Hash(blake3::Hasher);

impl Hash {
    pub(super) fn new() -> Self {
        Self(blake3::Hasher::new())
    }

    /// Something of a length that is known or told.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(super) fn word(&mut self, word: u64) {
        self.update(&word.to_ne_bytes());
    }

    /// Something of any length.
    pub(super) fn text(&mut self, text: &[u8]) {
        self.word(text.len() as u64);
        self.update(text);
    }

    pub(super) fn finish(&self) -> Digest {
        Digest(*self.0.finalize().as_bytes())
    }
}

/// Something, with the time in it and without.
pub(super) struct Making<'a> {
    clock: &'a Clock,
    exact: Hash,
    timeless: Hash,
}

/// The digests of something, with the time in it and without: an instant that is near now
/// may have been far from then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    exact: Digest,
    timeless: Digest,
}

impl<'a> Making<'a> {
    pub(super) fn new(clock: &'a Clock) -> Self {
        Self {
            clock,
            exact: Hash::new(),
            timeless: Hash::new(),
        }
    }

    /// Where the next words are.
    pub(super) fn place(&mut self, address: u64) {
        self.exact.word(address);
        self.timeless.word(address);
    }

    /// Words of 8 bytes.
    pub(super) fn update(&mut self, words: &[u8]) {
        self.exact.text(words);
        let mut words = words.to_vec();
        self.clock.wipe(&mut words);
        self.timeless.text(&words);
    }

    pub(super) fn finish(&self) -> Pair {
        Pair {
            exact: self.exact.finish(),
            timeless: self.timeless.finish(),
        }
    }
}

impl Pair {
    /// With the time, and without.
    pub(super) fn digests(&self) -> (Digest, Digest) {
        (self.exact, self.timeless)
    }

    /// Whether it is the same but for the time.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.exact == other.exact || self.timeless == other.timeless
    }
}
