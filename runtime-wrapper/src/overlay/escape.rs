// SPDX-License-Identifier: Apache-2.0
//! Paths in the options of an overlay: the kernel's octal escapes over
//! overlayfs' own backslashes.

/// The next byte of a text with the kernel's octal escapes, and how many bytes it took.
fn octal(text: &[u8]) -> Option<(u8, usize)> {
    match text {
        [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] => {
            Some(((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'), 4))
        }
        [byte, ..] => Some((*byte, 1)),
        [] => None,
    }
}

pub(crate) fn unescape_octal(mut text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    while let Some((byte, taken)) = octal(text) {
        out.push(byte);
        text = &text[taken..];
    }
    out
}

/// Splits a `lowerdir` value; true for layers that hold only data. A colon is
/// part of a path if a backslash precedes it, or if the kernel wrote it in octal.
pub(super) fn split_lowers(mut text: &[u8]) -> Vec<(Vec<u8>, bool)> {
    let mut layers = vec![(Vec::new(), false)];
    let mut data = false;
    while let Some((byte, taken)) = octal(text) {
        text = &text[taken..];
        let last = layers.len() - 1;
        let path = &mut layers[last].0;
        match byte {
            b'\\' => {
                // Overlayfs' own escape: the next byte, whatever it is.
                if let Some((next, taken)) = octal(text) {
                    path.push(next);
                    text = &text[taken..];
                }
            }
            b':' if taken == 1 && path.is_empty() => data = true,
            b':' if taken == 1 => {
                layers.push((Vec::new(), false));
                data = false;
            }
            byte => {
                path.push(byte);
                layers[last].1 |= data;
            }
        }
    }
    layers.retain(|(path, _)| !path.is_empty());
    layers
}

/// Undoes overlayfs' own escapes.
pub(super) fn unescape(text: &[u8]) -> Vec<u8> {
    let mut bytes = text.iter();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        out.extend(match byte {
            b'\\' => bytes.next(),
            byte => Some(byte),
        });
    }
    out
}

/// Puts a backslash before each of these bytes.
pub(super) fn escape(path: &[u8], special: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    for byte in path {
        if special.contains(byte) {
            out.push(b'\\');
        }
        out.push(*byte);
    }
    out
}
