// SPDX-License-Identifier: Apache-2.0

//! A file that says what is to happen at the next point that it names.

use std::{fs, path::Path};

use crate::points::Point;

/// Before the name of a point at which the process is to die.
const DIE: &str = "die ";
/// Before the name of one at which it is to stand still.
const HOLD: &str = "hold ";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Fail,
    Die,
    Hold,
}

/// What is asked for there, which is taken out of the file.
pub(crate) fn asked(path: &Path, point: Point) -> Option<Asked> {
    let text = fs::read_to_string(path).ok()?;
    let mut lines: Vec<&str> = text.lines().collect();
    let asked = |line: &str| {
        let (asked, name) = match (line.strip_prefix(DIE), line.strip_prefix(HOLD)) {
            (Some(name), _) => (Asked::Die, name),
            (_, Some(name)) => (Asked::Hold, name),
            _ => (Asked::Fail, line),
        };
        (name == point.name()).then_some(asked)
    };
    let at = lines.iter().position(|line| asked(line).is_some())?;
    let asked = asked(lines.remove(at));
    // If it stays there, the next time is another time.
    let _ = fs::write(path, lines.join("\n"));
    asked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_happens_once_and_in_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("points");
        assert_eq!(asked(&path, Point::WarmLook), None);
        fs::write(
            &path,
            "cold-stage\nwarm-look\ndie warm-look\nhold warm-look",
        )
        .unwrap();
        assert_eq!(asked(&path, Point::ColdKill), None);
        assert_eq!(asked(&path, Point::WarmLook), Some(Asked::Fail));
        assert_eq!(asked(&path, Point::WarmLook), Some(Asked::Die));
        assert_eq!(asked(&path, Point::WarmLook), Some(Asked::Hold));
        assert_eq!(asked(&path, Point::WarmLook), None);
        assert_eq!(fs::read_to_string(&path).unwrap(), "cold-stage");
    }
}
