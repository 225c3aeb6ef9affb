// SPDX-License-Identifier: Apache-2.0

//! Chance that can be had again: the same seed gives the same turns, today and with every
//! later version of this program, which no generator of a library promises.

use std::ops::Range;

/// A stream of numbers (SplitMix64: Steele, Lea, Flood, 2014).
#[derive(Clone, Debug)]
pub struct Chance(u64);

/// A seed of its own for each name, the same whatever else there is (FNV-1a).
pub fn seed_of(seed: u64, name: &str) -> u64 {
    let mix = |seed: u64, byte: u8| (seed ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    name.bytes().fold(seed, mix)
}

impl Chance {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of a range that is not empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.number() % (range.end - range.start)
    }

    /// True once in so many times.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.within(0..times) == 0
    }

    /// One of them.
    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.within(0..all.len() as u64) as usize]
    }

    /// One of them, each as often as its weight says.
    pub fn weighted<T: Copy>(&mut self, all: &[(u64, T)]) -> T {
        let sum = all.iter().map(|(weight, _)| weight).sum();
        let mut at = self.within(0..sum);
        for (weight, one) in all {
            if at < *weight {
                return *one;
            }
            at -= weight;
        }
        all[all.len() - 1].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_for_good() {
        let mut chance = Chance::new(1234567);
        // Of the reference implementation.
        assert_eq!(chance.number(), 6457827717110365317);
        assert_eq!(chance.number(), 3203168211198807973);
        let mut chance = Chance::new(0);
        let mut counts = [0_u32; 2];
        for _ in 0..1000 {
            counts[chance.weighted(&[(3, 0), (1, 1)])] += 1;
        }
        assert!(counts[0] > 2 * counts[1] && counts[1] > 150, "{counts:?}");
    }
}
