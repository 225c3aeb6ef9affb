// SPDX-License-Identifier: Apache-2.0

//! A file that says what is to happen at the next point that it names.

use std::{fs, path::Path};

use crate::points::Point;

/// Before the name of a point at which the process is to die.
const DIE: &str = "die ";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Fail,
    Die,
}

/// What is asked for there, which is taken out of the file.
pub(crate) fn asked(path: &Path, point: Point) -> Option<Asked> {
    let text = fs::read_to_string(path).ok()?;
    let mut lines: Vec<&str> = text.lines().collect();
    let named = |line: &&str| line.strip_prefix(DIE).unwrap_or(line) == point.name();
    let line = lines.remove(lines.iter().position(named)?);
    // If it stays there, the next time is another time.
    let _ = fs::write(path, lines.join("\n"));
    Some(match line.starts_with(DIE) {
        true => Asked::Die,
        false => Asked::Fail,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_happens_once_and_in_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("points");
        assert_eq!(asked(&path, Point::WarmLook), None);
        fs::write(&path, "cold-stage\nwarm-look\ndie warm-look").unwrap();
        assert_eq!(asked(&path, Point::ColdKill), None);
        assert_eq!(asked(&path, Point::WarmLook), Some(Asked::Fail));
        assert_eq!(asked(&path, Point::WarmLook), Some(Asked::Die));
        assert_eq!(asked(&path, Point::WarmLook), None);
        assert_eq!(fs::read_to_string(&path).unwrap(), "cold-stage");
    }
}
