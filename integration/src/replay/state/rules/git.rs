// SPDX-License-Identifier: Apache-2.0

//! git's index (gitformat-index(5)).

/// Signature, version and number of entries.
const HEAD: usize = 12;
/// An entry up to its flags: ten numbers about the file, and the object's SHA-1.
const ENTRY: usize = 62;
/// Of these, times, device and inode number; and the size, which git sets to zero if the file
/// may have changed within the tick in which it looked. The object says it better.
const TIMES: std::ops::Range<usize> = 0..24;
const SIZE: std::ops::Range<usize> = 36..40;
const FLAGS: usize = 60;
/// Of the flags: two more bytes of them follow; and the length of the name, all ones if longer.
const EXTENDED: u16 = 0x4000;
const CHECKSUM: usize = 20;

/// An index without what git remembers of its files' times. Nothing if it is none of version 2
/// or 3.
pub(super) fn index(bytes: &[u8], _: &super::Window) -> Option<Vec<u8>> {
    if bytes.get(..4)? != b"DIRC" {
        return None;
    }
    let number = |at: usize| {
        let number = bytes.get(at..at + 4)?;
        Some(u32::from_be_bytes(number.try_into().ok()?))
    };
    if !(2..=3).contains(&number(4)?) {
        return None;
    }
    let end = bytes.len().checked_sub(CHECKSUM)?;
    let mut ruled = bytes[..end].to_vec();
    let mut at = HEAD;
    for _ in 0..number(8)? {
        let entry = ruled.get_mut(at..end)?;
        entry.get_mut(..ENTRY)?;
        entry[TIMES].fill(0);
        entry[SIZE].fill(0);
        let flags = u16::from_be_bytes([entry[FLAGS], entry[FLAGS + 1]]);
        let fixed = ENTRY + if flags & EXTENDED != 0 { 2 } else { 0 };
        let name = entry.get(fixed..)?.iter().position(|byte| *byte == 0)?;
        // Then one to eight zeros, to a multiple of eight.
        at += (fixed + name + 8) & !7;
    }
    (at <= end).then_some(ruled)
}

#[cfg(test)]
mod tests {
    use super::{super::tests::hour, *};

    fn made(stat: u8, size: u8, mode: u8, object: u8, name: &str) -> Vec<u8> {
        let mut bytes = b"DIRC\0\0\0\x02\0\0\0\x02".to_vec();
        for _ in 0..2 {
            let from = bytes.len();
            bytes.extend([stat; 24]);
            bytes.extend([0, 0, 0x81, mode, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, size]);
            bytes.extend([object; 20]);
            bytes.extend((name.len() as u16).to_be_bytes());
            bytes.extend(name.bytes());
            let length = bytes.len() - from;
            bytes.resize(from + ((length + 8) & !7), 0);
        }
        bytes.extend(b"TREE\0\0\0\x01x");
        bytes.extend([stat; 20]);
        bytes
    }

    #[test]
    fn only_stat_data_and_the_checksum_are_passed_over() {
        let of = |bytes: &[u8]| index(bytes, &hour()).unwrap();
        let one = of(&made(1, 7, 0xa4, 3, "a/name"));
        assert_eq!(one, of(&made(2, 0, 0xa4, 3, "a/name")));
        assert_ne!(one, of(&made(1, 7, 0xed, 3, "a/name")));
        assert_ne!(one, of(&made(1, 7, 0xa4, 4, "a/name")));
        assert_ne!(one, of(&made(1, 7, 0xa4, 3, "a/nome")));
        let mut other = made(1, 7, 0xa4, 3, "a/name");
        let x = other.len() - CHECKSUM - 1;
        other[x] = b'y';
        assert_ne!(one, of(&other));
    }

    #[test]
    fn what_is_no_index_counts_whole() {
        let whole = made(1, 7, 0xa4, 3, "a/name");
        assert!(index(&whole[..whole.len() / 2], &hour()).is_none());
        assert!(index(b"DIRC\0\0\0\x04\0\0\0\x01", &hour()).is_none());
        assert!(index(b"DIRC", &hour()).is_none());
        assert!(index(b"", &hour()).is_none());
    }
}
