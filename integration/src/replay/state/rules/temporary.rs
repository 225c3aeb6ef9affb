// SPDX-License-Identifier: Apache-2.0

//! Names drawn by chance.

/// What `mktemp` appends to `tmp.` without a template, and what Python's `tempfile` appends to
/// `tmp`.
const MKTEMP: usize = 10;
const PYTHON: usize = 8;

/// The name by which such a file is compared, its path given; nothing if it is another one. What
/// Python's may end with, after a dot, stays.
pub(super) fn name(path: &[u8]) -> Option<Vec<u8>> {
    let name = [&b"/tmp/"[..], b"/var/tmp/"]
        .iter()
        .find_map(|directory| path.strip_prefix(*directory))?;
    let drawn = name.strip_prefix(b"tmp")?;
    if let Some(letters) = drawn.strip_prefix(b".") {
        let all = letters.iter().all(u8::is_ascii_alphanumeric);
        return (letters.len() == MKTEMP && all).then(|| b"(temporary)".to_vec());
    }
    let (letters, rest) = drawn.split_at_checked(PYTHON)?;
    let of_python = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'_';
    let ends = rest.is_empty() || rest[0] == b'.';
    let ruled = || [b"(temporary)", rest].concat();
    (ends && !rest.contains(&b'/') && letters.iter().all(of_python)).then(ruled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_their_form_and_place_are_drawn() {
        for (path, ruled) in [
            ("/tmp/tmp.aB3dE6gH9k", "(temporary)"),
            ("/var/tmp/tmpab_1x9zz", "(temporary)"),
            ("/tmp/tmpab_1x9zz.json", "(temporary).json"),
        ] {
            assert_eq!(name(path.as_bytes()).unwrap(), ruled.as_bytes(), "{path}");
        }
        for path in [
            "/tmp/tmp.aB3dE6gH9",
            "/tmp/tmp.aB3dE6gH9k0",
            "/tmp/tmpAB_1x9zz",
            "/tmp/tmpab_1x9zzz",
            "/tmp/tmpab_1x9zz/below",
            "/tmp/below/tmpab_1x9zz",
            "/case/tmpab_1x9zz",
            "/tmp/other",
            "/tmp/tmp",
        ] {
            assert_eq!(name(path.as_bytes()), None, "{path}");
        }
    }
}
