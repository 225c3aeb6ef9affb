// SPDX-License-Identifier: Apache-2.0

//! Python's byte code.

/// Of its head: four bytes of magic, flags, and then the source's time and size, or a hash of
/// the source (PEP 552).
const FLAGS: std::ops::Range<usize> = 4..8;
const TIME: std::ops::Range<usize> = 8..12;
const HEAD: usize = 16;
/// What a marshalled code object begins with, marked to be referred to or not.
const CODE: [u8; 2] = [b'c', b'c' | 0x80];

/// Byte code without its source's time. That which goes by a hash has none.
pub(super) fn byte_code(bytes: &[u8], _: &super::Window) -> Option<Vec<u8>> {
    let magic = u16::from_le_bytes([*bytes.first()?, *bytes.get(1)?]);
    // Those of Python 3.7 and later.
    let is_one = (3390..4000).contains(&magic)
        && bytes.get(2..4)? == b"\r\n"
        && CODE.contains(bytes.get(HEAD)?)
        && bytes[FLAGS] == [0; 4];
    if !is_one {
        return None;
    }
    let mut bytes = bytes.to_vec();
    bytes[TIME].fill(0);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::{super::tests::hour, *};

    fn code(flags: u8, time: u8, size: u8) -> Vec<u8> {
        let magic = 3571u16.to_le_bytes();
        let mut bytes = vec![magic[0], magic[1], b'\r', b'\n', flags, 0, 0, 0];
        bytes.extend([time, 1, 2, 3, size, 0, 0, 0, 0xe3, 7, 8]);
        bytes
    }

    #[test]
    fn only_the_time_is_passed_over() {
        let of = |bytes: &[u8]| byte_code(bytes, &hour());
        assert_eq!(of(&code(0, 1, 1)).unwrap(), of(&code(0, 2, 1)).unwrap());
        assert_ne!(of(&code(0, 1, 1)).unwrap(), of(&code(0, 1, 2)).unwrap());
        let mut other = code(0, 1, 1);
        *other.last_mut().unwrap() = 9;
        assert_ne!(of(&code(0, 1, 1)).unwrap(), of(&other).unwrap());
        // There a hash is.
        assert_eq!(of(&code(1, 1, 1)), None);
        assert_eq!(of(b"\xf3\x0d\r\n"), None);
        assert_eq!(of(b""), None);
    }
}
