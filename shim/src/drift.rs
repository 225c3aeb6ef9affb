// SPDX-License-Identifier: Apache-2.0
//! What is another here than where a process image was taken. What is sure to fail is refused
//! before anything is tried ([`crab_store::Lacks`]); this only explains what has failed.

use crab_store::{Machine, ProcessImage};

/// The host that is to restore it: Linux, CRIU and the runtime, by their versions.
pub(crate) struct Here {
    pub(crate) criu: String,
    pub(crate) runtime: String,
}

/// One thing by its name, as it was there and as it is here.
type Pair<'a> = (&'a str, &'a str, &'a str);

/// What differs, in one line; nothing if all is alike, or not known.
pub(crate) fn of(image: &ProcessImage, here: &Here) -> Option<String> {
    let taken = image.machine().unwrap_or_default();
    let now = Machine::here();
    differing(&[
        ("Linux ", &taken.kernel, &now.kernel),
        ("CRIU ", &image.criu_version, &here.criu),
        ("", &taken.runtime, &here.runtime),
        ("crab ", &taken.crab, &now.crab),
    ])
}

fn differing(pairs: &[Pair<'_>]) -> Option<String> {
    let differ =
        |(_, taken, here): &&Pair<'_>| !taken.is_empty() && !here.is_empty() && taken != here;
    let pairs: Vec<_> = pairs.iter().filter(differ).collect();
    if pairs.is_empty() {
        return None;
    }
    let list = |of: fn(&Pair<'_>) -> String| pairs.iter().map(|pair| of(pair)).collect::<Vec<_>>();
    let taken = list(|(name, taken, _)| format!("{name}{taken}"));
    let here = list(|(name, _, here)| format!("{name}{here}"));
    Some(format!(
        "the image was taken with {}, and here is {}",
        taken.join(", "),
        here.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_and_is_known_is_told() {
        let pairs = [
            ("Linux ", "6.12.1", "6.18.44"),
            ("CRIU ", "4.2.1", "4.2.1"),
            ("", "runc 1.3.6", "runc 1.1.15"),
            ("crab ", "", "0.1.0"),
        ];
        assert_eq!(
            differing(&pairs).unwrap(),
            "the image was taken with Linux 6.12.1, runc 1.3.6, and here is Linux 6.18.44, runc 1.1.15"
        );
        assert_eq!(differing(&pairs[1..2]), None);
        assert_eq!(differing(&pairs[3..]), None);
    }
}
