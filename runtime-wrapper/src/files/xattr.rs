// SPDX-License-Identifier: Apache-2.0
//! Extended attributes, and which of them belong to an image.
//!
//! All namespaces are kept: `user.*`, `security.capability`, POSIX ACLs
//! (`system.posix_acl_*`), `trusted.*`. In an overlay's upper directory some
//! names are overlayfs' own, under `trusted.overlay.` or, on a mount with
//! `userxattr`, under `user.overlay.`; under the other prefix they are a
//! container's plain data and are left alone. Of overlayfs' own
//!
//! * `opaque`, `redirect`, `metacopy`, `whiteout` and `protattr` say what the
//!   merged view is: kept;
//! * `origin`, `impure`, `nlink`, `upper` and `uuid` tie an upper directory to
//!   inode numbers, file handles and one mount: dropped. A kernel that finds
//!   none falls back to the upper inode's own number. Kept, they would be
//!   stale in a rebuilt directory, and `origin` on the root makes a mount with
//!   `index=on` fail with ESTALE;
//! * a name escaped for a nested overlay (`trusted.overlay.overlay.opaque`) is
//!   data of the container: kept.
//!
//! `security.evm` is signed over the inode number and cannot be put back: dropped.

use std::os::fd::BorrowedFd;

use rustix::{
    fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr},
    io::{Errno, Result},
};

use super::beneath::proc_path;

/// Name and value, sorted by name.
pub(crate) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// Which attributes are the file system's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rules {
    /// A file system without an overlay above it.
    Plain,
    /// An overlay's upper directory.
    Overlay {
        /// `trusted.overlay.` or `user.overlay.`.
        prefix: &'static [u8],
    },
}

const BOOKKEEPING: [&[u8]; 5] = [b"origin", b"impure", b"nlink", b"upper", b"uuid"];
const MEANING: [&[u8]; 4] = [b"opaque", b"redirect", b"metacopy", b"whiteout"];

impl Rules {
    pub(crate) fn overlay(user_xattr: bool) -> Self {
        Self::Overlay {
            prefix: if user_xattr {
                b"user.overlay."
            } else {
                b"trusted.overlay."
            },
        }
    }

    pub(crate) fn is_overlay(self) -> bool {
        self != Self::Plain
    }

    /// What overlayfs calls an attribute, if it is overlayfs' own.
    fn own(self, name: &[u8]) -> Option<&[u8]> {
        match self {
            Self::Plain => None,
            Self::Overlay { prefix } => name.strip_prefix(prefix),
        }
    }

    /// Drops what does not belong to an image.
    pub(crate) fn keep(self, mut xattrs: Xattrs) -> Xattrs {
        xattrs.retain(|(name, _)| {
            name != b"security.evm" && self.own(name).is_none_or(|own| !BOOKKEEPING.contains(&own))
        });
        xattrs
    }

    /// What a process in the container sees, without what only steers the merge.
    pub(crate) fn visible(self, xattrs: Xattrs) -> Xattrs {
        let mut xattrs = self.keep(xattrs);
        xattrs.retain(|(name, _)| self.own(name).is_none_or(|own| !MEANING.contains(&own)));
        xattrs
    }

    /// Whether one of overlayfs' own attributes has this name and an acceptable value.
    fn has(self, xattrs: &Xattrs, wanted: &[u8], value: impl Fn(&[u8]) -> bool) -> bool {
        let mut each = xattrs.iter();
        each.any(|(name, found)| self.own(name) == Some(wanted) && value(found))
    }

    /// Whether a directory is not merged with the lower one of its path.
    pub(crate) fn hides_lower(self, xattrs: &Xattrs) -> bool {
        self.has(xattrs, b"opaque", |value| value == b"y")
            || self.has(xattrs, b"redirect", |_| true)
    }

    /// Whether what a directory is merged with lies elsewhere.
    pub(crate) fn is_redirected(self, xattrs: &Xattrs) -> bool {
        self.has(xattrs, b"redirect", |_| true)
    }

    /// Whether an attribute is escaped for an overlay that is nested in this one: it has
    /// another name in the merged view.
    pub(crate) fn is_escaped(self, xattrs: &Xattrs) -> bool {
        let mut each = xattrs.iter();
        each.any(|(name, _)| {
            self.own(name)
                .is_some_and(|own| own.starts_with(b"overlay."))
        })
    }

