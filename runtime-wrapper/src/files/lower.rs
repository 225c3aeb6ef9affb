// SPDX-License-Identifier: Apache-2.0
//! What the lower layers of an overlay show at a path.
//!
//! The layers are the image: they do not change, but what is in them is no
//! more to be trusted than the container. A look-up goes name by name, honours
//! whiteouts and opaque directories of the upper ones among them, and stops at
//! a redirected directory, below which it finds nothing: an entry there counts
//! as changed, never as unchanged.

use std::{
    os::fd::{AsFd, OwnedFd},
    path::Path,
    rc::Rc,
};

use rustix::{
    fs::{Mode, OFlags, open},
    io::{Errno, Result},
};

use super::{
    beneath::{Stat, is_race, open_name, split},
    xattr::{self, Rules},
};

/// Directories of this depth are found anew each time, so that the number of
/// descriptors held does not grow with the depth of a hostile image.
const HELD: usize = 16;

/// The layers' directories at one path, the uppermost first.
type Merged = Vec<Rc<OwnedFd>>;

/// Opens the root of a layer, by a path that the container cannot influence.
pub(crate) fn open_root(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    open(path, flags, Mode::empty())
}

/// Look-ups of one scan.
pub(crate) struct Lowers {
    rules: Rules,
    roots: Merged,
    /// The last directory looked up: each name on the way to it.
    chain: Vec<(Vec<u8>, Merged)>,
}

/// An entry of a lower layer: an `O_PATH` descriptor and what it is.
pub(crate) struct Lower {
    pub(crate) fd: OwnedFd,
    pub(crate) stat: Stat,
}

enum Step {
    Absent,
    Hidden,
    Found(Lower),
}

impl Lowers {
    pub(crate) fn new(rules: Rules, roots: &[OwnedFd]) -> Result<Self> {
        let roots = roots.iter().map(|root| root.try_clone().map(Rc::new));
        Ok(Self {
            rules,
            roots: roots
                .collect::<std::io::Result<_>>()
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?,
            chain: Vec::new(),
        })
    }

    /// What the layers show at `path`.
    pub(crate) fn find(&mut self, path: &[u8]) -> Result<Option<Lower>> {
        if path.is_empty() {
            let Some(root) = self.roots.first() else {
                return Ok(None);
            };
            let fd = open_name(root.as_fd(), c".")?;
            let stat = Stat::of(fd.as_fd())?;
            return Ok(Some(Lower { fd, stat }));
        }
        let (parent, name) = split(path);
        for dir in self.merged(parent)? {
            match self.step(&dir, name)? {
                Step::Absent => {}
                Step::Hidden => return Ok(None),
                Step::Found(lower) => return Ok(Some(lower)),
            }
        }
        Ok(None)
    }

    /// The lower directories that are merged at `path`.
    fn merged(&mut self, path: &[u8]) -> Result<Merged> {
        let names = || {
            path.split(|byte| *byte == b'/')
                .filter(|name| !name.is_empty())
        };
        let common = self
            .chain
            .iter()
            .zip(names())
            .take_while(|((known, _), name)| known == name)
            .count();
        self.chain.truncate(common);
        let mut merged = match self.chain.last() {
            Some((_, merged)) => merged.clone(),
            None => self.roots.clone(),
        };
        for name in names().skip(common) {
            if merged.is_empty() {
                break;
            }
            merged = self.enter(&merged, name)?;
            if self.chain.len() < HELD {
                self.chain.push((name.to_vec(), merged.clone()));
            }
        }
        Ok(merged)
    }

    fn enter(&self, dirs: &Merged, name: &[u8]) -> Result<Merged> {
        let mut merged = Merged::new();
        for dir in dirs {
            match self.step(dir, name)? {
                Step::Absent => {}
                Step::Found(lower) if lower.stat.is_dir() => {
                    let hides = self.rules.hides_lower(&xattr::read(lower.fd.as_fd())?);
                    merged.push(Rc::new(lower.fd));
                    if hides {
                        break;
                    }
                }
                // A file hides the directories below it and is not entered.
                Step::Hidden | Step::Found(_) => break,
            }
        }
        Ok(merged)
    }

    fn step(&self, dir: &OwnedFd, name: &[u8]) -> Result<Step> {
        let fd = match open_name(dir.as_fd(), name) {
            Ok(fd) => fd,
            Err(errno) if is_race(errno) => return Ok(Step::Absent),
            Err(errno) => return Err(errno),
        };
        let stat = Stat::of(fd.as_fd())?;
        let hidden = stat.is_null_device()
            || stat.is_file()
                && stat.size == 0
                && self.rules.is_xattr_whiteout(&xattr::read(fd.as_fd())?);
        Ok(if hidden {
            Step::Hidden
        } else {
            Step::Found(Lower { fd, stat })
        })
    }
}
