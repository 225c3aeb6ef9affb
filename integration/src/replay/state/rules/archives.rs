// SPDX-License-Identifier: Apache-2.0

//! Archives: tar, and whatever gzip has packed.

use std::io::Read;

use flate2::read::MultiGzDecoder;

use super::{Window, content};

const BLOCK: usize = 512;
/// Of a head (POSIX.1, `ustar`): time, checksum, type and magic.
const TIME: std::ops::Range<usize> = 136..148;
const SUM: std::ops::Range<usize> = 148..156;
const SIZE: std::ops::Range<usize> = 124..136;
const KIND: usize = 156;
const MAGIC: std::ops::Range<usize> = 257..262;
/// What gzip's begin with, with the only method there is.
const PACKED: &[u8] = b"\x1f\x8b\x08";
/// What is unpacked at most, in bytes.
const UNPACKED: u64 = 64 << 20;

/// An archive without its files' times, and its files by the rules. Nothing if it is none, to
/// its last head.
pub(super) fn tar(bytes: &[u8], window: &Window) -> Option<Vec<u8>> {
    let mut ruled = Vec::new();
    let mut at = 0;
    while let Some(head) = bytes.get(at..at + BLOCK) {
        if head.iter().all(|byte| *byte == 0) {
            // The end; only zeros follow.
            let rest = &bytes[at..];
            return (at > 0 && rest.iter().all(|byte| *byte == 0)).then_some(ruled);
        }
        if &head[MAGIC] != b"ustar" {
            return None;
        }
        let size = octal(&head[SIZE])?;
        let mut head = head.to_vec();
        head[TIME].fill(0);
        head[SUM].fill(0);
        let from = at + BLOCK;
        let to = from.checked_add(usize::try_from(size).ok()?)?;
        let inside = bytes.get(from..to)?;
        let told = match head[KIND] {
            b'x' | b'g' => Some(without_times(inside.to_vec())?),
            // An archive in itself is not looked into any further: that could go on for ever.
            b'0' | 0 if !is_archive(inside) => content(inside, window),
            _ => None,
        };
        if let Some(told) = &told {
            window.sums.add(inside, blake3::hash(told).into());
            head[SIZE].fill(0);
        }
        let told = told.as_deref().unwrap_or(inside);
        ruled.extend(head);
        ruled.extend((told.len() as u64).to_le_bytes());
        ruled.extend_from_slice(told);
        at = to.checked_next_multiple_of(BLOCK)?;
    }
    None
}

fn is_archive(bytes: &[u8]) -> bool {
    bytes.starts_with(PACKED) || bytes.get(MAGIC) == Some(b"ustar")
}

/// Octal digits, spaces and zeros around them.
fn octal(field: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(field).ok()?;
    let text = text.trim_matches(['\0', ' ']);
    match text.is_empty() {
        true => Some(0),
        false => u64::from_str_radix(text, 8).ok(),
    }
}

/// Extended records, `LENGTH NAME=VALUE\n` each: the values of times made zeros.
fn without_times(mut records: Vec<u8>) -> Option<Vec<u8>> {
    let mut at = 0;
    while at < records.len() {
        let rest = &records[at..];
        let space = rest.iter().position(|byte| *byte == b' ')?;
        let length: usize = std::str::from_utf8(&rest[..space]).ok()?.parse().ok()?;
        let record = rest.get(space + 1..length)?;
        let equals = record.iter().position(|byte| *byte == b'=')?;
        if [&b"mtime"[..], b"atime", b"ctime"].contains(&&record[..equals]) {
            records[at + space + 1 + equals + 1..at + length].fill(b'0');
        }
        at += length;
    }
    Some(records)
}