    /// Whether it is immutable or append-only in the merged view.
    pub(crate) fn is_protected(self, xattrs: &Xattrs) -> bool {
        self.has(xattrs, b"protattr", |_| true)
    }

    /// Whether an entry stands for more, or other, than its own inode says.
    pub(crate) fn steers_merge(self, xattrs: &Xattrs) -> bool {
        MEANING.iter().any(|name| self.has(xattrs, name, |_| true))
    }

    /// Whether an empty regular file is a whiteout, as kernels from 6.7 on allow.
    pub(crate) fn is_xattr_whiteout(self, xattrs: &Xattrs) -> bool {
        self.has(xattrs, b"whiteout", |_| true)
    }
}

/// All attributes of what a descriptor (also an `O_PATH` one) stands for.
pub(crate) fn read(fd: BorrowedFd<'_>) -> Result<Xattrs> {
    let path = proc_path(fd);
    let names = match grown(1024, |buffer| listxattr(&path, buffer)) {
        Ok(names) => names,
        Err(Errno::NOTSUP) => return Ok(Vec::new()),
        Err(errno) => return Err(errno),
    };
    let mut xattrs = Vec::new();
    for name in names
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
    {
        match grown(256, |buffer| getxattr(&path, name, buffer)) {
            Ok(value) => xattrs.push((name.to_vec(), value)),
            // Gone since the list was made; the change time tells the caller.
            Err(Errno::NODATA) => {}
            Err(errno) => return Err(errno),
        }
    }
    xattrs.sort();
    Ok(xattrs)
}

fn grown(start: usize, call: impl Fn(&mut [u8]) -> Result<usize>) -> Result<Vec<u8>> {
    let mut buffer = vec![0; start];
    loop {
        match call(&mut buffer) {
            Ok(len) => {
                buffer.truncate(len);
                return Ok(buffer);
            }
            // The kernel's own limit is 64 KiB for a value and for a list.
            Err(Errno::RANGE) if buffer.len() < 1 << 20 => buffer.resize(buffer.len() * 8, 0),
            Err(errno) => return Err(errno),
        }
    }
}

/// A label is the policy's to give, and on some mounts nobody else may.
fn unless_label(name: &[u8], result: Result<()>) -> Result<()> {
    match result {
        Err(_) if name == b"security.selinux" => Ok(()),
        other => other,
    }
}

/// Sets all of `wanted`.
pub(crate) fn add(fd: BorrowedFd<'_>, wanted: &Xattrs) -> Result<()> {
    let path = proc_path(fd);
    let mut each = wanted.iter();
    each.try_for_each(|(name, value)| {
        let set = setxattr(&path, name.as_slice(), value, XattrFlags::empty());
        unless_label(name, set)
    })
}

/// Makes the attributes exactly `wanted`; what `rules` do not keep is not touched.
pub(crate) fn replace(fd: BorrowedFd<'_>, wanted: &Xattrs, rules: Rules) -> Result<()> {
    let present = rules.keep(read(fd)?);
    if present == *wanted {
        return Ok(());
    }
    let path = proc_path(fd);
    for (name, _) in &present {
        if !wanted.iter().any(|(other, _)| other == name) {
            unless_label(name, removexattr(&path, name.as_slice()))?;
        }
    }
    add(fd, wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> Xattrs {
        names
            .iter()
            .map(|name| (name.as_bytes().to_vec(), b"y".to_vec()))
            .collect()
    }

    #[test]
    fn bookkeeping_goes_and_meaning_stays() {
        let all = named(&[
            "trusted.overlay.opaque",
            "trusted.overlay.origin",
            "trusted.overlay.overlay.origin",
            "user.overlay.origin",
        ]);
        let kept = named(&[
            "trusted.overlay.opaque",
            "trusted.overlay.overlay.origin",
            "user.overlay.origin",
        ]);
        assert_eq!(Rules::overlay(false).keep(all.clone()), kept);
        assert_eq!(Rules::Plain.keep(all.clone()), all);
        assert!(Rules::overlay(false).hides_lower(&all));
        assert!(!Rules::overlay(true).hides_lower(&all));
    }
}
