// SPDX-License-Identifier: Apache-2.0

//! Versions of other programs, as they print them.

use std::fmt;

/// Its first two numbers: nothing here depends on a third.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(pub(crate) u32, pub(crate) u32);

impl Version {
    /// From `4.1.1`, `v2.1.9~ds1`, `6.18.44-cloud-amd64`, `1.21`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().trim_start_matches('v').splitn(3, '.');
        let major = parts.next()?.parse().ok()?;
        let minor = parts.next()?;
        let end = minor.find(|c: char| !c.is_ascii_digit());
        let minor = minor[..end.unwrap_or(minor.len())].parse().ok()?;
        Some(Self(major, minor))
    }

    /// The first word of a text that is a version, and that word.
    pub(crate) fn find(text: &str) -> Option<(Self, &str)> {
        text.split_whitespace()
            .find_map(|word| Some((Self::parse(word)?, word)))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_their_programs_print_them() {
        for (text, version) in [
            ("4.1.1", Version(4, 1)),
            ("v2.1.9~ds1", Version(2, 1)),
            ("6.18.44-fc", Version(6, 18)),
            ("6.12.117+deb13-cloud-amd64", Version(6, 12)),
            ("1.21", Version(1, 21)),
            ("3.17-rc1", Version(3, 17)),
            ("10.0\n", Version(10, 0)),
        ] {
            assert_eq!(Version::parse(text), Some(version), "{text}");
        }
        for text in ["", "4", "x.1", "4.x", "runc", "-1.2"] {
            assert_eq!(Version::parse(text), None, "{text}");
        }
        assert!(Version(4, 10) > Version(4, 2));
    }

    #[test]
    fn a_version_is_found_among_other_words() {
        let found = |text| Version::find(text).map(|(version, word)| (version, word.to_owned()));
        let containerd = "containerd github.com/containerd/containerd 1.7.24~ds1 1.7.24~ds1-6";
        assert_eq!(
            found(containerd),
            Some((Version(1, 7), "1.7.24~ds1".into()))
        );
        let runc = "runc version 1.1.15+ds1\ncommit: 1.1.15+ds1-2\nspec: 1.0.2-dev\n";
        assert_eq!(found(runc), Some((Version(1, 1), "1.1.15+ds1".into())));
        assert_eq!(
            found("Version: 4.2.1\n"),
            Some((Version(4, 2), "4.2.1".into()))
        );
        assert_eq!(found("no version at all"), None);
    }
}
