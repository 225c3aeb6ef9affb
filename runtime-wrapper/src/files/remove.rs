// SPDX-License-Identifier: Apache-2.0
//! Removing a directory that a container filled, however deep it is.
//!
//! The standard library's removal holds one descriptor per level and recurses: a
//! container that nests a few thousand directories makes it fail, or overflow the
//! stack. This one holds two descriptors, and goes up by `..`, which leads back to
//! where it came from because nothing of a container may run in the tree any more.

use std::{io, os::fd::OwnedFd, path::Path};

use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, unlinkat},
    io::Errno,
};

fn open_dir(
    at: impl std::os::fd::AsFd,
    name: impl rustix::path::Arg,
) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, name, flags, Mode::empty())
}

/// Removes `root` with everything in it; nothing there is no error. No link is
/// followed, and no other file system is entered: a mount point in it is an error.
///
/// # Errors
/// When something cannot be removed.
pub fn remove_tree(root: &Path) -> io::Result<()> {
    let mut dir = match open_dir(CWD, root) {
        Ok(dir) => dir,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    };
    // The names from the root to `dir`.
    let mut way = Vec::new();
    loop {
        let mut inner = None;
        for entry in Dir::read_from(&dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if entry.file_type() != FileType::Directory {
                match unlinkat(&dir, name, AtFlags::empty()) {
                    Ok(()) => continue,
                    // The file system did not tell the type.
                    Err(Errno::ISDIR) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            // An empty one goes at once, others are entered one at a time.
            match unlinkat(&dir, name, AtFlags::REMOVEDIR) {
                Ok(()) => {}
                Err(Errno::NOTEMPTY | Errno::EXIST) => {
                    inner = Some(name.to_owned());
                    break;
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        match inner {
            Some(name) => {
                dir = open_dir(&dir, &name)?;
                way.push(name);
            }
            None => {
                let Some(name) = way.pop() else { break };
                dir = open_dir(&dir, "..")?;
                unlinkat(&dir, &name, AtFlags::REMOVEDIR)?;
            }
        }
    }
    Ok(unlinkat(CWD, root, AtFlags::REMOVEDIR)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    #[test]
    fn a_tree_of_any_depth_goes_and_what_links_lead_to_stays() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), "x").unwrap();
        let root = dir.path().join("root");
        fs::create_dir(&root).unwrap();
        symlink(&outside, root.join("link")).unwrap();
        fs::write(root.join("file"), "x").unwrap();
        fs::create_dir(root.join("empty")).unwrap();
        // Far more levels than descriptors, and longer than any path.
        let mut at = open_dir(CWD, &root).unwrap();
        for level in 0..3000 {
            let name = format!("level-{level}");
            rustix::fs::mkdirat(&at, &name, Mode::RWXU).unwrap();
            at = open_dir(&at, &name).unwrap();
        }
        drop(at);
        remove_tree(&root).unwrap();
        assert!(!root.exists());
        assert_eq!(fs::read(outside.join("kept")).unwrap(), b"x");
        remove_tree(&root).unwrap();
    }
}
