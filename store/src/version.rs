// SPDX-License-Identifier: Apache-2.0

//! Versions of what is on disk. Their numbers have an odd number of bits set (1, 2, 4, 7, 8, 11, ...),
//! so that one which is a later version's is told from one of which a bit has changed.

use std::path::Path;

use crate::error::ReadError;

/// Whether a number is that of any version at all.
pub(crate) fn is_one(number: u32) -> bool {
    number.count_ones() % 2 == 1
}

/// Whether what has this version can be read by who knows up to another.
pub(crate) fn check(path: &Path, found: u32, known: u32) -> Result<(), ReadError> {
    match found {
        found if found <= known => Ok(()),
        found if is_one(found) => Err(ReadError::NewerFormat {
            path: path.to_owned(),
            found,
            known,
            by: None,
        }),
        found => Err(ReadError::Damaged {
            path: path.to_owned(),
            why: format!("there is no version {found}"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_bit_makes_no_later_version() {
        let path = Path::new("x");
        assert!(check(path, 1, 1).is_ok() && check(path, 1, 2).is_ok());
        for known in [1, 2, 4, 7] {
            for bit in 0..32 {
                let found = check(path, known ^ (1 << bit), known);
                assert!(!matches!(found, Err(ReadError::NewerFormat { .. })));
            }
        }
        assert!(matches!(
            check(path, 2, 1),
            Err(ReadError::NewerFormat { .. })
        ));
    }
}
