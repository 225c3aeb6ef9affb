// SPDX-License-Identifier: Apache-2.0
//! Opening what a path means within a root, as a process whose root it is would.

use std::os::fd::{AsFd, OwnedFd};

use rustix::{
    fs::{Mode, OFlags, ResolveFlags, openat2},
    io::{Errno, Result},
    path::Arg,
};

/// How often a look that the kernel could not vouch for is taken again. Something in a
/// container can rename all the time; each look takes microseconds, and what is renamed in
/// between seldom falls into more than a few of them.
const LOOKS: usize = 1000;

/// Whether links on the way are followed, and never out of the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    /// As a process in that root would follow them; magic links of `/proc` are refused.
    Followed,
    /// The path has none; whoever put one there wants to lead elsewhere.
    Refused,
}

/// Opens `path` within `root`.
///
/// # Errors
///
/// Whatever `openat2(2)` says. After a `..`, be it a link's, it answers `EAGAIN` when
/// anything on the host was renamed or mounted meanwhile: the kernel cannot vouch then that
/// it has not left the root, and leaves it to its caller to look again.
pub(crate) fn open_in_root<P: Arg + Copy>(
    root: impl AsFd,
    path: P,
    flags: OFlags,
    links: Links,
) -> Result<OwnedFd> {
    let mut resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    resolve.set(ResolveFlags::NO_SYMLINKS, links == Links::Refused);
    let flags = flags | OFlags::CLOEXEC;
    let open = || openat2(root.as_fd(), path, flags, Mode::empty(), resolve);
    for _ in 1..LOOKS {
        match open() {
            Err(Errno::AGAIN) => {}
            answer => return answer,
        }
    }
    open()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs, io,
        path::{Path, PathBuf},
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    #[test]
    fn renames_elsewhere_make_no_difference() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("root");
        fs::create_dir_all(place.join("etc")).unwrap();
        let up: PathBuf = ["etc/.."; 16].iter().collect();
        let root = fs::File::open(&place).unwrap();
        let stop = AtomicBool::new(false);
        let renaming = || -> io::Result<()> {
            let names = ["a", "b"].map(|name| dir.path().join(name));
            fs::write(&names[0], "")?;
            while !stop.load(Ordering::Relaxed) {
                fs::rename(&names[0], &names[1])?;
                fs::rename(&names[1], &names[0])?;
            }
            Ok(())
        };
        thread::scope(|scope| {
            let renamer = scope.spawn(renaming);
            let looks = (0..2000).try_for_each(|_| {
                open_in_root(&root, up.as_path(), OFlags::PATH, Links::Followed).map(drop)
            });
            stop.store(true, Ordering::Relaxed);
            renamer.join().unwrap().unwrap();
            looks.unwrap();
        });
    }

    #[test]
    fn links_are_followed_within_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("etc")).unwrap();
        std::os::unix::fs::symlink("../../../../etc", dir.path().join("up")).unwrap();
        let root = fs::File::open(dir.path()).unwrap();
        let up = Path::new("/up");
        let open = |links| open_in_root(&root, up, OFlags::PATH, links).map(drop);
        assert_eq!(open(Links::Followed), Ok(()));
        assert_eq!(open(Links::Refused), Err(Errno::LOOP));
    }
}