/// What is packed, by the rules for it. Nothing if it is not packed whole.
pub(super) fn gzip(bytes: &[u8], window: &Window) -> Option<Vec<u8>> {
    if !bytes.starts_with(PACKED) {
        return None;
    }
    let mut inside = Vec::new();
    let unpacked = MultiGzDecoder::new(bytes)
        .take(UNPACKED + 1)
        .read_to_end(&mut inside);
    unpacked.ok()?;
    if inside.len() as u64 > UNPACKED {
        return None;
    }
    // Packed in itself it is not looked into any further: that could go on for ever.
    let ruled = match inside.starts_with(PACKED) {
        true => None,
        false => content(&inside, window),
    };
    Some([b"(gzip)", &ruled.unwrap_or(inside)[..]].concat())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, GzBuilder};

    use super::{super::tests::hour, *};

    fn head(name: &str, mode: &str, size: usize, time: u64, kind: u8) -> Vec<u8> {
        let mut head = vec![0; BLOCK];
        head[..name.len()].copy_from_slice(name.as_bytes());
        head[100..107].copy_from_slice(mode.as_bytes());
        head[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
        head[136..147].copy_from_slice(format!("{time:011o}").as_bytes());
        head[148..154].copy_from_slice(format!("{:06o}", time % 1000).as_bytes());
        head[KIND] = kind;
        head[MAGIC].copy_from_slice(b"ustar");
        head
    }

    fn archive(mode: &str, time: u64, text: &str) -> Vec<u8> {
        let record = format!("20 mtime={:010}\n", time);
        let record = format!("{record}{}", "9 path=a\n");
        let mut all = head("pax", mode, record.len(), time, b'x');
        all.extend(record.bytes());
        all.resize(all.len().next_multiple_of(BLOCK), 0);
        all.extend(head("a", mode, text.len(), time, b'0'));
        all.extend(text.bytes());
        all.resize(all.len().next_multiple_of(BLOCK) + 2 * BLOCK, 0);
        all
    }

    fn packed(bytes: &[u8], time: u32) -> Vec<u8> {
        let mut writer = GzBuilder::new()
            .mtime(time)
            .write(Vec::new(), Compression::fast());
        writer.write_all(bytes).unwrap();
        writer.finish().unwrap()
    }

    #[test]
    fn only_times_in_a_tar_are_passed_over() {
        let of = |bytes: &[u8]| tar(bytes, &hour()).unwrap();
        let one = of(&archive("0000644", 1, "text"));
        assert_eq!(one, of(&archive("0000644", 2, "text")));
        assert_ne!(one, of(&archive("0000755", 1, "text")));
        assert_ne!(one, of(&archive("0000644", 1, "tent")));
        assert_eq!(
            of(&archive("0000644", 1, "at 2026-11-30 22:10:00")),
            of(&archive("0000644", 2, "at 2026-11-30 22:20:01"))
        );
        let whole = archive("0000644", 1, "text");
        assert!(tar(&whole[..whole.len() - 2 * BLOCK], &hour()).is_none());
        assert!(tar(b"no archive", &hour()).is_none());
    }

    #[test]
    fn what_is_packed_is_compared_by_the_rules() {
        let of = |bytes: &[u8]| gzip(bytes, &hour()).unwrap();
        let one = of(&packed(&archive("0000644", 1, "text"), 5));
        assert_eq!(one, of(&packed(&archive("0000644", 2, "text"), 6)));
        assert_ne!(one, of(&packed(&archive("0000644", 1, "tent"), 5)));
        assert_eq!(
            of(&packed(b"2026-11-30 22:10:00 x", 5)),
            of(&packed(b"2026-11-30 22:20:00 x", 5))
        );
        assert_ne!(of(&packed(b"x", 5)), of(&packed(b"y", 5)));
        let whole = packed(b"some text", 5);
        assert!(gzip(&whole[..whole.len() - 4], &hour()).is_none());
        // What is packed twice is unpacked once.
        assert_ne!(
            of(&packed(&packed(b"x", 1), 5)),
            of(&packed(&packed(b"x", 2), 5))
        );
    }
}
