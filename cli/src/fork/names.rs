// SPDX-License-Identifier: Apache-2.0

//! What copies are called. Pure.

use std::{collections::BTreeSet, str::FromStr};

/// In a pattern, the number of the copy, from 1.
const NUMBER: &str = "{n}";
/// What containerd allows in an identifier.
const MAX: usize = 76;

/// What a user wants copies to be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern(String);

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.replace(NUMBER, "1");
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let sound = name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && name.ends_with(|c: char| c.is_ascii_alphanumeric())
            && name.chars().all(allowed);
        if !sound {
            return Err(format!(
                "letters, digits, '.', '_' and '-' are allowed, and {NUMBER} for the number"
            ));
        }
        if name.len() > MAX - 4 {
            return Err(format!("it is longer than {} characters", MAX - 4));
        }
        Ok(Self(text.to_owned()))
    }
}

impl Pattern {
    /// So many names. A name that is taken is in it nevertheless: it was asked for.
    pub(super) fn names(&self, count: u32) -> Vec<String> {
        let text = match count {
            1 => self.0.clone(),
            _ if self.0.contains(NUMBER) => self.0.clone(),
            _ => format!("{}-{NUMBER}", self.0),
        };
        let name = |n: u32| text.replace(NUMBER, &n.to_string());
        (1..=count).map(name).collect()
    }
}

/// So many free names for copies of `original`.
pub(super) fn free(original: &str, taken: &BTreeSet<String>, count: u32) -> Vec<String> {
    // Room for the number: an identifier may be as long as containerd allows.
    let kept = original.len().min(MAX - 12);
    let original = original[..kept].trim_end_matches(['.', '_', '-']);
    (1..)
        .map(|n: u32| format!("{original}-fork{n}"))
        .filter(|name| !taken.contains(name))
        .take(count as usize)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(pattern: &str, count: u32) -> Vec<String> {
        pattern.parse::<Pattern>().unwrap().names(count)
    }

    #[test]
    fn a_pattern_numbers_what_is_more_than_one() {
        assert_eq!(names("leaf", 1), ["leaf"]);
        assert_eq!(names("leaf", 2), ["leaf-1", "leaf-2"]);
        assert_eq!(names("a{n}b", 2), ["a1b", "a2b"]);
        assert_eq!(names("a{n}b", 1), ["a1b"]);
        for bad in ["", "-a", "a/b", "a b", "a-", "{m}", "ä"] {
            assert!(bad.parse::<Pattern>().is_err(), "{bad}");
        }
        assert!("x".repeat(73).parse::<Pattern>().is_err());
    }

    #[test]
    fn without_a_pattern_the_next_free_numbers_are_taken() {
        let taken = ["demo-fork1", "demo-fork3"].map(str::to_owned).into();
        assert_eq!(free("demo", &taken, 2), ["demo-fork2", "demo-fork4"]);
        let long = free(&"x".repeat(76), &BTreeSet::new(), 1);
        assert!(long[0].len() <= MAX && long[0].ends_with("-fork1"));
    }
}
