// SPDX-License-Identifier: Apache-2.0
//! Finding programs, and having others find them.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

/// `PATH` with a directory before all others.
pub(crate) fn path_with(first: &Path) -> OsString {
    let path = search_path();
    let dirs = std::iter::once(first.to_path_buf()).chain(std::env::split_paths(&path));
    // A directory with a colon in it cannot be on a path.
    std::env::join_paths(dirs).unwrap_or(path)
}

fn search_path() -> OsString {
    std::env::var_os("PATH")
        .unwrap_or_else(|| OsString::from("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"))
}

/// Where a program is: itself if it names a path, else by `PATH`.
pub(crate) fn find_program(name: &Path) -> Option<PathBuf> {
    if name.components().count() > 1 {
        return name.exists().then(|| name.to_path_buf());
    }
    std::env::split_paths(&search_path())
        .map(|dir| dir.join(name))
        .find(|candidate| candidate.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chosen_directory_is_searched_first() {
        let path = path_with(Path::new("/opt/criu/bin"));
        let first = std::env::split_paths(&path).next().unwrap();
        assert_eq!(first, Path::new("/opt/criu/bin"));
        assert!(std::env::split_paths(&path).count() > 1);
    }

    #[test]
    fn a_program_is_found_by_name_and_by_path() {
        assert!(find_program(Path::new("sh")).is_some());
        assert!(find_program(Path::new("/bin/sh")).is_some());
        assert!(find_program(Path::new("no-such-program-here")).is_none());
        assert!(find_program(Path::new("/no/such/program")).is_none());
    }
}
