// SPDX-License-Identifier: Apache-2.0
//! The records of CRIU's image files: `u32` magics, then a `u32` size and a Protocol
//! Buffers message each, all little-endian (CRIU's `image.c`, `magic.h`).

use std::{fs, io, path::Path};

use super::{ImageError, io_error};
use crate::foreign::read_start;

/// What every image but the inventory begins with.
const COMMON_MAGIC: u32 = 0x5456_4319;
pub(super) const INVENTORY_MAGIC: u32 = 0x5831_3116;
pub(super) const CGROUP_MAGIC: u32 = 0x5938_3330;
pub(super) const UTSNS_MAGIC: u32 = 0x5447_3203;
/// No image that is read here comes near it.
const MAX_IMAGE: usize = 16 << 20;

fn malformed(path: &Path) -> ImageError {
    io_error("read", path)(io::Error::other("it is no image of CRIU"))
}

/// How an image begins.
fn head(magic: u32) -> Vec<u8> {
    let mut head = Vec::new();
    if magic != INVENTORY_MAGIC {
        head.extend(COMMON_MAGIC.to_le_bytes());
    }
    head.extend(magic.to_le_bytes());
    head
}

/// The messages in an image.
pub(super) fn records(path: &Path, magic: u32) -> Result<Vec<Vec<u8>>, ImageError> {
    let bytes = read_start(path, MAX_IMAGE).map_err(io_error("read", path))?;
    parse(&bytes, magic).ok_or_else(|| malformed(path))
}

/// The messages in the bytes of an image; nothing if it is none of this kind.
pub(super) fn parse(bytes: &[u8], magic: u32) -> Option<Vec<Vec<u8>>> {
    let mut rest = bytes.strip_prefix(head(magic).as_slice())?;
    let mut found = Vec::new();
    while !rest.is_empty() {
        let size = usize::try_from(word(&mut rest)?).ok()?;
        found.push(take(&mut rest, size)?.to_vec());
    }
    Some(found)
}

/// The first message in an image; an empty one if there is none.
pub(super) fn first_record(path: &Path, magic: u32) -> Result<Vec<u8>, ImageError> {
    Ok(records(path, magic)?.into_iter().next().unwrap_or_default())
}

/// The only number in a message, or why it cannot be had.
pub(super) fn number_in(path: &Path, magic: u32, number: u64) -> Result<u64, ImageError> {
    field(&first_record(path, magic)?, number)
        .and_then(Field::number)
        .ok_or_else(|| malformed(path))
}

/// Writes an image of these messages.
pub(super) fn write_records(path: &Path, magic: u32, all: &[Vec<u8>]) -> Result<(), ImageError> {
    fs::write(path, image(magic, all)).map_err(io_error("write", path))
}

/// The bytes of an image of these messages.
pub(super) fn image(magic: u32, all: &[Vec<u8>]) -> Vec<u8> {
    let mut image = head(magic);
    for record in all {
        image.extend((record.len() as u32).to_le_bytes());
        image.extend(record);
    }
    image
}

/// Changes the messages of an image, but those of which nothing is given.
pub(super) fn rewrite(
    path: &Path,
    magic: u32,
    changed: impl Fn(&[u8]) -> Option<Vec<u8>>,
) -> Result<(), ImageError> {
    let mut all = records(path, magic)?;
    for record in &mut all {
        if let Some(changed) = changed(record) {
            *record = changed;
        }
    }
    write_records(path, magic, &all)
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (head, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(head)
}

fn word(bytes: &mut &[u8]) -> Option<u32> {
    let word = take(bytes, 4)?;
    Some(u32::from_le_bytes(word.try_into().ok()?))
}

/// One field of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Field<'a> {
    pub(super) fn number(self) -> Option<u64> {
        match self {
            Self::Number(number) => Some(number),
            Self::Bytes(_) => None,
        }
    }

    pub(super) fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Number(_) => None,
        }
    }
}

/// Takes the next field off a message: its number and value.
fn next_field<'a>(message: &mut &'a [u8]) -> Option<(u64, Field<'a>)> {
    let tag = varint(message)?;
    let value = match tag & 7 {
        0 => Field::Number(varint(message)?),
        1 => Field::Bytes(take(message, 8)?),
        2 => {
            let length = usize::try_from(varint(message)?).ok()?;
            Field::Bytes(take(message, length)?)
        }
        5 => Field::Bytes(take(message, 4)?),
        _ => return None,
    };
    Some((tag >> 3, value))
}

/// Every field of a message; nothing if it is none.
pub(super) fn fields(mut message: &[u8]) -> Option<Vec<(u64, Field<'_>)>> {
    let mut all = Vec::new();
    while !message.is_empty() {
        all.push(next_field(&mut message)?);
    }
    Some(all)
}

/// The first field of that number in a message.
pub(super) fn field(mut message: &[u8], number: u64) -> Option<Field<'_>> {
    while !message.is_empty() {
        let (found, value) = next_field(&mut message)?;
        if found == number {
            return Some(value);
        }
    }
    None
}

/// A message without the fields of that number; nothing if it is none.
pub(super) fn without_field(mut message: &[u8], number: u64) -> Option<Vec<u8>> {
    let mut left = Vec::with_capacity(message.len());
    while !message.is_empty() {
        let before = message;
        let (found, _) = next_field(&mut message)?;
        if found != number {
            left.extend_from_slice(&before[..before.len() - message.len()]);
        }
    }
    Some(left)
}

/// Puts a field of bytes at the end of a message.
pub(super) fn put_bytes(message: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    put_varint(message, number << 3 | 2);
    put_varint(message, bytes.len() as u64);
    message.extend_from_slice(bytes);
}

/// Puts a field of a number at the end of a message.
pub(super) fn put_number(message: &mut Vec<u8>, number: u64, value: u64) {
    put_varint(message, number << 3);
    put_varint(message, value);
}

fn put_varint(message: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        message.push(value as u8 | 0x80);
        value >>= 7;
    }
    message.push(value as u8);
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = message.split_first()?;
        *message = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_and_nonsense_is_none() {
        let message = [8, 0xac, 2, 18, 2, b'h', b'i', 25, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(field(&message, 1), Some(Field::Number(300)));
        assert_eq!(field(&message, 2), Some(Field::Bytes(b"hi")));
        assert_eq!(field(&message, 4), None);
        assert_eq!(field(&[18, 200, 1, 0], 2), None);
        assert_eq!(field(&[0xff; 11], 1), None);
    }

    #[test]
    fn a_field_is_left_out_and_the_others_stay_as_they_are() {
        let message = [8, 0xac, 2, 0x92, 1, 2, b'h', b'i', 21, 1, 2, 3, 4];
        let left = without_field(&message, 18).unwrap();
        assert_eq!(left, [8, 0xac, 2, 21, 1, 2, 3, 4]);
        assert_eq!(without_field(&left, 18).unwrap(), left);
        assert_eq!(without_field(&[18, 200, 1, 0], 18), None);
    }

    #[test]
    fn what_is_put_into_a_message_is_found_in_it() {
        let mut message = Vec::new();
        put_number(&mut message, 6, u64::from(u32::MAX));
        put_bytes(&mut message, 18, b"key");
        let number = Some(Field::Number(u64::from(u32::MAX)));
        assert_eq!(field(&message, 6), number);
        assert_eq!(field(&message, 18), Some(Field::Bytes(b"key")));
    }

    #[test]
    fn what_is_written_is_read_again_and_a_torn_image_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.img");
        let all = vec![vec![8, 1], vec![], vec![16, 2]];
        for magic in [INVENTORY_MAGIC, 7] {
            write_records(&path, magic, &all).unwrap();
            assert_eq!(records(&path, magic).unwrap(), all);
        }
        assert!(records(&path, INVENTORY_MAGIC).is_err());
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert!(records(&path, 7).is_err());
    }
}
